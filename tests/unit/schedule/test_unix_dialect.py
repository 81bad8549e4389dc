"""Five fields are read as crontab(5) describes them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.errors import CronError
from ejpy.schedule.cron import fire_times
from tests.unit.schedule.instants import days, fires, schedule, times, utc

BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def test_minute_comes_first() -> None:
    assert times("*/20 8 * * *", "UTC", "2026-01-01", 4) == ["08:00+00:00", "08:20+00:00", "08:40+00:00", "08:00+00:00"]


@pytest.mark.parametrize("weekday", ["0", "7", "sun", "SUN", "7-7", "0-0", "sun-sun"])
def test_sunday_is_0_and_7(weekday: str) -> None:
    assert days(f"0 0 * * {weekday}", "2026-01-01", 2) == ["01-04", "01-11"]


def test_day_and_weekday_are_ored_if_both_are_restricted() -> None:
    assert days("0 0 1,15 * 5", "2026-01-01", 5) == ["01-02", "01-09", "01-15", "01-16", "01-23"]
    assert days("0 0 1-31 * 1", "2026-01-01", 3) == ["01-02", "01-03", "01-04"]


def test_a_star_in_a_list_is_every_value() -> None:
    """croniter reads `0,*` as 0."""
    assert times("0,* 0 * * *", "UTC", "2026-01-01", 2) == ["00:01+00:00", "00:02+00:00"]
    assert days("0 0 1 * 0,*", "2026-01-01", 2) == ["01-02", "01-03"]


def test_a_day_field_that_begins_with_a_star_is_not_a_restriction() -> None:
    """As in Vixie's cron and its descendants: then both must fit."""
    assert days("0 0 */2 * 1", "2026-01-01", 3) == ["01-05", "01-19", "02-09"]
    assert days("0 0 * * 1", "2026-01-01", 2) == ["01-05", "01-12"]
    assert days("0 0 13 * *", "2026-01-01", 2) == ["01-13", "02-13"]


@pytest.mark.parametrize(
    ("nickname", "spelled_out"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ],
)
def test_nicknames(nickname: str, spelled_out: str) -> None:
    after = "2026-03-05T10:30"
    assert fires(nickname, "Europe/Berlin", after, 30) == fires(spelled_out, "Europe/Berlin", after, 30)


def test_unknown_nicknames_are_refused() -> None:
    with pytest.raises(CronError, match=r"'@Daily' is not known; did you mean @daily\?"):
        schedule("@Daily")
    with pytest.raises(CronError, match="'@reboot' is not known; "):
        schedule("@reboot")


@pytest.mark.parametrize(
    ("expression", "field", "part"),
    [
        ("60 * * * *", "field 1 (minute)", "out of range"),
        ("0 24 * * *", "field 2 (hour)", "out of range"),
        ("0 20-24 * * *", "field 2 (hour)", "out of range"),
        ("0 0 0 * *", "field 3 (day of month)", "out of range"),
        ("0 0 0-5 * *", "field 3 (day of month)", "out of range"),
        ("0 0 * 13 *", "field 4 (month)", "out of range"),
        ("0 0 * 0-12 *", "field 4 (month)", "out of range"),
        ("0 0 * * 8", "field 5 (day of week)", "out of range"),
        ("5/15 * * * *", "field 1 (minute)", "write 5-59/15"),
        ("*/0 * * * *", "field 1 (minute)", "a step is at least 1"),
        ("0 22-2 * * *", "field 2 (hour)", "must ascend; write it as two: 22-23,0-2"),
        ("0 0 * * fri-mon", "field 5 (day of week)", "must ascend"),
        ("0 0 * * 7-0", "field 5 (day of week)", "must ascend"),
        ("0 0 ? * *", "field 3 (day of month)", "not of the Unix form"),
        ("0 0 L * *", "field 3 (day of month)", "not of the Unix form"),
        ("0 0 15w * *", "field 3 (day of month)", "not of the Unix form"),
        ("0 0 * * 5#2", "field 5 (day of week)", "not of the Unix form"),
        ("0 0 * * l5", "field 5 (day of week)", "not of the Unix form"),
        ("H * * * *", "field 1 (minute)", "not of the Unix form"),
        ("R * * * *", "field 1 (minute)", "not of the Unix form"),
        ("0,,5 * * * *", "field 1 (minute)", "not of the Unix form"),
        ("-5 * * * *", "field 1 (minute)", "not of the Unix form"),
        ("0 jan * * *", "field 2 (hour)", "'jan' has no meaning here"),
        ("0 0 * mon *", "field 4 (month)", "'mon' has no meaning here"),
    ],
)
def test_a_refusal_names_the_field_and_what_is_allowed(expression: str, field: str, part: str) -> None:
    with pytest.raises(CronError) as refused:
        schedule(expression)
    message = str(refused.value)
    assert field in message
    assert part in message
    assert "; allowed: " in message
    assert "\n" not in message


