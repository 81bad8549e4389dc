"""Jobs whose bodies do what no body should: they do not stop, they raise what nobody catches, they kill their process.

Each body adds a line to the record of runs when it is entered: `{"event": "entered", "job": …, "item": …, "pid": …}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from ejpy.job import ShardContext, ShardedJob
from tests.support.jobs import RECORD_VARIABLE, append_line


class Stubborn(ShardedJob):
    """Does not stop, whatever it is told, if the file `gate` of its parameter exists when it begins; else it returns at once.
    For threads and child processes."""

    def execute(self, shard_ctx: ShardContext) -> None:
        gated = _gated(shard_ctx)
        _enter(shard_ctx)
        while gated:
            try:
                time.sleep(1000)
            except KeyboardInterrupt:
                continue


class StubbornAsync(ShardedJob):
    """The same as a coroutine."""

    async def execute(self, shard_ctx: ShardContext) -> None:
        gated = _gated(shard_ctx)
        _enter(shard_ctx)
        while gated:
            try:
                await asyncio.sleep(1000)
            except asyncio.CancelledError:
                continue


class Patient(ShardedJob):
    """Sleeps for 1000 s, or until it is told to stop."""

    def execute(self, shard_ctx: ShardContext) -> None:
        _enter(shard_ctx)
        shard_ctx.wait(1000)
        shard_ctx.raise_if_cancelled()


class PatientAsync(ShardedJob):
    """The same as a coroutine."""

    async def execute(self, shard_ctx: ShardContext) -> None:
        _enter(shard_ctx)
        await asyncio.sleep(1000)


class Unprintable(Exception):
    """Says nothing about itself, and not quietly."""

    def __str__(self) -> str:
        raise RuntimeError("no message for you")

    __repr__ = __str__


class Bare(BaseException):
    """What no `except Exception` catches."""


ERRORS: dict[str, type[BaseException]] = {
    "exception": ValueError,
    "system-exit": SystemExit,
    "keyboard-interrupt": KeyboardInterrupt,
    "base-exception": Bare,
    "unprintable": Unprintable,
}


class Raising(ShardedJob):
    """Raises the error of ERRORS that its parameter names as `error`; without, it returns garbage."""

    def execute(self, shard_ctx: ShardContext) -> Any:
        _enter(shard_ctx)
        return _misbehave(shard_ctx)


class RaisingAsync(ShardedJob):
    """The same as a coroutine."""

    async def execute(self, shard_ctx: ShardContext) -> Any:
        _enter(shard_ctx)
        return _misbehave(shard_ctx)


class KillsItself(ShardedJob):
    """Kills its own process, as the kernel does when memory runs out, on each run whose scheduled second is even."""

    def execute(self, shard_ctx: ShardContext) -> None:
        _enter(shard_ctx)
        if shard_ctx.scheduled_time.second % 2 == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def _gated(shard_ctx: ShardContext) -> bool:
    return os.path.exists(json.loads(shard_ctx.job_parameter)["gate"])


def _misbehave(shard_ctx: ShardContext) -> Any:
    error = json.loads(shard_ctx.job_parameter).get("error")
    if error is not None:
        raise ERRORS[error](f"{error} as planned")
    return [object(), {"garbage": lambda: None}]


def _enter(shard_ctx: ShardContext) -> None:
    line = {
        "event": "entered",
        "job": shard_ctx.job_name,
        "item": shard_ctx.sharding_item,
        "scheduled_time": shard_ctx.scheduled_time.isoformat(),
        "pid": os.getpid(),
    }
    append_line(os.environ[RECORD_VARIABLE], line)


def entered(record: Path, job: str) -> list[dict[str, Any]]:
    """The lines that bodies of a job left when they were entered, in order."""
    lines = [json.loads(line) for line in record.read_text().split("\n")[:-1]] if record.exists() else []
    return [line for line in lines if line["event"] == "entered" and line["job"] == job]
