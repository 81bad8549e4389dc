"""A context for a kind of job, and a record of what is logged through it, which a test can wait on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

from ejpy.attempt import Attempt
from ejpy.job import ShardContextForTest
from ejpy.terms import Reason

PATIENCE_SECONDS = 60.0
"""Far more than anything here takes: it is met only by what would never come."""


class KindContextForTest(ShardContextForTest):
    """What a kind of job is given."""

    def __init__(self, props: Mapping[str, str] | None = None, **changes: Any) -> None:
        values: dict[str, Any] = {
            "job_name": "report",
            "job_class": "",
            "job_parameter": "",
            "sharding_total_count": 3,
            "sharding_item": 1,
            "sharding_parameter": None,
            "task_id": "report@-@1@-@READY@-@10.0.0.7@-@4242",
            "scheduled_time": datetime(2026, 3, 1, 12, 0, 30, tzinfo=timezone.utc),
            "attempt": 2,
            "reason": Reason.OWNER_LOST,
            "fencing_token": 17,
            "checkpoint": None,
            "timeout_seconds": None,
            "props": dict(props or {}),
        }
        super().__init__(Attempt(**{**values, **changes}), None)
        self.requests = 0
        """How many callbacks were asked for and not taken back."""

    def call_when_cancelled(self, callback: Callable[[], object]) -> Callable[[], None]:
        take_back = super().call_when_cancelled(callback)
        self.requests += 1

        def taken_back() -> None:
            self.requests -= 1
            take_back()

        return taken_back


class Logged(logging.Handler):
    """Everything that the job logs, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._changed = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._changed:
            self.lines.append(record.getMessage())
            self._changed.notify_all()

    def wait_for(self, wanted: Callable[[str], bool]) -> str:
        """The first line that is wanted, logged before or after the call."""
        with self._changed:
            found = self._changed.wait_for(lambda: next((line for line in self.lines if wanted(line)), None), PATIENCE_SECONDS)
        assert found is not None, f"never logged; logged were {self.lines[-20:]}"
        return found


@contextmanager
def logged(job_name: str = "report", handler: Logged | None = None) -> Iterator[Logged]:
    """Record what the job logs at INFO or above."""
    logger, handler = logging.getLogger(f"ejpy.job.{job_name}"), handler or Logged()
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


class Body:
    """A body in a thread of its own, and what it raised."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def ended(self) -> BaseException | None:
        """Wait for the end; what was raised, or None."""
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the body did not end"
        return self.error
