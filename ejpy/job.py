"""What a user writes against: a job is a class with `execute`, and what a body may know and do is its `ShardContext`.

A body is one call of `execute`, for one sharding item of one fire. Several bodies of a job may run at once, for different
items, on the same instance of the class: what belongs to one body belongs in local variables.

A context serves every executor. It does nothing by itself: it asks its `Cancellation` whether the body was told to stop, and
hands checkpoints to the function that it was given, which ends on the control loop of the worker.
"""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import datetime, timezone
from types import MappingProxyType
from typing import Any

from ejpy.attempt import Attempt
from ejpy.cancellation import Cancellation
from ejpy.errors import JobCancelled, OutcomeUnknown
from ejpy.logs import FieldsAdapter, attempt_fields
from ejpy.terms import Reason

CHECKPOINT_BYTES = 100 * 1024
"""Most bytes of a checkpoint, as JSON in UTF-8."""
SAVE_SECONDS = 30.0
"""How long saving a checkpoint may take before it is given up as OutcomeUnknown."""
# A body waits a little longer than the control loop does, so that it hears the loop's own verdict unless the loop hangs.
_BODY_WAITS_SECONDS = SAVE_SECONDS + 5


class ShardedJob(ABC):
    """A job. Subclass it, and write `execute`, either plain or `async def`.

    The constructor is called without arguments, once for each job of a worker process that names the class: two jobs with
    the same class have an instance each, and every child process of the `process` executor makes its own.
    """

    @abstractmethod
    def execute(self, shard_ctx: ShardContext, /) -> Coroutine[Any, Any, None] | None:
        """Do the work of one sharding item. Returning means success, whatever is returned; raising means failure."""


