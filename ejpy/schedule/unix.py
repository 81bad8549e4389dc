"""Cron expressions of five fields, and the `@daily` family, read as crontab(5) describes them.

    minute hour day-of-month month day-of-week

croniter expands the fields. It takes more than a crontab does, and some of it with another meaning (`5/15`, `22-2`, `?`,
`L`, `H`, random `R`; `3-3` is the whole field to it, and so is `7-0`; `0,*` is 0), so only what crontab(5) has is handed to
it, in a form that it takes for the same: numbers, ranges that ascend, lists of these, steps after `*` or a range.

Day and day of week: if both are restricted, either is enough; else both must fit, which only matters when one begins
with `*` and has a step. That a field beginning with `*` counts as unrestricted is what Vixie's cron and its descendants do;
croniter takes `*/2` for a restriction, therefore the two days are put together here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from croniter import CroniterError, croniter

from ejpy.errors import CronError
from ejpy.schedule.pattern import BothDays, DayRule, DaysOfMonth, EitherDay, Pattern, Weekdays

NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAY_NAMES = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_WEEKDAYS = {name: number for number, name in enumerate(_WEEKDAY_NAMES)}

_PART = re.compile(r"(?:\*|(?P<low>[0-9]{1,9}|[a-z]{3})(?:-(?P<high>[0-9]{1,9}|[a-z]{3}))?)(?:/(?P<step>[0-9]{1,9}))?")


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    first: int
    last: int
    allowed: str
    names: dict[str, int]


_FIELDS = (
    _Field("minute", 0, 59, "0-59, lists 0,30, ranges 0-29, steps */5 or 0-29/5", {}),
    _Field("hour", 0, 23, "0-23, lists 8,20, ranges 8-18, steps */2 or 8-18/2", {}),
    _Field("day of month", 1, 31, "1-31, lists 1,15, ranges 1-7, steps */2 or 1-31/2", {}),
    _Field("month", 1, 12, "1-12 or jan-dec, lists, ranges 1-6, steps */3 or 1-12/3", _MONTHS),
    _Field("day of week", 0, 6, "0-7 (0 and 7 are Sunday) or sun-sat, lists, ranges 1-5, steps */2 or 1-5/2", _WEEKDAYS),
)


def read(expression: str, fields: list[str], *, last_year: int) -> Pattern:
    """Read the five fields of an expression. Raises CronError, which names the field and says what it may hold."""
    minutes, hours, days, months, weekdays = (_expand(expression, position, text.lower()) for position, text in enumerate(fields))
    return Pattern(
        seconds={0},
        minutes=minutes,
        hours=hours,
        days=_day_rule(DaysOfMonth.of(days), fields[2], Weekdays.of(weekdays), fields[4]),
        months=months,
        years=None,
        last_year=last_year,
    )


def _day_rule(days: DaysOfMonth, days_text: str, weekdays: Weekdays, weekdays_text: str) -> DayRule:
    if weekdays_text == "*":
        return days
    if days_text == "*":
        return weekdays
    either = not days_text.startswith("*") and not weekdays_text.startswith("*")
    return EitherDay(days, weekdays) if either else BothDays(days, weekdays)


def _expand(expression: str, position: int, text: str) -> frozenset[int]:
    """The numbers that one field stands for."""
    field = _FIELDS[position]
    try:
        crontab = ",".join(_checked_part(field, part) for part in text.split(","))
        fields = ["*"] * 5
        fields[position] = crontab
        numbers = croniter.expand(" ".join(fields))[0][position]
    except (CroniterError, _Refused) as error:
        reason = str(error) if isinstance(error, _Refused) else "a number is out of range"
        raise CronError(
            f"cron {expression!r}: field {position + 1} ({field.name}), {text!r}: {reason}; allowed: {field.allowed}"
        ) from None
    return frozenset(range(field.first, field.last + 1) if numbers == ["*"] else numbers)


class _Refused(Exception):
    """Why a field is refused."""


def _checked_part(field: _Field, part: str) -> str:
    """A part of a list in a form that croniter takes for what crontab(5) means; refuses what crontab(5) does not have."""
    match = _PART.fullmatch(part)
    if match is None:
        raise _Refused(f"{part!r} is not of the Unix form (six fields, with the second first, are read as Quartz cron)")
    low, high, step = match["low"], match["high"], match["step"]
    if step is not None and int(step) == 0:
        raise _Refused("a step is at least 1")
    if low is None:
        return part if step else f"{field.first}-{field.last}"
    first = _number(field, low)
    if high is None:
        if step is not None:
            raise _Refused(f"a step follows * or a range: write {low}-{field.last}/{step}")
        return str(first)
    last = _number(field, high)
    if first > last:
        raise _Refused(f"the range {low}-{high} must ascend; write it as two: {low}-{field.last},{field.first}-{high}")
    return str(first) if first == last else f"{first}-{last}/{step or 1}"


def _number(field: _Field, text: str) -> int:
    if text.isdecimal():
        return int(text)
    if text not in field.names:
        raise _Refused(f"{text!r} has no meaning here")
    return field.names[text]
