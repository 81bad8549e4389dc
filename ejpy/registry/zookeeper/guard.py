"""What the session is worth, by proof and by our own clock.

kazoo's word is not enough. It reports a lost session only once it has reached a server again, so never during a partition;
and a client that sends a request now and then into a connection that swallows them stays CONNECTED for ever, since it
looks for silence only when it has nothing to send. So this module asks for itself:

* Every sixth of the session time-out T a `sync` is sent as a probe. A `sync` is answered by way of ZooKeeper's leader, which
  refuses it when the session is over; a server that is cut off from the leader may go on to answer reads.
* An answered probe proves that the session was alive when the probe was *sent*, or later. The lease lasts from then for
  `LEASE_SHARE` of T. It moves with such proof only, and a new session begins with no lease but its own.
* A probe without an answer for T/3 means that the peer is dead though the connection looks alive: it is cut, and kazoo
  connects anew.
* At the end of the lease the state is LOST, by a timer on the loop, whatever kazoo says; and the connection is cut, so that
  what follows is always a fresh connection, under the old session (the server kept it) or a new one.

    CONNECTED ──connection gone──► SUSPENDED ──lease over, or the server says so──► LOST
        ▲─────────────────── connected anew ───────────────────┴──────────────────────┘

If the whole process was paused, no timer ran: so `state` looks at the clock itself, and answers to probes that were sent
before the pause are worth what they were worth then.

The numbers are derived in docs/decisions/session-guard.md.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from ejpy.clock import Clock
from ejpy.registry.base import SessionState

log = logging.getLogger("ejpy.registry.zookeeper")

PROBE_INTERVAL = 1 / 6
"""Between two probes, as a share of the session time-out."""
PROBE_PATIENCE = 1 / 3
"""How long a probe may stay unanswered, as a share of the session time-out."""
LEASE_SHARE = 0.9 - PROBE_INTERVAL
"""Length of the lease as a share of the session time-out: a tenth for clocks and ZooKeeper's tick, and one probe interval,
since a server that follows passes on that a session is alive only now and then."""


class SessionGuard:
    """Keeps the lease and the state of the session. All methods are called on the loop.

    `probe` sends a `sync` and calls its argument when it is answered. `cut` breaks the connection. `notify` is called at
    every change of state.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        session_timeout: float,
        *,
        probe: Callable[[Callable[[], None]], None],
        cut: Callable[[str], None],
        notify: Callable[[SessionState], None],
    ) -> None:
        self.session_id: int | None = None
        self.session_timeout = session_timeout
        self.lease_until = -math.inf
        self._loop = loop
        self._clock = clock
        self._send_probe = probe
        self._cut = cut
        self._notify = notify
        self._state = SessionState.LOST
        self._connection = 0
        """Counts connections; answers to probes of earlier ones prove nothing about the present one."""
        self._connected = False
        self._probe_sent_at = -math.inf
        self._probe_answered = True
        self._timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> SessionState:
        """The state now; LOST from the end of the lease on, also if the loop did not get to say so yet."""
        if self._clock.monotonic() >= self.lease_until:
            return SessionState.LOST
        return self._state

    # -- what happened --

    def established(self, session_id: int, session_timeout: float, asked_at: float) -> None:
        """There is a new connection; the session was alive when it was asked for, at `asked_at`."""
        if session_id != self.session_id:
            self.lease_until = -math.inf
        self.session_id = session_id
        self.session_timeout = session_timeout
        self._connection += 1
        self._connected = True
        self._renew(asked_at)
        self._probe()
        if self._clock.monotonic() < self.lease_until:
            told = f"{session_id & (1 << 64) - 1:#x}, time-out {session_timeout:g} s"
            self._become(SessionState.CONNECTED, told, logging.INFO)
        self._look()

    def interrupted(self, why: str) -> None:
        """The connection is gone."""
        self._connected = False
        if self._state is SessionState.CONNECTED:
            self._become(SessionState.SUSPENDED, why)
        self._look()

    def ended(self, why: str) -> None:
        """The session is over, by the server's word or by our own closing of it."""
        self._connected = False
        self.lease_until = -math.inf
        self._become(SessionState.LOST, why)
        self._look()

    def forget(self) -> None:
        """Nothing is to be guarded any more: an orderly end is no loss, though whoever listens hears LOST."""
        self._connected = False
        self.lease_until = -math.inf
        if self._state is not SessionState.LOST:
            self._state = SessionState.LOST
            log.info("ZooKeeper session closed")
            self._notify(SessionState.LOST)
        self._look()
        self.session_id = None

    # -- inside --

    def _probe(self) -> None:
        sent_at = self._clock.monotonic()
        connection = self._connection
        self._probe_sent_at = sent_at
        self._probe_answered = False

        def answered() -> None:
            if connection == self._connection and self._connected:
                self._probe_answered = True
                self._renew(sent_at)
                self._look()

        self._send_probe(answered)

    def _renew(self, proven_at: float) -> None:
        self.lease_until = max(self.lease_until, proven_at + LEASE_SHARE * self.session_timeout)

    def _look(self) -> None:
        """Do what is due by now, and come back when the next thing will be."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock.monotonic()
        if now >= self.lease_until:
            if self._connected:
                self._break("the lease of the session is over")
            self._become(SessionState.LOST, "the lease of the session is over")
        if self._connected and not self._probe_answered and now >= self._probe_due():
            self._break(f"no answer to a probe for {now - self._probe_sent_at:.1f} s")
        if self._connected and self._probe_answered and now >= self._probe_due():
            self._probe()
        due = [self.lease_until] if self._state is not SessionState.LOST else []
        if self._connected:
            due.append(self._probe_due())
        if due:
            self._timer = self._loop.call_later(max(0.0, min(due) - now), self._look)

    def _probe_due(self) -> float:
        """When the next probe is due, or the present one has been waited for long enough."""
        share = PROBE_INTERVAL if self._probe_answered else PROBE_PATIENCE
        return self._probe_sent_at + share * self.session_timeout

    def _break(self, why: str) -> None:
        self._connected = False
        self._cut(why)
        if self._state is SessionState.CONNECTED:
            self._become(SessionState.SUSPENDED, why)

    def _become(self, state: SessionState, why: str, level: int = logging.WARNING) -> None:
        if state is self._state:
            return
        self._state = state
        log.log(level, "ZooKeeper session %s: %s", state.value, why)
        self._notify(state)
