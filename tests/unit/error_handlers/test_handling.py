"""ErrorHandling: failures are handled elsewhere, merged, and never block, raise or get lost in silence."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta

import pytest

from ejpy.error_handlers import ErrorHandling, HandlerSettings
from ejpy.error_handlers.deduplication import MOST_ERRORS
from ejpy.error_handlers.handling import WARNINGS_SECONDS
from ejpy.logs import fields_of
from tests.support.loop import run
from tests.unit.error_handlers.failures import Recording, SetClock, Told, failure

pytestmark = pytest.mark.usefixtures("provided")


def settings(request: pytest.FixtureRequest, type_name: str = "PAGER", minutes: float = 1, token: str = "") -> HandlerSettings:
    return HandlerSettings(type_name, {"recording": request.node.name, "api.token": token}, timedelta(minutes=minutes))


def close(handling: ErrorHandling, timeout: float = 20) -> int:
    return run(handling.close(timeout))


def errors(told: Told) -> list[str]:
    return [failure.error for failure in told.all]


def test_failures_of_all_jobs_are_handled_in_their_order_by_one_thread_that_is_not_the_callers(
    request: pytest.FixtureRequest, told: Told, clock: SetClock
) -> None:
    before = threading.active_count()
    handling = ErrorHandling(clock)
    assert threading.active_count() == before, "no thread before the first failure"
    for number in range(50):
        handling.report(failure(job_name=f"job-{number % 10}", error=f"error {number}"), settings(request))
    told.until(lambda all: len(all) == 50)
    assert errors(told) == [f"error {number}" for number in range(50)]
    assert len(told.threads) == 1
    assert threading.get_ident() not in told.threads
    assert threading.active_count() == before + 1
    assert close(handling) == 0
    assert threading.active_count() == before


def test_the_thread_keeps_no_process_from_ending(request: pytest.FixtureRequest, told: Told, clock: SetClock) -> None:
    handling = ErrorHandling(clock)
    handling.report(failure(), settings(request))
    told.until(lambda all: len(all) == 1)
    [thread] = [thread for thread in threading.enumerate() if thread.ident in told.threads]
    assert thread.daemon
    close(handling)


def test_each_job_has_a_handler_of_its_own_made_once_and_anew_when_its_settings_change(
    request: pytest.FixtureRequest, told: Told, clock: SetClock
) -> None:
    """Field report M5: two jobs with the same handler share no state."""
    handling = ErrorHandling(clock)
    for job in ("a", "a", "b", "b", "a"):
        handling.report(failure(job_name=job), settings(request, minutes=0))
    told.until(lambda all: len(all) == 5)
    assert told.made == 2
    handling.report(failure(job_name="a"), settings(request, minutes=0, token="x"))
    told.until(lambda all: len(all) == 6)
    assert told.made == 3
    handling.forget("a")
    handling.report(failure(job_name="b"), settings(request, minutes=0))
    handling.report(failure(job_name="b"), settings(request, minutes=0))
    told.until(lambda all: len(all) == 8)
    close(handling)
    assert told.made == 3


def test_a_forgotten_job_begins_anew(request: pytest.FixtureRequest, told: Told, clock: SetClock) -> None:
    handling = ErrorHandling(clock)
    handling.report(failure(error="x"), settings(request))
    told.until(lambda all: len(all) == 1)
    handling.forget("shop")
    handling.report(failure(error="x"), settings(request))
    told.until(lambda all: len(all) == 2)
    close(handling)
    assert told.made == 2


# ---- merging ------------------------------------------------------------------------------------------------------


def test_the_same_error_is_told_once_a_window_with_the_count_of_the_others(
    request: pytest.FixtureRequest, told: Told, clock: SetClock
) -> None:
    handling = ErrorHandling(clock)

    def at(seconds: float, **changes: object) -> None:
        """Report at that time; the clock moves on only when it was handled."""
        clock.seconds = seconds
        handling.report(failure(**changes), settings(request))
        handling.report(failure(error=f"mark {seconds} {changes}"), settings(request))
        told.until(lambda all: f"mark {seconds} {changes}" in [each.error for each in all])

    at(0, error="x", sharding_item=1)
    at(1, error="x", sharding_item=2)
    at(30, error="y")
    at(31, error="x", job_name="other")
    at(59.9, error="x", sharding_item=1)
    at(60, error="x", sharding_item=4)
    at(119.9, error="x")
    at(500, error="x")
    close(handling)
    told_ = [(f.job_name, f.sharding_item, f.error, f.suppressed) for f in told.all if not f.error.startswith("mark")]
    assert told_ == [("shop", 1, "x", 0), ("shop", 3, "y", 0), ("other", 3, "x", 0), ("shop", 4, "x", 2), ("shop", 3, "x", 1)]


@pytest.mark.parametrize(("type_name", "minutes"), [("each", 1), ("pager", 0)], ids=["by the handler", "by the settings"])
def test_merging_can_be_switched_off(
    request: pytest.FixtureRequest, told: Told, clock: SetClock, type_name: str, minutes: float
) -> None:
    handling = ErrorHandling(clock)
    for _ in range(3):
        handling.report(failure(), settings(request, type_name, minutes))
    told.until(lambda all: len(all) == 3)
    close(handling)
    assert [each.suppressed for each in told.all] == [0, 0, 0]


def test_what_was_only_counted_is_logged_at_the_end(
    request: pytest.FixtureRequest, told: Told, clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    handling = ErrorHandling(clock)
    for _ in range(4):
        handling.report(failure(error="x"), settings(request))
    close(handling)
    assert len(told.all) == 1
    assert [record.getMessage() for record in caplog.records] == ["3 more with the same error were not told: x"]


def test_errors_that_never_come_twice_do_not_fill_the_memory(request: pytest.FixtureRequest, told: Told, clock: SetClock) -> None:
    handling = ErrorHandling(clock, capacity=10 * MOST_ERRORS)
    for number in range(2 * MOST_ERRORS):
        handling.report(failure(error=f"order {number}"), settings(request))
    told.until(lambda all: len(all) == 2 * MOST_ERRORS)
    assert len(handling._deduplication._told) == MOST_ERRORS
    close(handling)


def test_a_failure_that_could_not_be_told_is_not_tried_at_once_and_counts_later(
    request: pytest.FixtureRequest, told: Told, clock: SetClock
) -> None:
    handling = ErrorHandling(clock)
    for _ in range(3):
        handling.report(failure(error="raises"), settings(request))
    handling.report(failure(error="mark"), settings(request))
    told.until(lambda all: "mark" in [each.error for each in all])
    clock.seconds = 60
    handling.report(failure(error="raises"), settings(request))
    told.until(lambda all: len(all) == 3)
    close(handling)
    assert [(each.error, each.suppressed) for each in told.all] == [("raises", 0), ("mark", 0), ("raises", 3)]


# ---- handlers that misbehave --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_handler_that_raises_changes_nothing_for_the_next(
    request: pytest.FixtureRequest, told: Told, clock: SetClock, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    """Field report M1: an error handler that itself raises changes nothing."""
    handling = ErrorHandling(clock)
    handling.report(failure(error=how), settings(request, token="s3cr3t"))
    handling.report(failure(error="next"), settings(request, token="s3cr3t"))
    told.until(lambda all: len(all) == 2)
    close(handling)
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "the error handler failed: " in record.getMessage()
    assert f"(it was to tell of: {how})" in record.getMessage()
    assert "in handle" in record.getMessage(), "the trace of a fault is logged"
    assert fields_of(record)["job"] == "shop"
    assert "s3cr3t" not in record.getMessage() + str(record.exc_info)
    assert how != "raises" or "cannot tell ***" in record.getMessage()


@pytest.mark.parametrize(
    ("type_name", "props", "expected"),
    [
        ("unmakeable", {}, "the error handler failed: RuntimeError: cannot be made"),
        ("PAGR", {}, "the error handler cannot be used, failures are only logged: error handler 'PAGR' is unknown"),
        ("PAGER", {}, "the error handler cannot be used, failures are only logged: props: recording: required"),
        ("missing_class", {}, "entry point ejpy.error_handlers 'missing_class = "),
    ],
)
def test_a_handler_that_cannot_be_made_is_said_and_changes_nothing_for_the_next(
    clock: SetClock, caplog: pytest.LogCaptureFixture, type_name: str, props: dict[str, str], expected: str
) -> None:
    handling = ErrorHandling(clock)
    handling.report(failure(error="boom"), HandlerSettings(type_name, props))
    handling.report(failure(error="boom"), HandlerSettings("LOG"))
    close(handling)
    assert expected in caplog.text
    assert caplog.text.count("failed: boom") == 1


def test_wrong_settings_are_said_once_not_at_every_failure(clock: SetClock, caplog: pytest.LogCaptureFixture) -> None:
    handling = ErrorHandling(clock)
    for _ in range(3):
        handling.report(failure(error="boom"), HandlerSettings("PAGR"))
    close(handling)
    assert caplog.text.count("is unknown") == 1
    assert len(caplog.records) == 1, "whoever reports a failure logs it"


# ---- the queue and the end ----------------------------------------------------------------------------------------


def test_when_the_queue_is_full_failures_are_dropped_and_it_is_said_once_a_minute(
    request: pytest.FixtureRequest, told: Told, clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    handling = ErrorHandling(clock, capacity=2)
    own = settings(request, minutes=0)
    handling.report(failure(error="blocks"), own)
    told.until(lambda all: len(all) == 1)
    for number in range(12):
        handling.report(failure(error=f"{number}"), own)
    assert [record.getMessage() for record in caplog.records] == [
        "error handlers do not keep up: 2 wait, 1 failures were not handled"
    ]
    clock.seconds = WARNINGS_SECONDS
    handling.report(failure(error="later"), own)
    handling.report(failure(error="later"), own)
    assert [record.getMessage() for record in caplog.records[1:]] == [
        "error handlers do not keep up: 2 wait, 10 failures were not handled"
    ]
    Recording.gates[request.node.name].set()
    told.until(lambda all: len(all) == 3)
    assert close(handling) == 0
    assert errors(told) == ["blocks", "0", "1"]
    assert caplog.records[-1].getMessage() == "error handlers did not keep up: 1 failures more were not handled"


def test_close_handles_what_waits_and_takes_nothing_more(request: pytest.FixtureRequest, told: Told, clock: SetClock) -> None:
    handling = ErrorHandling(clock)
    for number in range(20):
        handling.report(failure(error=f"{number}"), settings(request))
    assert close(handling) == 0
    assert len(told.all) == 20
    handling.report(failure(error="late"), settings(request))
    assert close(handling) == 0
    assert len(told.all) == 20


def test_close_leaves_a_handler_that_hangs_behind_and_says_what_was_not_handled(
    request: pytest.FixtureRequest, told: Told, clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    handling = ErrorHandling(clock)
    handling.report(failure(error="blocks"), settings(request))
    told.until(lambda all: len(all) == 1)
    for job in ("a", "b", "a"):
        handling.report(failure(job_name=job), settings(request))
    assert close(handling, timeout=0.05) == 3
    assert [record.getMessage() for record in caplog.records] == ["3 failures were not handled before the end, of: a, b"]
    [thread] = [thread for thread in threading.enumerate() if thread.ident in told.threads]
    Recording.gates[request.node.name].set()
    thread.join(20)
    assert not thread.is_alive()
    assert len(told.all) == 1, "nothing is handled after the end was told"


def test_close_does_not_block_the_loop(request: pytest.FixtureRequest, told: Told, clock: SetClock) -> None:
    async def main() -> int:
        handling = ErrorHandling(clock)
        handling.report(failure(error="blocks"), settings(request))
        closing = asyncio.ensure_future(handling.close(20))
        await asyncio.sleep(0)  # it has begun
        Recording.gates[request.node.name].set()  # only a loop that is free comes here
        return await closing

    assert run(main()) == 0


def test_close_without_any_failure(clock: SetClock) -> None:
    assert close(ErrorHandling(clock)) == 0
