"""Waiting in tests: for a condition, with a deadline, and with words for what did not come.

What is waited for here lies in other processes and in files, which cannot signal a condition variable; so it is looked at
again and again, in this one place. Never wait for time to pass instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.02
PATIENCE_SECONDS = 60.0
"""Far more than anything here takes, also on a busy machine: it is met only by what would never come."""


def wait_until(condition: Callable[[], T | None], deadline: float, what: str) -> T:
    """The first true result of `condition`, looked for during at most `deadline` seconds.

    Raises AssertionError with `what` was waited for and the last result.
    """
    end = time.monotonic() + deadline
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() >= end:
            raise AssertionError(f"not within {deadline:g} s: {what} (last seen: {result!r})")
        time.sleep(PAUSE_SECONDS)
