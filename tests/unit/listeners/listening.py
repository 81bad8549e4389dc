"""A listening runner before a real runner of threads, and what happens there, in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from ejpy.attempt import Attempt
from ejpy.clock import SystemClock
from ejpy.error_handlers import JobFailure
from ejpy.execution.base import Ended, Execution
from ejpy.execution.daemon import DaemonExecutor
from ejpy.execution.instances import JobInstances, name_of_class
from ejpy.execution.thread import ThreadRunner
from ejpy.job import ShardContext, ShardedJob
from ejpy.listeners import FireInfo, JobListener
from ejpy.listeners.listening import ListeningRunner, OnceForAll
from ejpy.terms import Reason
from tests.support.loop import Signals

INSTANT = datetime(2026, 3, 1, 12, 0, 30, tzinfo=timezone.utc)


class Body(ShardedJob):
    """Says that it runs by a checkpoint, and ends as the job parameter says."""

    def execute(self, context: ShardContext) -> None:
        context.save_checkpoint("body")
        if context.job_parameter == "until told" or context.job_parameter == f"until told {context.sharding_item}":
            assert context.wait(60)
        elif context.job_parameter == "fail":
            raise ValueError("no such order")


class Happened(Signals):
    """`add`, from any thread."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()

    def add(self, *what: Any) -> None:
        if threading.get_ident() == self.thread:
            super().add(*what)
        else:
            self._loop.call_soon_threadsafe(super().add, *what)


class Telling(JobListener):
    """Says when it is called; `gate`, once closed, holds it up until it is opened."""

    def __init__(
        self, happened: Happened, name: str = "", order: int = 0, raises: Mapping[str, BaseException] | None = None
    ) -> None:
        self.order = order
        self.gates = {"before": threading.Event(), "after": threading.Event()}
        self.threads: set[int] = set()
        self.fires: list[FireInfo] = []
        self.results: list[Mapping[int, Ended]] = []
        self._happened = happened
        self._name = name
        self._raises = raises or {}
        for gate in self.gates.values():
            gate.set()

    def before_fire(self, fire: FireInfo) -> None:
        self.fires.append(fire)
        self._called("before")

    def after_fire(self, fire: FireInfo, results: Mapping[int, Ended]) -> None:
        self.results.append(results)
        self._called("after")

    def _called(self, what: str) -> None:
        self.threads.add(threading.get_ident())
        logging.getLogger("shop").info("in the listener")
        self._happened.add(f"{what} {self._name}".strip())
        assert self.gates[what].wait(30)
        if what in self._raises:
            raise self._raises[what]


@dataclass
class Bench:
    runner: ListeningRunner
    inner: ThreadRunner
    happened: Happened
    failures: list[JobFailure] = field(default_factory=list)

    def attempt(self, item: int = 0, **changes: Any) -> Attempt:
        values: dict[str, Any] = {
            "job_name": "shop",
            "job_class": name_of_class(Body),
            "job_parameter": "",
            "sharding_total_count": 8,
            "sharding_item": item,
            "sharding_parameter": None,
            "task_id": f"shop@-@{item}@-@READY@-@10.0.0.7@-@4242.k3",
            "scheduled_time": INSTANT,
            "attempt": 1,
            "reason": Reason.SCHEDULED,
            "fencing_token": 17,
            "checkpoint": None,
            "timeout_seconds": None,
            **changes,
        }
        return Attempt(**values)

    def start(self, item: int = 0, *, may_enter: Callable[[], bool] = lambda: True, **changes: Any) -> Execution:
        return self.runner.start(
            self.attempt(item, **changes), may_enter=may_enter, save_checkpoint=self._save, on_ended=self._ended
        )

    async def _save(self, attempt: Attempt, value: Any) -> None:
        self.happened.add(f"{value} {attempt.sharding_item}")

    def _ended(self, attempt: Attempt, ended: Ended) -> None:
        self.happened.add(f"ended {attempt.sharding_item} {ended.outcome.value if ended.outcome else None}")

    async def until(self, *what: str) -> None:
        await self.happened.until(lambda all: all_in(what, all))


def all_in(wanted: Sequence[str], found: Sequence[str]) -> bool:
    return all(found.count(each) >= wanted.count(each) for each in wanted)


@contextlib.asynccontextmanager
async def bench(
    *makers: Callable[[Happened], JobListener],
    once_for_all: OnceForAll | None = None,
    inner_class: type[ThreadRunner] = ThreadRunner,
    happened: Happened | None = None,
) -> AsyncIterator[Bench]:
    """`makers` make the listeners. `happened`: the record, if it is to be one for several runners."""
    loop = asyncio.get_running_loop()
    happened = happened or Happened()
    clock = SystemClock()
    inner = inner_class(loop=loop, clock=clock, instances=JobInstances(), size=4, cancel_grace=0.1)
    threads = DaemonExecutor()
    failures: list[JobFailure] = []

    def failed(failure: JobFailure) -> None:
        failures.append(failure)
        happened.add("failure")

    runner = ListeningRunner(
        inner,
        [make(happened) for make in makers],
        loop=loop,
        clock=clock,
        threads=threads,
        instance_id="10.0.0.7@-@4242.k3",
        on_failure=failed,
        once_for_all=once_for_all,
    )
    try:
        yield Bench(runner, inner, happened, failures)
    finally:
        await runner.close(5)
        await inner.close(0)
        threads.shutdown()
