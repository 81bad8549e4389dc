"""Time zones: the names that may be given, and when a zone's clocks are changed.

A name is an IANA one (`Europe/Berlin`) or one of Java's fixed offsets that ElasticJob's configuration uses (`GMT+08:00`,
`GMT+8`, `GMT-3:30`, `GMT`, `UTC`). Java silently reads a name that it does not know as GMT; here it is an error.

A year of a zone is cut into *segments* of constant offset. They are found by looking at the offset once a day and halving
the interval where it differs, since the standard library does not tell a zone's transitions; a year's are kept.
"""

from __future__ import annotations

import difflib
import os
import re
import struct
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import tzlocal

from ejpy.errors import CronError
from ejpy.wording import one_line, shown

_JAVA_OFFSET = re.compile(r"GMT(?P<sign>[+-])(?P<hours>\d{1,2}?)(?::?(?P<minutes>\d{2}))?", re.ASCII)
_OFFSET_LIKE = re.compile(r"\s*(?:UTC|GMT|Z)?\s*(?P<sign>[+-])(?P<hours>\d{1,2})(?::?(?P<minutes>\d{2}))?\s*", re.I | re.ASCII)
_DAY = 86_400


def time_zone(name: str | None) -> tzinfo:
    """The zone of that name; the machine's local zone for None and "".

    Java's offsets are read as `java.util.TimeZone` reads them: hours 0 to 23, minutes 00 to 59, `GMT+800` is 8:00. Raises
    CronError, with names that are close, for anything else that is not an IANA name, and if the local zone has none.
    """
    if not name or name.isspace():
        return _local_zone()
    if match := _JAVA_OFFSET.fullmatch(name):
        return _fixed_offset(name, match)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise CronError(f"time zone {name!r} is not known{_suggestion(name)}") from None


def _local_zone() -> tzinfo:
    """The machine's: what TZ says in the environment, or else what is set in /etc. Raises CronError if that has no IANA name."""
    try:
        return tzlocal.get_localzone()
    except (ZoneInfoNotFoundError, ValueError, OSError, struct.error) as error:
        given = os.environ.get("TZ")
        if given:  # POSIX's rules (EST5EDT,M3.2.0,M11.1.0) among them: libc knows them, the zone data do not
            what = f"TZ={shown(given)} in the environment is not an IANA name"
        else:
            what = f"that cannot be told ({one_line(' '.join(str(error).split()))})"
        raise CronError(
            f"no time zone is given, which means the machine's, and {what}; give time_zone for the job, or set TZ to an IANA "
            "name (Europe/Berlin)"
        ) from None


def _fixed_offset(name: str, match: re.Match[str]) -> tzinfo:
    hours, minutes = int(match["hours"]), int(match["minutes"] or 0)
    if hours > 23 or minutes > 59:
        raise CronError(f"time zone {name!r}: an offset has hours 0-23 and minutes 00-59, as in GMT+08:00")
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(offset if match["sign"] == "+" else -offset, f"GMT{match['sign']}{hours:02}:{minutes:02}")


def _suggestion(name: str) -> str:
    if match := _OFFSET_LIKE.fullmatch(name):
        return f"; did you mean GMT{match['sign']}{int(match['hours']):02}:{match['minutes'] or '00'}?"
    by_folded = {_folded(known): known for known in available_timezones()}
    cities = {folded.rpartition("/")[2]: folded for folded in by_folded}
    close = difflib.get_close_matches(_folded(name), [*by_folded, *cities], n=4)
    if not close:
        return "; use an IANA name (Europe/Berlin) or a fixed offset (GMT+08:00)"
    names = dict.fromkeys(by_folded[cities.get(folded, folded)] for folded in close)
    return f"; did you mean {' or '.join(list(names)[:3])}?"


def _folded(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


class Segment(NamedTuple):
    """A stretch of time in which a zone's offset does not change. Instants are seconds since the epoch."""

    begin: int
    end: int
    """The first instant that does not belong to it."""
    offset: int
    """Seconds that the wall clock is ahead of UTC."""
    offset_before: int
    """The offset right before `begin`; another than `offset` if the clocks were changed then."""


def segment_at(zone: tzinfo, instant: int) -> Segment:
    """The segment that an instant lies in. It never reaches beyond the instant's year, counted in UTC."""
    for segment in _segments(zone, datetime.fromtimestamp(instant, timezone.utc).year):
        if instant < segment.end:
            return segment
    raise AssertionError("the segments of a year cover it")


@lru_cache(maxsize=4096)
def _segments(zone: tzinfo, year: int) -> tuple[Segment, ...]:
    begin, year_end = _year_begin(year), _year_begin(year + 1)
    offset_before, offset = _offset(zone, begin - 1), _offset(zone, begin)
    if isinstance(zone, timezone):
        return (Segment(begin, year_end, offset, offset),)
    found = []
    for day in range(begin, year_end, _DAY):
        day_end = min(day + _DAY, year_end - 1)
        while (offset_after := _first_other(zone, day, day_end, offset)) is not None:
            change, new_offset = offset_after
            found.append(Segment(begin, change, offset, offset_before))
            begin, offset_before, offset, day = change, offset, new_offset, change
    found.append(Segment(begin, year_end, offset, offset_before))
    return tuple(found)


def _first_other(zone: tzinfo, low: int, high: int, offset: int) -> tuple[int, int] | None:
    """When, after `low` and up to `high`, the offset becomes another one, and which; None if it is the same at `high`."""
    if _offset(zone, high) == offset:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high, _offset(zone, high)


def _offset(zone: tzinfo, instant: int) -> int:
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def _year_begin(year: int) -> int:
    return round(datetime(year, 1, 1, tzinfo=timezone.utc).timestamp())
