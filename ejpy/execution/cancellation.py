"""The one flag by which a body is told to stop.

It is set once, from any thread, and stays set. Whoever waits on it is woken: a thread in `wait`, a coroutine on any event
loop in `wait_async`, and callbacks (an event loop that has a task to cancel).
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
        self._callbacks: dict[object, Callable[[], None]] = {}

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        """Tell everybody. Callbacks are called in the calling thread, each once."""
        with self._lock:
            self._event.set()
            callbacks = list(self._callbacks.values())
            self._callbacks.clear()
        for callback in callbacks:
            callback()

    def call_when_set(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called when the flag is set, or now if it is. The result takes the request back."""
        key = object()
        with self._lock:
            already = self._event.is_set()
            if not already:
                self._callbacks[key] = callback
        if already:
            callback()

        def take_back() -> None:
            with self._lock:
                self._callbacks.pop(key, None)

        return take_back

    def wait(self, seconds: float) -> bool:
        """Block the calling thread until the flag is set, at most `seconds`; True if it is set."""
        return self._event.wait(seconds)

    async def wait_async(self, seconds: float) -> bool:
        """As `wait`, on the running event loop and without blocking it."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            call_in_loop(loop, lambda: None if woken.done() else woken.set_result(None))

        take_back = self.call_when_set(wake)
        try:
            # Not `wait_for`: that of Python 3.11 swallows a cancellation that comes together with the result.
            await asyncio.wait({woken}, timeout=seconds)
        finally:
            take_back()
            woken.cancel()
        return self.is_set


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> bool:
    """Have `callback` called on `loop`, from any thread; False if the loop is closed, so that nobody is left to be told."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        if not loop.is_closed():
            raise
        return False
    return True
