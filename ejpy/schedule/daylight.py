"""From wall times to instants: what happens to a schedule when the clocks are changed.

A schedule either names fixed times of day, or it *repeats*: more than once within an hour, or in every hour of the day
(`Pattern.repeats`). The rules, and why they are not Quartz's, are in docs/decisions/cron-daylight-saving.md.

    clock set forward   a fixed time that does not exist fires at the first instant after the gap. A repeating schedule
    (a gap)             does so, too, unless it goes on by itself: unless its next regular fire comes no later, in elapsed
                        time, than the missing one was due.
    clock set back      a fixed time that comes twice fires the first time only. A repeating schedule fires in both
                        passes: an hour that is lived through twice has its fires twice.

The instants of a schedule are one fixed, strictly ascending set. The first of them from a given instant on does not depend
on where the search began, so what is due in an interval can be searched by halves.
"""

from __future__ import annotations

from datetime import tzinfo

from ejpy.schedule.pattern import Pattern
from ejpy.schedule.zones import Segment, segment_at

_HOUR = 3600


def first_fire(pattern: Pattern, zone: tzinfo, start: int) -> int | None:
    """The first instant of the schedule that is not earlier than `start`; seconds since the epoch, as `start`."""
    while True:
        segment = segment_at(zone, start)
        fire = _first_within(pattern, segment, start)
        if fire is not None:
            return fire
        # No zone is more than 16 hours off UTC, so all that is left has wall times after this:
        wall = pattern.first_from(segment.end - 16 * _HOUR)
        if wall is None:
            return None
        # A wall time is at most 16 hours off its instant, and a gap, which fires at its end, at most a day long.
        start = max(segment.end, wall - 48 * _HOUR)


def _first_within(pattern: Pattern, segment: Segment, start: int) -> int | None:
    begin, end, offset, offset_before = segment
    wall_start = start + offset
    if offset < offset_before and not pattern.repeats:
        wall_start = max(wall_start, begin + offset_before)  # the first pass had the times before
    wall = pattern.first_from(wall_start, end + offset)
    regular = None if wall is None else wall - offset
    if offset > offset_before and start == begin:
        missing = pattern.first_from(begin + offset_before, begin + offset)
        if missing is not None:
            goes_on = pattern.repeats and regular is not None and regular <= missing - offset_before
            return regular if goes_on else begin
    return regular
