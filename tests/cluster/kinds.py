"""Jobs of other kinds, and listeners, that leave a line in the record of runs for whatever is asked of them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ejpy import DataflowJob, ShardContext, ShardedJob
from ejpy.execution.base import Ended
from ejpy.listeners import DistributeOnceListener, FireInfo, JobListener
from tests.support.jobs import RECORD_VARIABLE, append_line


def note(event: str, **more: Any) -> None:
    append_line(os.environ[RECORD_VARIABLE], {"event": event, "pid": os.getpid(), **more})


class Queue(DataflowJob[str]):
    """Takes files away from the directory that is its parameter, two at a time."""

    def fetch_data(self, shard_ctx: ShardContext) -> Sequence[str]:
        found = sorted(path.name for path in Path(shard_ctx.job_parameter).iterdir())[:2]
        note("fetch", job=shard_ctx.job_name, data=found, scheduled_time=shard_ctx.scheduled_time.isoformat())
        return found

    def process_data(self, shard_ctx: ShardContext, data: Sequence[str]) -> None:
        for name in data:
            (Path(shard_ctx.job_parameter) / name).unlink()


class Endless(DataflowJob[int]):
    """There is always something to fetch."""

    def fetch_data(self, shard_ctx: ShardContext) -> Sequence[int]:
        return [1]

    def process_data(self, shard_ctx: ShardContext, data: Sequence[int]) -> None:
        note("process", job=shard_ctx.job_name)
        time.sleep(0.01)


class Short(ShardedJob):
    """Says that it ran; fails if its parameter says so."""

    def execute(self, shard_ctx: ShardContext) -> None:
        note("body", job=shard_ctx.job_name, item=shard_ctx.sharding_item, scheduled_time=shard_ctx.scheduled_time.isoformat())
        if shard_ctx.job_parameter:
            raise ValueError(shard_ctx.job_parameter)


class Audit(JobListener):
    """Says when it is called."""

    def before_fire(self, fire: FireInfo) -> None:
        _note_fire("before", fire)

    def after_fire(self, fire: FireInfo, results: Mapping[int, Ended]) -> None:
        _note_fire("after", fire, outcomes=[end.outcome.value if end.outcome else None for _, end in sorted(results.items())])


class Raising(JobListener):
    """Fails before each fire."""

    def before_fire(self, fire: FireInfo) -> None:
        raise LookupError("no such table")


class Once(DistributeOnceListener):
    """Says when it is called, on one worker for all."""

    def before_fire_at_last_started(self, fire: FireInfo) -> None:
        _note_fire("all started", fire)

    def after_fire_at_last_completed(self, fire: FireInfo) -> None:
        _note_fire("all completed", fire)


def _note_fire(event: str, fire: FireInfo, **more: Any) -> None:
    note(event, job=fire.job_name, items=list(fire.items), scheduled_time=fire.scheduled_time.isoformat(), **more)
