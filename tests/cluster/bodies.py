"""A job whose bodies, on one worker of a test, stay on after they were told to stop, and then try to have a say."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ejpy.errors import RegistryError, StaleAttempt
from ejpy.job import ShardContext
from tests.support.jobs import RECORD_VARIABLE, RecordingJob, append_line

GATE_VARIABLE = "EJPY_TEST_GATE"
"""Names a file. On a worker that has it, bodies that find the file do not leave while it exists."""


class LateJob(RecordingJob):
    """Everywhere else as its parent. Late bodies leave notes instead of the usual lines: `entered`; `told`, when they were
    first told to stop; and `left`, with what came of the checkpoint that they saved last (`saved`, or the error's name)."""

    def execute(self, shard_ctx: ShardContext) -> None:
        gate = os.environ.get(GATE_VARIABLE)
        if gate is None or not os.path.exists(gate):
            super().execute(shard_ctx)
            return
        _note("entered", shard_ctx)
        told = False
        while os.path.exists(gate):
            if shard_ctx.cancelled and not told:
                told = True
                _note("told", shard_ctx)
            time.sleep(0.01)
        checkpoint = "saved"
        try:
            shard_ctx.save_checkpoint("late")
        except (StaleAttempt, RegistryError) as error:
            checkpoint = type(error).__name__
        _note("left", shard_ctx, checkpoint=checkpoint)


def _note(event: str, shard_ctx: ShardContext, **more: Any) -> None:
    identity = {
        "item": shard_ctx.sharding_item,
        "scheduled_time": shard_ctx.scheduled_time.isoformat(),
        "attempt": shard_ctx.attempt,
        "pid": os.getpid(),
    }
    append_line(os.environ[RECORD_VARIABLE], {"event": event, "at": time.time(), **identity, **more})


def notes(record: Path, event: str) -> dict[int, dict[str, Any]]:
    """The notes of one kind by item; each item has one at most."""
    lines = [json.loads(line) for line in record.read_text().split("\n")[:-1]] if record.exists() else []
    found = [line for line in lines if line["event"] == event]
    by_item = {line["item"]: line for line in found}
    assert len(by_item) == len(found), f"more than one {event!r} of an item: {found}"
    return by_item
