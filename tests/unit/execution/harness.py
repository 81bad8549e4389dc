"""A runner of each kind on the test's loop, and what it reports, in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ejpy.attempt import Attempt
from ejpy.clock import SystemClock
from ejpy.errors import StaleAttempt
from ejpy.execution.base import Ended, Execution
from ejpy.execution.bounded import BoundedRunner
from ejpy.execution.instances import JobInstances, name_of_class
from ejpy.execution.loop import AsyncioRunner
from ejpy.execution.process import ProcessRunner
from ejpy.execution.thread import ThreadRunner
from ejpy.job import ShardedJob
from ejpy.terms import Executor, Outcome, Reason
from tests.support.loop import Signals
from tests.unit.execution import bodies

INSTANT = datetime(2026, 3, 1, 12, 0, 30, tzinfo=timezone.utc)


class Gate:
    """Holds bodies until the test lets one or more of them pass."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR)

    def open(self, bodies: int = 1) -> None:
        os.write(self._descriptor, b"x" * bodies)

    def close(self) -> None:
        self.open(64)
        os.close(self._descriptor)


@dataclass
class Harness:
    """A runner, and a record of what it reports: `(item, "saved", value)` and `(item, "ended", Ended)`."""

    runner: BoundedRunner
    default_class: type[ShardedJob]
    signals: Signals = field(default_factory=Signals)
    threads: set[int] = field(default_factory=set)
    """Threads on which the runner called back."""

    def attempt(self, behaviour: str, item: int = 0, **changes: Any) -> Attempt:
        values: dict[str, Any] = {
            "job_name": "shop",
            "job_class": name_of_class(self.default_class),
            "job_parameter": behaviour,
            "sharding_total_count": 8,
            "sharding_item": item,
            "sharding_parameter": None,
            "task_id": "shop@-@0,1@-@READY",
            "scheduled_time": INSTANT,
            "attempt": 1,
            "reason": Reason.SCHEDULED,
            "fencing_token": 17,
            "checkpoint": None,
            "timeout_seconds": None,
            **changes,
        }
        return Attempt(**values)

    def start(self, behaviour: str, item: int = 0, *, may_enter: Callable[[], bool] = lambda: True, **changes: Any) -> Execution:
        return self.runner.start(
            self.attempt(behaviour, item, **changes),
            may_enter=may_enter,
            save_checkpoint=self._save,
            on_ended=self._on_ended,
        )

    async def _save(self, attempt: Attempt, value: Any) -> None:
        self.threads.add(threading.get_ident())
        if value == "refuse":
            raise StaleAttempt("a newer attempt exists")
        self.signals.add(attempt.sharding_item, "saved", value)

    def _on_ended(self, attempt: Attempt, ended: Ended) -> None:
        self.threads.add(threading.get_ident())
        self.signals.add(attempt.sharding_item, "ended", ended)

    def saved(self) -> list[Any]:
        return [value for _, kind, value in self.signals.all if kind == "saved"]

    def entered(self) -> list[int]:
        return [item for item, kind, value in self.signals.all if kind == "saved" and value == "entered"]

    def ended(self) -> dict[int, Ended]:
        return {item: value for item, kind, value in self.signals.all if kind == "ended"}

    def outcomes(self) -> dict[int, Outcome | None]:
        return {item: ended.outcome for item, ended in self.ended().items()}

    async def until_saved(self, value: Any, times: int = 1) -> None:
        await self.signals.until(lambda _: self.saved().count(value) >= times)

    async def until_entered(self, *items: int) -> None:
        await self.signals.until(lambda _: set(items) <= set(self.entered()))

    async def end_of(self, item: int = 0) -> Ended:
        await self.signals.until(lambda _: item in self.ended())
        return self.ended()[item]

    async def run(self, behaviour: str, item: int = 0, **changes: Any) -> Ended:
        """Start an attempt and wait for its end."""
        self.start(behaviour, item, **changes)
        return await self.end_of(item)


@contextlib.asynccontextmanager
async def harness(
    executor: Executor, *, size: int = 2, cancel_grace: float = 0.1, close: bool = True, **options: Any
) -> AsyncIterator[Harness]:
    loop = asyncio.get_running_loop()
    common: dict[str, Any] = {"loop": loop, "clock": SystemClock(), "size": size, "cancel_grace": cancel_grace, **options}
    runner: BoundedRunner
    default_class: type[ShardedJob] = bodies.Plain
    if executor is Executor.THREAD:
        runner = ThreadRunner(instances=JobInstances(), **common)
    elif executor is Executor.ASYNCIO:
        runner = AsyncioRunner(instances=JobInstances(), **common)
        default_class = bodies.Coroutine
    else:
        runner = ProcessRunner(**common)
    made = Harness(runner, default_class)
    try:
        yield made
    finally:
        if close:
            await runner.close(0)
    items = [item for item, kind, _ in made.signals.all if kind == "ended"]
    assert len(items) == len(set(items)), "on_ended was called twice for an attempt"
    assert made.threads <= {threading.get_ident()}, "called back elsewhere than on the control loop"
