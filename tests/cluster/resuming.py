"""A job that saves checkpoints, and tells what it found and what came of saving.

It leaves notes in the record of runs, one line each: `entered`, with the checkpoint that it found; `saved`; and `left`, with the
answers to its last saving, the last of which is `saved` or `StaleAttempt`.

The first attempt of a fire stays, deaf, while the file `gate` of its parameter exists; further ones leave at once.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ejpy.errors import RegistryError, StaleAttempt
from ejpy.job import ShardContext, ShardedJob
from tests.support.jobs import RECORD_VARIABLE, append_line


class Resuming(ShardedJob):
    """See the module's text."""

    def execute(self, shard_ctx: ShardContext) -> None:
        gate = json.loads(shard_ctx.job_parameter)["gate"]
        _note("entered", shard_ctx, checkpoint=shard_ctx.checkpoint)
        shard_ctx.save_checkpoint({"saved by": shard_ctx.attempt, "of": shard_ctx.scheduled_time.isoformat()})
        _note("saved", shard_ctx)
        while shard_ctx.attempt == 1 and os.path.exists(gate):
            time.sleep(0.01)
        _note("left", shard_ctx, answers=save_for_certain(shard_ctx))


def save_for_certain(shard_ctx: ShardContext) -> list[str]:
    """Save until it is certain that it was saved, or never will be; the answers."""
    answers: list[str] = []
    while True:
        try:
            shard_ctx.save_checkpoint("last")
        except StaleAttempt:
            return [*answers, StaleAttempt.__name__]
        except RegistryError as error:
            answers.append(type(error).__name__)
            time.sleep(0.01)
        else:
            return [*answers, "saved"]


def _note(event: str, shard_ctx: ShardContext, **more: Any) -> None:
    identity = {
        "item": shard_ctx.sharding_item,
        "scheduled_time": shard_ctx.scheduled_time.isoformat(),
        "attempt": shard_ctx.attempt,
        "pid": os.getpid(),
    }
    append_line(os.environ[RECORD_VARIABLE], {"event": event, **identity, **more})


def notes(record: Path, event: str) -> list[dict[str, Any]]:
    """The notes of one kind, in the order in which they were left."""
    lines = [json.loads(line) for line in record.read_text().split("\n")[:-1]] if record.exists() else []
    return [line for line in lines if line["event"] == event]
