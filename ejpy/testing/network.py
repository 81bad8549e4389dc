"""The in-memory registry behind a bad network: seeded delays, lost requests, lost replies, late, doubled and lost events, links
that are cut in one direction or both, and a registry that is away for a while.

One connection keeps its order, as TCP does: a request arrives after those that were sent before it, whether anybody still
waits for its reply or not. A request whose sender was cut off may still arrive.

No event is lost on a connection that holds: whatever loses one ends with the connection broken and made anew, as it would
over TCP. The server's part of a request belongs to no worker's process, so that it is not held up when the sender freezes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import TypeVar

from ejpy.clock import Clock
from ejpy.errors import OutcomeUnknown, RegistryError
from ejpy.registry.memory import MemoryRegistry, MemoryStore

T = TypeVar("T")

GIVING_UP_SECONDS = 0.05
"""After so long without reply, a request ends in OutcomeUnknown, if nothing else is said."""

_NOBODY = Context()
"""In which the server and the network work."""


@dataclass
class Trouble:
    """How bad the network is. Shares are from 0 to 1; may be changed at any time."""

    delay_seconds: float = 0.01
    """Longest time that a request, a reply or an event takes."""
    lost_requests: float = 0.0
    lost_replies: float = 0.0
    event_delay_seconds: float | None = None
    """Longest time that an event takes; None: as all else."""
    doubled_events: float = 0.0
    patience_seconds: float = GIVING_UP_SECONDS
    """After so long without reply, a request ends in OutcomeUnknown."""


class UnreliableRegistry(MemoryRegistry):
    """See the module's text. All that may be set below is for faults to set, at any time."""

    def __init__(self, store: MemoryStore, *, clock: Clock, session_timeout: float, random: Random, trouble: Trouble) -> None:
        super().__init__(store, clock=clock, session_timeout=session_timeout)
        self.sends = True
        """Whether what it sends arrives."""
        self.hears = True
        """Whether replies and events reach it."""
        self.hears_events = True
        self.held_back_until = 0.0
        """What is sent does not arrive before that, by the loop's time."""
        self.replies_to_lose = 0
        """So many replies to the next transactions that are committed are lost."""
        self._random = random
        self._trouble = trouble
        self._last_arrival = 0.0
        self._last_reply = 0.0

    async def _transport(self, apply: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[T] = loop.create_future()

        def arrive() -> None:
            if not self.sends or self._random.random() < self._trouble.lost_requests:
                return
            before = self._store.revision
            try:
                result = apply()
                respond = partial(reply.set_result, result)
            except RegistryError as error:
                respond = partial(reply.set_exception, error)
            if self._applied():
                return
            if self.replies_to_lose and self._store.revision != before:
                self.replies_to_lose -= 1
            elif self.hears and self._random.random() >= self._trouble.lost_replies:
                self._last_reply = self._in_order(self._last_reply)
                loop.call_at(self._last_reply, lambda: reply.done() or respond(), context=_NOBODY)

        arrival = self._in_order(self._last_arrival)
        self._last_arrival = max(arrival, self.held_back_until)
        loop.call_at(self._last_arrival, arrive, context=_NOBODY)
        giving_up = loop.call_at(arrival + self._trouble.patience_seconds, _give_up, reply)
        try:
            return await reply
        finally:
            giving_up.cancel()
            if not reply.cancel() and not reply.cancelled():
                reply.exception()  # it came when nobody waited any more

    def _applied(self) -> bool:
        """The server has done what was asked for, and is about to reply. Returns whether that reply is lost."""
        return False

    def _end_session(self, session_id: int | None) -> None:
        if self.hears:
            super()._end_session(session_id)

    def _on_changed(self, paths: frozenset[str]) -> None:
        if self.hears and self.hears_events:
            super()._on_changed(paths)
            if self._trouble.doubled_events and self._random.random() < self._trouble.doubled_events:
                self._deliver(partial(super()._on_changed, paths))

    def _deliver(self, event: Callable[[], None]) -> None:
        longest = self._trouble.event_delay_seconds
        delay = self._random.uniform(0, self._trouble.delay_seconds if longest is None else longest)
        asyncio.get_running_loop().call_later(delay, event, context=self._context())

    def _context(self) -> Context:
        """What events are carried out in."""
        return _NOBODY

    def break_connection(self) -> None:
        """It is broken, and made anew at once."""
        self.disconnect()
        self.reconnect()

    def _in_order(self, last: float) -> float:
        """When what is sent now is there: not before what was sent earlier."""
        now = asyncio.get_running_loop().time()
        return max(now + self._random.uniform(0, self._trouble.delay_seconds), last + 1e-6)


def _give_up(reply: asyncio.Future[T]) -> None:
    if not reply.done():
        reply.set_exception(OutcomeUnknown("no reply came"))
