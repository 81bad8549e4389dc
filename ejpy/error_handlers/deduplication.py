"""Telling the same failure once, and how often it came again.

A job that fails fails at every fire and in every item, mostly with the same error; a mail for each makes people filter them
all. So a failure is told, and for a while afterwards failures of the same job with the same error, whatever their item, are
only counted. The next one after that while is told with the count. The while is counted from the last one that was told, not
from the last one that came: a failure that goes on is told again and again, at intervals.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from ejpy.clock import Clock
from ejpy.error_handlers.base import JobFailure
from ejpy.logs import fields

MOST_ERRORS = 1000
"""So many different errors are remembered. An error whose text never comes twice would fill the memory."""


@dataclass(slots=True)
class _Told:
    until: float
    suppressed: int = 0


class Deduplication:
    """What was told lately. All methods in one thread. `log` is told of what was counted and never told."""

    def __init__(self, clock: Clock, log: logging.Logger) -> None:
        self._clock = clock
        self._log = log
        self._told: dict[tuple[str, str], _Told] = {}

    def to_tell(self, failure: JobFailure, window: timedelta) -> JobFailure | None:
        """The failure to tell now, with its count; None if it was only counted."""
        key = failure.job_name, failure.error
        now = self._clock.monotonic()
        told = self._told.get(key)
        if told is not None and now < told.until:
            told.suppressed += 1
            return None
        self._told.pop(key, None)
        if window > timedelta(0):
            self._make_room(now)
            self._told[key] = _Told(now + window.total_seconds())
        return replace(failure, suppressed=told.suppressed) if told is not None else failure

    def not_told(self, failure: JobFailure) -> None:
        """What `to_tell` gave could not be told: it counts among those that the next one tells of."""
        told = self._told.get((failure.job_name, failure.error))
        if told is not None:
            told.suppressed += failure.suppressed + 1

    def forget(self, job_name: str | None = None) -> None:
        """Forget a job, or all; what was only counted is logged."""
        for key in [key for key in self._told if job_name is None or key[0] == job_name]:
            self._drop(key)

    def _make_room(self, now: float) -> None:
        if len(self._told) >= MOST_ERRORS:
            self._drop_all(lambda told: told.until <= now)
        while len(self._told) >= MOST_ERRORS:
            self._drop(next(iter(self._told)))

    def _drop_all(self, over: Callable[[_Told], bool]) -> None:
        for key in [key for key, told in self._told.items() if over(told)]:
            self._drop(key)

    def _drop(self, key: tuple[str, str]) -> None:
        told = self._told.pop(key)
        if told.suppressed:
            job, error = key
            self._log.info("%d more with the same error were not told: %s", told.suppressed, error, extra=fields(job=job))
