"""Time as an argument: the two readings that ejpy needs, and the one place that asks the operating system for them.

`monotonic` is the clock of leases and deadlines. On Linux it is CLOCK_BOOTTIME, which goes on while the machine sleeps:
a lease must not seem fresh after a virtual machine was suspended.
"""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Protocol


class Clock(Protocol):
    """What code that depends on time is given."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...


class SystemClock:
    """The operating system's clocks."""

    def now(self) -> datetime:
        return datetime.now(timezone.utc)

    def monotonic(self) -> float:
        return _boot_seconds()


if hasattr(time, "CLOCK_BOOTTIME"):

    def _boot_seconds() -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

else:  # macOS: its monotonic clock already goes on during sleep as far as a lease is concerned

    def _boot_seconds() -> float:
        return time.monotonic()
