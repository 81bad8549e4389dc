"""The one timer of a worker process: calls at the instants of every job's schedule. APScheduler does the waiting.

It only says "look now": which fires are due is decided from the ledger, so an instant that comes late, twice or not at all
(a busy loop, a suspended machine, a changed clock) loses and doubles nothing. Instants that passed unnoticed are merged into
one call. When the wall clock jumps, all next instants are computed anew, within `CLOCK_CHECK_SECONDS`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

from apscheduler.executors.base import BaseExecutor
from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.base import BaseTrigger

from ejpy.clock import Clock

CLOCK_CHECK_SECONDS = 30.0
CLOCK_JUMP = timedelta(seconds=1)

NextAfter = Callable[[datetime], "datetime | None"]


class FireTimer:
    """Calls back at instants. All methods and callbacks on the loop that `start` was called on."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scheduler: Any = AsyncIOScheduler(
            timezone=timezone.utc, executors={"default": _CallAtOnce()}, job_defaults={"misfire_grace_time": None}
        )
        self._check: asyncio.TimerHandle | None = None
        self._offset = 0.0

    def start(self) -> None:
        self._offset = self._wall_offset()
        self._scheduler.start()
        self._arm_check()

    def stop(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None
            self._scheduler.shutdown(wait=False)

    def set(self, name: str, next_after: NextAfter, due: Callable[[], None]) -> None:
        """From now on call `due` at each instant that `next_after` yields; replaces what was set for `name`."""
        self._scheduler.add_job(due, _Instants(next_after), id=name, replace_existing=True)

    def remove(self, name: str) -> None:
        """No further calls for `name`. Does nothing if there are none."""
        if self._scheduler.get_job(name) is not None:
            self._scheduler.remove_job(name)

    def _arm_check(self) -> None:
        self._check = asyncio.get_running_loop().call_later(CLOCK_CHECK_SECONDS, self._check_clock)

    def _check_clock(self) -> None:
        offset = self._wall_offset()
        if abs(offset - self._offset) > CLOCK_JUMP.total_seconds():
            for job in self._scheduler.get_jobs():
                job.reschedule(job.trigger)
        self._offset = offset
        self._arm_check()

    def _wall_offset(self) -> float:
        """Against the clock that the loop waits by, which stands still while the machine sleeps."""
        return self._clock.now().timestamp() - asyncio.get_running_loop().time()


class _Instants(BaseTrigger):  # type: ignore[misc]  # APScheduler has no type hints
    """The instants of one schedule, without those that have passed."""

    def __init__(self, next_after: NextAfter) -> None:
        self._next_after = next_after

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime | None:
        return self._next_after(now if previous is None else max(previous, now))


class _CallAtOnce(BaseExecutor):  # type: ignore[misc]
    """Calls the function right there, on the loop: it only marks a job to be looked at."""

    def submit_job(self, job: Any, run_times: list[datetime]) -> None:
        job.func()

    def _do_submit_job(self, job: Any, run_times: list[datetime]) -> None:
        raise AssertionError("submit_job does not come here")
