"""One attempt: one sharding item of one fire, run by one worker, as a body may know of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ejpy.terms import Reason


@dataclass(frozen=True, slots=True)
class Attempt:
    """All that a body may know of one attempt. Plain values only: it crosses process borders."""

    job_name: str
    job_class: str
    """What the body is made of: `module:Class`, or the type of a typed job (`SCRIPT`, `HTTP`)."""
    job_parameter: str
    sharding_total_count: int
    sharding_item: int
    sharding_parameter: str | None
    task_id: str
    scheduled_time: datetime
    attempt: int
    reason: Reason
    fencing_token: int
    checkpoint: Any
    """What an earlier attempt of the same fire and item saved last (a JSON value); None without."""
    timeout_seconds: float | None
    props: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The job's `props`, without ejpy's own settings."""

    @property
    def idempotency_key(self) -> str:
        """`job/scheduled time/item`: the same on every attempt of one fire and item."""
        return f"{self.job_name}/{self.scheduled_time.isoformat()}/{self.sharding_item}"