def test_what_can_never_fire_is_refused() -> None:
    with pytest.raises(CronError, match="it can never fire"):
        schedule("0 0 30 2 *")


@st.composite
def parts(draw: st.DrawFn, low: int, high: int) -> tuple[str, set[int]]:
    """A part of a field, and the numbers it stands for by crontab(5)."""
    first = draw(st.integers(low, high))
    last = draw(st.integers(first, high))
    step = draw(st.integers(1, 70))
    return draw(
        st.sampled_from(
            [
                (f"{first}", {first}),
                (f"{first}-{last}", set(range(first, last + 1))),
                (f"{first}-{last}/{step}", set(range(first, last + 1, step))),
                (f"*/{step}", set(range(low, high + 1, step))),
                ("*", set(range(low, high + 1))),
            ]
        )
    )


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> tuple[str, set[int]]:
    listed = draw(st.lists(parts(low, high), min_size=1, max_size=3))
    return ",".join(text for text, _ in listed), {number for _, numbers in listed for number in numbers}


@settings(deadline=None, max_examples=100)
@given(st.tuples(*(fields(low, high) for low, high in BOUNDS)), st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1)))
def test_fires_at_the_minutes_that_crontab_describes(field_list: tuple[tuple[str, set[int]], ...], start: datetime) -> None:
    (minute, minutes), (hour, hours), (day, month_days), (month, months), (weekday, weekdays) = field_list
    weekdays = {number % 7 for number in weekdays}

    def described(moment: datetime) -> bool:
        by_day, by_weekday = moment.day in month_days, moment.isoweekday() % 7 in weekdays
        starred = day.startswith("*") or weekday.startswith("*")
        return moment.month in months and (by_day and by_weekday if starred else by_day or by_weekday)

    after = start.replace(second=0, microsecond=0, tzinfo=timezone.utc)
    try:
        found = next(fire_times(f"{minute} {hour} {day} {month} {weekday}", "UTC", after))
    except CronError:
        assert not any(described(after + timedelta(days=number)) for number in range(366 * 8))
        return
    assert found.minute in minutes
    assert found.hour in hours
    assert described(found)
    assert found.second == 0
    for number in range(1, (found.date() - after.date()).days):
        assert not described(after + timedelta(days=number))
    earlier_that_day = [
        (h, m) for h in hours for m in minutes if (h, m) < (found.hour, found.minute) and found.replace(hour=h, minute=m) > after
    ]
    assert not earlier_that_day
    if described(after) and found.date() > after.date():
        assert not [1 for h in hours for m in minutes if (h, m) > (after.hour, after.minute)]


@pytest.mark.parametrize(
    "expression",
    ["*/7 * * * *", "0 0 1,15 * 5", "30 4 1-7 * 2", "0 9-17/2 * 2-11/3 *", "59 23 31 12 *", "0 0 29 2 *", "15 */5 * * sat,sun"],
)
def test_fires_as_croniter_computes_where_it_is_right(expression: str) -> None:
    after = utc("2026-01-01T00:00:00")
    other = croniter(expression, after, ret_type=datetime)
    assert list(islice(fire_times(expression, "UTC", after), 20)) == [other.get_next() for _ in range(20)]
