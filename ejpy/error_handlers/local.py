"""The handlers that send nothing: LOG, THROW and IGNORE.

In ElasticJob, THROW throws the error again, which ends the fire on that worker: items whose turn had not come are not run.
In ejpy the failure of one item never touches another one, so there is nothing to end: an attempt that failed is recorded as
failed whatever the handler, and THROW logs it as LOG does. It exists so that one configuration serves a mixed cluster.
"""

from __future__ import annotations

import logging

from ejpy.error_handlers.base import JobErrorHandler, JobFailure
from ejpy.logs import fields


def log_failure(failure: JobFailure) -> None:
    """Write one record at ERROR to the logger of the job, with the stack trace where it is known, or with the last lines of a
    script if they are not logged otherwise."""
    logger = logging.getLogger(f"ejpy.job.{failure.job_name}")
    if not logger.isEnabledFor(logging.ERROR):
        return
    about = {"job": failure.job_name, "item": failure.sharding_item, "scheduled_time": failure.scheduled_time}
    about |= {"token": failure.fencing_token, "attempt": failure.attempt, "reason": failure.reason}
    known = {name: value for name, value in about.items() if value is not None}
    record = logger.makeRecord(
        logger.name, logging.ERROR, __file__, 0, "failed: %s", (failure.error,), None, extra=fields(**known)
    )
    if not (_is_output(failure) and logger.isEnabledFor(logging.INFO)):  # a script's output was logged as it came
        record.exc_text = failure.traceback  # as of a record that comes from another process
    logger.handle(record)


def _is_output(failure: JobFailure) -> bool:
    """Whether there are the last lines of a script instead of a stack trace, as ScriptFailed has them."""
    return (failure.traceback or "").startswith("last lines of its output:\n")


class LogHandler(JobErrorHandler):
    """LOG, the default: one record at ERROR, with the stack trace where it is known. Every failure is logged."""

    deduplicated = False

    def handle(self, failure: JobFailure) -> None:
        log_failure(failure)


class ThrowHandler(LogHandler):
    """THROW: logs as LOG does. See the module's text for what it does not do."""


class IgnoreHandler(JobErrorHandler):
    """IGNORE: nothing is done beyond recording the failure, which is not a handler's matter."""

    deduplicated = False

    def handle(self, failure: JobFailure) -> None:
        """Nothing."""
