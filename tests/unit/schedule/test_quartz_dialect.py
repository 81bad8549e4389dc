"""Six and seven fields are read as Quartz 2.3.2 reads them. (tests/interop/quartz asks Quartz itself.)"""

from __future__ import annotations

import pytest

from ejpy.errors import CronError
from tests.unit.schedule.instants import days, fires, schedule, times


def test_f1_seconds_come_first() -> None:
    assert times("0/10 * * * * ?", "UTC", "2026-01-01", 3) == ["00:00:10+00:00", "00:00:20+00:00", "00:00:30+00:00"]


@pytest.mark.parametrize(
    ("weekday", "first"),
    [("1", "01-04"), ("2", "01-05"), ("7", "01-03"), ("MON", "01-05"), ("mon", "01-05"), ("Mon", "01-05"), ("L", "01-03")],
)
def test_f2_weekdays_are_numbered_from_sunday_as_one(weekday: str, first: str) -> None:
    assert days(f"0 0 12 ? * {weekday}", "2026-01-01", 1) == [first]


@pytest.mark.parametrize("weekday", ["0", "8"])
def test_f2_weekdays_outside_1_to_7_are_refused(weekday: str) -> None:
    with pytest.raises(CronError, match=rf"field 6 \(day of week\), '{weekday}': {weekday} is out of range; allowed: 1-7"):
        schedule(f"0 0 12 ? * {weekday}")


def test_f2_ranges_of_weekdays() -> None:
    assert days("0 0 12 ? * 2-6", "2026-01-01", 6) == ["01-01", "01-02", "01-05", "01-06", "01-07", "01-08"]
    assert days("0 0 12 ? * FRI-MON", "2026-01-01", 5) == ["01-02", "01-03", "01-04", "01-05", "01-09"]


def test_f4_what_can_be_parsed_but_not_computed_is_refused() -> None:
    with pytest.raises(CronError, match=r"field 1 \(second\), 'L': it names no value; allowed: 0-59"):
        schedule("L 30 * * * ?")


@pytest.mark.parametrize("expression", ["0 0 12 1 * MON", "0 0 12 * * MON", "0 0 12 * * *", "0 0 12 ? * ?", "0 0 12 1 * 1"])
def test_f5_exactly_one_day_field_is_a_question_mark(expression: str) -> None:
    with pytest.raises(CronError, match=r"use \? in one of the two day fields"):
        schedule(expression)


def test_f5_question_marks_elsewhere_are_refused() -> None:
    with pytest.raises(CronError, match=r"field 3 \(hour\), '\?': \? is for the two day fields only"):
        schedule("0 0 ? * * ?")
    with pytest.raises(CronError, match=r"field 1 \(second\)"):
        schedule("? 0 0 * * ?")


def test_f15_case_and_blanks_do_not_matter() -> None:
    plain = fires("0 0 12 ? JAN-MAR MON-FRI", "UTC", "2026-01-01", 5)
    assert fires("  0  0\t12 ?   Jan-Mar mon-fri ", "UTC", "2026-01-01", 5) == plain
    assert fires("0 0 12 ? jan-mar Mon-Fri\n", "UTC", "2026-01-01", 5) == plain


@pytest.mark.parametrize(
    ("day", "first_days"),
    [
        ("L", ["01-31", "02-28", "03-31", "04-30"]),
        ("L-3", ["01-28", "02-25", "03-28", "04-27"]),
        ("L-30", ["01-01", "03-01", "05-01", "07-01"]),  # months too short for it are left out
        ("LW", ["01-30", "02-27", "03-31", "04-30"]),
        ("L-3W", ["01-28", "02-25", "03-27", "04-27"]),
        ("L-30W", ["01-01", "03-02", "05-01", "07-01"]),  # Quartz computes for ever here
        ("15W", ["01-15", "02-16", "03-16", "04-15"]),
        ("1W", ["01-01", "02-02", "03-02", "04-01"]),  # 2026-08-01 is a Saturday: see below
        ("31W", ["01-30", "03-31", "05-29", "07-31"]),
        ("31", ["01-31", "03-31", "05-31", "07-31"]),
        ("29-2", ["01-01", "01-02", "01-29", "01-30"]),
        ("*/10", ["01-01", "01-11", "01-21", "01-31"]),
        ("7/12", ["01-07", "01-19", "01-31", "02-07"]),
    ],
)
def test_days_of_the_month(day: str, first_days: list[str]) -> None:
    assert days(f"0 0 12 {day} * ?", "2026-01-01", 4) == first_days


