"""One attempt on its way through a runner.

    queued ──► launched ──enter──► body runs ──► left
                  │ no                │ told to stop
                  └──► left           └──► left, or given up: the body may go on, but has no say any more

All of it happens on the control loop, except `enter` and what the body's context calls, which come from the body's thread.
One lock decides between `enter` and being told to stop: a body that was told before it was entered is never entered.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from typing import Any

from ejpy.attempt import Attempt
from ejpy.cancellation import Cancellation
from ejpy.clock import Clock
from ejpy.errors import OutcomeUnknown, StaleAttempt
from ejpy.execution.base import Ended, SaveCheckpoint
from ejpy.execution.body import BodyEnd, How
from ejpy.job import SAVE_SECONDS, ShardContext
from ejpy.logs import FieldsAdapter, attempt_fields
from ejpy.terms import Outcome
from ejpy.wording import describe_error, describe_trace


class Run:
    """An attempt that was handed over: what a runner and its threads know of it. It is the `Execution` of the contract."""

    def __init__(
        self,
        attempt: Attempt,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
        stop: Callable[[Run, Outcome, str], None],
        withdraw: Callable[[Run], None],
    ) -> None:
        self._attempt = attempt
        self._loop = loop
        self._clock = clock
        self._may_enter = may_enter
        self._save_checkpoint = save_checkpoint
        self._on_ended = on_ended
        self._stop = stop
        self._withdraw = withdraw
        self._lock = threading.Lock()
        self.context = contextvars.copy_context()
        """Variables set by one body are not seen by the next one in the same thread."""
        self.cancellation = Cancellation()
        self.hand_off = Cancellation()
        """Another worker could go on: set once the body was entered and this worker gives its items away."""
        self.log = FieldsAdapter(logging.getLogger("ejpy.execution"), attempt_fields(attempt))
        self.entered: datetime | None = None
        self.told: Outcome | None = None
        """CANCELLED or TIMED_OUT once it was told to stop."""
        self.ended = False
        """`on_ended` was called."""
        self.timer: asyncio.TimerHandle | None = None
        """The next thing that time will bring: the time-out, or the end of the grace."""

    @property
    def attempt(self) -> Attempt:
        return self._attempt

    def cancel(self, why: str) -> None:
        self._stop(self, Outcome.CANCELLED, why)

    def withdraw(self) -> None:
        self._withdraw(self)

    def shard_context(self) -> ShardContext:
        return ShardContext(self._attempt, self.cancellation, self.save_from_thread, self.hand_off)

    # -- entering: from the body's thread --

    def enter(self) -> bool:
        """Whether the body may be entered now; if so, it counts as entered."""
        try:
            allowed = self._may_enter()
        except Exception:
            # Whoever answers is not the body; and what cannot be asked is not allowed.
            self.log.exception("not entered: asking whether it still may be failed")
            allowed = False
        with self._lock:
            if allowed and self.told is None:
                self.entered = self._clock.now()
                return True
        return False

    # -- checkpoints --

    def save_from_thread(self, value: Any) -> Future[None]:
        """Save a checkpoint on the control loop, called from any other thread."""
        saving = self.save(value)
        try:
            return asyncio.run_coroutine_threadsafe(saving, self._loop)
        except RuntimeError:
            saving.close()
            if not self._loop.is_closed():
                raise
            raise StaleAttempt(f"{self._place()}: the checkpoint was not saved, since the worker has ended") from None

    async def save(self, value: Any) -> None:
        """Save a checkpoint, on the control loop; ends within 30 s."""
        if self.ended:
            raise StaleAttempt(f"{self._place()}: the checkpoint was not saved, since this attempt was given up")
        try:
            await asyncio.wait_for(self._save_checkpoint(self._attempt, value), SAVE_SECONDS)
        except asyncio.TimeoutError:
            raise OutcomeUnknown(
                f"{self._place()}: no answer within {SAVE_SECONDS:g} s whether the checkpoint was saved"
            ) from None

    def _place(self) -> str:
        return f"job {self._attempt.job_name!r}, item {self._attempt.sharding_item}"

    # -- the end: on the control loop --

    def tell(self, outcome: Outcome, *, if_waiting: bool = False) -> bool:
        """Note that it is told to stop, or do so only if its body was not entered; whether it was. If not, it will not be."""
        with self._lock:
            if self.entered is None or not if_waiting:
                self.told = outcome
            return self.entered is not None

    def set_timer(self, timer: asyncio.TimerHandle | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = timer

    def report(self, outcome: Outcome | None, end: BodyEnd | None = None, *, abandoned: bool = False) -> None:
        """Call `on_ended`, the first time; later calls do nothing. `end` tells why it failed."""
        if self.ended:
            return
        self.ended = True
        self.set_timer(None)
        error, trace = (end.error, end.trace) if end is not None and outcome is Outcome.FAILED else (None, None)
        self._on_ended(self._attempt, Ended(outcome, self.entered, self._clock.now(), error, abandoned, trace))

    def outcome_of(self, end: BodyEnd) -> Outcome:
        """A body that finished its work succeeded, told to stop or not; one that stopped unasked has failed."""
        if end.how is How.RETURNED:
            return Outcome.SUCCEEDED
        if end.how is How.STOPPED and self.told is not None:
            return self.told
        return Outcome.FAILED


def unexpected(error: BaseException) -> BodyEnd:
    """The end of a body whose end could not be reported as it should: something around it, logging perhaps, raised."""
    return BodyEnd(How.RAISED, describe_error(error), describe_trace(error))
