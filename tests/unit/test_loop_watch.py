"""The watch of the control loop, on a loop whose clock a test sets forward."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ejpy.loop_watch import CHECK_SECONDS, LATE_SECONDS, START_SECONDS, WARNINGS_SECONDS, LoopWatch

LATE = LATE_SECONDS + 0.7


class SetLoop(asyncio.SelectorEventLoop):
    """Its time stands still until a test moves it."""

    at = 1000.0

    def time(self) -> float:
        return self.at


def warnings_after(*steps: float, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What is logged when the loop looks at its timers only after each of these steps, in seconds."""
    loop = SetLoop()

    async def story() -> None:
        watch = LoopWatch()
        watch.start()
        for step in steps:
            loop.at += step
            for _ in range(3):  # the timers that are due by now are called
                await asyncio.sleep(0)
        watch.stop()

    caplog.set_level(logging.DEBUG, "ejpy.worker")
    try:
        loop.run_until_complete(story())
    finally:
        loop.close()
    return [record.getMessage() for record in caplog.records]


IN_TIME = [CHECK_SECONDS] * round(START_SECONDS / CHECK_SECONDS + 1)


def test_a_late_loop_is_said_with_how_late_it_was(caplog: pytest.LogCaptureFixture) -> None:
    [warning] = warnings_after(*IN_TIME, CHECK_SECONDS + LATE, *IN_TIME, caplog=caplog)
    assert warning.startswith(f"the control loop was {LATE:.1f} s late")


def test_a_loop_that_is_late_at_the_start_is_not_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The modules of the jobs are imported, and all jobs are registered at once."""
    assert warnings_after(CHECK_SECONDS + LATE, CHECK_SECONDS + START_SECONDS, *IN_TIME, caplog=caplog) == []


def test_nothing_is_said_of_a_loop_that_is_in_time(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_after(*IN_TIME, CHECK_SECONDS + LATE_SECONDS - 0.1, caplog=caplog) == []


def test_it_is_said_once_a_minute_at_most(caplog: pytest.LogCaptureFixture) -> None:
    late = [CHECK_SECONDS + LATE] * round(1.5 * WARNINGS_SECONDS / (CHECK_SECONDS + LATE))
    assert len(warnings_after(*IN_TIME, *late, caplog=caplog)) == 2
