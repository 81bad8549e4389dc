"""What a `CronSchedule` promises, whatever its expression."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import islice, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.errors import CronError
from ejpy.schedule.cron import CronSchedule, fire_times, parse
from tests.interop.quartz.expressions import valid
from tests.unit.schedule.instants import between, schedule, utc, written

ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Shanghai", "GMT-3:30", "Africa/Casablanca")

instants = st.datetimes(datetime(2024, 1, 1), datetime(2032, 1, 1), timezones=st.just(timezone.utc))
COMMON = st.sampled_from(["* * * * * ?", "0/7 * * * * ?", "0 0/5 8-17 ? * MON-FRI", "0 0 * * * ?", "0 30 1,2 * * ?", "@weekly"])
EXPRESSIONS = st.one_of(st.randoms(use_true_random=False).map(valid), COMMON)


def readable(expression: str, zone: str, now: datetime) -> CronSchedule | None:
    try:
        return parse(expression, zone, now=now)
    except CronError:
        return None


def as_utc(instants: list[datetime]) -> list[datetime]:
    return [instant.astimezone(timezone.utc) for instant in instants]


@settings(deadline=None, max_examples=120)
@given(EXPRESSIONS, st.sampled_from(ZONES), instants)
def test_fires_are_whole_seconds_that_ascend_strictly(expression: str, zone: str, start: datetime) -> None:
    found = readable(expression, zone, start)
    if found is None:
        return
    fires = as_utc(list(islice(fire_times(expression, zone, start), 20)))
    assert fires
    assert fires[0] > start
    assert all(later > earlier for earlier, later in pairwise(fires))
    assert all(fire.microsecond == 0 for fire in fires)


@settings(deadline=None, max_examples=120)
@given(EXPRESSIONS, st.sampled_from(ZONES), instants, st.integers(0, 40), st.timedeltas(timedelta(0), timedelta(hours=30)))
def test_latest_agrees_with_next_after(expression: str, zone: str, after: datetime, count: int, beyond: timedelta) -> None:
    found = readable(expression, zone, after)
    if found is None:
        return
    fires = as_utc(list(islice(fire_times(expression, zone, after), count + 1)))
    until = fires[min(count, len(fires) - 1)] + beyond
    if beyond:  # what lies between the counted fires and `until`
        fires = as_utc(list(islice(fire_times(expression, zone, after), 400)))
    expected = [fire for fire in fires if fire <= until]
    if len(expected) == 400:
        return
    latest = found.latest(after, until)
    assert latest is not None
    assert latest.astimezone(timezone.utc) == expected[-1]


@settings(deadline=None, max_examples=100)
@given(EXPRESSIONS, st.sampled_from(ZONES), instants)
def test_intervals_are_half_open(expression: str, zone: str, start: datetime) -> None:
    found = readable(expression, zone, start)
    if found is None:
        return
    fire = found.next_after(start)
    assert fire is not None
    just_before = fire.astimezone(timezone.utc) - timedelta(microseconds=1)
    assert found.latest(start, fire) == fire
    assert found.latest(just_before, fire) == fire
    assert found.latest(start, just_before) is None
    assert found.latest(fire, fire) is None


def test_an_interval_that_ends_before_it_begins_is_empty() -> None:
    every_second = schedule("* * * * * ?")
    assert every_second.latest(utc("2026-01-02"), utc("2026-01-01")) is None


def test_instants_are_in_the_zone_of_the_schedule() -> None:
    shanghai = schedule("0 0 8 * * ?", "GMT+8")
    fire = shanghai.next_after(utc("2026-01-01"))
    assert fire is not None
    assert shanghai.latest(utc("2026-01-01"), utc("2026-01-02")) == fire
    assert fire.tzinfo is shanghai.time_zone
    assert written([fire]) == ["2026-01-02T08:00+08:00"]


def test_fractions_of_a_second() -> None:
    every_second = schedule("* * * * * ?")
    assert every_second.next_after(utc("2026-01-01T00:00:00.999999")) == utc("2026-01-01T00:00:01")
    assert every_second.next_after(utc("2026-01-01T00:00:00")) == utc("2026-01-01T00:00:01")


def test_instants_without_a_zone_are_refused() -> None:
    every_second = schedule("* * * * * ?")
    with pytest.raises(ValueError, match="an aware datetime is needed"):
        every_second.next_after(datetime(2026, 1, 1))


def test_schedules_are_equal_by_expression_and_zone() -> None:
    assert schedule("@daily", "Europe/Berlin") == schedule("@daily", "Europe/Berlin", now="2027-01-01")
    assert schedule("@daily", "Europe/Berlin") != schedule("@daily", "Europe/Paris")
    assert schedule("@daily").expression == "@daily"


def test_e10_a_schedule_with_a_year_fires_once_and_then_no_more() -> None:
    once = schedule("5 30 12 24 12 ? 2026")
    fire = utc("2026-12-24T12:30:05")
    assert once.next_after(utc("2026-12-24T12:30:04.5")) == fire
    for within_the_second in (0, 1, 500_000, 999_999):
        assert once.next_after(fire + timedelta(microseconds=within_the_second)) is None
    assert list(fire_times("5 30 12 24 12 ? 2026", "UTC", utc("2026-01-01"))) == [fire]


def test_fire_times_refuses_at_once() -> None:
    with pytest.raises(CronError):
        fire_times("0 0 25 * * ?", "UTC", utc("2026-01-01"))
    with pytest.raises(CronError, match="Europe/Berlin"):
        fire_times("@daily", "Europe/Berln", utc("2026-01-01"))


# ---- clocks that jump ---------------------------------------------------------------------------------------------


def calls_of(deed: Callable[[], object]) -> int:
    """How many Python functions are called on the way: a measure of work that does not depend on the machine."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        deed()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("expression", ["* * * * * ?", "0 0/5 * * * ?", "0 0 0 1 1 ?", "0 0 0 29 2 ?", "@daily"])
