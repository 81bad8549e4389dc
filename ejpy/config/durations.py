"""Durations as they are written in a configuration: `500ms`, `30s`, `5m`, `1h30m`, `2d`, or a plain number of seconds.

The finest step is a millisecond, so that what is written to the registry is exactly what is read back.
"""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from ejpy.wording import shown

LONGEST = timedelta(days=3650)
MILLISECOND = timedelta(milliseconds=1)

_UNITS = {
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": MILLISECOND,
}
_WITH_UNITS = re.compile("".join(rf"(?:(?P<{unit}>[0-9]{{1,12}}){unit}(?![a-z]))?" for unit in _UNITS))
_SECONDS = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?")
_ALLOWED = "allowed: 500ms, 30s, 5m, 1h30m, 2d, or a number of seconds"


def parse(text: str) -> timedelta:
    """The duration that `text` tells. Raises ValueError if it is none, is not above 0, or is longer than `LONGEST`."""
    text = text.strip()
    if _SECONDS.fullmatch(text):
        milliseconds = Decimal(text) * 1000
        if milliseconds != int(milliseconds):
            raise ValueError(f"{shown(text)} is finer than a millisecond")
        return check(_times(MILLISECOND, int(milliseconds)))
    match = _WITH_UNITS.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{shown(text)} is not a duration; {_ALLOWED}")
    total = timedelta(0)
    for unit, number in match.groupdict().items():
        if number is not None:
            total += _times(_UNITS[unit], int(number))
    return check(total)


def check(duration: timedelta) -> timedelta:
    """`duration` itself. Raises ValueError if it is out of range or not a whole number of milliseconds."""
    if duration <= timedelta(0):
        raise ValueError("a duration must be above 0")
    if duration > LONGEST:
        raise ValueError(f"too long; allowed: at most {LONGEST.days}d")
    if duration % MILLISECOND:
        raise ValueError(f"{duration} is finer than a millisecond")
    return duration


def write(duration: timedelta) -> str:
    """The shortest text that `parse` reads as `duration`, for instance `1h30m`."""
    parts = []
    for unit, size in _UNITS.items():
        number, duration = divmod(duration, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts)


def _times(unit: timedelta, number: int) -> timedelta:
    # Cut at just above the longest, where a timedelta would overflow.
    return unit * min(number, LONGEST // unit + 1)
