"""One field of a Quartz expression: what numbers it names, and which of the marks `?`, `L`, `W`, `#` it carries.

A field is a list of parts, each of them one of

    *   */step   /step   ?   L   LW   L-3   L-3W   value   value/step   low-high   low-high/step   6L   15W   6#3

with names for values of month and day of week. A part is read from its beginning, as Quartz does, and what follows is
passed over; it is kept in `Values.skipped`. Limits are Quartz's, too: the step of a value or of `*` is limited, that of a
range is not; the step 0 leaves the first value alone; a range that descends wraps around.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

_UNSPECIFIED, _EVERY = 98, 99
"""What `?` and `*` are inside Quartz; the numbers themselves are taken for them, too."""

_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAY_NAMES = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, start=1)}
_WEEKDAYS = {name: number for number, name in enumerate(_WEEKDAY_NAMES, start=1)}

_LAST = re.compile(r"L(?:W|-(?P<offset>[0-9]*)(?P<nearest>W)?)?")
_NUMBER = re.compile(r"(?P<value>[0-9]+)(?P<rest>.*)", re.DOTALL)
_RANGE = re.compile(r"-(?P<end>[0-9]+)(?:/(?P<step>[0-9]+)|(?P<bare>/))?(?P<rest>.*)", re.DOTALL)
_JAVA_INTEGER = re.compile(r"[+-]?[0-9]+")

_Add = Callable[..., None]
_Skip = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Field:
    """What a field may hold, and how messages speak of it."""

    name: str
    low: int
    high: int
    allowed: str
    names: dict[str, int] = field(default_factory=dict)
    max_step: int | None = None


_SECOND = Field("second", 0, 59, "0-59, * , - /", max_step=59)
_MINUTE = Field("minute", 0, 59, "0-59, * , - /", max_step=59)
_HOUR = Field("hour", 0, 23, "0-23, * , - /", max_step=23)
DAY = Field("day of month", 1, 31, "1-31, ?, L, L-3, LW, L-3W, 15W, * , - /", max_step=31)
_MONTH = Field("month", 1, 12, "1-12 or JAN-DEC, * , - /", _MONTHS, max_step=12)
WEEKDAY = Field("day of week", 1, 7, "1-7 (1 = SUN) or SUN-SAT, ?, L, 6L, 6#3, * , - /", _WEEKDAYS, max_step=7)
_YEAR = Field("year", 1970, 2**31 - 1, "years, * , - /")
FIELDS = (_SECOND, _MINUTE, _HOUR, DAY, _MONTH, WEEKDAY, _YEAR)


@dataclass(slots=True)
class Values:
    """What one field says."""

    numbers: set[int] = field(default_factory=set)
    unspecified: bool = False
    last: bool = False
    last_offset: int = 0
    nearest_weekday: bool = False
    nth: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    """(what was passed over, in which part of the field)"""


class Refused(Exception):
    """Why a field is refused."""


def read_field(kind: Field, text: str, last_year: int) -> Values:
    """Read a field in capital letters. Raises Refused with the reason."""
    if "," in text and "L" in text and kind in (DAY, WEEKDAY):
        raise Refused("L cannot be one of several values")
    if kind is WEEKDAY and text.count("#") > 1:
        raise Refused("there can be one # only")
    values = Values()
    for part in text.split(","):
        if part:
            _read_part(kind, part, values, last_year)
    if not (values.numbers or values.unspecified or (values.last and kind is DAY)):
        raise Refused("it names no value")
    return values


def _read_part(kind: Field, part: str, values: Values, last_year: int) -> None:
    """Read one part of a list into `values`."""

    def add(start: int, end: int | None = None, step: int = 0) -> None:
        _add(kind, values, start, end, step, last_year)

    def skip(text: str) -> None:
        if text:
            values.skipped.append((text, part))

    if last := _LAST.fullmatch(part):
        _read_last(kind, last, values, add, skip)
    elif "A" <= part[0] <= "Z":
        _read_name(kind, part, values, add, skip)
    elif part[0] == "?":
        if len(part) > 2:
            raise Refused("? stands alone")
        if kind not in (DAY, WEEKDAY):
            raise Refused("? is for the two day fields only")
        values.unspecified = True
        skip(part[1:])
    elif part[0] in "*/":
        rest = part.removeprefix("*")
        if rest.startswith("/"):
            add(_EVERY, step=_checked_step(kind, _java_integer(rest[1:], "a number must follow /")))
        else:
            add(_EVERY)
            skip(rest)
    elif number := _NUMBER.fullmatch(part):
        _read_number(kind, number, values, add, skip)
    else:
        raise Refused(f"{part[0]!r} is not expected")


def _read_last(kind: Field, match: re.Match[str], values: Values, add: _Add, skip: _Skip) -> None:
    text = match[0]
    if kind is WEEKDAY:
        add(7)
        skip(text[1:])
    elif kind is DAY:
        if text == "L-":
            raise Refused("a number must follow L-")
        values.last = True
        values.last_offset = _java_integer(match["offset"] or "0", "")
        values.nearest_weekday = text.endswith("W")
        if values.last_offset > 30:
            raise Refused("at most L-30")
    else:
        skip(text)


def _read_name(kind: Field, part: str, values: Values, add: _Add, skip: _Skip) -> None:
    start = _named(kind, part[:3])
    rest = part[3:]
    if rest.startswith("-"):
        add(start, _named(kind, rest[1:4]), 1)
        skip(rest[4:])
    elif rest.startswith("#") and kind is WEEKDAY:
        values.nth = _nth(rest[1:])
        add(start)
    elif rest.startswith("L") and kind is WEEKDAY:
        values.last = True
        add(start)
        skip(rest[1:])
    else:
        add(start)
        skip(rest)


def _read_number(kind: Field, number: re.Match[str], values: Values, add: _Add, skip: _Skip) -> None:
    value, rest = _java_integer(number["value"], ""), number["rest"]
    match rest[:1]:
        case "L":
            if kind is not WEEKDAY or not 1 <= value <= 7:
                raise Refused("L can only follow a day of the week, 1-7")
            values.last = True
            values.numbers.add(value)
            skip(rest[1:])
        case "W":
            if kind is not DAY or not 1 <= value <= 31:
                raise Refused("W can only follow a day of the month, 1-31")
            values.nearest_weekday = True
            values.numbers.add(value)
            skip(rest[1:])
        case "#":
            if kind is not WEEKDAY:
                raise Refused("# is for the day of the week only")
            if value > kind.high:
                raise Refused("# can only follow a day of the week, 1-7")
            values.nth = _nth(rest[1:])
            values.numbers.add(value)
        case "-":
            spread = _RANGE.fullmatch(rest)
            if spread is None or spread["bare"]:
                raise Refused("a number must follow - and /")
            # Unlike the step of a single value, Quartz does not limit this one.
            step = 1 if spread["step"] is None else _java_integer(spread["step"], "")
            add(value, _java_integer(spread["end"], ""), step)
            skip(spread["rest"])
        case "/":
            step_match = _NUMBER.fullmatch(rest[1:])
            if step_match is None:
                raise Refused("a number must follow /")
            if len(step_match["value"]) == 1 and step_match["rest"]:
                raise Refused(f"{step_match['rest'][0]!r} is not expected after /")
            add(value, step=_checked_step(kind, _java_integer(step_match["value"], "")))
            skip(step_match["rest"])
        case _:
            add(value)
            skip(rest)


def _add(kind: Field, values: Values, start: int, end: int | None, step: int, last_year: int) -> None:
    """Add `start`, or the numbers from `start` to `end` (None: the field's end) by `step`; a range may wrap around."""
    every = start == _EVERY
    unspecified = start == _UNSPECIFIED and kind in (DAY, WEEKDAY)
    for number in (start, end):
        if number is not None and number > kind.high and not (number == start and (every or unspecified)):
            raise Refused(f"{number} is out of range")
    if start < kind.low and kind is not _YEAR:
        raise Refused(f"{start} is out of range")
    if unspecified:
        values.unspecified |= step == 0
        return
    if not every and step == 0:
        values.numbers.add(start)
        return
    first = kind.low if every else start
    field_end = last_year if kind is _YEAR else kind.high
    last = field_end if end is None else end
    step = max(step, 1)
    if last >= first:
        values.numbers.update(range(first, min(last, last_year) + 1 if kind is _YEAR else last + 1, step))
    elif kind is _YEAR:
        raise Refused(f"the range must ascend, up to {last_year}")
    else:
        size = kind.high - kind.low + 1
        values.numbers.update((number - kind.low) % size + kind.low for number in range(first, last + size + 1, step))


# ---- words --------------------------------------------------------------------------------------------------------


def _named(kind: Field, name: str) -> int:
    if name not in kind.names:
        raise Refused(f"{name!r} is not a name of a {kind.name}" if kind.names else f"{name!r} is not a number")
    return kind.names[name]


def _nth(text: str) -> int:
    nth = _java_integer(text, "1 to 5 must follow #")
    if not 1 <= nth <= 5:
        raise Refused("1 to 5 must follow #")
    return nth


def _checked_step(kind: Field, step: int) -> int:
    if kind.max_step is not None and step > kind.max_step:
        raise Refused(f"a step is at most {kind.max_step}")
    return step


def _java_integer(text: str, otherwise: str) -> int:
    """A number as `Integer.parseInt` reads it."""
    if not _JAVA_INTEGER.fullmatch(text):
        raise Refused(otherwise)
    digits = text.lstrip("+-0") or "0"
    value = int(digits) if len(digits) <= 10 else 2**31
    if value >= 2**31:
        raise Refused("the number is too large")
    return -value if text.startswith("-") else value
