"""What the control plane asks of whoever runs bodies, and what it is told.

The control plane (one asyncio loop) hands over an `Attempt` and gets back an `Execution` to cancel it by. The body runs
elsewhere: a thread, a process, a loop of its own; never on the control loop. However it ends, `on_ended` is called once,
on the control loop. A body that cannot be stopped is *abandoned*: `on_ended` is called, the body may go on, and it has
lost its token: whatever it writes through ejpy is refused.

    start ──► queued ──may_enter──► body runs ──► on_ended(SUCCEEDED | FAILED)
                │ no                   │ cancel or timeout
                ▼                      ▼
          on_ended(None: never         told to stop ──► on_ended(CANCELLED | TIMED_OUT), or, after `cancel_grace`
          entered)                     seconds, ended by force (process), or abandoned with the same outcome
                                       (a thread past its timeout, anything at `close`)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from ejpy.attempt import Attempt
from ejpy.terms import Outcome


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended."""

    outcome: Outcome | None
    """None: the body was never entered (`may_enter` said no, or it was cancelled while it waited for a place)."""
    entered: datetime | None
    ended: datetime
    error: str | None = None
    """For FAILED: type and message in one line, at most 500 characters."""
    abandoned: bool = False
    """The body did not stop and may still be running."""
    traceback: str | None = None
    """For FAILED: the stack trace, at most 20,000 characters; None where there is none."""


SaveCheckpoint = Callable[[Attempt, Any], Awaitable[None]]
"""Runs on the control loop. Raises StaleAttempt if a newer attempt exists, RegistryError if it could not be written."""


class Execution(Protocol):
    """An attempt that was handed over."""

    @property
    def attempt(self) -> Attempt: ...

    def cancel(self, why: str) -> None:
        """Tell the body to stop; `why` goes to the log. Idempotent; does nothing after the end.

        A thread's body that ignores this is waited for (only `timeout` and `close` give it up): it may still end well."""
        ...

    def withdraw(self) -> None:
        """This worker gives its items to others: if the body has not been entered, end with outcome None; otherwise go on, and
        let the body know that another worker could (`ShardContext.hand_off_wanted`)."""
        ...


class Runner(Protocol):
    """Runs attempts. One for each kind of executor and worker process, shared by all its jobs; bounded."""

    @property
    def waiting(self) -> int:
        """How many attempts were started here and have not entered their bodies yet."""
        ...

    def start(
        self,
        attempt: Attempt,
        *,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
    ) -> Execution:
        """Queue an attempt. `may_enter` is asked right before the body is entered, from any thread; if it says no, the
        body is not entered. Called on the control loop; returns at once."""
        ...

    async def close(self, timeout: float) -> list[Attempt]:
        """Cancel what runs, wait at most `timeout` seconds, free threads and processes (processes are killed). Returns the
        attempts whose bodies could not be ended."""
        ...
