"""What happened, as records: attempts that started and ended, fires that were not run.

The ledger is the truth that the cluster acts on; a journal is for people and tools. Writing a record never blocks and never
fails a job.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ejpy.execution.base import Attempt, Ended
from ejpy.logs import attempt_fields, fields
from ejpy.terms import NotRun

logger = logging.getLogger("ejpy.history")


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A claim was granted, and its body handed to a runner."""

    attempt: Attempt
    instance_id: str


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """A body ended. `recorded`: the ledger took its end; otherwise a newer attempt exists, and this one does not count."""

    attempt: Attempt
    instance_id: str
    end: Ended
    recorded: bool


@dataclass(frozen=True, slots=True)
class FiresNotRun:
    """The due instants of (after, until] were not run."""

    job_name: str
    item: int
    after: datetime
    first: datetime
    """The first of them."""
    until: datetime
    """The last of them."""
    why: NotRun
    instance_id: str


Record = AttemptStarted | AttemptEnded | FiresNotRun


class Journal(Protocol):
    """Takes records. Called on the control loop; returns at once, never raises."""

    def write(self, record: Record) -> None: ...


class LogJournal:
    """Writes each record as one line of the log, with its parts as fields. What a body raised is not repeated: whoever ran the
    body has logged it, with its trace."""

    def write(self, record: Record) -> None:
        if isinstance(record, FiresNotRun):
            extra = fields(job=record.job_name, item=record.item, why=record.why.value)
            which = f"{record.first}" if record.first == record.until else f"all from {record.first} to {record.until}"
            logger.warning("not run (%s): %s", record.why.value, which, extra=extra)
            return
        about = attempt_fields(record.attempt)
        if isinstance(record, AttemptStarted):
            logger.info("started", extra=fields(**about))
            return
        outcome = record.end.outcome.value if record.end.outcome else "not entered"
        stale = "" if record.recorded else " (does not count: a newer attempt exists)"
        level = logging.INFO if record.recorded else logging.WARNING
        logger.log(level, "%s%s", outcome, stale, extra=fields(**about, outcome=outcome))
