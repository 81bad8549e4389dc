"""ListeningRunner: runs the attempts of a job that has listeners, each fire between their `before_fire` and `after_fire`.

It stands before another runner. Attempts for one scheduled instant that are started in the same turn of the loop are one
fire; the loop's next turn begins it:

    started ──► before_fire of each listener, in a thread ──► handed to the runner ──► … ──► all ended ──► after_fire of each
       │                 │ cancel, withdraw                          │
       │                 ▼                                           ▼
       └────────► on_ended(None: never entered)                on_ended, each at once

* The control loop never waits for a listener, nor does `on_ended` of an item wait for another item or for `after_fire`.
* `may_enter` goes on to the runner, and so is asked when `before_fire` is over.
* What a listener raises, `SystemExit` included, is told to the error handler, and the fire goes on.
* A fire all of whose attempts were told to stop is over: the listeners whose turn has not come are not called, and nobody is
  waited for. One that is being called is left in peace, so that its `after_fire` never overlaps with its `before_fire`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor
from datetime import datetime
from functools import partial
from typing import Any, Protocol

from ejpy.attempt import Attempt
from ejpy.clock import Clock
from ejpy.error_handlers.base import JobFailure
from ejpy.errors import EjpyError
from ejpy.execution.base import Ended, Execution, Runner, SaveCheckpoint
from ejpy.listeners.base import DistributeOnceListener, FireInfo, JobListener
from ejpy.listeners.fire import Fire, GatedAttempt
from ejpy.logs import current_fields, fields
from ejpy.wording import describe_error

logger = logging.getLogger("ejpy.execution")

Once = Callable[[], Awaitable[None]]


class OnceForAll(Protocol):
    """Agrees with the other workers (`ejpy.listeners.Guarantee`). See there for what is promised and raised."""

    async def started(self, items: Iterable[int], instant: datetime, *, timeout: float | None, once: Once) -> None: ...

    async def completed(self, items: Iterable[int], instant: datetime, *, timeout: float | None, once: Once) -> None: ...


class ListeningRunner:
    """A Runner (see `execution/base.py`) for one job. The runner behind it is shared with others, and not closed here."""

    def __init__(
        self,
        runner: Runner,
        listeners: Sequence[JobListener],
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        threads: Executor,
        instance_id: str,
        on_failure: Callable[[JobFailure], None],
        once_for_all: OnceForAll | None = None,
    ) -> None:
        """`threads` runs the listeners; one for all jobs of a worker. `on_failure` is told on the loop what listeners raised.

        Raises ValueError for a distribute-once listener without `once_for_all`.
        """
        self._runner = runner
        self._listeners = sorted(listeners, key=lambda listener: listener.order)
        self._distributed = [listener for listener in self._listeners if isinstance(listener, DistributeOnceListener)]
        if self._distributed and once_for_all is None:
            raise ValueError(f"{type(self._distributed[0]).__qualname__} needs something to agree with other workers by")
        self._once_for_all = once_for_all
        self._loop = loop
        self._clock = clock
        self._threads = threads
        self._instance_id = instance_id
        self._on_failure = on_failure
        self._gathering: dict[tuple[str, datetime], Fire] = {}
        """Fires that begin in the next turn of the loop."""
        self._live: set[GatedAttempt] = set()
        self._tasks: dict[asyncio.Task[None], Fire] = {}
        self._open: set[Fire] = set()
        """Fires whose listeners are still to be called by this worker."""
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closing = False

    # -- the contract --

    @property
    def waiting(self) -> int:
        return self._runner.waiting + sum(1 for gated in self._live if gated.execution is None)

    def start(
        self,
        attempt: Attempt,
        *,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
    ) -> Execution:
        key = attempt.job_name, attempt.scheduled_time
        fire = self._gathering.get(key)
        if fire is None:
            fire = self._gathering[key] = Fire()
            self._open.add(fire)
            self._quiet.clear()
            self._loop.call_soon(self._begin, key)

        def ended(attempt: Attempt, end: Ended) -> None:
            self._live.discard(gated)
            on_ended(attempt, end)

        gated = GatedAttempt(
            fire,
            attempt,
            may_enter=may_enter,
            save_checkpoint=save_checkpoint,
            on_ended=ended,
            loop=self._loop,
            clock=self._clock,
        )
        self._live.add(gated)
        if self._closing:
            gated.cancel("the worker stops")
        return gated

    @property
    def idle(self) -> bool:
        """No fire is under way here."""
        return not (self._gathering or self._tasks or self._live)

    async def settled(self) -> None:
        """Wait until the fires that were begun here are over, and their `after_fire` were called. What is to be called once for
        all workers is not waited for: others can call it."""
        await self._quiet.wait()

    async def close(self, timeout: float) -> list[Attempt]:
        """Cancel what runs, and wait at most `timeout` seconds for it and for the listeners. Idempotent.

        Returns the attempts whose bodies have not ended; their ends are still reported. Listeners that hang are left behind.
        """
        self._closing = True
        for gated in list(self._live):
            gated.cancel("the worker stops")
        await asyncio.sleep(0)  # what was started in this very turn has its task now
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        left = dict(self._tasks)
        for task, fire in left.items():
            task.cancel()
            logger.warning("its listeners are left behind", extra=fields(job=fire.job_name, scheduled_time=fire.instant))
        if left:
            await asyncio.wait(left)
        return [gated.attempt for gated in self._live]

    # -- a fire --

    def _begin(self, key: tuple[str, datetime]) -> None:
        fire = self._gathering.pop(key)
        if fire.live:
            task = self._loop.create_task(self._run(fire), name=f"fire of {fire.job_name}")
            self._tasks[task] = fire
            task.add_done_callback(self._done)
        else:
            self._called_all(fire)

    async def _run(self, fire: Fire) -> None:
        info = fire.info()
        try:
            called = await self._before(fire, info)
            for gated in fire.live:
                self._hand_over(gated)
        finally:
            for gated in fire.live:
                if gated.execution is None:
                    gated.end_unentered()
        await fire.over.wait()
        await self._after(fire, info, called)

    def _hand_over(self, gated: GatedAttempt) -> None:
        try:
            gated.execution = self._runner.start(
                gated.attempt, may_enter=gated.may_enter, save_checkpoint=gated.save_checkpoint, on_ended=gated.report
            )
        except (OSError, RuntimeError) as error:  # no thread, no process to be had
            gated.log.error("cannot start a body: %s", error)

    async def _before(self, fire: Fire, info: FireInfo) -> list[JobListener]:
        """Call `before_fire` of each, until all attempts were told to stop; returns those that were called."""
        called: list[JobListener] = []
        for listener in self._listeners:
            if fire.over.is_set():
                return called
            called.append(listener)
            await self._call(info, listener, "before_fire", partial(listener.before_fire, info))
        if self._once_for_all is not None and self._distributed and not fire.over.is_set():
            await self._unless_over(fire, self._agree_started(self._once_for_all, fire, info))
        return called

    async def _after(self, fire: Fire, info: FireInfo, called: Sequence[JobListener]) -> None:
        results = fire.results(info.items)
        for listener in called:
            await self._call(info, listener, "after_fire", partial(listener.after_fire, info, results))
        self._called_all(fire)
        entered = [item for item, ended in results.items() if ended.outcome is not None]
        if self._once_for_all is not None and self._distributed and entered:
            await self._agree_completed(self._once_for_all, info, entered)

    # -- once for all workers --

    async def _agree_started(self, once_for_all: OnceForAll, fire: Fire, info: FireInfo) -> None:
        async def once() -> None:
            fire.calling = True
            for listener in self._distributed:
                call = partial(listener.before_fire_at_last_started, info)
                await self._call(info, listener, "before_fire_at_last_started", call)

        timeout = _shortest(listener.started_timeout for listener in self._distributed)
        try:
            await once_for_all.started(info.items, info.scheduled_time, timeout=timeout, once=once)
        except EjpyError as error:
            self._tell(info, f"before_fire_at_last_started: {error}", None)

    async def _agree_completed(self, once_for_all: OnceForAll, info: FireInfo, items: Sequence[int]) -> None:
        async def once() -> None:
            for listener in self._distributed:
                call = partial(listener.after_fire_at_last_completed, info)
                await self._call(info, listener, "after_fire_at_last_completed", call)

        timeout = _shortest(listener.completed_timeout for listener in self._distributed)
        try:
            await once_for_all.completed(items, info.scheduled_time, timeout=timeout, once=once)
        except EjpyError as error:
            self._tell(info, f"after_fire_at_last_completed: {error}", None)

    async def _unless_over(self, fire: Fire, agreeing: Coroutine[Any, Any, None]) -> None:
        """Do it, but give it up when the fire is over; not while it calls a listener."""
        task = self._loop.create_task(agreeing)
        over = self._loop.create_task(fire.over.wait())
        try:
            await asyncio.wait({task, over}, return_when=asyncio.FIRST_COMPLETED)
            if fire.calling:
                await asyncio.wait({task})
        finally:
            over.cancel()
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()

    # -- calling a listener --

    async def _call(self, info: FireInfo, listener: JobListener, method: str, call: Callable[[], None]) -> None:
        context = contextvars.copy_context()
        context.run(current_fields.set, {"job": info.job_name, "scheduled_time": info.scheduled_time})
        raised = await self._loop.run_in_executor(self._threads, context.run, _raised_by, call)
        if raised is not None:
            error, trace = raised
            self._tell(info, f"{method} of {type(listener).__qualname__}: {error}", trace)

    def _tell(self, info: FireInfo, error: str, trace: str | None) -> None:
        self._on_failure(
            JobFailure(
                job_name=info.job_name,
                sharding_item=None,
                scheduled_time=info.scheduled_time,
                attempt=None,
                reason=info.reasons[0],
                instance_id=self._instance_id,
                failed_at=self._clock.now(),
                error=error,
                traceback=trace,
            )
        )

    def _called_all(self, fire: Fire) -> None:
        self._open.discard(fire)
        if not self._open:
            self._quiet.set()

    def _done(self, task: asyncio.Task[None]) -> None:
        fire = self._tasks.pop(task)
        self._called_all(fire)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            about = fields(job=fire.job_name, scheduled_time=fire.instant)
            logger.error("fault while running a fire with listeners", exc_info=error, extra=about)


def _raised_by(call: Callable[[], None]) -> tuple[str, str] | None:
    """Call it; what it raised, as text: in one line, and with its trace."""
    try:
        call()
    except BaseException as error:  # noqa: BLE001 - a listener is anybody's code; see the module's text
        return describe_error(error), "".join(traceback.format_exception(error))
    return None


def _shortest(timeouts: Iterable[float | None]) -> float | None:
    return min((timeout for timeout in timeouts if timeout is not None), default=None)