def test_e11_a_clock_that_jumps_ten_years_ahead_costs_next_to_nothing(expression: str) -> None:
    """An answer is found by halves; the fires that were passed over (315 million seconds) are not walked through."""
    found = schedule(expression, "Europe/Berlin")
    before, after = utc("2026-06-01T12:00:00"), utc("2036-06-01T12:00:00")
    found.latest(before, after)  # the changes of the zone's clocks are looked up once
    assert calls_of(lambda: found.latest(before, after)) < 5_000
    assert calls_of(lambda: found.next_after(after)) < 500


def test_the_latest_of_many_fires_is_looked_for_from_the_end() -> None:
    every_second = schedule("* * * * * ?", "Europe/Berlin")
    before, after = utc("2026-06-01T12:00:00"), utc("2036-06-01T12:00:00")
    every_second.latest(before, after)
    assert calls_of(lambda: every_second.latest(before, after)) < 50


def test_e11_a_clock_that_is_set_back_finds_the_same_instants() -> None:
    found = schedule("0 0/5 * * * ?", "Europe/Berlin")
    now = utc("2026-06-01T12:02:00")
    assert found.next_after(now) == utc("2026-06-01T12:05:00")
    assert found.next_after(now - timedelta(hours=1)) == utc("2026-06-01T11:05:00")
    assert found.latest(utc("2026-06-01T11:05:00"), now) == utc("2026-06-01T12:00:00")


def test_a_schedule_that_seldom_fires_is_searched_by_months() -> None:
    rare = schedule("0 0 0 29 2 ? 2096-2110", "America/New_York")
    assert written(between(rare, utc("2026-01-01"), utc("2120-01-01"))) == [
        "2096-02-29T00:00-05:00",
        "2104-02-29T00:00-05:00",
        "2108-02-29T00:00-05:00",
    ]
    assert calls_of(lambda: rare.next_after(utc("2026-01-01"))) < 5_000


def test_random_expressions_are_refused_in_one_line_or_accepted() -> None:
    random = Random(7)
    letters = "0123456789*/,-?LW# SUNMONJAN@\t\nx"
    accepted, messages = 0, []
    for _ in range(5_000):
        text = "".join(random.choice(letters) for _ in range(random.randint(0, 20)))
        try:
            parse(text, "UTC", now=utc("2026-01-01"))
        except CronError as refused:
            messages.append(str(refused))
        else:
            accepted += 1
    assert accepted < 100
    assert all(message.startswith("cron '") and "\n" not in message for message in messages)
