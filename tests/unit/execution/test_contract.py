"""Every line of the runners' contract (`execution/base.py`), on every runner."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import Any

import pytest

from ejpy.attempt import Attempt
from ejpy.execution.base import Ended
from ejpy.execution.instances import name_of_class
from ejpy.execution.run import Run
from ejpy.logs import ContextFields, fields_of
from ejpy.terms import Executor, Outcome, Reason
from tests.support.loop import eventually, run
from tests.unit.execution import bodies
from tests.unit.execution.harness import INSTANT, Gate, harness

every_executor = pytest.mark.parametrize("executor", list(Executor), ids=lambda executor: executor.value)
in_this_process = pytest.mark.parametrize("executor", [Executor.THREAD, Executor.ASYNCIO], ids=lambda executor: executor.value)
no_grace: dict[str, Any] = {"cancel_grace": 600.0}
"""For tests in which nothing may be given up or killed."""


def our_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("ejpy-")}


# ---- how a body ends ------------------------------------------------------------------------------------------------


@every_executor
@pytest.mark.parametrize("behaviour", ["succeed", "return_garbage"])
def test_returning_is_success_whatever_is_returned(executor: Executor, behaviour: str) -> None:
    async def scenario() -> Ended:
        async with harness(executor) as h:
            return await h.run(behaviour)

    ended = run(scenario())
    assert (ended.outcome, ended.error, ended.abandoned) == (Outcome.SUCCEEDED, None, False)
    assert ended.entered is not None
    assert ended.entered <= ended.ended
    assert ended.entered.utcoffset() is not None


@every_executor
@pytest.mark.parametrize("error", list(bodies.ERRORS))
def test_m1_whatever_a_body_raises_is_the_failure_of_its_attempt_alone(executor: Executor, error: str) -> None:
    """M1: an exception ended the schedule of this or of all jobs. Also: JobCancelled that nobody asked for is a failure."""

    async def scenario() -> tuple[Ended, Ended]:
        async with harness(executor, size=1) as h:
            return await h.run(f"fail {error}", 0), await h.run("succeed", 1)

    failed, after = run(scenario())
    assert failed.outcome is Outcome.FAILED
    assert failed.error is not None
    assert failed.error.startswith({"BaseException": "Base", "StopIteration": ""}.get(error, error))
    assert "\n" not in failed.error
    assert failed.entered is not None
    assert after.outcome is Outcome.SUCCEEDED
    assert after.error is None, "J12: the text of an old failure with a later success"


@every_executor
def test_a_failure_has_its_stack_trace_and_is_logged_by_whoever_hears_of_it(
    executor: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> Ended:
        async with harness(executor) as h:
            return await h.run("fail ValueError", 3)

    trace = run(scenario()).traceback
    assert trace is not None
    first, *others, message, more = trace.splitlines()
    assert (first, message, more) == ("Traceback (most recent call last):", "ValueError: bad", "value")
    assert "in execute" in others[0], "the frames of ejpy's own tell nothing"
    assert any("in fail" in line for line in others)
    assert caplog.records == []


@every_executor
def test_of_a_long_stack_trace_beginning_and_end_are_kept(executor: Executor) -> None:
    async def scenario() -> Ended:
        async with harness(executor) as h:
            return await h.run("fail_at_length")

    trace = run(scenario()).traceback
    assert trace is not None
    assert len(trace) <= 20_000
    assert trace.startswith("Traceback (most recent call last):")
    assert trace.endswith("the end")


@every_executor
def test_m2_items_that_fail_at_once_do_not_keep_the_others(executor: Executor) -> None:
    """M2: one item that failed to be submitted left the others waiting: 8 items, 2 places, items 0 and 5 raise."""

    async def scenario() -> dict[int, Outcome | None]:
        async with harness(executor, size=2) as h:
            for item in range(8):
                h.start("fail ValueError" if item in (0, 5) else "succeed", item)
            await h.signals.until(lambda _: len(h.ended()) == 8)
            assert h.runner.waiting == 0
            return h.outcomes()

    outcomes = run(scenario())
    assert {item for item, outcome in outcomes.items() if outcome is Outcome.FAILED} == {0, 5}
    assert sum(outcome is Outcome.SUCCEEDED for outcome in outcomes.values()) == 6


@every_executor
def test_m5_two_jobs_of_one_class_have_an_instance_each(executor: Executor) -> None:
    """M5: a handler's instance was shared between jobs."""

    async def scenario() -> list[Any]:
        async with harness(executor, size=1) as h:
            for item, job_name in enumerate(["one", "one", "two"]):
                await h.run("count_calls", item, job_name=job_name)
            return h.saved()

    assert run(scenario()) == [1, 2, 1]


