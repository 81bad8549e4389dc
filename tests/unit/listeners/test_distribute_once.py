"""Distribute-once listeners on several workers: runners with threads, and one registry that they share."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import pytest

from ejpy.clock import SystemClock
from ejpy.execution.base import Ended
from ejpy.listeners import DistributeOnceListener, FireInfo, Guarantee
from ejpy.registry.base import Create, Delete
from ejpy.registry.memory import MemoryRegistry, MemoryStore
from ejpy.registry.mirror import TreeMirror
from tests.support.loop import eventually, run
from tests.unit.listeners.listening import INSTANT, Bench, Happened, bench

ROOT = "/ns/shop"


class Once(DistributeOnceListener):
    """Says when it is called."""

    def __init__(self, happened: Happened, timeout: float | None = 20.0, raises: BaseException | None = None) -> None:
        self.started_timeout = self.completed_timeout = timeout
        self._happened = happened
        self._raises = raises
        self.gate = threading.Event()
        self.gate.set()

    def before_fire(self, fire: FireInfo) -> None:
        self._happened.add("before")

    def before_fire_at_last_started(self, fire: FireInfo) -> None:
        self._happened.add("STARTED")
        assert self.gate.wait(30)
        if self._raises is not None:
            raise self._raises

    def after_fire(self, fire: FireInfo, results: Mapping[int, Ended]) -> None:
        self._happened.add("after")

    def after_fire_at_last_completed(self, fire: FireInfo) -> None:
        self._happened.add("COMPLETED")


@dataclass
class Shared:
    """What all workers share."""

    happened: Happened = field(default_factory=Happened)
    """Of all of them, in order."""
    store: MemoryStore = field(default_factory=lambda: MemoryStore(SystemClock()))
    items: set[int] = field(default_factory=lambda: set(range(4)))
    uuids: itertools.count[int] = field(default_factory=itertools.count)

    def registry(self) -> MemoryRegistry:
        return MemoryRegistry(self.store, clock=SystemClock(), session_timeout=30)

    async def make_job(self) -> None:
        registry = self.registry()
        await registry.start(5)
        await registry.commit([Create("/ns"), Create(ROOT)])
        await registry.stop(1)

    @contextlib.asynccontextmanager
    async def worker(
        self, timeout: float | None = 20.0, raises: BaseException | None = None, listeners: int = 1
    ) -> AsyncIterator[Bench]:
        registry = self.registry()
        await registry.start(5)
        made: list[Guarantee] = []
        mirror = TreeMirror(registry, ROOT, lambda _: made[0].look())
        made.append(Guarantee(registry, ROOT, mirror, expected=lambda: self.items, new_uuid=lambda: f"uuid-{next(self.uuids)}"))
        await mirror.start()
        try:
            once = partial(Once, timeout=timeout, raises=raises)
            async with bench(*[once] * listeners, once_for_all=made[0], happened=self.happened) as b:
                yield b
        finally:
            made[0].close()
            mirror.close()
            await registry.stop(1)

    def bodies(self) -> list[str]:
        return [each for each in self.happened.all if each.startswith("body")]

    def registered(self, side: str) -> list[str]:
        return self.store.children(f"{ROOT}/guarantee/{side}") or []

    async def registers(self, side: str, *items: str) -> None:
        await eventually(lambda: set(items) <= set(self.registered(side)))


def test_called_once_for_all_workers_before_the_first_body_and_after_the_last_end() -> None:
    """Field report J16: hooks that ran on every node, or too early."""

    async def main() -> None:
        shared = Shared()
        await shared.make_job()
        async with shared.worker() as a, shared.worker() as b:
            for item in (0, 1):
                a.start(item, job_parameter="until told 0")
            await shared.registers("started", "0", "1")
            assert shared.bodies() == [], "it waits for the others"
            b.start(2)
            failing = b.start(3, job_parameter="fail")
            assert failing.attempt.sharding_item == 3
            await shared.registers("completed", "2", "3")
            all = shared.happened.all
            assert all[:3] == ["before", "before", "STARTED"]
            assert "COMPLETED" not in all, "one body has not ended"
            [held] = [gated for gated in a.runner._live if gated.attempt.sharding_item == 0]
            held.cancel("enough")
            await a.until("COMPLETED")
            assert all[-1] == "COMPLETED"
            assert sorted(each for each in all if each.isupper()) == ["COMPLETED", "STARTED"]
            assert len(shared.bodies()) == 4
            assert a.failures == b.failures == []

    run(main())


def test_twenty_fires_are_called_twenty_times() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.make_job()
        async with shared.worker() as a, shared.worker() as b:
            for number in range(20):
                instant = INSTANT.replace(minute=number)
                for bench_, item in ((a, 0), (b, 1), (a, 2), (b, 3)):
                    bench_.start(item, scheduled_time=instant)
                await shared.happened.until(lambda all, n=number: all.count("COMPLETED") == n + 1)  # type: ignore[misc]
            assert shared.happened.all.count("STARTED") == 20
            assert len(shared.bodies()) == 80
            assert a.failures == b.failures == []

    run(main())


def test_after_a_time_out_the_error_handler_is_told_and_the_fire_goes_on() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.make_job()
        async with shared.worker(timeout=0.05) as a:
            a.start(0)
            await a.until("failure", "body 0", "ended 0 succeeded", "failure")
            assert not [each for each in shared.happened.all if each.isupper()]
            assert [failure.error for failure in a.failures] == [
                "before_fire_at_last_started: not all items had started within 0.05 s: item 1, 2, 3 did not come",
                "after_fire_at_last_completed: not all items had completed within 0.05 s: item 1, 2, 3 did not come",
            ]

    run(main())


def test_what_the_call_raises_is_told_and_nobody_waits_longer() -> None:
    async def main() -> None:
        shared = Shared(items={0})
        await shared.make_job()
        async with shared.worker(raises=SystemExit(3)) as a:
            a.start(0)
            await a.until("COMPLETED")
            assert [failure.error for failure in a.failures] == ["before_fire_at_last_started of Once: SystemExit: 3"]
            assert "ended 0 succeeded" in shared.happened.all

    run(main())


def test_a_fire_that_is_told_to_stop_waits_for_nobody() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.make_job()
        async with shared.worker(timeout=None) as a:
            told = [a.start(0), a.start(1)]
            await shared.registers("started", "0", "1")
            told[0].withdraw()
            told[1].cancel("the test says so")
            await a.until("ended 0 None", "ended 1 None", "after")
            await eventually(lambda: not a.runner._tasks)
            assert shared.registered("completed") == [], "none of its items was run"
            assert a.failures == []

    run(main())


def test_a_call_that_has_begun_is_left_in_peace_when_its_fire_is_told_to_stop() -> None:
    """`after_fire` does not come while the listener is still in its first call."""

    async def main() -> None:
        shared = Shared(items={0})
        await shared.make_job()
        async with shared.worker() as a:
            [listener] = a.runner._listeners
            assert isinstance(listener, Once)
            listener.gate.clear()
            told = a.start(0)
            await a.until("STARTED")
            told.withdraw()
            await a.until("ended 0 None")
            [task] = a.runner._tasks
            await asyncio.wait({task}, timeout=0.1)
            assert "after" not in shared.happened.all
            listener.gate.set()
            await a.until("after")

    run(main())


def test_items_that_were_not_entered_do_not_count_as_ended() -> None:
    async def main() -> None:
        shared = Shared(items={0, 1})
        await shared.make_job()
        async with shared.worker() as a:
            a.start(0)
            a.start(1, may_enter=lambda: False)
            await shared.registers("completed", "0")
            assert shared.registered("completed") == ["0"]
            a.start(1)  # given back, and claimed again
            await a.until("COMPLETED")
            assert shared.happened.all.count("STARTED") == 1

    run(main())


@pytest.mark.parametrize("side", ["started", "completed"])
def test_a_round_that_cannot_be_written_is_told_and_the_fire_goes_on(side: str) -> None:
    """The registry holds something there that is in the way: an ephemeral node can have no children."""

    async def main() -> None:
        shared = Shared(items={0})
        await shared.make_job()
        blocker = shared.registry()
        await blocker.start(5)
        await blocker.commit([Create(f"{ROOT}/guarantee"), Create(f"{ROOT}/guarantee/{side}", ephemeral=True)])
        async with shared.worker() as a:
            a.start(0)
            await a.until("failure", "ended 0 succeeded", "after")
            [failure] = a.failures
            assert "parent is ephemeral" in failure.error
        await blocker.commit([Delete(f"{ROOT}/guarantee/{side}")])
        await blocker.stop(1)

    run(main())


def test_close_while_waiting_for_others() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.make_job()
        async with shared.worker(timeout=None) as a:
            a.start(0)
            await shared.registers("started", "0")
            assert await a.runner.close(10) == []
            await a.until("ended 0 None", "after")

    run(main())


def test_listeners_of_one_job_share_a_round() -> None:
    """Each of them is called, though the instant is settled once."""

    async def main() -> None:
        shared = Shared(items={0})
        await shared.make_job()
        async with shared.worker(listeners=2) as a:
            a.start(0)
            await a.until("COMPLETED", "COMPLETED")
            assert shared.happened.all.count("STARTED") == 2

    run(main())


def test_a_worker_that_is_to_end_does_not_wait_for_the_others() -> None:
    async def main() -> None:
        shared = Shared()
        await shared.make_job()
        async with shared.worker() as a, shared.worker() as b:
            for item in (0, 1):
                a.start(item)
            for item in (2, 3):
                b.start(item, job_parameter="until told")
            await shared.registers("completed", "0", "1")
            await a.runner.settled()
            assert "COMPLETED" not in shared.happened.all
            assert not a.runner.idle
            left = asyncio.ensure_future(b.runner.settled())
            for gated in list(b.runner._live):
                gated.cancel("enough")
            await left
            await b.until("COMPLETED")

    run(main())
