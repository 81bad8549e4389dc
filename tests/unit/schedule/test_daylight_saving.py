"""What a schedule does when the clocks are changed (docs/decisions/cron-daylight-saving.md)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import islice, pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.schedule.cron import fire_times, parse
from tests.unit.schedule.instants import between, elapsed_seconds, fires, times, utc

NEW_YORK = "America/New_York"
SPRING, AUTUMN = "2026-03-08T06:00", "2026-11-01T04:00"
"""An hour before New York's clocks go from 2:00 to 3:00; two hours before they go from 2:00 back to 1:00."""


# ---- clocks set forward -------------------------------------------------------------------------------------------


def test_f8_a_fixed_time_that_does_not_exist_fires_at_the_first_instant_after_the_gap() -> None:
    assert fires("0 30 2 * * ?", NEW_YORK, "2026-03-07T12:00", 3) == [
        "2026-03-08T03:00-04:00",
        "2026-03-09T02:30-04:00",
        "2026-03-10T02:30-04:00",
    ]
    assert fires("30 2 * * *", NEW_YORK, "2026-03-07T12:00", 2) == ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"]


def test_f8_a_missing_midnight_fires_on_the_same_day() -> None:
    assert fires("0 0 0 * * ?", "America/Sao_Paulo", "2018-11-03T12:00", 2) == [
        "2018-11-04T01:00-02:00",
        "2018-11-05T00:00-02:00",
    ]


def test_several_missing_times_fire_once() -> None:
    assert times("0 0,20,40 2 * * ?", NEW_YORK, SPRING, 2) == ["03:00-04:00", "02:00-04:00"]
    assert times("0 30 2,3 * * ?", NEW_YORK, SPRING, 3) == ["03:00-04:00", "03:30-04:00", "02:30-04:00"]
    assert times("0 0 2,3 * * ?", NEW_YORK, SPRING, 2) == ["03:00-04:00", "02:00-04:00"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 */30 * * * ?", ["01:30-05:00", "03:00-04:00", "03:30-04:00"]),
        ("0 5/30 * * * ?", ["01:05-05:00", "01:35-05:00", "03:05-04:00", "03:35-04:00"]),
        ("0 15 * * * ?", ["01:15-05:00", "03:15-04:00", "04:15-04:00"]),
        ("15 * * * *", ["01:15-05:00", "03:15-04:00", "04:15-04:00"]),
        ("0 5/20 1-3 * * ?", ["01:05-05:00", "01:25-05:00", "01:45-05:00", "03:05-04:00"]),
    ],
)
def test_a_repeating_schedule_goes_on_without_a_hole(expression: str, expected: list[str]) -> None:
    assert times(expression, NEW_YORK, SPRING, len(expected)) == expected


def test_a_repeating_schedule_that_does_not_go_on_fires_after_the_gap() -> None:
    assert fires("0 5/15 2 * * ?", NEW_YORK, SPRING, 2) == ["2026-03-08T03:00-04:00", "2026-03-09T02:05-04:00"]
    assert times("0 5/15 1-2 * * ?", NEW_YORK, "2026-03-08T06:40", 2) == ["01:50-05:00", "03:00-04:00"]


def test_f9_half_an_hour_is_skipped_in_lord_howe() -> None:
    assert times("0 0 * * * ?", "Australia/Lord_Howe", "2026-10-03T14:15", 4) == [  # 00:45+10:30
        "01:00+10:30",
        "02:30+11:00",
        "03:00+11:00",
        "04:00+11:00",
    ]
    assert times("0 15 2 * * ?", "Australia/Lord_Howe", "2026-10-03T14:15", 1) == ["02:30+11:00"]


def test_f9_chatham_and_troll() -> None:
    assert times("0 0 * * * ?", "Pacific/Chatham", "2026-09-26T12:30", 3) == ["02:00+12:45", "04:00+13:45", "05:00+13:45"]
    assert times("0 30 2 * * ?", "Antarctica/Troll", "2026-03-28T12:30", 1) == ["03:00+02:00"]


def test_a_day_that_was_left_out_fires_at_the_beginning_of_the_next() -> None:
    """Samoa had no 30 December 2011, a Friday."""
    assert fires("0 0 12 ? * FRI", "Pacific/Apia", "2011-12-29", 2) == ["2011-12-31T00:00+14:00", "2012-01-06T12:00+14:00"]
    assert elapsed_seconds(islice(fire_times("0 0 * * * ?", "Pacific/Apia", utc("2011-12-29")), 72)) == [3600] * 71