def test_a_nearest_weekday_stays_in_its_month() -> None:
    assert days("0 0 12 1W 8 ?", "2026-01-01", 1) == ["08-03"]  # Saturday the 1st
    assert days("0 0 12 31W 5 ?", "2026-01-01", 1) == ["05-29"]  # Sunday the 31st


def test_a_nearest_weekday_one_day_past_the_month_may_lie_in_it() -> None:
    """2027-05-01 is a Saturday, and its Friday is in April. Quartz does so, too, whatever the months."""
    assert "04-30" in days("0 0 12 31W * ?", "2027-01-01", 4)
    assert "04-30" in days("0 0 12 31W 4 ?", "2027-01-01", 1)


def test_the_29th_in_february_follows_quartz_from_fire_to_fire() -> None:
    """2031-03-01 is a Saturday. Coming from January, Quartz jumps over February; without a January it does not."""
    assert days("0 0 12 29W * ?", "2031-01-01", 2) == ["01-29", "03-28"]
    assert days("0 0 12 29W 2 ?", "2029-03-01", 1) == ["02-28"]


@pytest.mark.parametrize(
    ("weekday", "first_days"),
    [
        ("6L", ["01-30", "02-27", "03-27"]),
        ("FRIL", ["01-30", "02-27", "03-27"]),
        ("6#3", ["01-16", "02-20", "03-20"]),
        ("FRI#3", ["01-16", "02-20", "03-20"]),
        ("6#5", ["01-30", "05-29", "07-31"]),
        ("0#2", ["01-10", "02-14", "03-14"]),  # as Quartz: Saturday
        ("5-2/2", ["01-01", "01-03", "01-05"]),
        ("SAT-SUN,3", ["01-03", "01-04", "01-06"]),
    ],
)
def test_days_of_the_week(weekday: str, first_days: list[str]) -> None:
    assert days(f"0 0 12 ? * {weekday}", "2026-01-01", 3) == first_days


def test_ranges_wrap_around() -> None:
    assert times("0 0 22-2 * * ?", "UTC", "2026-01-01", 5) == [f"{hour:02}:00+00:00" for hour in (1, 2, 22, 23, 0)]
    assert days("0 0 0 1 NOV-FEB ?", "2026-01-01", 4) == ["02-01", "11-01", "12-01", "01-01"]


def test_years() -> None:
    assert fires("0 0 0 1 1 ? 2028/2", "UTC", "2026-01-01", 2) == ["2028-01-01T00:00+00:00", "2030-01-01T00:00+00:00"]
    assert fires("0 0 0 29 2 ? 2026-2030,2040", "UTC", "2026-01-01", 9) == ["2028-02-29T00:00+00:00", "2040-02-29T00:00+00:00"]


def test_steps() -> None:
    seconds = "0 {} 0 1 1 ? 2027"
    assert times(seconds.format("50/4"), "UTC", "2026-01-01", 9) == ["00:50+00:00", "00:54+00:00", "00:58+00:00"]
    assert times(seconds.format("0-59/70"), "UTC", "2026-01-01", 9) == ["00:00+00:00"]  # the step of a range has no limit
    assert times(seconds.format("7/0"), "UTC", "2026-01-01", 9) == ["00:07+00:00"]  # step 0: the first value alone


