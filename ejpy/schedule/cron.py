"""Cron expressions: `parse` reads one, a `CronSchedule` tells its instants.

The number of fields tells the dialect: six or seven are Quartz's (seconds first), five are Unix's, as is `@daily` and its
kin. Both become a `Pattern` of wall times, which `daylight` lays on a zone's clock. Users' page: docs/cron.md.

Nothing here reads a clock. Instants go in and come out as aware datetimes; those that come out are in the schedule's zone.
Python compares two datetimes of one zone by their wall times, which go back in autumn: convert to UTC before comparing.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone, tzinfo

from ejpy.errors import CronError
from ejpy.schedule import quartz, unix
from ejpy.schedule.daylight import first_fire
from ejpy.schedule.pattern import Pattern
from ejpy.schedule.zones import time_zone as zone_named

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """When a job fires. Made by `parse`; immutable.

    Instants are whole seconds. Quartz looks no further than 100 years ahead, counted from when the expression was parsed,
    and so does this, for both dialects.
    """

    expression: str
    """As it was written."""
    time_zone: tzinfo
    remarks: tuple[str, ...] = field(compare=False)
    """Text in the expression that has no effect, one line each; worth a warning. Quartz passes over some mistakes."""
    _pattern: Pattern = field(repr=False, compare=False)

    def next_after(self, instant: datetime) -> datetime | None:
        """The first fire strictly later than `instant` (aware); None if there is none."""
        fire = first_fire(self._pattern, self.time_zone, _floor(instant) + 1)
        return None if fire is None else self._datetime(fire)

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """The last fire later than `after` and not later than `until` (both aware); None if there is none.

        The cost grows with the logarithm of the interval.
        """
        earliest, last = _floor(after) + 1, _floor(until)
        window, found, start = 1, None, last + 1
        while found is None and start > earliest:
            start = max(earliest, last + 1 - window)
            found = self._fire_within(start, last)
            window *= 2
        if found is None:
            return None
        # `found` is the first fire from `start` on. Halve what follows it until no later one is left.
        none_from = last + 1
        while none_from - found > 1:
            middle = (found + none_from) // 2
            later = self._fire_within(middle, last)
            if later is None:
                none_from = middle
            else:
                found = later
        return self._datetime(found)

    def _fire_within(self, start: int, last: int) -> int | None:
        if start > last:
            return None
        fire = first_fire(self._pattern, self.time_zone, start)
        return fire if fire is not None and fire <= last else None

    def _datetime(self, fire: int) -> datetime:
        return datetime.fromtimestamp(fire, self.time_zone)


def parse(expression: str, time_zone: str | None, *, now: datetime) -> CronSchedule:
    """Read a cron expression.

    `time_zone` is an IANA name or one of Java's offsets (`GMT+08:00`); None and "" are the machine's local zone. `now` is
    aware; it serves to check that there is a fire after it.

    Raises CronError, in one line, if the expression or the zone cannot be read, or if nothing fires after `now`.
    """
    last_year = now.astimezone(timezone.utc).year + 100
    zone = zone_named(time_zone)
    fields = quartz.fields_of(expression)
    remarks: tuple[str, ...] = ()
    if len(fields) == 1 and fields[0].startswith("@"):
        pattern = unix.read(expression, quartz.fields_of(_spelled_out(expression, fields[0])), last_year=last_year)
    elif len(fields) == 5:
        pattern = unix.read(expression, fields, last_year=last_year)
    elif len(fields) in (6, 7):
        pattern, remarks = quartz.read(expression, last_year=last_year)
    else:
        raise CronError(
            f"cron {expression!r} has {len(fields)} fields; write 6 or 7 as for Quartz (second minute hour day-of-month "
            "month day-of-week [year]), 5 as for Unix (minute hour day-of-month month day-of-week), or @daily and the like"
        )
    schedule = CronSchedule(expression, zone, remarks, pattern)
    if schedule.next_after(now) is None:
        last = schedule.latest(_EPOCH, now)
        past = "it can never fire" if last is None else f"its last time was {last.isoformat()}"
        raise CronError(f"cron {expression!r} does not fire after {now.isoformat()}: {past}; check day, month and year")
    return schedule


def fire_times(expression: str, time_zone: str | None, after: datetime) -> Iterator[datetime]:
    """The fires of an expression later than `after` (aware), one after the other, in its zone; ends if there are no more.

    Raises CronError as `parse` does, at once and not at the first instant.
    """
    return _fires(parse(expression, time_zone, now=after), after)


def _fires(schedule: CronSchedule, after: datetime) -> Iterator[datetime]:
    fire = schedule.next_after(after)
    while fire is not None:
        yield fire
        fire = schedule.next_after(fire)


def _spelled_out(expression: str, nickname: str) -> str:
    if nickname not in unix.NICKNAMES:
        close = difflib.get_close_matches(nickname.lower(), unix.NICKNAMES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(unix.NICKNAMES)}"
        raise CronError(f"cron {expression!r}: {nickname!r} is not known; {hint}")
    return unix.NICKNAMES[nickname]


def _floor(instant: datetime) -> int:
    """Whole seconds since the epoch."""
    if instant.utcoffset() is None:
        raise ValueError(f"an aware datetime is needed, one with a time zone; got {instant!r}")
    return (instant - _EPOCH) // _SECOND
