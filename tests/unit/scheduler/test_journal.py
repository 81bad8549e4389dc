"""What the log says of attempts and of fires that were not run."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone

import pytest

from ejpy.attempt import Attempt
from ejpy.execution.base import Ended
from ejpy.history.records import AttemptEnded, FiresNotRun, LogJournal
from ejpy.logs import fields_of
from ejpy.scheduler.wording import item_ranges
from ejpy.terms import NotRun, Outcome, Reason

TEN = datetime(2026, 3, 2, 10, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
ATTEMPT = Attempt("j", "m:J", "", 1, 0, None, "t", TEN, 1, Reason.SCHEDULED, 7, None, None)


def test_one_fire_that_was_not_run_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Not the half-open range that the ledger keeps."""
    just_before = TEN - timedelta(microseconds=1)
    LogJournal().write(FiresNotRun("j", 3, just_before, TEN, TEN, NotRun.INTERRUPTED, "i"))
    [record] = caplog.records
    assert record.getMessage() == "not run (interrupted): 2026-03-02 10:00:00+00:00"
    assert fields_of(record) == {"job": "j", "item": 3, "why": "interrupted"}


def test_of_several_the_first_and_the_last_are_named(caplog: pytest.LogCaptureFixture) -> None:
    LogJournal().write(FiresNotRun("j", 3, TEN, TEN + MINUTE, TEN + 5 * MINUTE, NotRun.MISSED, "i"))
    [record] = caplog.records
    assert record.getMessage() == "not run (missed): all from 2026-03-02 10:01:00+00:00 to 2026-03-02 10:05:00+00:00"


@pytest.mark.parametrize(("recorded", "level"), [(True, logging.INFO), (False, logging.WARNING)])
def test_a_failure_is_an_end_and_its_error_is_not_said_again(
    recorded: bool, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever ran the body has logged it as an error, with its trace."""
    caplog.set_level(logging.INFO, logger="ejpy")
    LogJournal().write(AttemptEnded(ATTEMPT, "i", Ended(Outcome.FAILED, TEN, TEN, "ValueError: no such shop"), recorded))
    [record] = caplog.records
    assert (record.getMessage().split(" ")[0], record.levelno) == ("failed", level)
    assert "shop" not in record.getMessage()
    assert fields_of(record)["outcome"] == "failed"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([], "none"), ([3], "3"), ([1, 0], "0-1"), ([9, 0, 1, 2, 7, 8], "0-2, 7-9"), ([0, 2, 4], "0, 2, 4")],
)
def test_items_are_told_in_ranges(numbers: list[int], text: str) -> None:
    assert item_ranges(numbers) == text
