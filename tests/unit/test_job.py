"""ShardContext as users meet it in the unit tests of their jobs; the runners' suite has what it does in a worker."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from datetime import datetime, timezone
from typing import Any

import pytest

import ejpy.job
from ejpy.attempt import Attempt
from ejpy.cancellation import Cancellation
from ejpy.errors import JobCancelled, OutcomeUnknown, StaleAttempt
from ejpy.job import ShardContext, ShardedJob
from ejpy.logs import fields_of
from ejpy.terms import Reason

ATTEMPT = Attempt(
    job_name="shop",
    job_class="tests.unit.test_job:Export",
    job_parameter="",
    sharding_total_count=1,
    sharding_item=0,
    sharding_parameter=None,
    task_id="",
    scheduled_time=datetime(2026, 1, 1, tzinfo=timezone.utc),
    attempt=1,
    reason=Reason.SCHEDULED,
    fencing_token=1,
    checkpoint=None,
    timeout_seconds=None,
)


class Export(ShardedJob):
    """Exports rows, and can be stopped and resumed."""

    def execute(self, shard_ctx: ShardContext) -> None:
        for row in range(shard_ctx.checkpoint or 0, 5):
            shard_ctx.raise_if_cancelled()
            shard_ctx.save_checkpoint(row + 1)


def test_a_job_can_be_tested_without_a_worker() -> None:
    context = ShardContext.for_test(checkpoint=2)
    Export().execute(context)
    assert context.saved == [3, 4, 5]
    assert context.checkpoint == 5


def test_a_test_can_say_that_another_worker_could_go_on() -> None:
    context = ShardContext.for_test()
    before = context.hand_off_wanted
    context.hand_off()
    assert (before, context.hand_off_wanted, context.cancelled) == (False, True, False)


def test_whoever_asked_for_it_is_called_when_the_body_is_told_to_stop(caplog: pytest.LogCaptureFixture) -> None:
    context, called = ShardContext.for_test(sharding_item=3), list[str]()

    def breaks() -> None:
        raise SystemExit("none of the caller's business")

    context.call_when_cancelled(breaks)
    take_back = context.call_when_cancelled(lambda: called.append("taken back"))
    context.call_when_cancelled(lambda: called.append("told"))
    take_back()
    assert called == []
    context.cancel()
    context.call_when_cancelled(lambda: called.append("late"))
    assert called == ["told", "late"]
    [record] = caplog.records
    assert fields_of(record)["item"] == 3


def test_a_test_can_cancel_the_body() -> None:
    context = ShardContext.for_test(job_name="export", sharding_item=3, sharding_total_count=4)
    context.cancel()
    with pytest.raises(JobCancelled, match="job 'export', item 3: this attempt was told to stop"):
        Export().execute(context)
    assert context.saved == []


def test_a_test_can_have_saves_fail() -> None:
    context = ShardContext.for_test(save_error=StaleAttempt("a newer attempt exists"), checkpoint=1)
    with pytest.raises(StaleAttempt):
        Export().execute(context)
    assert (context.saved, context.checkpoint) == ([], 1)


def test_every_attribute_has_a_default_and_can_be_given() -> None:
    plain = ShardContext.for_test()
    assert (plain.sharding_item, plain.sharding_total_count, plain.sharding_parameter) == (0, 1, None)
    assert (plain.attempt, plain.reason, plain.checkpoint, plain.cancelled) == (1, Reason.SCHEDULED, None, False)
    assert plain.scheduled_time.utcoffset() is not None
    given = ShardContext.for_test(
        job_name="shop",
        job_parameter="p",
        sharding_item=2,
        sharding_total_count=3,
        sharding_parameter="x",
        scheduled_time=datetime(2026, 5, 1, tzinfo=timezone.utc),
        attempt=2,
        reason=Reason.OWNER_LOST,
        fencing_token=99,
    )
    assert (given.job_parameter, given.sharding_parameter, given.attempt, given.fencing_token) == ("p", "x", 2, 99)
    assert given.idempotency_key == "shop/2026-05-01T00:00:00+00:00/2"
    assert given.log.logger.name == "ejpy.job.shop"


def test_the_key_is_the_same_on_every_attempt_for_a_fire_and_item_and_on_no_other() -> None:
    first = ShardContext.for_test(attempt=1, fencing_token=5)
    again = ShardContext.for_test(attempt=2, fencing_token=9)
    other = ShardContext.for_test(sharding_item=1, sharding_total_count=2)
    assert first.idempotency_key == again.idempotency_key != other.idempotency_key


def test_a_job_without_execute_cannot_be_made() -> None:
    class Nothing(ShardedJob):
        pass

    with pytest.raises(TypeError, match="execute"):
        Nothing()  # type: ignore[abstract]  # what is tested


# ---- waiting --------------------------------------------------------------------------------------------------------


def test_wait_ends_with_its_time_or_early_when_told() -> None:
    context = ShardContext.for_test()
    assert context.wait(0.001) is False
    teller = threading.Timer(0.01, context.cancel)
    teller.start()
    assert context.wait(60) is True
    assert context.wait(60) is True
    teller.join()


def test_wait_async_ends_with_its_time_or_early_when_told() -> None:
    async def scenario() -> None:
        context = ShardContext.for_test()
        assert await context.wait_async(0.001) is False
        waiting = [asyncio.ensure_future(context.wait_async(60)) for _ in range(2)]
        teller = threading.Timer(0.01, context.cancel)
        teller.start()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 10) == [True, True]
        assert await context.wait_async(60) is True
        teller.join()

    asyncio.run(scenario())


def test_blocking_calls_are_refused_in_a_coroutine() -> None:
    async def scenario() -> None:
        context = ShardContext.for_test()
        with pytest.raises(RuntimeError, match="await wait_async"):
            context.wait(0)
        with pytest.raises(RuntimeError, match="await save_checkpoint_async"):
            context.save_checkpoint(1)
        await context.save_checkpoint_async(1)
        assert context.saved == [1]

    asyncio.run(scenario())


def test_a_callback_is_called_once_and_not_after_it_was_taken_back() -> None:
    cancellation = Cancellation()
    called: list[str] = []
    cancellation.call_when_set(lambda: called.append("kept"))
    take_back = cancellation.call_when_set(lambda: called.append("taken back"))
    take_back()
    cancellation.set()
    cancellation.set()
    cancellation.call_when_set(lambda: called.append("late"))
    assert called == ["kept", "late"]


def test_whoever_asked_first_is_told_first() -> None:
    """Also if somebody asks in the middle of the telling: a task's cancellation must come before the wake-up of its wait."""
    order: list[str] = []
    cancellation = Cancellation()

    def first() -> None:
        assert cancellation.is_set
        cancellation.call_when_set(lambda: order.append("asked meanwhile"))
        order.append("first")

    cancellation.call_when_set(first)
    cancellation.call_when_set(lambda: order.append("second"))
    cancellation.set()
    assert order == ["first", "second", "asked meanwhile"]


