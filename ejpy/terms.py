"""The closed vocabularies of ejpy: why an attempt runs, how it ended, why a fire did not run, what state things are in.

Each enum is exhaustive: code that tells cases apart handles every member. The values are what stands in the ledger, in
JSON output and in logs; they never change meaning.
"""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """Why an attempt was started. Everything but `SCHEDULED` and `TRIGGER` makes up for something."""

    SCHEDULED = "scheduled"
    """The schedule's instant came, and the item was idle."""
    TRIGGER = "trigger"
    """Somebody asked for a run now; it has an instant of its own and moves no schedule."""
    MISFIRE = "misfire"
    """Instants passed while the item's earlier attempt was running; all of them are made up for by this one."""
    CATCH_UP = "catch_up"
    """The instant passed while nobody could run the item: it changed hands, or its owner was paused or cut off."""
    OWNER_LOST = "owner_lost"
    """The earlier attempt of the same fire was interrupted by the death of its owner (failover)."""
    SCHEDULED_TOO_LONG = "scheduled_too_long"
    """The item's owner lives, but left the fire unclaimed for `claim_timeout`; the item was moved."""


class Outcome(str, Enum):
    """How an attempt ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The body raised; the error is in the log and in the history."""
    TIMED_OUT = "timed_out"
    """The body ran past the job's `timeout`."""
    CANCELLED = "cancelled"
    """The body was told to stop (shutdown, lost session, an operator) and did."""
    INTERRUPTED = "interrupted"
    """The owner died in mid-run and `failover` is off, or the attempt was superseded before it could be recorded."""


class NotRun(str, Enum):
    """Why a due fire of an item was recorded instead of run."""

    OVERLAP = "overlap"
    """The item was still running, and `misfire` is off or the miss was merged into a later make-up run."""
    MISSED = "missed"
    """Nobody could run it in time, and `catch_up` does not ask for it (`none`, or an older one under `latest`)."""
    TOO_LATE = "too_late"
    """Older than `misfire_grace` when somebody could have run it."""
    INTERRUPTED = "interrupted"
    """It was begun, its owner died or had to stop, and `failover` is off."""
    DISABLED = "disabled"
    """It was asked for, and the item, its server or the job was disabled before it began."""


class JobStatus(str, Enum):
    """State of a job, by ElasticJob's rules (`JobStatisticsAPI`)."""

    OK = "OK"
    CRASHED = "CRASHED"
    """No instance is registered."""
    DISABLED = "DISABLED"
    """Every server entry is disabled."""
    SHARDING_FLAG = "SHARDING_FLAG"
    """Items wait to be assigned, or are assigned to an instance that is gone."""


class ItemStatus(str, Enum):
    """State of a sharding item, by ElasticJob's rules (`ShardingStatisticsAPI`)."""

    DISABLED = "DISABLED"
    RUNNING = "RUNNING"
    SHARDING_FLAG = "SHARDING_FLAG"
    PENDING = "PENDING"
    """Assigned to a live instance, idle."""


class CatchUp(str, Enum):
    """What is run of the fires that nobody could run in time."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


class Executor(str, Enum):
    """Where a job's body runs."""

    THREAD = "thread"
    PROCESS = "process"
    ASYNCIO = "asyncio"
