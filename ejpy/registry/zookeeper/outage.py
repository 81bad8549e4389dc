"""What is said of servers that cannot be reached: each at once, and then all of them once a minute.

A client tries again every second, server by server. A line for each try buries what else the log has to tell in an outage of
hours. That the session is suspended, lost and connected again is said where that is seen (`guard`); so here the end of an outage
needs no line.
"""

from __future__ import annotations

import logging

log = logging.getLogger("ejpy.registry.zookeeper")

REMINDER_SECONDS = 60.0


class Outage:
    """The tries since there was last a connection. All methods in one thread; `now` is `Clock.monotonic`."""

    def __init__(self) -> None:
        self._causes: dict[str, str] = {}
        self._since = 0.0
        self._said_at = 0.0

    def failed(self, server: str, cause: str, now: float) -> None:
        """A try at a server was in vain."""
        if not self._causes:
            self._since = self._said_at = now
        known = server in self._causes
        self._causes[server] = cause
        if not known:
            log.info("ZooKeeper server %s: %s", server, cause)
        elif now >= self._said_at + REMINDER_SECONDS:
            self._said_at = now
            causes = "; ".join(f"{name}: {why}" for name, why in self._causes.items())
            log.warning("ZooKeeper has not been reached for %d min: %s", (now - self._since) // 60, causes)

    def over(self) -> None:
        """There is a connection."""
        self._causes.clear()
