"""A pattern of wall-clock times: what a cron expression says before any time zone is involved.

Wall times are plain integers, seconds since 1970-01-01 00:00 *on the clock's face*. A pattern knows seconds, minutes,
hours, months and years as sets, and the days of a month by a `DayRule`. The one question it answers, `first_from`, costs
a few microseconds: times of day are looked up in tables made once, days are found in a bit mask of the month. It never
walks through seconds or days, so a clock that jumps by years costs nothing (E11).

Weekdays are numbered 0 = Sunday … 6 = Saturday here; the dialects translate. In a mask of days, bit 15 is the 15th.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from typing import Protocol

DAY = 86_400
_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()


# ---- days of a month ----------------------------------------------------------------------------------------------


class DayRule(Protocol):
    """Which days of a month belong to a pattern."""

    def mask(self, year: int, month: int) -> int:
        """The days of that month, as bits."""
        ...


def _weekday_and_length(year: int, month: int) -> tuple[int, int]:
    """Weekday of the first (0 = Sunday), and number of days, of a month."""
    monday_based, length = monthrange(year, month)
    return (monday_based + 1) % 7, length


def _within(mask: int, length: int) -> int:
    return mask & ((2 << length) - 2)


@dataclass(frozen=True, slots=True)
class DaysOfMonth:
    """Given days; those that a month does not have are left out."""

    days: int

    @classmethod
    def of(cls, days: Collection[int]) -> DaysOfMonth:
        return cls(sum(1 << day for day in set(days)))

    def mask(self, year: int, month: int) -> int:
        return _within(self.days, monthrange(year, month)[1])


@dataclass(frozen=True, slots=True)
class DaysBeforeLast:
    """The day `offset` days before the month's last one; none in a month too short for it."""

    offset: int

    def mask(self, year: int, month: int) -> int:
        return _within(1 << max(monthrange(year, month)[1] - self.offset, 0), 31)


@dataclass(frozen=True, slots=True)
class NearestWeekdayToLast:
    """The working day (Monday to Friday) nearest to the day `offset` days before the last, inside the month."""

    offset: int

    def mask(self, year: int, month: int) -> int:
        first, length = _weekday_and_length(year, month)
        day = length - self.offset
        return 1 << _nearest_weekday(day, first, length) if day > 0 else 0


@dataclass(frozen=True, slots=True)
class NearestWeekday:
    """The working day nearest to a day of the month, inside the month.

    A month without that day is asked as Quartz asks it: the day is counted on into the next month, and if that is a
    Saturday, its Friday may lie in the month again (31W fires on April 30th when May 1st is a Saturday). With 29W and
    30W, Quartz's answer for February depends on the instant it is asked from; what it does when it goes from fire to fire
    is not to fire in February if the pattern has January.
    """

    day: int
    has_january: bool

    def mask(self, year: int, month: int) -> int:
        first, length = _weekday_and_length(year, month)
        if self.day > length and month == 2 and self.has_january:
            return 0
        return _within(1 << _nearest_weekday(self.day, first, length), length)


def _nearest_weekday(day: int, first: int, length: int) -> int:
    weekday = (first + day - 1) % 7
    if weekday == 6:
        return day + 2 if day == 1 else day - 1
    if weekday == 0:
        return day - 2 if day == length else day + 1
    return day


@dataclass(frozen=True, slots=True)
class Weekdays:
    """Given days of the week; `by_first_weekday` holds a mask for each weekday that a month can begin with."""

    by_first_weekday: tuple[int, ...]

    @classmethod
    def of(cls, weekdays: Collection[int]) -> Weekdays:
        return cls(tuple(sum(1 << day for day in range(1, 32) if (first + day - 1) % 7 in weekdays) for first in range(7)))

    def mask(self, year: int, month: int) -> int:
        first, length = _weekday_and_length(year, month)
        return _within(self.by_first_weekday[first], length)


@dataclass(frozen=True, slots=True)
class LastWeekday:
    """The last such weekday of the month."""

    weekday: int

    def mask(self, year: int, month: int) -> int:
        first, length = _weekday_and_length(year, month)
        return 1 << length - (first + length - 1 - self.weekday) % 7


@dataclass(frozen=True, slots=True)
class NthWeekday:
    """The n-th such weekday of the month, 1 to 5; none in a month that has no fifth."""

    weekday: int
    n: int

    def mask(self, year: int, month: int) -> int:
        first, length = _weekday_and_length(year, month)
        return _within(1 << 1 + (self.weekday - first) % 7 + 7 * (self.n - 1), length)


