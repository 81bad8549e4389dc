"""An asyncio event loop with virtual time: hours of timers pass in milliseconds, and every run is the same.

Time stands still while anything is ready to run, and jumps to the next timer when nothing is. Nothing outside the loop
can wake it: no sockets, no threads, no executor. A loop on which nothing is ready and no timer is set can never go on, so
that is an error at once instead of a test that hangs.

What runs in the context of a `Process` can be stopped as a real process can: frozen, all that it would do waits, its timers
and the answers to its requests as well, and is done when it goes on; dead, nothing of it is ever done.

Exceptions that nobody would see otherwise (in callbacks, in tasks whose result was dropped) fail the run.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar, copy_context
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

Result = TypeVar("Result")

EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)

MOST_CANCELLED = 200
"""So many cancelled timers are kept before all of them are thrown out at once."""


TURN_SECONDS = 1e-6
"""Whenever everything that was ready is done, at least so much time has passed: what waits for a remainder that is lost in
rounding would wait for ever otherwise."""

MOST_TURNS = 200_000
"""More turns in one virtual second than anything takes that comes to an end."""


class Stuck(RuntimeError):
    """Nothing is ready and no timer is set, or something is begun again and again: what is awaited will never come."""


class Process:
    """What is stopped together: everything that was begun in its context.

    `context` is the one to begin things in. `run` does something there at once, `call_soon` in a later turn of the loop.
    """

    def __init__(self, loop: VirtualLoop) -> None:
        self.frozen = False
        self.dead = False
        self.held_seconds = 0.0
        """How long it was frozen so far."""
        self._frozen_at = 0.0
        self._loop = loop
        self._waiting: list[Any] = []
        self.context = copy_context()
        self.context.run(_process.set, self)
        loop.processes.append(self)

    def run(self, deed: Callable[..., Result], *arguments: Any) -> Result:
        if _process.get() is self:
            return deed(*arguments)
        return self.context.copy().run(deed, *arguments)

    def task(self, deed: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Begin a coroutine here."""
        return self.run(self._loop.create_task, deed)

    def call_soon(self, deed: Callable[[], object]) -> None:
        self._loop.call_soon(deed, context=self.context.copy())

    def freeze(self) -> None:
        self.frozen = True
        self._frozen_at = self._loop.time()
        self._loop.stoppable = True

    def thaw(self, apart_seconds: float = 0.0) -> None:
        """Go on: what waited is done in its order, each deed so long after the one before."""
        self.frozen = False
        self.held_seconds += self._loop.time() - self._frozen_at
        if self.dead:
            return
        waiting, self._waiting = self._waiting, []
        for place, handle in enumerate(waiting):
            self._loop.call_at(self._loop.time() + place * apart_seconds, self._go_on, handle, context=self.context.copy())

    def _go_on(self, handle: Any) -> None:
        if not handle._cancelled:
            handle._run()

    def die(self) -> None:
        self.dead = True
        self._loop.stoppable = True

    def hold(self, handle: Any) -> bool:
        """Whether a turn of the loop must not be taken now; then it is kept."""
        if self.frozen or self.dead:
            self._waiting.append(handle)
            return True
        return False

    def end(self) -> None:
        """The loop ends: what waits has to be cancelled with all else, so it must be taken after all."""
        self._loop._ready.extend(self._waiting)
        self._waiting.clear()


_process: ContextVar[Process | None] = ContextVar("process", default=None)


class _NoSelector(selectors.BaseSelector):
    """Waits for nothing."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data)
        self._keys[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's text. `time()` starts at 0."""

    # What asyncio's BaseEventLoop keeps: what is ready, a heap of timers, and how many of them were cancelled.
    _ready: Any
    _scheduled: list[Any]
    _timer_cancelled_count: int
    _stopping: bool

    def __init__(self) -> None:
        self._now = 0.0
        self._second = 0
        self._turns = 0
        self.processes: list[Process] = []
        self.stoppable = False
        """Whether there ever was a process that was frozen or killed."""
        super().__init__(_NoSelector())
        self.unseen: list[str] = []
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._now

    def end(self) -> None:
        """Cancel all tasks, those of processes that were stopped, too, and let them end. No timer rings any more."""
        self.stoppable = False
        self._scheduled.clear()
        for process in self.processes:
            process.end()
        while left := asyncio.all_tasks(self):  # again, since a cancelled task may leave others
            for task in left:
                task.cancel()
            while self._ready:  # the turns that this takes
                self.call_soon(self.stop)
                self.run_forever()
                self._scheduled.clear()

    def pending_timers(self) -> int:
        """How many timers are set and were not cancelled."""
        return sum(not timer.cancelled() and timer.when() > self._now for timer in self._scheduled)

    def _run_once(self) -> None:
        """One turn: asyncio's own, without all that virtual time makes needless."""
        ready, timers = self._ready, self._scheduled
        if self._timer_cancelled_count > MOST_CANCELLED:
            self._throw_out_cancelled()
            timers = self._scheduled
        while timers and timers[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(timers)._scheduled = False
        if not ready and not self._stopping:
            if not timers:
                raise Stuck("nothing is ready and no timer is set")
            self._now = max(self._now + TURN_SECONDS, timers[0]._when)
        self._turns += 1
        if self._now >= self._second:
            self._second, self._turns = int(self._now) + 1, 0
        elif self._turns > MOST_TURNS:
            raise Stuck(f"{MOST_TURNS} turns within a second, at {self._now:.6f}, of {[str(h)[:200] for h in list(ready)[:5]]}")
        while timers and timers[0]._when <= self._now:
            timer = heapq.heappop(timers)
            timer._scheduled = False
            if timer._cancelled:
                self._timer_cancelled_count -= 1
            else:
                ready.append(timer)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            if self.stoppable:
                process = handle._context.get(_process)
                if process is not None and process.hold(handle):
                    continue
            handle._run()

    def _throw_out_cancelled(self) -> None:
        kept = []
        for timer in self._scheduled:
            if timer._cancelled:
                timer._scheduled = False
            else:
                kept.append(timer)
        heapq.heapify(kept)
        self._scheduled[:] = kept
        self._timer_cancelled_count = 0

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unseen.append(f"{context.get('message')}: {context.get('exception')!r}")


class LoopClock:
    """The loop's time as a `Clock`; the wall clock starts at `EPOCH`, and may be wrong by `ahead`, which may change."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead: timedelta = timedelta(0)) -> None:
        self.ahead = ahead
        self._loop = loop

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.time()) + self.ahead

    def monotonic(self) -> float:
        return self._loop.time()


def run_virtual(main: Callable[[VirtualLoop], Coroutine[Any, Any, Result]]) -> Result:
    """Run `main(loop)` on a fresh virtual loop and return its result. Tasks that it leaves behind are cancelled.

    Raises AssertionError if a callback or a forgotten task raised.
    """
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        try:
            result = loop.run_until_complete(main(loop))
        finally:
            loop.end()
        gc.collect(1)  # a dropped task tells of its exception when it is freed; the young ones, since all would take long
        assert not loop.unseen, loop.unseen[:5]
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()
