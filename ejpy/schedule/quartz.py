"""Cron expressions of six or seven fields, read as Quartz 2.3.2 reads them (`org.quartz.CronExpression`).

    second minute hour day-of-month month day-of-week [year]

ElasticJob hands its cron to Quartz, and Java and Python workers may share a job, so what Quartz accepts is accepted with
the same meaning, odd corners included. Quartz skips some text without a word (the step in `MON-FRI/2`, the letter in
`1O`); that cannot be refused here without breaking jobs that run in Java, so it is reported in `Reading.remarks`.

Three kinds of expression pass Quartz's parser and are refused here: those that name no value in a field (Quartz fails when
it computes), numbers beyond the field that slip through its range check, and `0W`, on which it computes for ever.
The answers were taken from Quartz by experiment; tests/interop/quartz asks both about the same expressions.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ejpy.errors import CronError
from ejpy.schedule.pattern import (
    DayRule,
    DaysBeforeLast,
    DaysOfMonth,
    LastWeekday,
    NearestWeekday,
    NearestWeekdayToLast,
    NthWeekday,
    Pattern,
    Weekdays,
)
from ejpy.schedule.quartz_fields import DAY, FIELDS, WEEKDAY, Refused, Values, read_field


class Reading(NamedTuple):
    """An expression as it was understood."""

    pattern: Pattern
    remarks: tuple[str, ...]
    """What Quartz passes over without a word, one line each."""


def fields_of(expression: str) -> list[str]:
    """The fields of an expression. Blanks and tabs part them; line ends around the whole are dropped."""
    return [token for token in re.split("[ \t]+", expression.strip(" \t\r\n")) if token]


def read(expression: str, *, last_year: int) -> Reading:
    """Read an expression of six or seven fields.

    `last_year` is the last year in which it may fire (Quartz: 100 years after the current one). Raises CronError, which
    names the field and says what it may hold.
    """
    tokens = fields_of(expression.upper())
    values: list[Values] = []
    for number, (kind, text) in enumerate(zip(FIELDS, [*tokens, "*"], strict=False), start=1):
        try:
            values.append(read_field(kind, text, last_year))
        except Refused as reason:
            raise CronError(
                f"cron {expression!r}: field {number} ({kind.name}), {text!r}: {reason}; allowed: {kind.allowed}"
            ) from None
    second, minute, hour, day, month, weekday, year = values
    if day.unspecified == weekday.unspecified:
        raise CronError(
            f"cron {expression!r}: day of month is {tokens[3]!r} and day of week is {tokens[5]!r}; "
            "use ? in one of the two day fields, and only in one"
        )
    remarks = [
        f"{kind.name}: {skipped!r} in {part!r} has no effect (Quartz passes over it)"
        for kind, value in zip(FIELDS, values, strict=True)
        for skipped, part in value.skipped
    ]
    rule = _weekday_rule(weekday) if day.unspecified else _day_rule(day, month.numbers)
    (ruling, ruling_kind), (other, other_kind) = sorted([(day, DAY), (weekday, WEEKDAY)], key=lambda item: item[0].unspecified)
    if other.numbers:
        remarks.append(f"{other_kind.name}: the values beside ? have no effect")
    if len(ruling.numbers) > 1 and (ruling.nth or ruling.nearest_weekday):
        remarks.append(f"{ruling_kind.name}: beside # or W only the lowest day of the list counts, {min(ruling.numbers)}")
    pattern = Pattern(
        seconds=second.numbers,
        minutes=minute.numbers,
        hours=hour.numbers,
        days=rule,
        months=month.numbers,
        years=None if len(tokens) < 7 or tokens[6] == "*" else year.numbers,
        last_year=last_year,
    )
    return Reading(pattern, tuple(remarks))


# ---- days ---------------------------------------------------------------------------------------------------------


def _day_rule(day: Values, months: set[int]) -> DayRule:
    if day.last:
        return NearestWeekdayToLast(day.last_offset) if day.nearest_weekday else DaysBeforeLast(day.last_offset)
    if day.nearest_weekday:
        return NearestWeekday(min(day.numbers), has_january=1 in months)
    return DaysOfMonth.of(day.numbers)


def _weekday_rule(weekday: Values) -> DayRule:
    if weekday.last:
        return LastWeekday(min(weekday.numbers) - 1)
    if weekday.nth:
        return NthWeekday((min(weekday.numbers) - 1) % 7, weekday.nth)  # 0#2 is the second Saturday
    return Weekdays.of({number - 1 for number in weekday.numbers})