@dataclass(frozen=True, slots=True)
class EitherDay:
    """Days that one rule or the other has."""

    one: DayRule
    other: DayRule

    def mask(self, year: int, month: int) -> int:
        return self.one.mask(year, month) | self.other.mask(year, month)


@dataclass(frozen=True, slots=True)
class BothDays:
    """Days that both rules have."""

    one: DayRule
    other: DayRule

    def mask(self, year: int, month: int) -> int:
        return self.one.mask(year, month) & self.other.mask(year, month)


# ---- the pattern --------------------------------------------------------------------------------------------------


class Pattern:
    """Wall times given by sets of seconds, minutes, hours, months and years (None: all), and a rule for days.

    No set is empty. Nothing is found after `last_year`.
    """

    def __init__(
        self,
        *,
        seconds: Collection[int],
        minutes: Collection[int],
        hours: Collection[int],
        days: DayRule,
        months: Collection[int],
        years: Collection[int] | None,
        last_year: int,
    ) -> None:
        self._second_from = _ceilings(seconds, 60)
        self._minute_from = _ceilings(minutes, 60)
        self._hour_from = _ceilings(hours, 24)
        self._first_in_hour = min(minutes) * 60 + min(seconds)
        self._first_in_day = min(hours) * 3600 + self._first_in_hour
        self._days = days
        self._months = frozenset(months)
        self._years = None if years is None else frozenset(years)
        self._last_year = last_year
        self.repeats = len(set(hours)) == 24 or len(set(minutes)) * len(set(seconds)) > 1
        """Whether it comes more than once within an hour, or in every hour of a day. Everything else is a list of fixed
        times of day."""

    def first_from(self, wall: int, before: int | None = None) -> int | None:
        """The first wall time of the pattern that is not earlier than `wall`, and earlier than `before`."""
        day_number, second_of_day = divmod(wall, DAY)
        day = date.fromordinal(day_number + _EPOCH_ORDINAL)
        year, month = day.year, day.month
        mask = self._mask(year, month) >> day.day
        if mask & 1:
            time = self._time_from(second_of_day)
            if time >= 0:
                return _checked(day_number * DAY + time, before)
        mask = mask >> 1 << (day.day + 1)
        stop = self._last_year * 12 + 11 if before is None else _month_number(before)
        month_number = year * 12 + month - 1
        while not mask:
            month_number += 1
            year, month = month_number // 12, month_number % 12 + 1
            if month_number > stop or year > self._last_year:
                return None
            if self._years is not None and year not in self._years:
                month_number = year * 12 + 11
                continue
            mask = self._mask(year, month)
        first = (mask & -mask).bit_length() - 1
        found = (date(year, month, first).toordinal() - _EPOCH_ORDINAL) * DAY + self._first_in_day
        return _checked(found, before)

    def _mask(self, year: int, month: int) -> int:
        if month not in self._months or year > self._last_year or (self._years is not None and year not in self._years):
            return 0
        return self._days.mask(year, month)

    def _time_from(self, second_of_day: int) -> int:
        """The first time of day not earlier than `second_of_day`, in seconds; -1 if there is none."""
        hour, rest = divmod(second_of_day, 3600)
        next_hour = self._hour_from[hour]
        if next_hour == hour:
            minute, second = divmod(rest, 60)
            next_minute = self._minute_from[minute]
            if next_minute == minute:
                next_second = self._second_from[second]
                if next_second >= 0:
                    return hour * 3600 + minute * 60 + next_second
                next_minute = self._minute_from[minute + 1]
            if next_minute >= 0:
                return hour * 3600 + next_minute * 60 + self._second_from[0]
            next_hour = self._hour_from[hour + 1]
        return next_hour * 3600 + self._first_in_hour if next_hour >= 0 else -1


def _ceilings(values: Collection[int], size: int) -> tuple[int, ...]:
    """For each number up to `size`, the smallest of the values that is not below it, or -1."""
    return tuple(min((value for value in values if value >= number), default=-1) for number in range(size + 1))


def _month_number(wall: int) -> int:
    day = date.fromordinal(wall // DAY + _EPOCH_ORDINAL)
    return day.year * 12 + day.month - 1


def _checked(found: int, before: int | None) -> int | None:
    return found if before is None or found < before else None
