"""The one flag by which a body is told to stop.

It is set once, from any thread, and stays set. Whoever waits on it is woken: a thread in `wait`, a coroutine on any event
loop in `wait_async`, and callbacks (an event loop that has a task to cancel).

Callbacks are called in the order in which they were asked for, and a wake-up of `wait_async` is one of them. So where a task's
cancellation was asked for before its body began, it is under way before the body's wait can end, and the body leaves the wait
by CancelledError; it never returns from it and goes on as if all were well.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Cancellation:
    """Set once, never cleared. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self._callbacks: dict[object, Callable[[], object]] = {}
        self._all_told = False
        """All callbacks were called: later ones have nobody to wait for."""

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Tell everybody. Callbacks are called in the calling thread, each once, in the order in which they were asked for."""
        self._event.set()
        while (callback := self._next()) is not None:
            callback()

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            if not self._callbacks:
                self._all_told = True
                return None
            return self._callbacks.pop(next(iter(self._callbacks)))

    def call_when_set(self, callback: Callable[[], object]) -> Callable[[], None]:
        """Have `callback` called when the flag is set, after those that were asked for before; now, if all that is over. The
        result takes the request back."""
        key = object()
        with self._lock:
            over = self._all_told
            if not over:
                self._callbacks[key] = callback
        if over:
            callback()

        def take_back() -> None:
            with self._lock:
                self._callbacks.pop(key, None)

        return take_back

    def wait(self, seconds: float) -> bool:
        """Block the calling thread until the flag is set, at most `seconds`; True if it is set."""
        return self._event.wait(seconds)

    async def wait_async(self, seconds: float) -> bool:
        """As `wait`, on the running event loop and without blocking it; True if it was woken because the flag is set."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            call_in_loop(loop, lambda: None if woken.done() else woken.set_result(None))

        take_back = self.call_when_set(wake)
        try:
            # Not `wait_for`: that of Python 3.11 swallows a cancellation that comes together with the result.
            await asyncio.wait({woken}, timeout=seconds)
            return woken.done()  # not `is_set`, which may be true before the task's cancellation is under way
        finally:
            take_back()
            woken.cancel()


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> bool:
    """Have `callback` called on `loop`, from any thread; False if the loop is closed, so that nobody is left to be told."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True
