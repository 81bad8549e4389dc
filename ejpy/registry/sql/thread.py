"""The one thread that does all SQL of a registry, so that the loop never waits for a disk or a lock.

It serves requests in the order in which they were submitted, renews the session's lease every third of its time-out, and
looks for changes at least every `POLL_SECONDS`. SQLite tells nobody of a commit; it only keeps a counter, and reading that
costs about 0.1 ms, so there is nothing better to do than to look. What it finds out goes to the loop as a call of one of
`ThreadEvents`' methods, and in the order in which it happened: a change is told before the reply to a later request.

A request that writes is committed or withdrawn, never both: whoever is first to `take` it decides, the thread just before
it commits, the caller when its deadline passes. So the outcome is unknown only if that is during the commit itself.

If the loop is gone without `stop`, the thread ends at the next thing it has to say, and with it the session: a lease that
is renewed for a loop that runs no more would keep dead work alive.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from ejpy.clock import Clock
from ejpy.errors import RegistryError, SessionExpired
from ejpy.registry.sql.changes import Changes
from ejpy.registry.sql.store import SqlStore

logger = logging.getLogger("ejpy.registry.sql")

POLL_SECONDS = 0.05
"""The longest time until a change that another process committed is noticed, if the processor is free."""


class ThreadEvents(Protocol):
    """What is told to the loop. All are called there."""

    def lease_renewed(self, session_id: int, sent: float) -> None:
        """The session's lease was renewed, or the session opened, by a request begun at `sent` (`Clock.monotonic`)."""

    def lease_not_renewed(self, cause: str) -> None:
        """The lease could not be renewed. It will be tried again soon."""

    def session_ended(self, session_id: int) -> None:
        """The session is over. A new one will be opened at once."""

    def changed(self, paths: Changes) -> None: ...

    def thread_ended(self) -> None:
        """Nothing more comes. The connection is closed."""


class Request:
    """Something to do with the store: `work(store, request)`, which returns the result or raises.

    The work waits for locks no longer than `deadline`, and commits only if it can `take` the request.
    """

    def __init__(
        self,
        work: Callable[[SqlStore, Request], Any],
        *,
        deadline: float,
        on_done: Callable[[Any, Exception | None], None],
    ) -> None:
        self.work = work
        self.deadline = deadline
        self.on_done = on_done
        """Called on the loop with the result, or with the exception."""
        self._taken = threading.Lock()

    def take(self) -> bool:
        """True for the first caller, False for all others."""
        return self._taken.acquire(blocking=False)

    def is_taken(self) -> bool:
        return self._taken.locked()


class SqlThread:
    """One thread, from `start` to `stop`. `start`, `submit` and `stop` are called on the loop."""

    def __init__(
        self,
        store: SqlStore,
        *,
        clock: Clock,
        session_timeout: float,
        loop: asyncio.AbstractEventLoop,
        events: ThreadEvents,
    ) -> None:
        self._store = store
        self._clock = clock
        self._session_timeout = session_timeout
        self._loop = loop
        self._events = events
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._renew_at = 0.0
        self._look_at = 0.0
        self._stop_deadline = 0.0
        self._thread = threading.Thread(target=self._run, name="ejpy-sql", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        self._requests.put(request)

    def stop(self, deadline: float) -> None:
        """Have the thread serve what was submitted before, close the session, which it tries until `deadline`, and end."""
        self._stop_deadline = deadline
        self._requests.put(None)

    def join(self) -> None:
        """Wait for the end of the thread. To be called after `thread_ended`, when there is nothing left to wait for."""
        self._thread.join()

    # -- in the thread --

    def _run(self) -> None:
        try:
            self._serve()
        except _LoopIsGone:
            logger.warning("the event loop was closed before the registry was stopped; its session ends")
            self._close_session(self._clock.monotonic() + self._session_timeout)
        finally:
            self._store.close()
        try:
            self._tell(self._events.thread_ended)
        except _LoopIsGone:
            logger.debug("nobody is left to be told that the thread has ended")

    def _serve(self) -> None:
        while True:
            try:
                request = self._requests.get(timeout=self._idle_seconds())
            except queue.Empty:
                pass
            else:
                if request is None:
                    self._close_session(self._stop_deadline)
                    return
                if not request.is_taken():
                    self._perform(request)
            now = self._clock.monotonic()
            if self._store.session_id is not None and now >= self._renew_at:
                self._renew(now)
            if self._store.is_open and now >= self._look_at:
                self._look(now)

    def _idle_seconds(self) -> float | None:
        """How long there is nothing to do; None: until something is submitted."""
        if self._store.session_id is None:
            return None
        next_at = min(self._renew_at, self._look_at) if self._store.is_open else self._renew_at
        return min(max(next_at - self._clock.monotonic(), 0.0), POLL_SECONDS)

    def _perform(self, request: Request) -> None:
        session_id, now = self._store.session_id, self._clock.monotonic()
        outcome = _Outcome()
        with outcome:
            outcome.result = request.work(self._store, request)
        if self._store.session_id != session_id:
            self._renew_at = now + self._session_timeout / 3
        elif isinstance(outcome.failure, SessionExpired) or not self._store.is_open:
            self._renew_at = 0.0
        self._tell(request.on_done, outcome.result, outcome.failure)
        self._look_at = 0.0

    def _renew(self, now: float) -> None:
        deadline = now + self._session_timeout / 3
        try:
            if not self._store.is_open:
                self._store.open(deadline, create=False)
            now = self._renew_or_replace(now, deadline)
        except RegistryError as error:
            self._tell(self._events.lease_not_renewed, str(error))
            self._renew_at = now + self._session_timeout / 6
        else:
            session_id = self._store.session_id
            self._tell(self._events.lease_renewed, session_id, now)
            self._renew_at = now + self._session_timeout / 3

    def _renew_or_replace(self, now: float, deadline: float) -> float:
        """Renew the lease, or open a new session if it is over; returns the instant from which the lease counts."""
        session_id = self._store.session_id
        try:
            self._store.renew(deadline)
        except SessionExpired:
            self._tell(self._events.session_ended, session_id)
            now = self._clock.monotonic()
            self._store.open_session(deadline)
        return now

    def _look(self, now: float) -> None:
        try:
            changed = self._store.changes(now + POLL_SECONDS)
        except RegistryError as error:
            # What was missed is found the next time. If the connection is lost, renewing the lease makes a new one.
            logger.debug("could not look for changes: %s", error)
            if not self._store.is_open:
                self._renew_at = 0.0
        else:
            if changed is None or changed:
                self._tell(self._events.changed, changed)
        self._look_at = now + POLL_SECONDS

    def _close_session(self, deadline: float) -> None:
        try:
            self._store.close_session(deadline)
        except RegistryError as error:
            logger.warning("the session could not be closed and ends by its lease: %s", error)

    def _tell(self, callback: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *arguments)
        except RuntimeError as error:
            raise _LoopIsGone from error


class _Outcome:
    """What came of a request: the result of the block, or the exception that ended it, for whoever made the request."""

    def __init__(self) -> None:
        self.result: Any = None
        self.failure: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            self.failure = error
        return self.failure is not None


class _LoopIsGone(Exception):
    pass
