"""The schedules of one job, parsed: the present one, and those under which ledger entries were last accounted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from ejpy.clock import Clock
from ejpy.coordination.claims import Schedule
from ejpy.coordination.ledger import Basis
from ejpy.errors import CronError
from ejpy.schedule.cron import CronSchedule, parse

KEPT = 8
STILL_GOOD = timedelta(days=366)
"""A schedule that fired last within this time can be used: what it left may have to be caught up."""


class Schedules:
    """Parses each schedule once."""

    def __init__(self, clock: Clock, log: logging.LoggerAdapter[logging.Logger]) -> None:
        self._clock = clock
        self._log = log
        self._parsed: dict[Basis, CronSchedule | None] = {}

    def read(self, basis: Basis) -> CronSchedule | None:
        """Parse a schedule that is to be in force; None for a one-off job, which has none. Raises CronError."""
        schedule = parse(basis.cron, basis.time_zone, now=self._clock.now() - STILL_GOOD) if basis.cron else None
        self._keep(basis, schedule)
        return schedule

    def of(self, basis: Basis) -> CronSchedule | None:
        """The schedule, or None if there is none, or it cannot be understood (any more)."""
        if basis not in self._parsed:
            try:
                self.read(basis)
            except CronError as error:
                self._log.warning("a schedule cannot be understood, its fires are not due: %s", error)
                self._keep(basis, None)
        return self._parsed[basis]

    def for_one_look(self) -> Callable[[Basis], Schedule | None]:
        """`of`, with the answers remembered: at one look most items ask the same."""
        remembered: dict[Basis, Schedule | None] = {}

        def schedule_of(basis: Basis) -> Schedule | None:
            if basis not in remembered:
                schedule = self.of(basis)
                remembered[basis] = schedule and _Remembering(schedule)
            return remembered[basis]

        return schedule_of

    def _keep(self, basis: Basis, schedule: CronSchedule | None) -> None:
        self._parsed.pop(basis, None)
        self._parsed[basis] = schedule
        while len(self._parsed) > KEPT:
            del self._parsed[next(iter(self._parsed))]


class _Remembering:
    """A schedule that computes each answer once."""

    def __init__(self, schedule: CronSchedule) -> None:
        self._schedule = schedule
        self._latest: dict[tuple[datetime, datetime], datetime | None] = {}
        self._next: dict[datetime, datetime | None] = {}

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        key = (after, until)
        if key not in self._latest:
            self._latest[key] = self._schedule.latest(after, until)
        return self._latest[key]

    def next_after(self, instant: datetime) -> datetime | None:
        if instant not in self._next:
            self._next[instant] = self._schedule.next_after(instant)
        return self._next[instant]