class ShardContext:
    """One attempt, as its body sees it: what is to be done, whether to stop, and where an earlier attempt came to.

    The attributes are set once and are not meant to be changed. Users make one with `for_test`; the rest comes from ejpy.
    """

    job_name: str
    job_parameter: str
    """The job's parameter; empty without."""
    sharding_total_count: int
    """How many items the job is cut into."""
    sharding_item: int
    """Which item this is: 0 up to `sharding_total_count` - 1."""
    sharding_parameter: str | None
    """The item's own parameter; None without."""
    props: Mapping[str, str]
    """The job's `props`, as they were when this attempt began; cannot be changed. ejpy's own settings are not among them."""
    task_id: str
    scheduled_time: datetime
    """The instant that this run is for (not when it began); aware, UTC."""
    attempt: int
    """1 for the first attempt of this item and fire, 2 and more when an earlier one was lost."""
    reason: Reason
    """Why this attempt was started."""
    fencing_token: int
    """Greater than that of any earlier attempt for this item: let whatever you write to refuse a smaller one."""
    idempotency_key: str
    """`job/scheduled time/item`: the same on every attempt for one fire and item."""
    log: logging.LoggerAdapter[logging.Logger]
    """The logger `ejpy.job.<job name>`; its records carry job, item, scheduled time, token, attempt and reason."""

    def __init__(
        self,
        attempt: Attempt,
        cancellation: Cancellation,
        save: Callable[[Any], Future[None]],
        hand_off: Cancellation,
    ) -> None:
        """`save` stores a JSON value, called from the body's thread; its future ends as `save_checkpoint` shall end."""
        self.job_name = attempt.job_name
        self.job_parameter = attempt.job_parameter
        self.sharding_total_count = attempt.sharding_total_count
        self.sharding_item = attempt.sharding_item
        self.sharding_parameter = attempt.sharding_parameter
        self.props = MappingProxyType(dict(attempt.props))
        self.task_id = attempt.task_id
        self.scheduled_time = attempt.scheduled_time
        self.attempt = attempt.attempt
        self.reason = attempt.reason
        self.fencing_token = attempt.fencing_token
        self.idempotency_key = attempt.idempotency_key
        self.log = FieldsAdapter(logging.getLogger(f"ejpy.job.{attempt.job_name}"), attempt_fields(attempt))
        self._checkpoint = attempt.checkpoint
        self._cancellation = cancellation
        self._hand_off = hand_off
        self._save = save

    # -- being told to stop --

    @property
    def cancelled(self) -> bool:
        """True once this attempt was told to stop: time-out, shutdown, lost session, an operator. Never False again."""
        return self._cancellation.is_set

    def raise_if_cancelled(self) -> None:
        """Raise JobCancelled if this attempt was told to stop. A body need not catch it."""
        if self.cancelled:
            raise JobCancelled(f"job {self.job_name!r}, item {self.sharding_item}: this attempt was told to stop")

    def call_when_cancelled(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have `callback` called once when this attempt is told to stop; at once, if it was. From any thread.

        For what waits where `cancelled` is not looked at: a socket to close, a query to end. It is called in a thread of ejpy's
        that others need, and must return at once; what it raises is logged. The result takes the request back; a call that is
        under way then is not waited for.
        """

        def call() -> None:
            try:
                callback()
            except BaseException:
                self.log.exception("what was to be called when the attempt is told to stop has failed")

        return self._cancellation.call_when_set(call)

    @property
    def hand_off_wanted(self) -> bool:
        """True once this item is to go to another worker: this one is about to end, or the leader shares the items out anew.
        Never False again.

        The attempt may go on; if its worker is about to end, it will be told to stop when the grace period is over. Work that
        can be ended at any time and is gone on with at the next fire, a stream say, does well to return now: then the other
        worker need not wait. That items are shared out anew is told to attempts that have run for 10 seconds, within 10 seconds.
        """
        return self._hand_off.is_set

    def wait(self, seconds: float) -> bool:
        """Sleep for `seconds`, or until told to stop; True if told to stop. Use it instead of `time.sleep`.

        Raises RuntimeError in a coroutine, where it would block the event loop of all asyncio jobs.
        """
        self._refuse_in_coroutine("wait", "wait_async")
        return self._cancellation.wait(seconds)

    async def wait_async(self, seconds: float) -> bool:
        """As `wait`, for coroutines. In an `async def execute`, being told to stop raises asyncio.CancelledError here, as at
        every other `await`."""
        return await self._cancellation.wait_async(seconds)

    # -- checkpoints --

    @property
    def checkpoint(self) -> Any:
        """What was saved last for this fire and item, by this or an earlier attempt: a JSON value, None without."""
        return self._checkpoint

    def save_checkpoint(self, value: Any) -> None:
        """Store `value`, so that a later attempt can go on from there. When it returns, `checkpoint` is the new value.

        Raises ValueError if `value` is no JSON value or is over 100 KiB as JSON; StaleAttempt if a newer attempt exists, or
        this one was given up: stop then; OutcomeUnknown if no answer came in 30 s; RegistryError if it could not be stored;
        RuntimeError in a coroutine (use `save_checkpoint_async`).
        """
        self._refuse_in_coroutine("save_checkpoint", "save_checkpoint_async")
        kept = self._as_json(value)
        future = self._save(kept)
        try:
            future.result(timeout=_BODY_WAITS_SECONDS)
        except FutureTimeoutError:
            if future.done():
                raise
            raise OutcomeUnknown(
                f"job {self.job_name!r}, item {self.sharding_item}: the worker did not answer whether the checkpoint was saved"
            ) from None
        self._checkpoint = kept

    async def save_checkpoint_async(self, value: Any) -> None:
        """As `save_checkpoint`, for coroutines. If the wait is cancelled, the value may be stored all the same."""
        kept = self._as_json(value)
        saving = asyncio.wrap_future(self._save(kept))
        # If the body is cancelled meanwhile, nobody asks for the result; asyncio would report that as a lost exception.
        saving.add_done_callback(lambda done: done.cancelled() or done.exception())
        done, _ = await asyncio.wait({saving}, timeout=_BODY_WAITS_SECONDS)
        if not done:
            raise OutcomeUnknown(
                f"job {self.job_name!r}, item {self.sharding_item}: the worker did not answer whether the checkpoint was saved"
            )
        saving.result()
        self._checkpoint = kept

    def _as_json(self, value: Any) -> Any:
        """`value` as a later attempt would read it."""
        where = f"job {self.job_name!r}, item {self.sharding_item}: checkpoint"
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            size = len(text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{where} must be a JSON value (None, bool, number, str, list, dict): {error}") from None
        if size > CHECKPOINT_BYTES:
            raise ValueError(f"{where} is {size} bytes as JSON, the limit is {CHECKPOINT_BYTES}; store the data elsewhere")
        return json.loads(text)

    def _refuse_in_coroutine(self, blocking: str, instead: str) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RuntimeError(f"{blocking}() blocks the event loop that it is called on; use `await {instead}()`")

    # -- for users' own tests --

    @staticmethod
    def for_test(
        *,
        job_name: str = "test-job",
        job_parameter: str = "",
        sharding_total_count: int = 1,
        sharding_item: int = 0,
        sharding_parameter: str | None = None,
        props: Mapping[str, str] | None = None,
        scheduled_time: datetime = datetime(2026, 1, 1, tzinfo=timezone.utc),
        attempt: int = 1,
        reason: Reason = Reason.SCHEDULED,
        fencing_token: int = 1,
        checkpoint: Any = None,
        save_error: Exception | None = None,
    ) -> ShardContextForTest:
        """A context to call `execute` with in a unit test, without a worker. `save_error` is raised by every save."""
        return ShardContextForTest(
            Attempt(
                job_name=job_name,
                job_class="",
                job_parameter=job_parameter,
                sharding_total_count=sharding_total_count,
                sharding_item=sharding_item,
                sharding_parameter=sharding_parameter,
                task_id=f"{job_name}@-@{sharding_item}@-@test",
                scheduled_time=scheduled_time,
                attempt=attempt,
                reason=reason,
                fencing_token=fencing_token,
                checkpoint=checkpoint,
                timeout_seconds=None,
                props=dict(props or {}),
            ),
            save_error,
        )


class ShardContextForTest(ShardContext):
    """What `ShardContext.for_test` gives: checkpoints stay in memory, and the test says when the body shall stop."""

    saved: list[Any]
    """Every checkpoint that was saved, the latest last."""

    def __init__(self, attempt: Attempt, save_error: Exception | None) -> None:
        def save(value: Any) -> Future[None]:
            future: Future[None] = Future()
            if save_error is None:
                self.saved.append(value)
                future.set_result(None)
            else:
                future.set_exception(save_error)
            return future

        super().__init__(attempt, Cancellation(), save, Cancellation())
        self.saved = []

    def cancel(self) -> None:
        """Tell the body to stop, as a shutdown does; from any thread."""
        self._cancellation.set()

    def hand_off(self) -> None:
        """Have `hand_off_wanted` true, as the beginning of a shutdown does; from any thread."""
        self._hand_off.set()