@pytest.mark.parametrize(
    ("expression", "field", "part"),
    [
        ("60 * * * * ?", "field 1 (second)", "60 is out of range"),
        ("0 */60 * * * ?", "field 2 (minute)", "a step is at most 59"),
        ("0 0 0/24 * * ?", "field 3 (hour)", "a step is at most 23"),
        ("0 0 25 * * ?", "field 3 (hour)", "25 is out of range"),
        ("0 0 0 0 * ?", "field 4 (day of month)", "0 is out of range"),
        ("0 0 0 L,15 * ?", "field 4 (day of month)", "L cannot be one of several"),
        ("0 0 0 L-31 * ?", "field 4 (day of month)", "at most L-30"),
        ("0 0 0 0W * ?", "field 4 (day of month)", "W can only follow a day of the month, 1-31"),
        ("0 0 0 1 13 ?", "field 5 (month)", "13 is out of range"),
        ("0 0 0 1 FOO ?", "field 5 (month)", "'FOO' is not a name of a month"),
        ("0 0 0 ? * MON#6", "field 6 (day of week)", "1 to 5 must follow #"),
        ("0 0 0 ? * 9#1,3", "field 6 (day of week)", "# can only follow a day of the week"),
        ("0 0 0 ? * 2#1,3#1", "field 6 (day of week)", "there can be one # only"),
        ("0 0 0 1 1 ? 2030-2028", "field 7 (year)", "the range must ascend"),
        ("0 0 0 1 1 ? x", "field 7 (year)", "'X' is not a number"),
        ("0 99-70 * * * ?", "field 2 (minute)", "70 is out of range"),
        ("0 0 0- * * ?", "field 3 (hour)", "a number must follow -"),
        ("0 0 0/ * * ?", "field 3 (hour)", "a number must follow /"),
        ("0 0 -1 * * ?", "field 3 (hour)", "'-' is not expected"),
        ("0 , 1 * * ?", "field 2 (minute)", "it names no value"),
        ("0 0 99999999999 * * ?", "field 3 (hour)", "the number is too large"),
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


def test_the_number_of_fields_must_be_5_6_or_7() -> None:
    for expression in ("", "*", "0 0 12 *", "0 0 12 * * ? 2030 x"):
        with pytest.raises(CronError, match="write 6 or 7 as for Quartz"):
            schedule(expression)


def test_what_can_never_fire_is_refused() -> None:
    with pytest.raises(CronError, match="it can never fire"):
        schedule("0 0 0 30 2 ?")
    with pytest.raises(CronError, match=r"its last time was 2020-01-01T00:00:00\+00:00"):
        schedule("0 0 0 1 1 ? 2020")
    with pytest.raises(CronError, match="it can never fire"):
        schedule("0 0 0 1 1 ? 2127", now="2026-12-31")  # Quartz looks 100 years ahead
    assert days("0 0 0 1 1 ? 2126", "2026-12-31", 1) == ["01-01"]


@pytest.mark.parametrize(
    ("expression", "remark"),
    [
        ("0 0 12 ? * MON-FRI/2", "day of week: '/2' in 'MON-FRI/2' has no effect"),
        ("0 0 12 1O * ?", "day of month: 'O' in '1O' has no effect"),
        ("0 0 12 ? * MONDAY", "day of week: 'DAY' in 'MONDAY' has no effect"),
        ("0 L,30 12 * * ?", "minute: 'L' in 'L' has no effect"),
        ("0 0 12 15W,20 * ?", "day of month: beside # or W only the lowest day of the list counts, 15"),
        ("0 0 12 ? * 1,4#2", "day of week: beside # or W only the lowest day of the list counts, 1"),
        ("0 0 12 ?,5 * MON", "day of month: the values beside ? have no effect"),
    ],
)
def test_what_quartz_passes_over_is_remarked_on(expression: str, remark: str) -> None:
    [found] = schedule(expression).remarks
    assert found.startswith(remark)


def test_a_sound_expression_has_no_remarks() -> None:
    for expression in ("0 0/5 8-18 ? * MON-FRI", "0 0 12 L-3W * ?", "0 0 12 ? * 6#3 2026-2030", "*/5 * * * *"):
        assert schedule(expression).remarks == ()