def test_wait_async_says_no_until_those_who_asked_before_were_told() -> None:
    cancellation, begun, wait_is_over = Cancellation(), threading.Event(), threading.Event()

    def take_long() -> None:
        begun.set()
        wait_is_over.wait(20)

    cancellation.call_when_set(take_long)
    telling = threading.Thread(target=cancellation.set)
    telling.start()
    assert begun.wait(20)
    assert cancellation.is_set
    assert asyncio.run(cancellation.wait_async(0.001)) is False
    wait_is_over.set()
    telling.join()
    assert asyncio.run(cancellation.wait_async(0)) is True


# ---- checkpoints ----------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_what_a_later_attempt_would_read() -> None:
    context = ShardContext.for_test()
    value: dict[Any, Any] = {1: (2, 3)}
    context.save_checkpoint(value)
    value[1] = "changed afterwards"
    assert context.checkpoint == {"1": [2, 3]}


def test_the_limit_of_a_checkpoint_is_100_kib_of_utf_8() -> None:
    context = ShardContext.for_test()
    context.save_checkpoint("x" * (100 * 1024 - 2))
    context.save_checkpoint("北" * ((100 * 1024 - 2) // 3))
    with pytest.raises(ValueError, match="is 102401 bytes as JSON, the limit is 102400"):
        context.save_checkpoint("x" * (100 * 1024 - 1))
    assert len(context.saved) == 2


@pytest.mark.parametrize("bad", [object(), {1, 2}, float("inf"), b"bytes", datetime(2026, 1, 1), "\ud800"])
def test_what_is_no_json_is_refused_with_place_and_reason(bad: Any) -> None:
    context = ShardContext.for_test(job_name="shop", checkpoint="old")
    with pytest.raises(ValueError, match=r"^job 'shop', item 0: checkpoint must be a JSON value \(None, bool"):
        context.save_checkpoint(bad)
    assert (context.checkpoint, context.saved) == ("old", [])


def test_a_structure_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="checkpoint must be a JSON value"):
        ShardContext.for_test().save_checkpoint(loop)


def test_no_answer_is_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ejpy.job, "_BODY_WAITS_SECONDS", 0.01)
    silent: Future[None] = Future()
    context = ShardContext(ATTEMPT, Cancellation(), lambda value: silent, Cancellation())
    with pytest.raises(OutcomeUnknown, match="the worker did not answer"):
        context.save_checkpoint(1)
    with pytest.raises(OutcomeUnknown, match="the worker did not answer"):
        asyncio.run(context.save_checkpoint_async(1))
    assert context.checkpoint is None


def test_a_timeout_that_the_save_itself_raised_is_not_taken_for_silence() -> None:
    context = ShardContext.for_test(save_error=TimeoutError("of the registry"))
    with pytest.raises(TimeoutError, match="of the registry"):
        context.save_checkpoint(1)


def test_a_cancelled_task_leaves_wait_async_by_cancellation() -> None:
    """The wake-up and the cancellation come in the same turn of the loop; `wait_for` of Python 3.11 lost the latter."""

    async def main() -> bool:
        context = ShardContext.for_test()
        task = asyncio.get_running_loop().create_task(context.wait_async(60))
        await asyncio.sleep(0)
        context.cancel()
        task.cancel()
        await asyncio.wait({task}, timeout=20)
        return task.cancelled()

    assert asyncio.run(main())
