"""ListeningRunner: the order of things in a fire, and what listeners cannot break."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest

from ejpy.attempt import Attempt
from ejpy.execution.base import Execution
from ejpy.execution.thread import ThreadRunner
from ejpy.listeners import DistributeOnceListener, FireInfo, JobListener
from ejpy.logs import ContextFields, fields_of
from ejpy.terms import Outcome, Reason
from tests.support.loop import eventually, run
from tests.unit.listeners.listening import INSTANT, Bench, Happened, Telling, bench


def listener_of(b: Bench, position: int = 0) -> Telling:
    listener = b.runner._listeners[position]
    assert isinstance(listener, Telling)
    return listener


def of(all: list[str], *starts: str) -> list[str]:
    return [each for each in all if each.startswith(starts)]


def test_all_before_then_the_bodies_then_all_after() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            for item in (2, 0, 1):
                b.start(item)
            await b.until("after")
            assert b.happened.all[0] == "before"
            assert b.happened.all[-1] == "after"
            assert sorted(b.happened.all[1:-1]) == sorted(
                f"{what} {item}{end}" for item in range(3) for what, end in (("body", ""), ("ended", " succeeded"))
            )

    run(main())


def test_what_a_listener_is_told() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            b.start(2, job_parameter="fail", reason=Reason.CATCH_UP)
            b.start(0, job_parameter="x")
            await b.until("after")
            assert listener_of(b).fires == [
                FireInfo(
                    job_name="shop",
                    scheduled_time=INSTANT,
                    reasons=(Reason.CATCH_UP, Reason.SCHEDULED),
                    items=(0, 2),
                    sharding_total_count=8,
                    job_parameter="fail",
                    task_id="shop@-@0,2@-@READY@-@10.0.0.7@-@4242.k3",
                )
            ]
            [results] = listener_of(b).results
            assert {item: ended.outcome for item, ended in results.items()} == {0: Outcome.SUCCEEDED, 2: Outcome.FAILED}
            assert results[2].error == "ValueError: no such order"

    run(main())


def test_listeners_are_called_by_their_order_before_and_after() -> None:
    async def main() -> None:
        makers = [partial(Telling, name=name, order=order) for name, order in (("c", 7), ("a", -1), ("b", 0), ("d", 7))]
        async with bench(*makers) as b:
            b.start()
            await b.until("after d")
            assert of(b.happened.all, "before") == ["before a", "before b", "before c", "before d"]
            assert of(b.happened.all, "after") == ["after a", "after b", "after c", "after d"]

    run(main())


def test_attempts_of_another_instant_or_a_later_turn_are_another_fire() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            b.start(0, job_parameter="until told")
            b.start(1, job_parameter="until told")
            b.start(2, scheduled_time=INSTANT + timedelta(seconds=1))
            await b.until("body 0", "body 1")
            b.start(3)
            await b.until("after", "after", "body 3")
            assert sorted(fire.items for fire in listener_of(b).fires) == [(0, 1), (2,), (3,)]
            await b.runner.close(10)
            assert b.happened.all.count("after") == 3

    run(main())


def test_listeners_run_in_threads_and_the_loop_goes_on() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            listener_of(b).gates["before"].clear()
            b.start()
            await b.until("before")
            listener_of(b).gates["before"].set()  # only a loop that is free comes here
            await b.until("after")
            assert threading.get_ident() not in listener_of(b).threads

    run(main())


def test_an_end_waits_neither_for_other_items_nor_for_after_fire() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            listener_of(b).gates["after"].clear()
            b.start(0, job_parameter="until told 0")
            held = b.start(1, job_parameter="until told 1")
            b.start(2, job_parameter="until told 0")
            await b.until("ended 2 succeeded")
            assert "after" not in b.happened.all
            held.cancel("enough")
            await b.until("ended 1 succeeded")
            assert "after" not in b.happened.all
            b.start(0, scheduled_time=INSTANT + timedelta(seconds=1))
            await b.until("ended 0 succeeded")
            listener_of(b).gates["after"].set()

    run(main())


def test_may_enter_is_asked_after_before_fire_when_the_body_is_entered() -> None:
    async def main() -> None:
        async with bench(Telling) as b:

            def may_enter() -> bool:
                b.happened.add("asked")
                return False

            b.start(may_enter=may_enter)
            await b.until("after")
            assert b.happened.all == ["before", "asked", "ended 0 None", "after"]

    run(main())


def test_an_attempt_that_waits_for_before_fire_counts_as_waiting() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            listener_of(b).gates["before"].clear()
            b.start(0)
            b.start(1, job_parameter="until told")
            assert b.runner.waiting == 2
            await b.until("before")
            assert b.runner.waiting == 2
            listener_of(b).gates["before"].set()
            await b.until("ended 0 succeeded", "body 1")
            assert b.runner.waiting == 0

    run(main())


# ---- told to stop -------------------------------------------------------------------------------------------------


def cancel(execution: Execution) -> None:
    execution.cancel("the test says so")


def withdraw(execution: Execution) -> None:
    execution.withdraw()


@pytest.mark.parametrize("stop", [cancel, withdraw])
def test_one_that_is_told_while_before_fire_runs_is_not_entered(stop: object) -> None:
    async def main() -> None:
        assert callable(stop)
        async with bench(Telling) as b:
            listener_of(b).gates["before"].clear()
            told = b.start(0)
            b.start(1)
            await b.until("before")
            stop(told)
            stop(told)
            await b.until("ended 0 None")
            listener_of(b).gates["before"].set()
            await b.until("after")
            assert b.happened.all == ["before", "ended 0 None", "body 1", "ended 1 succeeded", "after"]
            [results] = listener_of(b).results
            assert {item: ended.outcome for item, ended in results.items()} == {0: None, 1: Outcome.SUCCEEDED}

    run(main())


@pytest.mark.parametrize("stop", [cancel, withdraw])
def test_when_all_are_told_no_other_listener_is_called_and_after_follows_before(stop: object) -> None:
    async def main() -> None:
        assert callable(stop)
        async with bench(partial(Telling, name="a"), partial(Telling, name="b")) as b:
            listener_of(b).gates["before"].clear()
            told = [b.start(0), b.start(1)]
            await b.until("before a")
            for execution in told:
                stop(execution)
            await b.until("ended 0 None", "ended 1 None")
            assert "after a" not in b.happened.all, "its before_fire has not returned"
            listener_of(b).gates["before"].set()
            await b.until("after a")
            await b.runner.close(10)
            assert b.happened.all == ["before a", "ended 0 None", "ended 1 None", "after a"]

    run(main())


def test_a_fire_that_is_told_before_it_begins_calls_nobody() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            withdraw(b.start(0))
            cancel(b.start(1))
            await b.until("ended 0 None", "ended 1 None")
            await b.runner.close(10)
            assert b.happened.all == ["ended 0 None", "ended 1 None"]

    run(main())


def test_an_end_is_reported_in_a_later_turn_not_within_cancel() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            cancel(b.start(0))
            assert b.happened.all == []
            await b.until("ended 0 None")

    run(main())


def test_an_entered_body_is_told_through_the_runner_and_withdraw_leaves_it() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            execution = b.start(0, job_parameter="until told")
            assert execution.attempt.sharding_item == 0
            await b.until("body 0")
            withdraw(execution)
            cancel(execution)
            await b.until("after")
            assert b.happened.all == ["before", "body 0", "ended 0 succeeded", "after"]

    run(main())


# ---- listeners that misbehave -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("bad\nday"), SystemExit(3), KeyboardInterrupt()])
@pytest.mark.parametrize("what", ["before", "after"])
def test_what_a_listener_raises_is_told_and_the_fire_goes_on(what: str, error: BaseException) -> None:
    async def main() -> None:
        async with bench(partial(Telling, name="a", raises={what: error}), partial(Telling, name="b")) as b:
            b.start(0, reason=Reason.TRIGGER)
            await b.until("after b", "failure")
            expected = ["before a", "before b", "body 0", "ended 0 succeeded", "after a", "after b"]
            assert [each for each in b.happened.all if each != "failure"] == expected
            [failure] = b.failures
            assert failure.error.startswith(f"{what}_fire of Telling: {type(error).__name__}")
            assert "\n" not in failure.error
            assert failure.traceback is not None
            assert failure.traceback.startswith("Traceback")
            assert (failure.job_name, failure.sharding_item, failure.attempt) == ("shop", None, None)
            assert (failure.scheduled_time, failure.reason) == (INSTANT, Reason.TRIGGER)
            assert failure.instance_id == "10.0.0.7@-@4242.k3"

    run(main())


def test_a_listener_of_another_job_that_hangs_holds_up_nobody_else() -> None:
    async def main() -> None:
        async with bench(Telling) as hanging, bench(Telling) as other:
            listener_of(hanging).gates["before"].clear()
            hanging.start()
            await hanging.until("before")
            other.start()
            await other.until("after")
            listener_of(hanging).gates["before"].set()

    run(main())


def test_lines_that_a_listener_logs_carry_job_and_instant(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            b.start()
            await b.until("after")

    caplog.set_level(logging.INFO, logger="shop")
    caplog.handler.addFilter(context := ContextFields())
    try:
        run(main())
    finally:
        caplog.handler.removeFilter(context)
    lines = [record for record in caplog.records if record.getMessage() == "in the listener"]
    assert [fields_of(record) for record in lines] == [{"job": "shop", "scheduled_time": INSTANT}] * 2


# ---- what can go wrong in handing over ----------------------------------------------------------------------------


class NoThreads(ThreadRunner):
    """As on a machine that has no more threads to give."""

    def start(self, attempt: Attempt, **_: object) -> Execution:
        raise RuntimeError("can't start new thread")


def test_attempts_that_the_runner_does_not_take_are_given_back(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with bench(Telling, inner_class=NoThreads) as b:
            b.start(0)
            b.start(1)
            await b.until("after")
            assert b.happened.all == ["before", "ended 0 None", "ended 1 None", "after"]

    run(main())
    assert [record.getMessage() for record in caplog.records] == ["cannot start a body: can't start new thread"] * 2


def test_a_callback_that_raises_does_not_stop_the_fire() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            seen: list[object] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context.get("exception")))

            def on_ended(attempt: Attempt, ended: object) -> None:
                raise LookupError("in the ledger")

            b.runner.start(b.attempt(), may_enter=lambda: True, save_checkpoint=b._save, on_ended=on_ended)
            await b.until("after")
            assert [type(error) for error in seen] == [LookupError]

    run(main())


# ---- the end ------------------------------------------------------------------------------------------------------


def test_close_cancels_and_waits_for_bodies_and_listeners() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            b.start(0, job_parameter="until told")
            await b.until("body 0")
            b.start(1)
            assert await b.runner.close(10) == []
            assert b.happened.all[-1] == "after"
            assert sorted(of(b.happened.all, "ended")) == ["ended 0 succeeded", "ended 1 None"]
            b.start(2)
            await b.until("ended 2 None")
            assert b.happened.all.count("before") == 1

    run(main())


def test_close_leaves_a_hanging_listener_behind(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            listener_of(b).gates["before"].clear()
            b.start(0)
            await b.until("before")
            assert await b.runner.close(0.05) == []
            assert b.happened.all == ["before", "ended 0 None"]
            listener_of(b).gates["before"].set()

    run(main())
    assert "its listeners are left behind" in [record.getMessage() for record in caplog.records]


def test_close_returns_the_attempts_whose_bodies_run_on_and_their_ends_are_still_reported() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            release = threading.Event()

            async def save(attempt: Attempt, value: object) -> None:
                b.happened.add("deaf")
                await asyncio.get_running_loop().run_in_executor(None, release.wait, 20)

            b.runner.start(b.attempt(1), may_enter=lambda: True, save_checkpoint=save, on_ended=b._ended)
            await b.until("deaf")
            [left] = await b.runner.close(0.05)
            assert left.sharding_item == 1
            release.set()
            await b.until("ended 1 succeeded")

    run(main())


def test_at_rest_there_is_nothing_left_of_a_fire() -> None:
    """Field report N2: nothing grows with every fire."""

    async def main() -> None:
        async with bench(Telling) as b:
            for number in range(20):
                b.start(0, scheduled_time=INSTANT + timedelta(seconds=number))
            await b.until(*["after"] * 20)
            await eventually(lambda: not b.runner._tasks)
            assert not b.runner._live
            assert not b.runner._gathering
            assert b.runner.waiting == 0

    run(main())


def test_a_distribute_once_listener_needs_others_to_agree_with() -> None:
    async def main() -> None:
        def make(_: Happened) -> JobListener:
            return DistributeOnceListener()

        with pytest.raises(ValueError, match="DistributeOnceListener needs something to agree"):
            async with bench(make):
                pass

    run(main())


# ---- the end of a worker --------------------------------------------------------------------------------------------


def test_settled_when_after_fire_was_called_and_not_before() -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            await b.runner.settled()
            listener_of(b).gates["after"].clear()
            b.start(0)
            settled = asyncio.ensure_future(b.runner.settled())
            await b.until("ended 0 succeeded", "after")
            assert not settled.done()
            assert not b.runner.idle
            listener_of(b).gates["after"].set()
            await settled
            await eventually(lambda: b.runner.idle)

    run(main())


@pytest.mark.parametrize("stop", [cancel, withdraw])
def test_a_fire_that_is_called_off_before_it_begins_leaves_nothing_to_wait_for(stop: Callable[[Execution], None]) -> None:
    async def main() -> None:
        async with bench(Telling) as b:
            stop(b.start(0))
            await b.until("ended 0 None")
            await b.runner.settled()
            assert b.runner.idle
            assert of(b.happened.all, "before", "after") == []

    run(main())