# ---- clocks set back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expression", ["0 30 1 * * ?", "30 1 * * *"])
def test_a_fixed_time_that_comes_twice_fires_the_first_time(expression: str) -> None:
    assert fires(expression, NEW_YORK, AUTUMN, 2) == ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"]
    between_both = "2026-11-01T05:45"
    assert fires(expression, NEW_YORK, between_both, 1) == ["2026-11-02T01:30-05:00"]


def test_fixed_times_around_the_change_fire_once() -> None:
    assert times("0 0 1-3 * * ?", NEW_YORK, AUTUMN, 4) == ["01:00-04:00", "02:00-05:00", "03:00-05:00", "01:00-05:00"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 */30 * * * ?", ["00:30-04:00", "01:00-04:00", "01:30-04:00", "01:00-05:00", "01:30-05:00", "02:00-05:00"]),
        ("0 15 * * * ?", ["00:15-04:00", "01:15-04:00", "01:15-05:00", "02:15-05:00"]),
        ("@hourly", ["01:00-04:00", "01:00-05:00", "02:00-05:00"]),
        ("0 0/30 1 * * ?", ["01:00-04:00", "01:30-04:00", "01:00-05:00", "01:30-05:00", "01:00-05:00"]),
    ],
)
def test_a_repeating_schedule_fires_in_both_passes(expression: str, expected: list[str]) -> None:
    assert times(expression, NEW_YORK, AUTUMN, len(expected)) == expected


def test_f10_the_next_fire_in_the_repeated_hour_lies_ahead() -> None:
    after = utc("2026-11-01T06:30:15")
    [found] = islice(fire_times("0 * * * * ?", NEW_YORK, after), 1)
    assert found.astimezone(timezone.utc) == utc("2026-11-01T06:31:00")


def test_f11_no_hole_after_0045() -> None:
    """Quartz 2.3.2's next fire after 00:45-04:00 is 75 minutes later."""
    assert times("0 */30 * * * ?", NEW_YORK, "2026-11-01T04:45", 1) == ["01:00-04:00"]


@pytest.mark.parametrize("expression", ["0 */5 * * * ?", "0 0/5 * * * ?", "*/5 * * * *"])
@pytest.mark.parametrize("start", ["2026-03-08T00:00", "2026-11-01T00:00"])
def test_f11_every_five_minutes_is_twelve_runs_in_every_elapsed_hour(expression: str, start: str) -> None:
    schedule = parse(expression, NEW_YORK, now=utc("2026-01-01"))
    for hour in range(24):
        begin = utc(start) + timedelta(hours=hour)
        assert len(between(schedule, begin, begin + timedelta(hours=1))) == 12


# ---- every zone ---------------------------------------------------------------------------------------------------


def offset_at(zone: str, moment: datetime) -> timedelta:
    offset = moment.astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return offset


@lru_cache
def changes_of_2026() -> list[tuple[str, datetime]]:
    """(zone, hour in which its clocks are changed), one zone for each set of changes."""
    found = {}
    for zone in sorted(available_timezones() - {"localtime"}):
        hours = [utc("2026-01-01") + timedelta(days=day) for day in range(366)]
        offsets = [offset_at(zone, hour) for hour in hours]
        changes = []
        for day, (before, after) in enumerate(pairwise(offsets)):
            if before != after:
                moment = hours[day]
                while offset_at(zone, moment + timedelta(hours=1)) == before:
                    moment += timedelta(hours=1)
                changes.append(moment)
        found[tuple(changes), tuple(offsets)] = [(zone, change) for change in changes]
    return [change for changes in found.values() for change in changes]


EVERYWHERE = ["0 * * * * ?", "0 7/20 * * * ?", "0 0 * * * ?", "0 45 * * * ?", "0 30 1-3 * * ?", "0 0 0 * * ?", "*/15 0-4 * * *"]


@pytest.mark.parametrize("expression", EVERYWHERE)
def test_f9_fires_ascend_strictly_and_exist_in_every_zone_that_changes_its_clocks_in_2026(expression: str) -> None:
    assert len(changes_of_2026()) > 40
    for zone, change in changes_of_2026():
        schedule = parse(expression, zone, now=utc("2026-01-01"))
        hours = 3 if expression == "0 * * * * ?" else 30
        start, end = change - timedelta(hours=hours), change + timedelta(hours=hours)
        instants = [fire.astimezone(timezone.utc) for fire in between(schedule, start, end)]
        assert len(instants) > 1
        assert instants == sorted(set(instants))
        assert all(fire.utcoffset() == offset_at(zone, fire) for fire in between(schedule, start, end))
        previous = start
        for fire in instants:
            found = schedule.next_after(previous)
            assert found is not None
            assert found.astimezone(timezone.utc) == fire > previous
            assert schedule.next_after(fire - timedelta(microseconds=1)) == found
            previous = fire


