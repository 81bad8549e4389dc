"""The log of real workers as a history: what `LogJournal` writes is read, and judged."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from ejpy.attempt import Attempt
from ejpy.execution.base import Ended
from ejpy.history.records import AttemptEnded, AttemptStarted, FiresNotRun, LogJournal, Record
from ejpy.logs import JsonFormatter
from ejpy.terms import NotRun, Outcome, Reason
from ejpy.testing import history
from ejpy.testing.checker import Invariant, check
from ejpy.testing.history import Event
from ejpy.testing.production import from_log, merged
from tests.unit.testing.histories import BEGIN, JOB, configured

START = datetime.fromtimestamp(BEGIN, timezone.utc)


def attempt(fire: float, *, number: int = 1, reason: Reason = Reason.SCHEDULED, token: int = 5) -> Attempt:
    return Attempt(JOB, "m:J", "", 2, 0, None, "task", START + timedelta(seconds=fire), number, reason, token, None, None)


@pytest.fixture
def log() -> Iterator[Log]:
    logger, stream = logging.getLogger("ejpy.history"), io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    level, logger.level = logger.level, logging.INFO
    yield Log(stream)
    logger.removeHandler(handler)
    logger.level = level


class Log:
    def __init__(self, stream: io.StringIO) -> None:
        self._stream = stream

    def rows(self, *records: Record) -> list[Event]:
        """What is read of these, as if each had been written when its fire was due."""
        for record in records:
            LogJournal().write(record)
        return from_log([*self._stream.getvalue().splitlines(), '{"half a li', '"text"', '{"logger": "shop"}'], "me")


def ended(of: Attempt, outcome: Outcome | None = Outcome.SUCCEEDED, *, recorded: bool = True) -> AttemptEnded:
    return AttemptEnded(of, "me", Ended(outcome, START, START), recorded)


def test_attempts_are_read(log: Log) -> None:
    one = attempt(10)
    rows = log.rows(AttemptStarted(one, "me"), ended(one))
    assert [row.name for row in rows] == ["claimed", "entered", "left", "recorded"]
    claimed, _, _, recorded = rows
    assert isinstance(claimed, history.Claimed)
    assert (claimed.job, claimed.item, claimed.scheduled_time, claimed.attempt) == (JOB, 0, BEGIN + 10, 1)
    assert (claimed.reason, claimed.token, claimed.instance) == (Reason.SCHEDULED, 5, "me")
    assert isinstance(recorded, history.Recorded)
    assert (recorded.outcome, recorded.recorded) == (Outcome.SUCCEEDED, True)


def test_an_attempt_that_does_not_count_is_read_as_such(log: Log) -> None:
    one = attempt(10)
    last = log.rows(AttemptStarted(one, "me"), ended(one, Outcome.FAILED, recorded=False))[-1]
    assert isinstance(last, history.Recorded)
    assert (last.outcome, last.recorded) == (Outcome.FAILED, False)


def test_a_body_that_was_never_entered_is_read_as_such(log: Log) -> None:
    one = attempt(10)
    assert [row.name for row in log.rows(AttemptStarted(one, "me"), ended(one, None))] == ["claimed", "recorded"]


@pytest.mark.parametrize("first", [10, 30])
def test_fires_that_were_not_run_are_read(log: Log, first: float) -> None:
    at = [START + timedelta(seconds=second) for second in (5, first, 30)]
    [row] = log.rows(FiresNotRun(JOB, 0, at[0], at[1], at[2], NotRun.MISSED, "me"))
    assert isinstance(row, history.FiresNotRun)
    assert row.after < BEGIN + first <= row.until == BEGIN + 30
    assert (row.item, row.why) == (0, NotRun.MISSED)


def test_a_run_that_is_doubled_is_found(log: Log) -> None:
    """Two workers say that they ran one fire, both as its first attempt."""
    first, second = attempt(10, token=5), attempt(10, token=6)
    both = log.rows(AttemptStarted(first, "me"), ended(first), AttemptStarted(second, "me"), ended(second))
    verdict = check([configured(cron=None), *merged(both)])
    assert Invariant.S2 in verdict.broken()
    third = log.rows(AttemptStarted(attempt(20, number=2, reason=Reason.OWNER_LOST, token=7), "me"))[-2:]
    assert check([configured(cron=None), *third]).passed


def test_a_fire_that_vanished_is_found(log: Log) -> None:
    rows = [
        replace(row, at=BEGIN + second)
        for second in (10, 20, 40)
        for row in log.rows(AttemptStarted(attempt(second, token=second), "me"))[-2:]
    ]
    complete = [
        configured(items=1),
        *merged(rows),
        history.Quiet(BEGIN + 1),
        history.AtRest(BEGIN + 48),
        history.Finished(BEGIN + 48),
    ]
    [violation] = check(complete).violations
    assert violation.invariant is Invariant.L1
    assert "00:00:30" in violation.where
