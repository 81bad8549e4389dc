"""A history, sorted by what its rows are about."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import TypeVar

from ejpy.testing.history import (
    Assigned,
    AtRest,
    Claimed,
    Configured,
    Entered,
    Event,
    Faulted,
    Finished,
    FiresNotRun,
    Leads,
    Left,
    LeftOver,
    Marked,
    Present,
    Quiet,
    Recorded,
    Saved,
    Stopped,
    Switched,
    Written,
)

Row = TypeVar("Row", bound=Event)


@dataclass
class OfItem:
    """All that is told of one item, in its order."""

    claimed: list[Claimed] = field(default_factory=list)
    entered: list[Entered] = field(default_factory=list)
    left: dict[int, Left] = field(default_factory=dict)
    """By token."""
    recorded: list[Recorded] = field(default_factory=list)
    not_run: list[FiresNotRun] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    assigned: list[Assigned] = field(default_factory=list)
    marked: list[Marked] = field(default_factory=list)
    switched: list[Switched] = field(default_factory=list)

    def recorded_at(self, fire: float) -> float:
        """When a fire was recorded as not run; inf if it was not."""
        return min((r.at for r in self.not_run if r.after < fire <= r.until), default=inf)


@dataclass
class OfJob:
    """All that is told of one job."""

    name: str
    configured: list[Configured] = field(default_factory=list)
    items: defaultdict[int, OfItem] = field(default_factory=lambda: defaultdict(OfItem))
    present: defaultdict[str, list[Present]] = field(default_factory=lambda: defaultdict(list))
    servers: list[Switched] = field(default_factory=list)
    leads: list[Leads] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    """What the registry's side shows, in its order."""

    def config_at(self, at: float) -> Configured | None:
        """What was in force; before anything was, what came first."""
        return last_before(self.configured, at) or (self.configured[0] if self.configured else None)

    def is_present(self, instance: str, at: float) -> bool:
        last = last_before(self.present.get(instance, []), at)
        return last is not None and last.session is not None

    def session_of(self, instance: str, revision: int) -> int | None:
        """The session in which an instance was registered after a transaction; None if it was not."""
        rows = self.present.get(instance, [])
        place = bisect_right(rows, revision, key=lambda row: row.revision)
        return rows[place - 1].session if place else None

    def removed_between(self, item: int, after: float, until: float) -> bool:
        """Whether a change of the item count took an item away then."""
        return any(
            later.items <= item < earlier.items and after <= later.at <= until for earlier, later in pairwise(self.configured)
        )

    def gone_at(self, instance: str, after: float) -> float:
        """When an instance went the next time; inf if it did not, or nothing is told of it."""
        return min((p.at for p in self.present.get(instance, []) if p.at >= after and p.session is None), default=inf)

    @property
    def watched(self) -> bool:
        """Whether the registry's side is told of."""
        return bool(self.events)


@dataclass
class Told:
    """A history."""

    jobs: dict[str, OfJob] = field(default_factory=dict)
    stopped: list[Stopped] = field(default_factory=list)
    left_over: list[LeftOver] = field(default_factory=list)
    stuck: set[str] = field(default_factory=set)
    """Instances that live and claim nothing."""
    quiet: float = -inf
    """Since when no fault lasts; without a row that says so, always."""
    rest: float = inf
    end: float = -inf

    def is_left(self, job: OfJob, item: OfItem) -> bool:
        """The item belongs to somebody who is stuck, and it ran on somebody who died, or was not looked at since the last change
        of the configuration. A leader looks for neither, so that nobody sees to it until he goes."""
        entry, owner = last_before(item.written, self.rest), last_before(item.assigned, self.rest)
        if entry is None or owner is None or owner.instance not in self.stuck:
            return False
        if entry.at < job.configured[-1].at:
            return True
        return entry.to_recover or (entry.running and not job.is_present(entry.owner or "", self.rest))

    def job(self, name: str) -> OfJob:
        if name not in self.jobs:
            self.jobs[name] = OfJob(name)
        return self.jobs[name]


def told(history: Iterable[Event]) -> Told:
    """Sort a history."""
    all_of = Told()
    for event in history:
        all_of.end = max(all_of.end, event.at)
        if isinstance(event, (Claimed, Entered, Left, Recorded, FiresNotRun, Written, Saved, Assigned, Marked)):
            job = all_of.job(event.job)
            _to_item(job.items[event.item], event)
            if isinstance(event, (Written, Assigned, Marked)):
                job.events.append(event)
        elif isinstance(event, Configured):
            all_of.job(event.job).configured.append(event)
        elif isinstance(event, Switched):
            job = all_of.job(event.job)
            (job.servers if event.item is None else job.items[event.item].switched).append(event)
        elif isinstance(event, Present):
            job = all_of.job(event.job)
            job.present[event.instance].append(event)
            job.events.append(event)
        elif isinstance(event, Leads):
            job = all_of.job(event.job)
            job.leads.append(event)
            job.events.append(event)
        elif isinstance(event, Stopped):
            all_of.stopped.append(event)
        elif isinstance(event, LeftOver):
            all_of.left_over.append(event)
        elif isinstance(event, Faulted) and event.kind == "stuck" and event.instance is not None:
            all_of.stuck.add(event.instance)
        elif isinstance(event, Quiet):
            all_of.quiet = event.at
        elif isinstance(event, AtRest):
            all_of.rest = event.at
        elif isinstance(event, Finished):
            all_of.end = event.at
    all_of.rest = min(all_of.rest, all_of.end)
    return all_of


def _to_item(item: OfItem, event: Event) -> None:
    if isinstance(event, Claimed):
        item.claimed.append(event)
    elif isinstance(event, Entered):
        item.entered.append(event)
    elif isinstance(event, Left):
        item.left[event.token] = event
    elif isinstance(event, Recorded):
        item.recorded.append(event)
    elif isinstance(event, FiresNotRun):
        item.not_run.append(event)
    elif isinstance(event, Written):
        item.written.append(event)
    elif isinstance(event, Saved):
        item.saved.append(event)
    elif isinstance(event, Assigned):
        item.assigned.append(event)
    elif isinstance(event, Marked):
        item.marked.append(event)


def last_before(rows: list[Row], at: float) -> Row | None:
    """The last row of those that happened until then."""
    place = bisect_right(rows, at, key=lambda row: row.at)
    return rows[place - 1] if place else None