@pytest.mark.parametrize(("expression", "seconds"), [("0 0/5 * * * ?", 300), ("0 0/30 * * * ?", 1800), ("0 20 * * * ?", 3600)])
def test_f11_elapsed_intervals_are_equal_in_every_zone(expression: str, seconds: int) -> None:
    """Lord Howe's half hours cannot be divided into hours: there the hourly schedule has one longer and one shorter step."""
    for zone, change in changes_of_2026():
        if seconds == 3600 and zone == "Australia/Lord_Howe":
            continue
        schedule = parse(expression, zone, now=utc("2026-01-01"))
        steps = elapsed_seconds(between(schedule, change - timedelta(hours=30), change + timedelta(hours=30)))
        assert set(steps) == {seconds}, (zone, change)


def test_hourly_in_lord_howe_in_autumn() -> None:
    assert times("0 0 * * * ?", "Australia/Lord_Howe", "2026-04-04T13:30", 3) == ["01:00+11:00", "02:00+10:30", "03:00+10:30"]
    assert times("0 45 * * * ?", "Australia/Lord_Howe", "2026-04-04T14:30", 3) == ["01:45+11:00", "01:45+10:30", "02:45+10:30"]


def test_every_fixed_time_of_day_fires_once_a_day_in_every_zone() -> None:
    for zone, change in changes_of_2026():
        for hour in (0, 1, 2, 3, 23):
            found = list(islice(fire_times(f"0 25 {hour} * * ?", zone, change - timedelta(days=2)), 5))
            # Two hours in Troll, one elsewhere; a missing time fires up to an hour later.
            assert all(22 * 3600 <= step <= 26 * 3600 for step in elapsed_seconds(found)), (zone, hour)


# ---- the rules, written out minute by minute ----------------------------------------------------------------------


def by_the_rules(hours: set[int], minutes: set[int], zone: str, change: datetime) -> Iterator[datetime]:
    """The fires from 10 hours before to 10 hours after a change, found by looking at every minute on the clock."""
    repeats = len(hours) == 24 or len(minutes) > 1
    minute = timedelta(minutes=1)
    instants = [change - timedelta(hours=10) + n * minute for n in range(20 * 60)]
    clock = [instant.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for instant in instants]
    regular = {}
    shown: set[datetime] = set()
    for instant, wall in zip(instants, clock, strict=True):
        if wall.hour in hours and wall.minute in minutes and (repeats or wall not in shown):
            regular[instant] = wall
        shown.add(wall)
    made_up = set()
    for (before, wall), (after, wall_after) in pairwise(zip(instants, clock, strict=True)):
        missing = [wall + n * minute for n in range(1, (wall_after - wall) // minute)]
        missing = [moment for moment in missing if moment.hour in hours and moment.minute in minutes]
        if missing:
            due = before + (missing[0] - wall)
            if not (repeats and any(after <= instant <= due for instant in regular)):
                made_up.add(after)
    yield from sorted({*regular, *made_up})


@settings(deadline=None, max_examples=120)
@given(
    st.sampled_from(range(200)),
    st.one_of(
        st.just(set(range(24))), st.sets(st.integers(0, 4), min_size=1), st.sets(st.integers(0, 23), min_size=1, max_size=4)
    ),
    st.one_of(st.sets(st.integers(0, 59), min_size=1, max_size=1), st.sets(st.integers(0, 59), min_size=1, max_size=6)),
)
def test_the_rules_hold_minute_by_minute(which: int, hours: set[int], minutes: set[int]) -> None:
    zone, change = changes_of_2026()[which % len(changes_of_2026())]
    expression = f"0 {','.join(map(str, minutes))} {','.join(map(str, hours))} * * ?"
    schedule = parse(expression, zone, now=utc("2026-01-01"))
    inner_begin, inner_end = change - timedelta(hours=7), change + timedelta(hours=7)
    expected = [fire for fire in by_the_rules(hours, minutes, zone, change) if inner_begin < fire <= inner_end]
    found = [fire.astimezone(timezone.utc) for fire in between(schedule, inner_begin, inner_end)]
    assert found == expected
