"""The in-memory registry behind a bad network: seeded delays, lost requests, lost replies, late events.

One connection keeps its order, as TCP does: a request arrives after those that were sent before it, whether anybody still
waits for its reply or not. A request whose sender was cut off may still arrive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

from ejpy.clock import Clock
from ejpy.errors import OutcomeUnknown, RegistryError
from ejpy.registry.memory import MemoryRegistry, MemoryStore

T = TypeVar("T")

GIVING_UP_SECONDS = 0.05
"""After so long without reply, a request ends in OutcomeUnknown."""


@dataclass
class Trouble:
    """How bad the network is. Shares are from 0 to 1; may be changed at any time."""

    delay_seconds: float = 0.01
    """Longest time that a request, a reply or an event takes."""
    lost_requests: float = 0.0
    lost_replies: float = 0.0


class UnreliableRegistry(MemoryRegistry):
    def __init__(self, store: MemoryStore, *, clock: Clock, session_timeout: float, random: Random, trouble: Trouble) -> None:
        super().__init__(store, clock=clock, session_timeout=session_timeout)
        self._random = random
        self._trouble = trouble
        self._last_arrival = 0.0
        self._last_reply = 0.0

    async def _transport(self, apply: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            if self._random.random() < self._trouble.lost_requests:
                return
            try:
                result = apply()
                respond = partial(reply.set_result, result)
            except RegistryError as error:
                respond = partial(reply.set_exception, error)
            if self._random.random() >= self._trouble.lost_replies:
                self._last_reply = self._in_order(self._last_reply)
                loop.call_at(self._last_reply, lambda: reply.done() or respond())

        self._last_arrival = self._in_order(self._last_arrival)
        loop.call_at(self._last_arrival, arrive)
        try:
            await asyncio.wait({reply}, timeout=self._last_arrival - loop.time() + GIVING_UP_SECONDS)
            if not reply.done():
                raise OutcomeUnknown("no reply came")
            return reply.result()
        finally:
            reply.cancel()
            reply.add_done_callback(lambda reply: reply.cancelled() or reply.exception())

    def _deliver(self, event: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(self._random.uniform(0, self._trouble.delay_seconds), event)

    def _in_order(self, last: float) -> float:
        """When what is sent now is there: not before what was sent earlier."""
        now = asyncio.get_running_loop().time()
        return max(now + self._random.uniform(0, self._trouble.delay_seconds), last + 1e-6)
