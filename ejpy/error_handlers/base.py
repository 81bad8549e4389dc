"""What an error handler is, and what it is told.

A handler is told of failures after they are settled: it changes nothing about them, and nothing waits for it. It runs in a
thread of its own (see `handling`), never on the control loop, and whatever it raises is logged and has no further effect.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from ejpy.attempt import Attempt
from ejpy.clock import Clock
from ejpy.execution.base import Ended
from ejpy.terms import Outcome, Reason


@dataclass(frozen=True, slots=True)
class JobFailure:
    """One thing that failed: an attempt at an item, or a listener. Plain values only."""

    job_name: str
    sharding_item: int | None
    """None: it was not an item that failed but a listener, for the fire as a whole."""
    scheduled_time: datetime
    """The instant that the fire is for; aware, UTC."""
    attempt: int | None
    """1 for the first attempt of the item and fire; None for a listener."""
    reason: Reason
    instance_id: str
    failed_at: datetime
    """Aware, UTC."""
    error: str
    """Type and message, in one line."""
    traceback: str | None = None
    """Several lines; None where there is none, or it is not known here. Of a script the last lines that it wrote."""
    fencing_token: int | None = None
    idempotency_key: str | None = None
    suppressed: int = 0
    """How many failures of the job with the same error were not told to the handler since the last one that was."""


def failure_of(attempt: Attempt, ended: Ended, instance_id: str, *, traceback: str | None = None) -> JobFailure | None:
    """What an error handler is to be told of the end of an attempt; None if it did not fail.

    Failed and timed out attempts are failures. One that was cancelled is not: it was told to stop by no fault of its own.
    """
    if ended.outcome is Outcome.FAILED:
        error = ended.error or "failed, and did not say why"
    elif ended.outcome is Outcome.TIMED_OUT:
        limit = f" of {attempt.timeout_seconds:g} s" if attempt.timeout_seconds is not None else ""
        error = f"ran past the job's timeout{limit}" + (" and could not be stopped" if ended.abandoned else "")
    else:
        return None
    return JobFailure(
        job_name=attempt.job_name,
        sharding_item=attempt.sharding_item,
        scheduled_time=attempt.scheduled_time,
        attempt=attempt.attempt,
        reason=attempt.reason,
        instance_id=instance_id,
        failed_at=ended.ended,
        error=error,
        traceback=traceback,
        fencing_token=attempt.fencing_token,
        idempotency_key=attempt.idempotency_key,
    )


class JobErrorHandler(ABC):
    """Is told of the failures of one job.

    Each job has a handler of its own, made when its first failure is to be handled, and made anew when the job's settings
    change. All its methods are called in one thread, one after the other.
    """

    deduplicated: ClassVar[bool] = True
    """Whether failures of the same job with the same error are merged for a while (`JobFailure.suppressed`)."""

    def __init__(self, props: Mapping[str, str], clock: Clock) -> None:
        """`props` are the job's, already found right by `validate`."""
        self.props = props
        self.clock = clock

    @classmethod
    def validate(cls, props: Mapping[str, str]) -> Sequence[str]:
        """What is wrong with the job's `props` for this handler, one clear line each. No value that is secret is in it."""
        return []

    @abstractmethod
    def handle(self, failure: JobFailure) -> None:
        """Do what this handler is for. May block, for seconds at most: the failures of all jobs of the worker wait.

        Raises whatever it likes: it is logged, with the values of props that look secret blotted out.
        """
