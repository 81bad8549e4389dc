"""ErrorHandling: takes failures from the control loop, and has them handled elsewhere.

    report ──► queue (bounded) ──► one thread for all jobs: deduplicate ──► the job's handler
                 │ full
                 └──► dropped; said once a minute, with the count

It guards against handlers: one that blocks delays other handlers, not a job; one that raises, exits or cannot be made is a
line in the log. That the settings of a job are wrong (its configuration was changed in the registry) is said once; its failures
stand in the log already, where whoever reports them writes them first (`failures`). The thread is a daemon: one that hangs in a
handler keeps no process from ending.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable

from ejpy.cancellation import call_in_loop
from ejpy.clock import Clock
from ejpy.error_handlers.base import JobErrorHandler, JobFailure
from ejpy.error_handlers.deduplication import Deduplication
from ejpy.error_handlers.local import IgnoreHandler
from ejpy.error_handlers.secrets import without_secrets
from ejpy.error_handlers.types import HandlerSettings, handler_class, problems_of
from ejpy.errors import EjpyError
from ejpy.logs import fields
from ejpy.wording import describe_error

logger = logging.getLogger("ejpy.error_handlers")

CAPACITY = 1000
WARNINGS_SECONDS = 60.0
_JOIN_SECONDS = 1.0


class ErrorHandling:
    """One for each worker process. The thread begins with the first failure."""

    def __init__(self, clock: Clock, *, capacity: int = CAPACITY) -> None:
        """`capacity`: how many failures may wait."""
        self._clock = clock
        self._capacity = capacity
        self._changed = threading.Condition()
        self._waiting: deque[tuple[JobFailure, HandlerSettings] | str] = deque()
        """Failures, and names of jobs that are to be forgotten."""
        self._closing = False
        self._thread: threading.Thread | None = None
        self._when_ended: list[Callable[[], None]] = []
        self._dropped = 0
        self._warned_at: float | None = None
        # What only the thread touches:
        self._deduplication = Deduplication(clock, logger)
        self._handlers: dict[str, tuple[HandlerSettings, JobErrorHandler]] = {}

    def report(self, failure: JobFailure, settings: HandlerSettings) -> None:
        """Have a failure handled soon. From any thread; returns at once, never raises, and has no effect after `close`."""
        with self._changed:
            if self._closing:
                return
            full = len(self._waiting) >= self._capacity
            if not full:
                self._waiting.append((failure, settings))
                self._changed.notify()
                self._begin_thread()
        if full:
            self._drop()

    def forget(self, job_name: str) -> None:
        """A job was removed: drop its handler and what is remembered of it, once what was reported before is handled."""
        with self._changed:
            if self._thread is not None and not self._closing:
                self._waiting.append(job_name)
                self._changed.notify()

    async def close(self, timeout: float) -> int:
        """Handle what waits, within `timeout` seconds; how many were not. Idempotent. A handler that hangs is left behind."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            call_in_loop(loop, lambda: None if ended.done() else ended.set_result(None))

        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread if self._thread is not None and self._thread.is_alive() else None
            if thread is not None:
                self._when_ended.append(wake)
        if thread is not None:
            await asyncio.wait({ended}, timeout=timeout)
            if ended.done():
                thread.join(_JOIN_SECONDS)  # telling so was the last thing it did
        with self._changed:
            left = [what[0].job_name for what in self._waiting if not isinstance(what, str)]
            self._waiting.clear()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("error handlers did not keep up: %d failures more were not handled", dropped)
        if left:
            logger.warning("%d failures were not handled before the end, of: %s", len(left), ", ".join(dict.fromkeys(left)))
        return len(left)

    # -- the queue --

    def _begin_thread(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        thread = threading.Thread(target=self._work, name="ejpy-error-handlers", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the next failure tries again
            logger.error("no thread for error handlers, %d failures wait: %s", len(self._waiting), error)
        else:
            self._thread = thread

    def _drop(self) -> None:
        with self._changed:
            self._dropped += 1
            now = self._clock.monotonic()
            if self._warned_at is not None and now < self._warned_at + WARNINGS_SECONDS:
                return
            self._warned_at = now
            dropped, self._dropped = self._dropped, 0
        logger.warning("error handlers do not keep up: %d wait, %d failures were not handled", self._capacity, dropped)

    # -- in the thread --

    def _work(self) -> None:
        try:
            while (next_one := self._next()) is not None:
                self._handle(*next_one)
            self._deduplication.forget()
        finally:
            with self._changed:
                waiters, self._when_ended = self._when_ended, []
            for wake in waiters:
                wake()

    def _next(self) -> tuple[JobFailure, HandlerSettings] | None:
        """Wait for a failure; None at the end. Jobs that are to be forgotten are forgotten in their turn."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return None
                what = self._waiting.popleft()
            if not isinstance(what, str):
                return what
            self._handlers.pop(what, None)
            self._deduplication.forget(what)

    def _handle(self, failure: JobFailure, settings: HandlerSettings) -> None:
        told: JobFailure | None = failure
        try:
            handler = self._handler(failure.job_name, settings)
            if handler.deduplicated:
                told = self._deduplication.to_tell(failure, settings.deduplicate)
            if told is not None:
                handler.handle(told)
        except BaseException as error:  # noqa: BLE001 - a handler is anybody's code, and the thread serves others
            if told is not None:
                self._deduplication.not_told(told)
            self._log_failed(failure, settings, error)

    def _handler(self, job_name: str, settings: HandlerSettings) -> JobErrorHandler:
        known = self._handlers.get(job_name)
        if known is not None and known[0] == settings:
            return known[1]
        problems = problems_of(settings)
        for problem in problems:
            text = without_secrets(problem, settings.props)
            logger.error("the error handler cannot be used, failures are only logged: %s", text, extra=fields(job=job_name))
        kind = IgnoreHandler if problems else handler_class(settings.type_name)
        made = kind(settings.props, self._clock)
        self._handlers[job_name] = settings, made
        return made

    def _log_failed(self, failure: JobFailure, settings: HandlerSettings, error: BaseException) -> None:
        """Of an error of ours the line says it all. Of others the trace is logged, as text: it may quote a secret."""
        trace = "" if isinstance(error, EjpyError) else "\n" + "".join(traceback.format_exception(error))
        text = without_secrets(describe_error(error) + trace, settings.props)
        logger.error(
            "the error handler failed: %s (it was to tell of: %s)",
            text,
            without_secrets(failure.error, settings.props),
            extra=fields(job=failure.job_name, item=failure.sharding_item),
        )