@every_executor
def test_an_error_in_on_ended_does_not_keep_the_places(executor: Executor) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        seen: list[dict[str, Any]] = []
        async with harness(executor, size=1) as h:
            loop.set_exception_handler(lambda _, context: seen.append(context))

            def broken(attempt: Attempt, ended: Ended) -> None:
                raise ValueError("broken")

            async def no_save(attempt: Attempt, value: Any) -> None:
                pass

            h.runner.start(h.attempt("succeed"), may_enter=lambda: True, save_checkpoint=no_save, on_ended=broken)
            assert (await h.run("succeed", 1)).outcome is Outcome.SUCCEEDED
        assert [str(context["exception"]) for context in seen] == ["broken"]

    run(scenario())


# ---- the way into a body --------------------------------------------------------------------------------------------


@every_executor
def test_places_are_bounded_and_the_others_wait(executor: Executor, gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(executor, size=2, **no_grace) as h:
            for item in range(5):
                h.start(f"gate {gate.path}", item)
            await h.until_entered(0, 1)
            assert (h.entered().count(0), len(h.entered()), h.runner.waiting) == (1, 2, 3)
            gate.open(1)
            await h.signals.until(lambda _: len(h.entered()) == 3)
            assert len(h.ended()) == 1
            assert h.runner.waiting == 2
            gate.open(4)
            await h.signals.until(lambda _: len(h.ended()) == 5)
            assert h.runner.waiting == 0
            assert set(h.outcomes().values()) == {Outcome.SUCCEEDED}

    run(scenario())


@every_executor
def test_may_enter_is_asked_when_a_place_is_free_not_before(executor: Executor, gate: Gate) -> None:
    async def scenario() -> None:
        asked: list[int] = []

        def may_enter() -> bool:
            asked.append(1)
            return False

        async with harness(executor, size=1, **no_grace) as h:
            h.start(f"gate {gate.path}", 0)
            h.start("say_pid", 1, may_enter=may_enter)
            await h.until_entered(0)
            assert asked == []
            gate.open()
            refused = await h.end_of(1)
            assert (refused.outcome, refused.entered, asked) == (None, None, [1])
            assert h.saved() == ["entered"], "the body was entered"
            assert (await h.run("succeed", 2)).outcome is Outcome.SUCCEEDED

    run(scenario())


@every_executor
def test_what_cannot_be_asked_may_not_enter(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    def may_enter() -> bool:
        raise ValueError("no lease at hand")

    async def scenario() -> None:
        async with harness(executor) as h:
            assert (await h.run("succeed", may_enter=may_enter)).outcome is None

    run(scenario())
    assert "no lease at hand" in caplog.text


@every_executor
@pytest.mark.parametrize("how", ["cancel", "withdraw"])
def test_what_waits_is_taken_back_without_being_entered(executor: Executor, how: str, gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(executor, size=1, **no_grace) as h:
            h.start(f"gate {gate.path}", 0)
            waiting = h.start("until_told", 1)
            await h.until_entered(0)
            assert h.runner.waiting == 1
            for _ in range(2):
                waiting.cancel("a test") if how == "cancel" else waiting.withdraw()
            ended = await h.end_of(1)
            assert (ended.outcome, ended.entered, ended.abandoned) == (None, None, False)
            assert h.runner.waiting == 0
            gate.open()
            assert (await h.end_of(0)).outcome is Outcome.SUCCEEDED
            await h.run("succeed", 2)
            assert h.entered() == [0]

    run(scenario())


@every_executor
def test_what_has_a_place_but_was_not_entered_is_not_entered_after_cancel(
    executor: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        cancelled = threading.Event()
        async with harness(executor, size=1, **no_grace) as h:
            execution = h.start("until_told", 0, may_enter=lambda: cancelled.wait(10))
            execution.cancel("a test")
            cancelled.set()
            assert h.ended() == {}, "on_ended was called inside of cancel"
            assert (await h.end_of(0)).outcome is None
            assert (await h.run("succeed", 1)).outcome is Outcome.SUCCEEDED
            assert h.entered() == []

    run(scenario())
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == [], "it was entered, and refused to save"


@in_this_process
def test_a_refusal_and_a_cancel_at_the_same_moment_are_one_end(executor: Executor) -> None:
    async def scenario() -> None:
        async with harness(executor, size=1) as h:
            for item in range(50):
                asked = threading.Event()

                def refuse(asked: threading.Event = asked) -> bool:
                    asked.set()
                    return False

                execution = h.start("succeed", item, may_enter=refuse)
                assert await asyncio.to_thread(asked.wait, 10)
                execution.cancel("a test")
                assert (await h.end_of(item)).outcome is None
            await h.run("succeed", 50)

    run(scenario())


@every_executor
def test_withdraw_does_nothing_to_a_body_that_was_entered(executor: Executor, gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(executor) as h:
            execution = h.start(f"gate {gate.path}")
            await h.until_entered(0)
            execution.withdraw()
            gate.open()
            assert (await h.end_of()).outcome is Outcome.SUCCEEDED

    run(scenario())


@every_executor
def test_withdraw_lets_a_body_that_was_entered_know_that_another_worker_could_go_on(executor: Executor) -> None:
    async def scenario() -> None:
        async with harness(executor, size=2) as h:
            told = h.start("until_hand_off", 0)
            h.start("until_told", 1)
            await h.until_entered(0, 1)
            told.withdraw()
            ended = await h.end_of(0)
            assert (ended.outcome, ended.error) == (Outcome.SUCCEEDED, None)
            assert 1 not in h.ended()

    run(scenario())


@every_executor
def test_a_body_can_have_something_called_when_it_is_told_to_stop(executor: Executor) -> None:
    """What it called was called in another thread, and what it takes back is not called."""

    async def scenario() -> None:
        async with harness(executor, **no_grace) as h:
            execution = h.start("until_called_back")
            await h.until_entered(0)
            execution.cancel("a test")
            assert (await h.end_of()).outcome is Outcome.CANCELLED
            assert h.saved() == ["entered", ["called"]]

    run(scenario())


# ---- being told to stop ---------------------------------------------------------------------------------------------


@every_executor
def test_a_body_that_is_told_to_stop_and_does_is_cancelled(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> Ended:
        async with harness(executor, **no_grace) as h:
            execution = h.start("until_told")
            await h.until_entered(0)
            execution.cancel("the session was lost")
            execution.cancel("again")
            ended = await h.end_of()
            execution.cancel("after the end")
            assert (await h.run("succeed", 1)).outcome is Outcome.SUCCEEDED
            return ended

    ended = run(scenario())
    assert (ended.outcome, ended.error, ended.abandoned) == (Outcome.CANCELLED, None, False)
    assert [record.getMessage() for record in caplog.records] == ["told to stop: the session was lost"]


@every_executor
def test_a_body_that_finishes_its_work_after_being_told_has_succeeded(executor: Executor) -> None:
    async def scenario() -> None:
        async with harness(executor, **no_grace) as h:
            execution = h.start("finish_when_told")
            await h.until_entered(0)
            execution.cancel("a test")
            assert (await h.end_of()).outcome is Outcome.SUCCEEDED
            assert h.saved() == ["entered", "told"]

    run(scenario())


@every_executor
def test_only_returning_is_success_and_wait_async_does_not_return_when_told(executor: Executor) -> None:
    """The same two lines, `if wait(60): return`. A plain body returns from them, and by that says that its work is done; a
    coroutine leaves `wait_async` by CancelledError, whichever executor runs it."""

    async def scenario() -> None:
        async with harness(executor, **no_grace) as h:
            wanted = {name_of_class(bodies.Plain): Outcome.SUCCEEDED, name_of_class(bodies.Coroutine): Outcome.CANCELLED}
            if executor is Executor.ASYNCIO:  # where a plain body may not wait
                del wanted[name_of_class(bodies.Plain)]
            for item, (job_class, outcome) in enumerate(wanted.items()):
                execution = h.start("return_if_told", item, job_class=job_class)
                await h.until_entered(item)
                execution.cancel("a test")
                assert (await h.end_of(item)).outcome is outcome

    run(scenario())


@in_this_process
def test_the_cancellation_of_a_coroutine_comes_before_its_wake_up(executor: Executor) -> None:
    """Whoever tells it is held up in the middle, until the body is over: nothing that comes later can help it."""

    async def scenario() -> None:
        async with harness(executor, **no_grace) as h:
            bodies.waiting.clear()
            bodies.left_waiting.clear()
            execution = h.start("return_if_told", job_class=name_of_class(bodies.Coroutine))
            await eventually(bodies.waiting.is_set)
            assert isinstance(execution, Run)
            left: list[bool] = []
            execution.cancellation.call_when_set(lambda: left.append(bodies.left_waiting.wait(20)))
            execution.cancel("a test")
            assert (left, (await h.end_of()).outcome) == ([True], Outcome.CANCELLED)

    run(scenario())


@every_executor
def test_a_body_that_breaks_while_stopping_has_failed(executor: Executor) -> None:
    async def scenario() -> None:
        async with harness(executor, **no_grace) as h:
            execution = h.start("fail_when_told")
            await h.until_entered(0)
            execution.cancel("a test")
            ended = await h.end_of()
            assert (ended.outcome, ended.error) == (Outcome.FAILED, "ValueError: broke while stopping")

    run(scenario())


@every_executor
def test_e8_a_timeout_frees_the_item(executor: Executor) -> None:
    """E8: a run that hangs blocked its job for ever."""

    async def scenario() -> Ended:
        async with harness(executor, size=1, **no_grace) as h:
            return await h.run("until_told", timeout_seconds=0.05)

    ended = run(scenario())
    assert (ended.outcome, ended.error, ended.abandoned) == (Outcome.TIMED_OUT, None, False)


@every_executor
def test_the_timeout_counts_from_entering_not_from_waiting(executor: Executor, gate: Gate) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with harness(executor, size=1, **no_grace) as h:
            h.start(f"gate {gate.path}", 0)
            h.start("succeed", 1, timeout_seconds=0.5)
            await h.until_entered(0)
            passed = asyncio.Event()
            loop.call_later(0.6, passed.set)
            await passed.wait()
            gate.open()
            assert (await h.end_of(1)).outcome is Outcome.SUCCEEDED

    run(scenario())


@in_this_process
def test_a_cancelled_body_that_does_not_listen_is_waited_for(executor: Executor, gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(executor, cancel_grace=0.0) as h:
            execution = h.start(f"gate {gate.path}")
            await h.until_entered(0)
            execution.cancel("a test")
            assert (await h.run("succeed", 1)).outcome is Outcome.SUCCEEDED
            assert 0 not in h.ended()
            gate.open()
            ended = await h.end_of(0)
            assert (ended.outcome, ended.abandoned) == (Outcome.SUCCEEDED, False)

    run(scenario())


@in_this_process
@pytest.mark.parametrize("cancelled_first", [False, True])
def test_a_body_that_ignores_its_timeout_is_given_up_and_replaced(
    executor: Executor, cancelled_first: bool, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with harness(executor, size=1, cancel_grace=0.05) as h:
            execution = h.start(f"gate_then_save {gate.path}", 0, timeout_seconds=0.2)
            h.start("succeed", 1)
            await h.until_entered(0)
            if cancelled_first:
                execution.cancel("a test")
            ended = await h.end_of(0)
            assert (ended.outcome, ended.abandoned) == (Outcome.CANCELLED if cancelled_first else Outcome.TIMED_OUT, True)
            assert h.runner.abandoned == 1
            assert (await h.end_of(1)).outcome is Outcome.SUCCEEDED
            gate.open()
            await eventually(lambda: h.runner.abandoned == 0)
            assert h.saved() == ["entered"], "a body that was given up could save"

    run(scenario())
    assert "given up: job 'shop', item 0" in caplog.text
    assert "the body that was given up has ended now" in caplog.text
    assert "StaleAttempt" in caplog.text


@in_this_process
def test_places_of_bodies_given_up_are_replaced_up_to_a_bound(executor: Executor, gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(executor, size=1, cancel_grace=0.01, max_abandoned=2) as h:
            for item in range(3):
                await h.run(f"gate {gate.path}", item, timeout_seconds=0.01)
            h.start("succeed", 3)
            passed = asyncio.Event()
            asyncio.get_running_loop().call_later(0.2, passed.set)
            await passed.wait()
            assert h.runner.abandoned == 3
            assert h.runner.waiting == 1
            gate.open()
            assert (await h.end_of(3)).outcome is Outcome.SUCCEEDED
            gate.open(2)
            await eventually(lambda: h.runner.abandoned == 0)

    run(scenario())


# ---- what a body sees -----------------------------------------------------------------------------------------------


@every_executor
def test_the_context_says_what_the_attempt_says(executor: Executor) -> None:
    async def scenario() -> list[Any]:
        async with harness(executor) as h:
            await h.run("say_context", 5, sharding_parameter="北京", attempt=2, reason=Reason.OWNER_LOST, checkpoint={"row": [7]})
            return h.saved()

    assert run(scenario()) == [
        {
            "job_name": "shop",
            "job_parameter": "say_context",
            "sharding_total_count": 8,
            "sharding_item": 5,
            "sharding_parameter": "北京",
            "task_id": "shop@-@0,1@-@READY",
            "scheduled_time": INSTANT.isoformat(),
            "attempt": 2,
            "reason": "owner_lost",
            "fencing_token": 17,
            "idempotency_key": "shop/2026-03-01T12:00:30+00:00/5",
            "cancelled": False,
            "checkpoint": {"row": [7]},
        }
    ]


@every_executor
def test_a_checkpoint_that_was_saved_is_the_checkpoint(executor: Executor) -> None:
    async def scenario() -> list[Any]:
        async with harness(executor) as h:
            await h.run("checkpoints", checkpoint=6)
            return h.saved()

    assert run(scenario()) == [{"seen": 6}, {"after": {"seen": 6}}]


@every_executor
def test_a_value_that_is_no_checkpoint_is_refused_in_the_body(executor: Executor) -> None:
    async def scenario() -> list[Any]:
        async with harness(executor) as h:
            await h.run("bad_checkpoints")
            return h.saved()

    ((raised,),) = [run(scenario())]
    assert [kind for kind, _ in raised] == ["ValueError"] * len(bodies.BAD_VALUES)
    assert all(text.startswith("job 'shop', item 0: checkpoint ") for _, text in raised)
    assert "is 102402 bytes as JSON, the limit is 102400" in raised[3][1]


@every_executor
def test_a_refusal_is_raised_in_the_body_and_changes_nothing(executor: Executor) -> None:
    async def scenario() -> list[Any]:
        async with harness(executor) as h:
            await h.run("refused_checkpoint", checkpoint="old")
            return h.saved()

    assert run(scenario()) == [[["StaleAttempt", "a newer attempt exists"], "old"]]


@every_executor
def test_context_variables_do_not_leak_into_the_next_body(executor: Executor) -> None:
    async def scenario() -> list[Any]:
        async with harness(executor, size=1) as h:
            await h.run("set_variable", 0)
            await h.run("set_variable", 1)
            return h.saved()

    assert run(scenario()) == [None, None]


@every_executor
def test_a_job_s_own_log_lines_carry_the_fields(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(ContextFields())

    async def scenario() -> None:
        async with harness(executor) as h:
            await h.run("log", 4)

    run(scenario())
    lines = {record.name: record for record in caplog.records}
    assert lines["shop"].getMessage() == "sold 3"
    assert lines["ejpy.job.shop"].getMessage() == "through the context"
    for record in lines.values():
        fields = fields_of(record)
        assert (fields["job"], fields["item"], fields["token"], fields["reason"]) == ("shop", 4, 17, "scheduled")


@every_executor
@pytest.mark.parametrize(
    ("job_class", "message"),
    [
        ("no_such_module:Job", "there is no module no_such_module"),
        ("tests.unit.execution.bodies:Missing", "has no class Missing"),
        ("tests.unit.execution.bodies:describe", "a job is a subclass of ShardedJob"),
        ("tests.unit.execution.bodies", "is not of the form module:Class"),
        ("tests.unit.execution.bodies:BadConstructor", "ValueError: cannot be made"),
    ],
)
def test_a_class_that_cannot_be_loaded_fails_the_attempt(executor: Executor, job_class: str, message: str) -> None:
    async def scenario() -> Ended:
        async with harness(executor) as h:
            ended = await h.run("succeed", job_class=job_class)
            assert (await h.run("succeed", 1)).outcome is Outcome.SUCCEEDED
            return ended

    ended = run(scenario())
    assert ended.outcome is Outcome.FAILED
    assert message in (ended.error or "")


# ---- close ----------------------------------------------------------------------------------------------------------


@every_executor
def test_close_stops_what_runs_drops_what_waits_and_leaves_nothing(executor: Executor) -> None:
    before = children()

    async def scenario() -> None:
        async with harness(executor, size=2, close=False, **no_grace) as h:
            for item in range(4):
                h.start("until_told", item)
            await h.until_entered(0, 1)
            assert our_threads()
            assert await h.runner.close(20) == []
            assert h.outcomes() == {0: Outcome.CANCELLED, 1: Outcome.CANCELLED, 2: None, 3: None}
            assert await h.runner.close(20) == []
            late = await h.run("succeed", 4)
            assert (late.outcome, late.entered) == (None, None)
            assert h.runner.waiting == 0

    run(scenario())
    assert our_threads() == set()
    assert children() == before


@every_executor
def test_close_of_a_runner_that_was_used_and_is_idle(executor: Executor) -> None:
    before = children()

    async def scenario() -> None:
        async with harness(executor, close=False) as h:
            await h.run("succeed")
            assert await h.runner.close(5) == []

    run(scenario())
    assert our_threads() == set()
    assert children() == before


@in_this_process
def test_close_returns_the_bodies_that_could_not_be_ended(executor: Executor, gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(executor, size=2, cancel_grace=0.01, close=False) as h:
            h.start(f"gate {gate.path}", 0)
            h.start("until_told", 1)
            await h.until_entered(0, 1)
            left = await h.runner.close(0.1)
            assert [attempt.sharding_item for attempt in left] == [0]
            assert h.outcomes() == {0: Outcome.CANCELLED, 1: Outcome.CANCELLED}
            assert (h.ended()[0].abandoned, h.ended()[1].abandoned) == (True, False)
            gate.open()
            await eventually(lambda: our_threads() == set())

    run(scenario())


def children() -> list[int]:
    """Pids of this process's children, zombies too."""
    with open(f"/proc/self/task/{os.getpid()}/children") as own:
        found = own.read().split()
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/children") as file:
            found += file.read().split()
    return sorted({int(pid) for pid in found})
