"""A test's own session with a registry, for looking into the tree and changing it by hand, from plain code."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from ejpy.clock import SystemClock
from ejpy.config.registry_url import parse_url
from ejpy.errors import RegistryUnavailable, SessionExpired
from ejpy.registry.base import Registry
from ejpy.registry.open import open_registry
from tests.support.waiting import PATIENCE_SECONDS, PAUSE_SECONDS

T = TypeVar("T")


class Observer:
    """The session lives on a loop in a thread, from the first question on. Use it as a context manager.

    `url` may also be the bare address of a ZooKeeper server.
    """

    def __init__(self, url: str) -> None:
        url = url if "://" in url else f"zookeeper://{url}/observer?session_timeout=4s"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-observer", daemon=True)
        self._registry = open_registry(parse_url(url), SystemClock())
        self._started = False

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._registry.stop(1))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

    def ask(self, question: Callable[[Registry], Coroutine[Any, Any, T]]) -> T:
        """The answer; asked again while the registry does not answer."""

        async def asked() -> T:
            end = self._loop.time() + PATIENCE_SECONDS
            if not self._started:
                await self._registry.start(PATIENCE_SECONDS)
                self._started = True
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
