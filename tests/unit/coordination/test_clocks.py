"""How far a clock is off, and whether that is too much."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from ejpy.coordination import clocks

NOON = datetime(2026, 3, 2, 12, tzinfo=timezone.utc)


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("modified", "before", "after", "ahead"),
    [
        (0, -1, 1, 0),
        (0, 0, 0, 0),
        (0, 5, 7, 5),  # this clock was 5 s past the registry's before the write was sent
        (0, -7, -5, -5),
    ],
)
def test_the_delay_of_the_write_does_not_count(modified: float, before: float, after: float, ahead: float) -> None:
    assert clocks.difference(NOON + s(modified), NOON + s(before), NOON + s(after)) == s(ahead)


@pytest.mark.parametrize(
    ("ahead", "limit", "refused"),
    [(5, -1, False), (5, -2, False), (5, 1, True), (-5, 1, True), (1, 1, False), (0, 0, False), (0.5, 0, True), (1e6, -1, False)],
)
def test_g7_limits(ahead: float, limit: int, refused: bool) -> None:
    assert clocks.refused(s(ahead), limit) is refused
