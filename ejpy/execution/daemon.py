"""Threads for `asyncio.to_thread` in bodies, which do not keep the interpreter from exiting.

The threads of a ThreadPoolExecutor are joined at exit, whatever they do: a body that was cancelled while its
`asyncio.to_thread` call hangs would keep a stopping worker alive for ever. These are daemon threads and are joined by nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_MOST_THREADS = 32


class DaemonExecutor(ThreadPoolExecutor):
    """An executor of at most 32 daemon threads, made as they are needed.

    asyncio takes subclasses of ThreadPoolExecutor only as a loop's default executor; nothing else of that class is used.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._free = threading.Semaphore(0)
        self._mutex = threading.Lock()
        self._count = 0
        self._down = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever awaits the future
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._mutex:
            if self._down:
                raise RuntimeError("the event loop of this body has ended")
            self._calls.put(call)
            if not self._free.acquire(blocking=False) and self._count < _MOST_THREADS:
                self._count += 1
                threading.Thread(target=self._work, name=f"ejpy-to-thread-{self._count}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end when they have done what was submitted. Never waits for them."""
        with self._mutex:
            if not self._down:
                self._down = True
                for _ in range(self._count):
                    self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # holds the caller's arguments
            self._free.release()
