"""The timer calls at instants, merges those that passed, and follows the wall clock when that jumps."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone

import pytest

from ejpy.clock import SystemClock
from ejpy.schedule import timer as timer_module
from ejpy.schedule.timer import FireTimer
from tests.support.loop import run


class Instants:
    """Instants at a fixed distance, from a start on; remembers what it was asked."""

    def __init__(self, start: datetime, every: timedelta) -> None:
        self.start = start
        self.every = every
        self.asked: list[datetime] = []

    def next_after(self, instant: datetime) -> datetime:
        self.asked.append(instant)
        if instant < self.start:
            return self.start
        return self.start + self.every * ((instant - self.start) // self.every + 1)


class Calls:
    def __init__(self) -> None:
        self.count = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def __call__(self) -> None:
        self.count += 1
        for number, future in self._waiting:
            if self.count >= number and not future.done():
                future.set_result(None)

    async def reached(self, number: int) -> None:
        if self.count < number:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((number, future))
            await asyncio.wait_for(future, 20)


def now() -> datetime:
    return datetime.now(timezone.utc)


def test_calls_at_each_instant_and_not_before() -> None:
    async def main() -> None:
        timer, calls = FireTimer(SystemClock()), Calls()
        instants = Instants(now() + timedelta(milliseconds=50), timedelta(milliseconds=20))
        timer.start()
        timer.set("job", instants.next_after, calls)
        await calls.reached(5)
        assert now() >= instants.start + 4 * instants.every
        timer.stop()

    run(main())


def test_a_replaced_or_removed_job_is_not_called_any_more() -> None:
    async def main() -> None:
        timer, old, new = FireTimer(SystemClock()), Calls(), Calls()
        timer.start()
        timer.set("job", Instants(now() + timedelta(days=1), timedelta(days=1)).next_after, old)
        timer.set("job", Instants(now(), timedelta(milliseconds=20)).next_after, new)
        await new.reached(2)
        timer.remove("job")
        timer.remove("job")
        count = new.count
        other = Calls()
        timer.set("other", Instants(now(), timedelta(milliseconds=20)).next_after, other)
        await other.reached(3)
        assert (old.count, new.count) == (0, count)
        timer.stop()

    run(main())


def test_instants_that_passed_while_the_loop_was_busy_are_one_call() -> None:
    """E11, APScheduler #526: no list of all missed instants is built."""

    async def main() -> None:
        timer, calls = FireTimer(SystemClock()), Calls()
        instants = Instants(now() + timedelta(milliseconds=100), timedelta(microseconds=10))
        ended = now() + timedelta(milliseconds=200)
        timer.start()
        timer.set("job", instants.next_after, calls)
        await asyncio.sleep(0)  # let the timer arm itself
        while now() < ended:
            pass
        instants.every = timedelta(days=1)
        await calls.reached(1)
        assert len(instants.asked) < 10
        timer.stop()

    run(main())


class JumpingClock(SystemClock):
    """A wall clock that somebody sets."""

    offset = timedelta(0)

    def now(self) -> datetime:
        return super().now() + self.offset


@pytest.mark.parametrize("jump", [timedelta(days=3650), timedelta(hours=-1)])
def test_a_jump_of_the_wall_clock_has_every_instant_computed_anew(jump: timedelta, monkeypatch: pytest.MonkeyPatch) -> None:
    """E11: the next instant was computed by the old clock, and would be waited for."""
    monkeypatch.setattr(timer_module, "CLOCK_CHECK_SECONDS", 0.05)

    async def main() -> None:
        clock = JumpingClock()
        timer, calls = FireTimer(clock), Calls()
        instants = Instants(now() + timedelta(days=20), timedelta(milliseconds=20))
        timer.start()
        timer.set("job", instants.next_after, calls)
        instants.start = now()
        clock.offset = jump
        await calls.reached(1)
        timer.stop()

    run(main())
