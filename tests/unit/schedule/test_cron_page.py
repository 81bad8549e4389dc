"""What docs/cron.md shows is so."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from ejpy.errors import CronError
from tests.unit.schedule.instants import schedule, times

PAGE = (Path(__file__).parents[3] / "docs" / "cron.md").read_text(encoding="utf-8")


def test_the_program_prints_what_its_comments_say() -> None:
    [program] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "docs/cron.md", "exec"), {})
    assert printed.getvalue().split() == re.findall(r"^# (\S+)$", program, re.MULTILINE)


NEW_YORK_ROWS = re.findall(r"^\| `([^`]+)` \| ([^|]+ E[DS]T[^|]*) \| ([^|]+) \|$", PAGE, re.MULTILINE)


def shown(cell: str) -> list[str]:
    """`1:00, 1:30 EST, 3:00 EDT` as wall times with offsets; a zone counts for the times before it."""
    found: list[str] = []
    waiting: list[str] = []
    for word in re.findall(r"\d+:\d\d|EST|EDT", cell):
        if word in ("EST", "EDT"):
            offset = "-05:00" if word == "EST" else "-04:00"
            found += [f"{time:0>5}{offset}" for time in waiting]
            waiting = []
        else:
            waiting.append(word)
    return found


@pytest.mark.parametrize(("expression", "spring", "autumn"), NEW_YORK_ROWS)
def test_the_daylight_saving_table_of_new_york(expression: str, spring: str, autumn: str) -> None:
    for cell, just_before in ((spring, "2026-03-08T05:59"), (autumn, "2026-11-01T04:59")):
        expected = shown(cell)
        assert expected
        assert times(expression, "America/New_York", just_before, len(expected)) == expected


def test_the_table_was_found() -> None:
    assert len(NEW_YORK_ROWS) == 5


def test_the_message_shown_is_the_one_given() -> None:
    [message] = re.findall(r"^    (cron '.*)$", PAGE, re.MULTILINE)
    with pytest.raises(CronError) as refused:
        schedule("0 0 25 * * ?")
    assert str(refused.value) == message
