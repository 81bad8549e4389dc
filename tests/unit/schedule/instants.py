"""Short ways to write and read instants in the tests of schedules."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timezone
from itertools import islice, pairwise

from ejpy.schedule.cron import CronSchedule, fire_times, parse


def utc(text: str) -> datetime:
    """`2026-03-08`, `2026-03-08T06:30` or with seconds; in UTC, unless it carries an offset."""
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment


def schedule(expression: str, zone: str = "UTC", *, now: str = "2026-01-01") -> CronSchedule:
    return parse(expression, zone, now=utc(now))


def fires(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next fires in the form 2026-03-08T03:00-04:00, or with seconds if there are any."""
    return written(islice(fire_times(expression, zone, utc(after)), count))


def written(instants: Iterable[datetime]) -> list[str]:
    return [instant.isoformat(timespec="seconds" if instant.second else "minutes") for instant in instants]


def days(expression: str, after: str, count: int, zone: str = "UTC") -> list[str]:
    """The dates of the next fires, as 01-31."""
    return [fire.strftime("%m-%d") for fire in islice(fire_times(expression, zone, utc(after)), count)]


def times(expression: str, zone: str, after: str, count: int) -> list[str]:
    """The next fires as 02:00-05:00."""
    return [text.partition("T")[2] for text in fires(expression, zone, after, count)]


def elapsed_seconds(instants: Iterable[datetime]) -> list[int]:
    stamps = [round(instant.timestamp()) for instant in instants]
    return [later - earlier for earlier, later in pairwise(stamps)]


def between(schedule: CronSchedule, after: datetime, until: datetime) -> list[datetime]:
    """The fires later than `after` and not later than `until`."""
    found: list[datetime] = []
    fire = schedule.next_after(after)
    while fire is not None and fire.astimezone(timezone.utc) <= until.astimezone(timezone.utc):
        found.append(fire)
        fire = schedule.next_after(fire)
    return found
