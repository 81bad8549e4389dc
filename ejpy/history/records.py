"""What happened, as records: attempts that started and ended, fires that were not run.

The ledger is the truth that the cluster acts on; a journal is for people and tools. Writing a record never blocks and never
fails a job.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from ejpy.attempt import Attempt
from ejpy.execution.base import Ended
from ejpy.logs import attempt_fields, fields
from ejpy.terms import NotRun

logger = logging.getLogger("ejpy.history")


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """A claim was granted, and its body handed to a runner."""

    attempt: Attempt
    instance_id: str


@dataclass(frozen=True, slots=True)
class BodyEnded:
    """A body ended. Whether that counts is not known yet, and will not be as long as the registry is away."""

    attempt: Attempt
    instance_id: str
    end: Ended


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt is over. `recorded`: the ledger took its end; otherwise a newer attempt exists, and this one does not count."""

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


Record = AttemptStarted | BodyEnded | AttemptEnded | FiresNotRun


class Journal(Protocol):
    """Takes records. Called on the control loop; returns at once, never raises."""

    def write(self, record: Record) -> None: ...


class Journals:
    """Several as one. One that raises is told of on standard error, and keeps no record from the others."""

    def __init__(self, *journals: Journal) -> None:
        self._journals = journals

    def write(self, record: Record) -> None:
        for journal in self._journals:
            try:
                journal.write(record)
            except Exception:  # noqa: BLE001 - a log handler of the application's, mostly; logging it would raise again
                traceback.print_exc()


class LogJournal:
    """Writes each record as one line of the log, with its parts as fields. What a body raised stands in a record of its own
    (`failures`)."""

    def write(self, record: Record) -> None:
        if isinstance(record, BodyEnded):
            return
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
        stale = "" if record.recorded else " (does not count: its claim is not in the ledger any more)"
        level = logging.INFO if record.recorded else logging.WARNING
        logger.log(level, "%s%s", outcome, stale, extra=fields(**about, outcome=outcome))
