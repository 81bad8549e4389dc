"""An asyncio event loop with virtual time: hours of timers pass in milliseconds, and every run is the same.

Time stands still while anything is ready to run, and jumps to the next timer when nothing is. Nothing outside the loop
can wake it: no sockets, no threads, no executor. A loop on which nothing is ready and no timer is set can never go on, so
that is an error at once instead of a test that hangs.

Exceptions that nobody would see otherwise (in callbacks, in tasks whose result was dropped) fail the run.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from datetime import datetime, timedelta, timezone
from typing import Any, TypeVar

from typing_extensions import TypeVarTuple, Unpack

Result = TypeVar("Result")
Ts = TypeVarTuple("Ts")

EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Stuck(RuntimeError):
    """Nothing is ready and no timer is set: whatever is awaited will never come."""


class _JumpingSelector(selectors.BaseSelector):
    """Instead of waiting, moves the time on by what it should have waited."""

    def __init__(self) -> None:
        self.now = 0.0
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
        if timeout is None:
            raise Stuck("nothing is ready and no timer is set")
        self.now += max(timeout, 0.0)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's text. `time()` starts at 0."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self.unseen: list[str] = []
        self._timers: list[asyncio.TimerHandle] = []
        self.set_exception_handler(self._note)

    def time(self) -> float:
        return self._jumping.now

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: Unpack[Ts], context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        self._timers.append(timer)
        return timer

    def pending_timers(self) -> int:
        """How many timers are set and were not cancelled."""
        self._timers = [timer for timer in self._timers if not timer.cancelled() and timer.when() > self.time()]
        return len(self._timers)

    def _note(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.unseen.append(f"{context.get('message')}: {context.get('exception')!r}")


class LoopClock:
    """The loop's time as a `Clock`; the wall clock starts at `EPOCH`, and may be wrong by `ahead`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ahead: timedelta = timedelta(0)) -> None:
        self._loop = loop
        self._ahead = ahead

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self._loop.time()) + self._ahead

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
            while left := asyncio.all_tasks(loop):  # again, since a cancelled task may leave others
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        gc.collect(1)  # a dropped task tells of its exception when it is freed; the young ones, since all would take long
        assert not loop.unseen, loop.unseen
        return result
    finally:
        asyncio.set_event_loop(None)
        loop.close()
