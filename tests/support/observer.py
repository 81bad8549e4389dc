"""A test's own session with a ZooKeeper server, for looking into the tree and changing it by hand, from plain code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from ejpy.clock import SystemClock
from ejpy.errors import RegistryUnavailable, SessionExpired
from ejpy.registry.zookeeper import ZooKeeperRegistry
from tests.support.waiting import PAUSE_SECONDS

T = TypeVar("T")

PATIENCE_SECONDS = 60.0


class Observer:
    """The session lives on a loop in a thread. Use it as a context manager."""

    def __init__(self, address: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-observer", daemon=True)
        self._registry = ZooKeeperRegistry(address, session_timeout=4, clock=SystemClock())

    def __enter__(self) -> Observer:
        self._thread.start()
        self._run(self._registry.start(PATIENCE_SECONDS))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._registry.stop(1))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

    def ask(self, question: Callable[[ZooKeeperRegistry], Coroutine[Any, Any, T]]) -> T:
        """The answer; asked again while the server does not answer."""

        async def asked() -> T:
            end = self._loop.time() + PATIENCE_SECONDS
            while True:
                try:
                    return await question(self._registry)
                except (RegistryUnavailable, SessionExpired):
                    if self._loop.time() > end:
                        raise
                    await asyncio.sleep(PAUSE_SECONDS)

        return self._run(asked())

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(2 * PATIENCE_SECONDS)
