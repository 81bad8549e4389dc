"""Random Quartz expressions: valid ones, and ones with a slip of the pen."""

from __future__ import annotations

import re
from random import Random

WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
SLIPS = "0123456789*/,-?LWLW##@ \tACDEFMNSTU+.x"

_QUARTZ_HANGS = re.compile(r"(?i)\bL-0*(28|29|30)W|(?<![0-9])0+W|[0-9]{7}")
"""Quartz computes for ever on these (or builds a list of all years up to the number). They have a test of their own."""


def valid(random: Random) -> str:
    """An expression that Quartz accepts, of any feature that it has."""
    day, weekday = (_day(random), "?") if random.random() < 0.5 else ("?", _weekday(random))
    fields = [
        _numbers(random, 0, 59, often="0"),
        _numbers(random, 0, 59, often="0"),
        _numbers(random, 0, 23, often="12"),
        day,
        _month(random),
        weekday,
    ]
    if random.random() < 0.2:
        fields.append(_year(random))
    expression = " ".join(fields)
    return expression.lower() if random.random() < 0.2 else expression


def nearly_valid(random: Random) -> str:
    """A valid expression with one or two characters or fields changed; may be valid still."""
    while True:
        text = valid(random)
        for _ in range(random.choice([1, 1, 2])):
            text = _slip(random, text)
        if text.strip() and not _QUARTZ_HANGS.search(text) and len(text.split()) in (6, 7):
            return text


def _slip(random: Random, text: str) -> str:
    at = random.randrange(len(text) + 1)
    match random.choice([0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4]):
        case 0:
            return text[:at] + random.choice(SLIPS) + text[at:]
        case 1:
            return text[:at] + text[at + 1 :]
        case 2:
            return text[:at] + random.choice(SLIPS) + text[at + 1 :]
        case 3:
            fields = text.split()
            if fields:
                fields[random.randrange(len(fields))] = str(
                    random.choice([0, 7, 8, 12, 13, 23, 24, 31, 32, 59, 60, 98, 99, 2040])
                )
            return " ".join(fields)
        case _:
            fields = text.split() or ["?"]
            at = random.randrange(len(fields))
            return " ".join(fields[:at] + fields[at + 1 :] + [fields[at]])


def _numbers(random: Random, low: int, high: int, *, often: str) -> str:
    choice = random.random()
    if choice < 0.25:
        return often
    if choice < 0.4:
        return "*"
    return ",".join(_part(random, low, high) for _ in range(random.choice([1, 1, 1, 2, 3])))


def _part(random: Random, low: int, high: int) -> str:
    one, other = random.randint(low, high), random.randint(low, high)
    step = random.randint(1, min(high, 59))
    return random.choice(
        [f"{one}", f"{one}", f"{one}-{other}", f"{one}-{other}/{step}", f"{one}/{step}", f"*/{step}", f"/{step}"]
    )


def _day(random: Random) -> str:
    choice = random.random()
    if choice < 0.45:
        return _numbers(random, 1, 31, often="*")
    return random.choice(
        ["L", "LW", f"L-{random.randint(0, 30)}", f"L-{random.randint(0, 27)}W", f"{random.randint(1, 31)}W", "1W"]
    )


def _month(random: Random) -> str:
    choice = random.random()
    if choice < 0.5:
        return "*"
    if choice < 0.8:
        return _numbers(random, 1, 12, often="*")
    return ",".join(_named(random, MONTHS) for _ in range(random.choice([1, 2])))


def _weekday(random: Random) -> str:
    choice = random.random()
    if choice < 0.3:
        return _numbers(random, 1, 7, often="*")
    if choice < 0.6:
        return ",".join(_named(random, WEEKDAYS) for _ in range(random.choice([1, 2])))
    number, name, nth = random.randint(1, 7), random.choice(WEEKDAYS), random.randint(1, 5)
    return random.choice(["L", f"{number}L", f"{name}L", f"{number}#{nth}", f"{name}#{nth}"])


def _named(random: Random, names: tuple[str, ...]) -> str:
    one, other = random.choice(names), random.choice(names)
    return one if random.random() < 0.5 else f"{one}-{other}"


def _year(random: Random) -> str:
    one = random.randint(2020, 2060)
    return random.choice(
        ["*", f"{one}", f"{one}-{one + random.randint(0, 20)}", f"{one}/{random.randint(1, 9)}", f"{one},{one + 3}"]
    )
