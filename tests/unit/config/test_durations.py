from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.config import durations


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("1d2h3m4s5ms", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        ("90m", timedelta(minutes=90)),
        (" 5m ", timedelta(minutes=5)),
        ("90", timedelta(seconds=90)),
        ("0.25", timedelta(milliseconds=250)),
        ("3650d", timedelta(days=3650)),
    ],
)
def test_a_duration_is_read(text: str, expected: timedelta) -> None:
    assert durations.parse(text) == expected


@pytest.mark.parametrize(
    "text", ["", " ", "m5", "-5s", "5 m", "5M", "5m1h", "5m5m", "1e3", "1.5h", "٣s", "s", "ms", "nan", "5min"]
)
def test_what_is_no_duration_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; allowed: 500ms, 30s, 5m, 1h30m, 2d, or a number of seconds"):
        durations.parse(text)


@pytest.mark.parametrize("text", ["0", "0s", "0ms", "0.0", "0h0m"])
def test_a_duration_is_above_0(text: str) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        durations.parse(text)


@pytest.mark.parametrize("text", ["3651d", "3650d1ms", "999999999999d", "999999999999", "999999999999h999999999999s"])
def test_a_duration_is_bounded_and_never_overflows(text: str) -> None:
    with pytest.raises(ValueError, match="at most 3650d"):
        durations.parse(text)


def test_a_duration_is_not_finer_than_a_millisecond() -> None:
    with pytest.raises(ValueError, match="finer than a millisecond"):
        durations.parse("0.0005")
    with pytest.raises(ValueError, match="finer than a millisecond"):
        durations.check(timedelta(microseconds=1))


@pytest.mark.parametrize("text", ["500ms", "30s", "5m", "1h30m", "2d", "1d1ms"])
def test_a_duration_is_written_in_its_shortest_form(text: str) -> None:
    assert durations.write(durations.parse(text)) == text


@settings(deadline=None)
@given(st.integers(1, durations.LONGEST // durations.MILLISECOND))
def test_what_is_written_is_read_back_as_the_same(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert durations.parse(durations.write(duration)) == duration
