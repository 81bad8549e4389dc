"""Failures: each one is logged once, and told to whom the job's configuration names."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from ejpy.attempt import Attempt
from ejpy.clock import SystemClock
from ejpy.config.model import JobConfig
from ejpy.error_handlers import ErrorHandling
from ejpy.error_handlers.failures import Failures
from ejpy.execution.base import Ended
from ejpy.history.records import AttemptEnded, AttemptStarted, BodyEnded, FiresNotRun, Journals, Record
from ejpy.logs import TextFormatter, fields_of
from ejpy.terms import NotRun, Outcome, Reason
from tests.support.loop import run
from tests.unit.error_handlers.servers import Webhook

TEN = datetime(2026, 3, 2, 10, tzinfo=timezone.utc)
ATTEMPT = Attempt("shop", "m:J", "", 4, 3, None, "t", TEN, 2, Reason.SCHEDULED, 7, None, 1.5)
TRACE = "Traceback (most recent call last):\n  …\nValueError: no such shop"
FAILED = Ended(Outcome.FAILED, TEN, TEN, "ValueError: no such shop", traceback=TRACE)


@pytest.fixture
def chat() -> Iterator[Webhook]:
    with Webhook(b"ok") as chat:
        yield chat


def config(handler: str | None, chat: Webhook) -> JobConfig:
    values: dict[str, Any] = {"job_name": "shop", "job_class": "m:J", "sharding_total_count": 4}
    return JobConfig(**values, job_error_handler_type=handler, props={"slack.webhook": chat.address})


def write(known: JobConfig | None, end: Ended = FAILED, *, recorded: bool = True) -> None:
    async def scenario() -> None:
        handling = ErrorHandling(SystemClock())
        failures = Failures(handling, lambda name: known if name == "shop" else None)
        failures.write(BodyEnded(ATTEMPT, "i", end))
        failures.write(AttemptEnded(ATTEMPT, "i", end, recorded))
        await handling.close(20)

    run(scenario())


@pytest.mark.parametrize(
    ("handler", "logged", "told"),
    [(None, 1, 0), ("log", 1, 0), ("THROW", 1, 0), ("Ignore", 0, 0), ("slack", 1, 1)],
)
def test_the_handler_decides_what_is_logged_and_who_is_told(
    handler: str | None, logged: int, told: int, chat: Webhook, caplog: pytest.LogCaptureFixture
) -> None:
    write(config(handler, chat))
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * logged
    assert len(chat.posted) == told
    for record in caplog.records:
        assert (record.name, record.getMessage()) == ("ejpy.job.shop", "failed: ValueError: no such shop")
        assert fields_of(record)["item"] == 3
        assert "    Traceback (most recent call last):" in TextFormatter().format(record)
    for message in chat.posted:
        assert TRACE in message.document["text"]


def test_a_name_that_nobody_knows_hides_no_failure(chat: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    write(config("PAGR", chat))
    first, second = [record.getMessage() for record in caplog.records]
    assert first == "failed: ValueError: no such shop"
    assert second.startswith("the error handler cannot be used, failures are only logged: error handler 'PAGR' is unknown")


def test_a_failure_is_logged_at_once_and_told_when_it_counts(chat: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    """The registry may be away when a body fails."""

    async def scenario() -> None:
        handling = ErrorHandling(SystemClock())
        Failures(handling, lambda _: config("SLACK", chat)).write(BodyEnded(ATTEMPT, "i", FAILED))
        await handling.close(20)

    run(scenario())
    assert (len(caplog.records), len(chat.posted)) == (1, 0)


def test_a_failure_that_does_not_count_is_logged_and_told_to_nobody(chat: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    write(config("SLACK", chat), recorded=False)
    assert len(caplog.records) == 1
    assert chat.posted == []


def test_of_a_job_that_is_not_run_here_any_more_a_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    write(None)
    assert len(caplog.records) == 1


def test_running_past_the_timeout_is_a_failure(chat: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    write(config("SLACK", chat), Ended(Outcome.TIMED_OUT, TEN, TEN))
    assert [record.getMessage() for record in caplog.records] == ["failed: ran past the job's timeout of 1.5 s"]
    assert len(chat.posted) == 1


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.CANCELLED, None])
def test_what_is_no_failure_is_told_to_nobody(outcome: Outcome | None, chat: Webhook, caplog: pytest.LogCaptureFixture) -> None:
    write(config("SLACK", chat), Ended(outcome, TEN, TEN))
    assert (caplog.records, chat.posted) == ([], [])


# ---- several journals ---------------------------------------------------------------------------------------------


class Kept(list[Record]):
    def write(self, record: Record) -> None:
        self.append(record)


class Broken:
    def write(self, record: Record) -> None:
        raise OSError("disk full")


def test_each_journal_is_told_everything_also_if_another_one_raises(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = Kept(), Kept()
    journals = Journals(before, Broken(), after)
    records: list[Record] = [
        AttemptStarted(ATTEMPT, "i"),
        BodyEnded(ATTEMPT, "i", FAILED),
        AttemptEnded(ATTEMPT, "i", FAILED, True),
        FiresNotRun("shop", 3, TEN, TEN, TEN, NotRun.MISSED, "i"),
    ]
    for record in records:
        journals.write(record)
    assert before == after == records
    assert capsys.readouterr().err.count("OSError: disk full") == len(records)
