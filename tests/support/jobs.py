"""A job for tests that leaves evidence: one line in a file when an attempt enters its body, one when it leaves.

The file is named by the environment variable EJPY_TEST_RECORD and shared by all workers of a test. Each line is one `write`
to a file opened with O_APPEND, so lines of different processes do not mix. A process that is killed in mid-run leaves the
first line alone, which is how a test sees it.

    jobs:
      counted: {class: "tests.support.jobs:RecordingJob", job_parameter: '{"seconds": 0.5, "slow_items": {"0": 9}}', …}

The job parameter, a JSON object, says how the body behaves:

* `seconds` – how long a body takes (default 0); `slow_items` – the same for single items, by item number
* `hold` – path of a file: as long as it exists, no body ends
* `deaf` – true: does not listen to cancellation (default false)
* `fail_items` – items whose bodies raise
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ejpy.job import ShardContext, ShardedJob
from ejpy.terms import Reason

RECORD_VARIABLE = "EJPY_TEST_RECORD"


class Planned(Exception):
    """What the bodies of `fail_items` raise."""


def append_line(path: str, document: dict[str, Any]) -> None:
    """Add one line of JSON to a file that several processes write to."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(document).encode() + b"\n")
    finally:
        os.close(descriptor)


class RecordingJob(ShardedJob):
    """Records each attempt and behaves as its parameter says."""

    def execute(self, shard_ctx: ShardContext) -> None:
        behaviour = json.loads(shard_ctx.job_parameter or "{}")
        identity = {
            "job": shard_ctx.job_name,
            "item": shard_ctx.sharding_item,
            "total": shard_ctx.sharding_total_count,
            "parameter": shard_ctx.sharding_parameter,
            "scheduled_time": shard_ctx.scheduled_time.isoformat(),
            "attempt": shard_ctx.attempt,
            "reason": shard_ctx.reason.value,
            "token": shard_ctx.fencing_token,
            "pid": os.getpid(),
        }
        path = os.environ[RECORD_VARIABLE]
        append_line(path, {"event": "start", "at": time.time(), **identity})
        how = "raised"
        try:
            behave(shard_ctx, behaviour)
            how = "returned"
        finally:
            append_line(path, {"event": "end", "at": time.time(), "how": how, **identity})


def behave(shard_ctx: ShardContext, behaviour: dict[str, Any]) -> None:
    """Take the time that is asked for, end in the way that is asked for."""
    seconds = behaviour.get("slow_items", {}).get(str(shard_ctx.sharding_item), behaviour.get("seconds", 0))
    hold = behaviour.get("hold")
    end = time.monotonic() + seconds
    while time.monotonic() < end or (hold is not None and os.path.exists(hold)):
        if not behaviour.get("deaf", False):
            shard_ctx.raise_if_cancelled()
        time.sleep(0.01)
    if shard_ctx.sharding_item in behaviour.get("fail_items", ()):
        raise Planned(f"item {shard_ctx.sharding_item} fails as planned")


@dataclass(frozen=True, slots=True)
class Execution:
    """One attempt, as its lines tell."""

    job: str
    item: int
    total: int
    parameter: str | None
    scheduled_time: datetime
    attempt: int
    reason: Reason
    token: int
    pid: int
    start: float
    """Seconds since the epoch, by the worker's clock."""
    end: float | None
    """None: the body has not ended, or its process died."""
    how: str | None
    """`returned`, `raised`, or None."""


def read_executions(path: str | Path, job: str | None = None) -> list[Execution]:
    """All attempts recorded in a file, in the order in which they started; those of one job if it is named.

    A line that is just being written is left out; a file that does not exist yet has none.
    """
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return []
    lines = [json.loads(line) for line in text.split("\n")[:-1]]
    ends: dict[tuple[Any, ...], dict[str, Any]] = {_key(line): line for line in lines if line["event"] == "end"}
    executions = []
    for line in lines:
        if line["event"] != "start" or (job is not None and line["job"] != job):
            continue
        ended = ends.get(_key(line))
        executions.append(
            Execution(
                job=line["job"],
                item=line["item"],
                total=line["total"],
                parameter=line["parameter"],
                scheduled_time=datetime.fromisoformat(line["scheduled_time"]),
                attempt=line["attempt"],
                reason=Reason(line["reason"]),
                token=line["token"],
                pid=line["pid"],
                start=line["at"],
                end=None if ended is None else ended["at"],
                how=None if ended is None else ended["how"],
            )
        )
    return executions


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    return line["job"], line["item"], line["scheduled_time"], line["attempt"], line["token"], line["pid"]
