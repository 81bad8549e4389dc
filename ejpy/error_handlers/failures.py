"""Failures: says that an attempt failed, once for each, and has the job's error handler told.

| type of error handler | the log | beyond the log |
|---|---|---|
| LOG (the default), THROW | one record at ERROR, with the stack trace | – |
| IGNORE | – | – |
| any other, known here or not | the same as LOG | the handler is told, in its own time (`ejpy.error_handlers.ErrorHandling`) |

The record is written when the body ends, not by the thread of the handlers, and not when the registry has taken the end: a
handler that hangs, a name that nobody knows, or a registry that is away hides no failure. The handler is told when it is known
that the end counts; what does not, since a newer attempt exists, is told to nobody.
"""

from __future__ import annotations

from collections.abc import Callable

from ejpy.config.model import JobConfig
from ejpy.error_handlers import ErrorHandling, HandlerSettings, JobFailure, failure_of
from ejpy.error_handlers.local import log_failure
from ejpy.error_handlers.types import LOCAL, folded
from ejpy.history.records import AttemptEnded, BodyEnded, Record


class Failures:
    """A Journal. Methods on the control loop."""

    def __init__(self, handling: ErrorHandling, config_of: Callable[[str], JobConfig | None]) -> None:
        """`config_of`: the configuration that counts for a job; None if the job is not run here any more."""
        self._handling = handling
        self._config_of = config_of

    def write(self, record: Record) -> None:
        if isinstance(record, BodyEnded):
            say = self._log
        elif isinstance(record, AttemptEnded) and record.recorded:
            say = self._tell
        else:
            return
        failure = failure_of(record.attempt, record.end, record.instance_id, traceback=record.end.traceback)
        if failure is not None:
            say(failure)

    def listener_failed(self, failure: JobFailure) -> None:
        """Log it, and have the handler told."""
        self._log(failure)
        self._tell(failure)

    def _log(self, failure: JobFailure) -> None:
        if folded(self._settings(failure).type_name) != "IGNORE":
            log_failure(failure)

    def _tell(self, failure: JobFailure) -> None:
        settings = self._settings(failure)
        if folded(settings.type_name) not in LOCAL:
            self._handling.report(failure, settings)

    def _settings(self, failure: JobFailure) -> HandlerSettings:
        config = self._config_of(failure.job_name)
        return HandlerSettings(config.job_error_handler_type, config.props) if config is not None else HandlerSettings()
