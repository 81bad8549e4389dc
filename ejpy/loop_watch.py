"""A watch of the control loop: when it is late, fires, heartbeats and shutdown are late with it, and nobody knows why."""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger("ejpy.worker")

CHECK_SECONDS = 1.0
LATE_SECONDS = 0.5
WARNINGS_SECONDS = 60.0
"""At most one warning in so long."""
START_SECONDS = 10.0
"""So long after it was started nothing is said: modules are imported, and all jobs are registered at once."""


class LoopWatch:
    """Says so when the control loop is late: something in this process keeps the interpreter (CPU-bound threads), and fires,
    heartbeats and shutdown are late with it."""

    def __init__(self) -> None:
        self._handle: asyncio.TimerHandle | None = None
        self._silent_until = 0.0

    def start(self) -> None:
        """Watch the running loop from now on, and warn of what comes `START_SECONDS` later or after that."""
        self._silent_until = asyncio.get_running_loop().time() + START_SECONDS
        self._arm()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _check(self, due: float) -> None:
        loop = asyncio.get_running_loop()
        late = loop.time() - due
        if late > LATE_SECONDS and due >= self._silent_until:
            self._silent_until = loop.time() + WARNINGS_SECONDS
            logger.warning(
                "the control loop was %.1f s late: the process was paused, or CPU-bound bodies keep the interpreter busy; "
                "run those with executor: process",
                late,
            )
        self._arm()

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + CHECK_SECONDS
        self._handle = loop.call_at(due, self._check, due)
