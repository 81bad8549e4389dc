"""A session as its worker knows it, where a session is a lease that requests renew.

    CONNECTED ──interrupted──► SUSPENDED ──lease over, or the store says so──► LOST
        ▲──────────── renewed, or replaced by a new session ──────┴──────────────┘

Guards against a worker that takes itself for alive when others have seen its nodes vanish. The lease counts from when a
request that was answered was *sent*, ends `LEASE_MARGIN` early, and ends by a timer on the worker's own clock, whatever the
store says or fails to say.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from functools import partial

from ejpy.clock import Clock
from ejpy.registry.base import SessionListener, SessionState

LEASE_MARGIN = 0.05
"""Part of the session time-out by which the local lease ends before the store could end the session."""


class SessionListeners:
    """Who is told of the states of a session, each in his own call, until he wants to hear no more."""

    def __init__(self) -> None:
        self._listeners: dict[object, SessionListener] = {}

    def add(self, listener: SessionListener) -> Callable[[], None]:
        """Returns the function that takes it back."""
        key = object()
        self._listeners[key] = listener

        def take_back() -> None:
            self._listeners.pop(key, None)

        return take_back

    def __iter__(self) -> Iterator[SessionListener]:
        """Functions that tell one listener each, if he still wants to hear it then."""
        return iter([partial(self._tell, key) for key in self._listeners])

    def _tell(self, key: object, state: SessionState) -> None:
        listener = self._listeners.get(key)
        if listener is not None:
            listener(state)


class LeasedSession:
    """The state, the id and the lease of a session of `timeout` seconds. All methods are called on the loop.

    `interrupt` is called when the lease or the session is over, before that is told: whatever is under way has no session.
    """

    def __init__(self, clock: Clock, timeout: float, *, interrupt: Callable[[], None]) -> None:
        self.timeout = timeout
        self.id: int | None = None
        self.state = SessionState.LOST
        self.lease_until = -math.inf
        self._clock = clock
        self._interrupt = interrupt
        self.listeners = SessionListeners()
        """Are told of every change of `state`, in a later turn of the loop."""
        self._timer: asyncio.TimerHandle | None = None

    def opened(self, session_id: int) -> None:
        """There is a new session. It begins without a lease."""
        self.id = session_id
        self.lease_until = -math.inf

    def renewed(self, sent: float) -> None:
        """A request that was sent at `sent` was answered: proof that the session lived then."""
        self.lease_until = max(self.lease_until, sent + self.timeout * (1 - LEASE_MARGIN))
        if self._timer is None:
            self._look_in(self.lease_until - self._clock.monotonic())

    def become(self, state: SessionState) -> None:
        if state is not self.state:
            self.state = state
            for tell in self.listeners:
                asyncio.get_running_loop().call_soon(tell, state)

    def ended(self) -> None:
        """The session is over, by the store's word."""
        self.lease_until = -math.inf
        self._lose()

    def close(self) -> None:
        """There is no session any more, since nobody wants one."""
        self.stop_timer()
        self.id = None
        self.lease_until = -math.inf
        self.become(SessionState.LOST)

    def stop_timer(self) -> None:
        """The end of the lease is not looked out for any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        # Never less than a millisecond: a remainder that is lost in rounding would make a virtual clock stand still.
        self._timer = asyncio.get_running_loop().call_later(max(seconds, 0.001), self._look)

    def _look(self) -> None:
        self._timer = None
        remaining = self.lease_until - self._clock.monotonic()
        if remaining > 0:
            self._look_in(remaining)
        else:
            self._lose()

    def _lose(self) -> None:
        self._interrupt()
        self.become(SessionState.LOST)
