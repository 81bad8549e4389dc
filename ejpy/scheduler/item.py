"""One sharding item as its worker knows it, what it is looked at with, and what is about to be written of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from ejpy.config.model import JobConfig
from ejpy.coordination import claims
from ejpy.coordination.claims import Situation
from ejpy.coordination.ledger import Entry
from ejpy.execution.base import Attempt, Ended, Execution, Runner
from ejpy.terms import Outcome


@dataclass(frozen=True, slots=True)
class Look:
    """What the items are looked at with."""

    situation: Situation
    may_claim: bool
    config_version: int | None
    """Of the configuration's node, as it was looked at; a claim is made under no other. None: there is no such node."""
    enabled: Callable[[int], bool]
    attempt_of: Callable[[int, Entry, int], Attempt]
    """Builds what a body may know from item, entry and token."""
    runner: Runner


@dataclass(slots=True)
class Item:
    """What is known of one item."""

    number: int
    held_since: datetime | None = None
    """Since when it could have been run here; None: it is not assigned to this worker."""
    entry: Entry | None = None
    """None: to be read."""
    version: int | None = None
    """None: there is no node yet."""
    written: datetime | None = None
    """When the entry was last written (the registry's clock); None if that was by this worker, or is not known."""
    doubt: Change | None = None
    """A claim whose outcome is unknown."""
    rest_until: float = 0.0
    """When it may be claimed again, by the loop's time: its body could not be entered."""
    blocked: bool = False
    """Its entry cannot be understood and must not be touched."""
    execution: Execution | None = None
    """Its body was started here and its end is not settled yet."""
    ended: Ended | None = None
    superseded: bool = False
    watched: bool = False
    waiting_since: float | None = None
    """Since when somebody else's run is waited for, by the loop's time."""
    wait_said: bool = False
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Change:
    """What is about to be written of an item."""

    item: Item
    entry: Entry
    decided: bool = False
    """It depends on the configuration."""
    claim: bool = False
    session_id: int | None = None
    """The session that a claim is made in."""


def attempt_of(config: JobConfig, instance_id: str, item: int, entry: Entry, token: int) -> Attempt:
    """All that the body of the entry's newest attempt may know. The item count is the one that its fire is due under."""
    assert entry.fire is not None
    assert entry.reason is not None
    return Attempt(
        job_name=config.job_name,
        job_class=config.job_class,
        job_parameter=config.job_parameter,
        sharding_total_count=entry.basis.sharding_total_count or config.sharding_total_count,
        sharding_item=item,
        sharding_parameter=config.sharding_item_parameters.get(item),
        task_id=f"{config.job_name}@-@{item}@-@READY@-@{instance_id}",
        scheduled_time=entry.fire,
        attempt=entry.attempt,
        reason=entry.reason,
        fencing_token=token,
        checkpoint=entry.checkpoint,
        timeout_seconds=config.timeout.total_seconds() if config.timeout else None,
    )


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The execution of an attempt that no runner took."""

    attempt: Attempt

    def cancel(self, why: str) -> None:
        """There is nothing to stop."""

    def withdraw(self) -> None:
        """It has ended already."""


def takes_over(change: Change) -> bool:
    return change.item.execution is None and change.item.entry is not None and change.item.entry.running


def granted(entry: Entry, doubt: Entry) -> bool:
    return (entry.owner, entry.fire, entry.attempt) == (doubt.owner, doubt.fire, doubt.attempt)


def end_of(entry: Entry, ended: Ended, failover: bool) -> Entry:
    token = entry.token or 0
    if ended.outcome is None:
        return claims.give_back(entry)
    if ended.outcome is Outcome.CANCELLED:  # told to stop because of the session, the shutdown: not by its own fault
        return entry.interrupt(token, ended.ended, recover=failover)
    return entry.end(ended.outcome, token, ended.ended)
