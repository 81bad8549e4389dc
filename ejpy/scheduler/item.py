"""One sharding item as its worker knows it, what it is looked at with, and what is about to be written of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from ejpy.attempt import Attempt
from ejpy.config.model import JobConfig
from ejpy.coordination import claims
from ejpy.coordination.claims import Situation
from ejpy.coordination.ledger import Entry
from ejpy.coordination.marking import Marking
from ejpy.execution.base import Ended, Execution, Runner
from ejpy.registry.base import Create, Delete, Node, Operation
from ejpy.terms import Outcome, Reason


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
    marking: Marking
    trigger: Node | None = None
    """Somebody wants this instance to run its items now."""


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
    refused_until: float = 0.0
    """When something may be written of it again, by the loop's time: the registry refused the last write."""
    untold: tuple[Entry, Entry] | None = None
    """What was known of it, and what was written when the reply was lost: what that records is told when it is read back."""
    rest_until: float = 0.0
    """When it may be claimed again, by the loop's time: its body could not be entered."""
    blocked: bool = False
    """Its entry cannot be understood and must not be touched."""
    execution: Execution | None = None
    """Its body was started here and its end is not settled yet."""
    ended: Ended | None = None
    superseded: bool = False
    monitored: bool = False
    """The entry says that it runs, as long as the body that runs here has not ended."""
    marked: bool = False
    """The claim of the body that runs here left a `running` mark."""
    late: bool = False
    """The item was due again while the body runs here, and carries a `misfire` mark."""
    watched: bool = False
    mind_from: float | None = None
    """From when the entry is watched while its body runs, by the loop's time."""
    waiting_since: float | None = None
    """Since when somebody else's run is waited for, by the loop's time."""
    wait_said: bool = False
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class Change:
    """What is about to be written of an item."""

    item: Item
    entry: Entry
    version: int | None
    """What the entry was derived from; nothing else may be replaced by it."""
    decided: bool = False
    """It depends on the configuration."""
    claim: bool = False
    session_id: int | None = None
    """The session that a claim is made in."""
    ends: bool = False
    """It records the end of the body that ran here."""
    late: bool = False
    """It leaves a `misfire` mark."""
    marks_running: bool = False
    """It leaves a `running` mark for a body that runs already."""
    marks: tuple[Operation, ...] = ()
    """What goes into the same transaction."""

    @classmethod
    def of(
        cls,
        item: Item,
        entry: Entry,
        *,
        decided: bool = False,
        claim: bool = False,
        session_id: int | None = None,
        ends: bool = False,
        late: bool = False,
        marks_running: bool = False,
        marks: tuple[Operation, ...] = (),
    ) -> Change:
        """A change that was derived from what is known of the item now."""
        return cls(item, entry, item.version, decided, claim, session_id, ends, late, marks_running, marks)

    @property
    def marked(self) -> bool:
        """It leaves a `running` mark."""
        return self.claim and any(isinstance(operation, Create) for operation in self.marks)


def attempt_of(config: JobConfig, instance_id: str, item: int, entry: Entry, token: int) -> Attempt:
    """All that the body of the entry's newest attempt may know. The item count is the one that its fire is due under."""
    assert entry.fire is not None
    assert entry.reason is not None
    return Attempt(
        job_name=config.job_name,
        job_class=config.body_class,
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
        props=config.props,
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
    """Whether the entry is that of the claim, and nobody has written its end since."""
    return (entry.owner, entry.fire, entry.attempt, entry.running) == (doubt.owner, doubt.fire, doubt.attempt, doubt.running)


def claim_of(item: Item, entry: Entry, session_id: int | None, look: Look) -> Change:
    marks = tuple(look.marking.of_claim(item.number, late=item.late))
    return Change.of(item, entry, decided=True, claim=True, session_id=session_id, marks=marks)


def overdue_again(item: Item, entry: Entry, look: Look) -> Change | None:
    """Mark an item that is due while its body runs here, for those who look at marks; the ledger tells by its times."""
    marking, situation = look.marking, look.situation
    if not marking.write or not situation.policy.misfire or item.late or entry.claimed is None:
        return None
    schedule = situation.schedule(entry.basis, item.number)
    if schedule is None or schedule.latest(entry.claimed, situation.now) is None:
        return None
    there = item.number in marking.marks.misfire
    marks: tuple[Operation, ...] = () if there else (Create(marking.paths.item_misfire(item.number)),)
    return Change.of(item, entry, late=True, marks=marks)


def marked_late(item: Item, entry: Entry, look: Look) -> Change | None:
    """Mark a body that was begun while nobody read marks, and somebody does now: he must not take the item for an idle one."""
    if not look.marking.write or item.marked or not item.monitored or not entry.running:
        return None
    marks = tuple(look.marking.of_running(item.number))
    return Change.of(item, entry, marks_running=True, marks=marks) if marks else None


def end_of(item: Item, entry: Entry, ended: Ended, look: Look) -> Change:
    """Record the end of the body that ran here. One that was not entered leaves the item with whoever has it."""
    marks = tuple(look.marking.of_end(item.number, marked=item.marked, release=ended.outcome is not None))
    return Change.of(item, _after(entry, ended, look.situation.policy.failover), ends=True, marks=marks)


def _after(entry: Entry, ended: Ended, failover: bool) -> Entry:
    token = entry.token or 0
    if ended.outcome is None:
        return claims.give_back(entry)
    if ended.outcome is Outcome.CANCELLED:  # told to stop because of the session, the shutdown: not by its own fault
        return entry.interrupt(token, ended.ended, recover=failover)
    return entry.end(ended.outcome, token, ended.ended)


def triggered(item: Item, trigger: Node) -> Entry | None:
    """The entry with the run that a trigger asks for; None if it has taken note of that, or the item is none of ours."""
    entry = item.entry
    if entry is None or item.held_since is None or item.blocked or item.doubt is not None:
        return None
    asked = entry.ask_by_trigger(trigger.modified, trigger.revision)
    return None if asked is entry else asked


def answer_to_marks(item: Item, entry: Entry, look: Look) -> Change | None:
    """For an idle item that nothing is to be done with by its entry: what others' marks ask for."""
    marking, number = look.marking, item.number
    if number in marking.marks.misfire and look.situation.policy.misfire:
        asked = entry.ask(look.situation.now, Reason.MISFIRE)
        return Change.of(item, asked, marks=(Delete(marking.paths.item_misfire(number)),))
    release = tuple(marking.of_release(number))
    return Change.of(item, entry, marks=release) if release else None
