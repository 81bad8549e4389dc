"""How far a worker's clock is off the registry's, told by the time that the registry gave to a node of its own.

Workers fire by their own clocks, and what one of them claims is claimed for all: a clock that is a day ahead claims the fires
of a day. `max_time_diff_seconds` (ElasticJob's) says from which difference on a worker runs nothing of a job.
"""

from __future__ import annotations

from datetime import datetime, timedelta

WARN_FROM = timedelta(seconds=10)


def difference(modified: datetime, before: datetime, after: datetime) -> timedelta:
    """How far the clock that read `before` and `after` around a write is ahead of the one that dated it `modified`.

    Zero if the date lies in between; the delays of the write do not count.
    """
    if modified < before:
        return before - modified
    return min(timedelta(0), after - modified)


def refused(ahead: timedelta, max_time_diff_seconds: int) -> bool:
    """Whether the difference is more than the job allows; below 0 everything is."""
    return max_time_diff_seconds >= 0 and abs(ahead) > timedelta(seconds=max_time_diff_seconds)
