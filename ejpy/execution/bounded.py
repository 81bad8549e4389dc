"""What the runners have in common: a queue, a bounded number of places, time-outs, and giving up on what does not stop.

A *place* is what a body occupies: a thread, a task, a child process. It is taken when a run is launched and free again when
the body has left.

                told to stop by       | process                   | thread, asyncio
                ----------------------|---------------------------|-------------------------------------
                `cancel`              | killed after the grace    | waited for; it may still end well
                its `timeout`         | killed after the grace    | given up after the grace
                `close`               | killed after the grace    | given up when the time for closing is over

A body that is given up keeps its place, perhaps for ever, and a replacement is allowed in its stead, so that one hanging job
does not eat up the pool. At most `max_abandoned` places are replaced; beyond that each further hanging body costs one place,
since threads without bound would take down the process.

Everything here happens on the control loop. The timers are the loop's own, so that virtual time works.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from ejpy.attempt import Attempt
from ejpy.cancellation import call_in_loop
from ejpy.clock import Clock
from ejpy.execution.base import Ended, Execution, SaveCheckpoint
from ejpy.execution.body import BodyEnd
from ejpy.execution.instances import JobInstances
from ejpy.execution.run import Run
from ejpy.terms import Outcome

CANCEL_GRACE_SECONDS = 5.0
_LAST_RESORT_SECONDS = 2.0


@dataclass(kw_only=True, eq=False, repr=False)
class BoundedRunner(ABC):
    """A Runner (see `execution/base.py`) of `size` places. Subclasses know what a place is.

    After `close`, an attempt that is started ends at once with outcome None: a fire that comes while the worker stops is no
    error.
    """

    can_force: ClassVar[bool]
    """Whether `_force` ends a body that does not stop; otherwise it can only be given up."""

    loop: asyncio.AbstractEventLoop
    """The control loop."""
    clock: Clock
    size: int
    """How many places there are."""
    cancel_grace: float = CANCEL_GRACE_SECONDS
    """Seconds from telling a body to stop to giving it up."""
    max_abandoned: int | None = None
    """How many places of bodies given up are replaced; `size` if not given."""

    _live: set[Run] = field(init=False, default_factory=set)
    """Not reported to `on_ended` yet."""
    _queue: dict[Run, None] = field(init=False, default_factory=dict)
    _placed: set[Run] = field(init=False, default_factory=set)
    """Launched, not left, not given up."""
    _abandoned: set[Run] = field(init=False, default_factory=set)
    """Given up, not left."""
    _closing: asyncio.Task[list[Attempt]] | None = field(init=False, default=None)
    _idle: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a runner needs at least one place, not {self.size}")
        self._idle.set()

    # -- the contract --

    @property
    def waiting(self) -> int:
        return len(self._queue) + sum(1 for run in self._placed if run.entered is None)

    @property
    def abandoned(self) -> int:
        """How many bodies were given up and have not ended yet."""
        return len(self._abandoned)

    def start(
        self,
        attempt: Attempt,
        *,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
    ) -> Execution:
        run = Run(
            attempt,
            loop=self.loop,
            clock=self.clock,
            may_enter=may_enter,
            save_checkpoint=save_checkpoint,
            on_ended=on_ended,
            stop=self._stop,
            withdraw=self._withdraw,
        )
        self._live.add(run)
        self._idle.clear()
        if self._closing is None:
            self._queue[run] = None
            self._fill_places()
        else:
            run.cancel("the worker stops")
        return run

    async def close(self, timeout: float) -> list[Attempt]:
        if self._closing is None:
            self._closing = self.loop.create_task(self._close(timeout))
        return await asyncio.shield(self._closing)

    # -- what a place is --

    @abstractmethod
    def _launch(self, run: Run) -> None:
        """Give a place to `run`: have it `enter`, run its body, and call `_left` in the end. Returns at once.

        Whoever besides the body must hear that it is told to stop asks `run.cancellation` for it before the body begins."""

    @abstractmethod
    def _force(self, run: Run, at_once: bool) -> None:
        """It did not stop within the grace: end it by force where that is possible, else `_abandon` it. `at_once`: the
        runner closes, and there is no time for manners."""

    @abstractmethod
    async def _free(self) -> None:
        """Free all places, within some two seconds."""

    # -- from the body's thread --

    def _enter(self, run: Run) -> bool:
        """`run.enter`, and the time-out begins."""
        if not run.enter():
            return False
        call_in_loop(self.loop, lambda: self._begun(run))
        return True

    def _left_from_thread(self, run: Run, end: BodyEnd | None) -> bool:
        """`_left`, from any thread. False if the control loop is closed: nobody waits for the end any more."""
        return call_in_loop(self.loop, lambda: self._left(run, end))

    # -- on the control loop --

    def _fill_places(self) -> None:
        while self._queue and len(self._placed) + max(0, len(self._abandoned) - self._most_replaced) < self.size:
            run = next(iter(self._queue))
            del self._queue[run]
            self._placed.add(run)
            self._launch(run)

    def _begun(self, run: Run) -> None:
        """The body was entered, a moment ago. Its time-out runs until it leaves, is given up, or is being ended by force."""
        seconds = run.attempt.timeout_seconds
        if seconds is not None and run in self._placed and run.timer is None:
            run.set_timer(self.loop.call_later(seconds, self._time_is_over, run, seconds))

    def _time_is_over(self, run: Run, seconds: float) -> None:
        why = f"it has run for {seconds:g} s, the job's timeout"
        if run.told is None:
            self._stop(run, Outcome.TIMED_OUT, why)
        else:
            self._force_after_grace(run)

    def _stop(self, run: Run, outcome: Outcome, why: str) -> None:
        if run.ended or run.told is not None:
            return
        if not run.tell(outcome):
            run.log.info("not entered: %s", why)
            self._end_waiting(run)
            return
        run.log.log(logging.WARNING if outcome is Outcome.TIMED_OUT else logging.INFO, "told to stop: %s", why)
        if self.can_force or outcome is Outcome.TIMED_OUT:
            self._force_after_grace(run)
        run.cancellation.set()

    def _withdraw(self, run: Run) -> None:
        if run.ended or run.told is not None:
            return
        if run.tell(Outcome.CANCELLED, if_waiting=True):
            run.hand_off.set()
        else:
            self._end_waiting(run)

    def _end_waiting(self, run: Run) -> None:
        self._queue.pop(run, None)
        self.loop.call_soon(self._report, run, None)

    def _force_after_grace(self, run: Run) -> None:
        run.set_timer(self.loop.call_later(self.cancel_grace, self._force, run, False))

    def _left(self, run: Run, end: BodyEnd | None) -> None:
        """The body has left its place, or was not entered (`end` is None)."""
        self._placed.discard(run)
        self._abandoned.discard(run)
        try:
            if run.ended:
                if end is not None:
                    how = end.trace or end.error or end.how.value
                    run.log.warning("the body that was given up has ended now (%s)", how)
            elif end is None:
                self._report(run, None)
            else:
                self._report(run, run.outcome_of(end), end)
        finally:
            self._fill_places()

    @property
    def _most_replaced(self) -> int:
        return self.size if self.max_abandoned is None else self.max_abandoned

    def _abandon(self, run: Run) -> None:
        """Give up a body that runs on. Its place is replaced, up to `max_abandoned`."""
        if run not in self._placed or run.entered is None:
            return
        self._placed.discard(run)
        self._abandoned.add(run)
        run.log.error(
            "given up: job %r, item %d does not stop and may go on running; %d such bodies now, places of %d replaced",
            run.attempt.job_name,
            run.attempt.sharding_item,
            len(self._abandoned),
            min(len(self._abandoned), self._most_replaced),
        )
        try:
            self._report(run, run.told, abandoned=True)
        finally:
            self._fill_places()

    def _report(self, run: Run, outcome: Outcome | None, end: BodyEnd | None = None, *, abandoned: bool = False) -> None:
        self._live.discard(run)
        try:
            run.report(outcome, end, abandoned=abandoned)
        finally:
            if not self._live:
                self._idle.set()

    async def _close(self, timeout: float) -> list[Attempt]:
        for run in list(self._live):
            run.cancel("the worker stops")
        if not await self._idle_within(timeout):
            for run in list(self._placed):
                self._force(run, True)
            await self._idle_within(_LAST_RESORT_SECONDS)
            for run in list(self._placed):
                self._abandon(run)
        await self._free()
        return [run.attempt for run in self._abandoned]

    async def _idle_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True


@dataclass(kw_only=True, eq=False, repr=False)
class InProcessRunner(BoundedRunner):
    """A runner whose bodies share this process, so that nothing ends them by force."""

    can_force = False

    instances: JobInstances

    def _force(self, run: Run, at_once: bool) -> None:
        self._abandon(run)
