"""The ledger's entry of one sharding item: what was claimed last, and up to when every due fire is accounted for.

One persistent JSON document an item, written at each claim and at each end, always guarded by the version that was read.
It is the correctness boundary of ejpy: whoever wins the write owns the fire; assignments only say who should try.

    idle ──claim (attempt 1)──► running ──end──► idle, with an outcome
                                  │ owner gone
                                  ├─ failover: claim (attempt + 1) ──► running
                                  └─ else: recorded as interrupted ──► idle

A run that somebody *asked for* (a trigger, another's mark) has an instant of its own, and moves no schedule. Asked for while the
item runs it waits until that ends; several that wait are one. `asked_revision` tells a request that is seen again.

`accounted_until` never goes back (but for a claim that is given back before its body was entered): each scheduled instant
up to it was claimed, recorded in `not_run` with the reason, or was not due. A fire is due when the schedule was in force,
the item existed and the job and the item were enabled; so `basis` and `suspended` say under which schedule and item count,
and whether enabled, the item was last seen: a change of either moves `accounted_until` forward and replays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from ejpy.config.model import JobConfig
from ejpy.terms import NotRun, Outcome, Reason

JUST_BEFORE = timedelta(microseconds=1)
"""Instants of a schedule are whole seconds, so this is less than any distance between two."""

HAND_OVER = timedelta(seconds=3)
"""How long an item stays idle for its leader to move it, when that asked for it."""

USUAL_OF = 10
"""How many runs an item's usual duration is the average of, about: an older one counts less and less."""

NOT_RUN_KEPT = 32
"""Ranges of fires not run that an entry keeps; the oldest go first. All of them are in the log as well."""


@dataclass(frozen=True, slots=True)
class Basis:
    """The schedule and the item count that an entry was accounted under."""

    cron: str
    time_zone: str | None
    sharding_total_count: int | None
    """None: an earlier ejpy wrote the entry, and did not say."""

    @classmethod
    def of(cls, config: JobConfig) -> Basis:
        """What a configuration says."""
        return cls(config.cron or "", config.time_zone, config.sharding_total_count)

    def includes(self, item: int) -> bool:
        """Whether there is such an item under this count."""
        return self.sharding_total_count is None or item < self.sharding_total_count


@dataclass(frozen=True, slots=True)
class NotRunRange:
    """The due instants after `after`, up to and including `until`, were not run, for one reason."""

    after: datetime
    until: datetime
    why: NotRun


@dataclass(frozen=True, slots=True)
class Asked:
    """A run outside the schedule: its instant, and why it was asked for."""

    instant: datetime
    reason: Reason


@dataclass(frozen=True, slots=True)
class Entry:
    """See the module's text. Times are aware UTC."""

    accounted_until: datetime
    basis: Basis
    suspended: bool = False
    not_run: tuple[NotRunRange, ...] = ()
    fire: datetime | None = None
    """Scheduled time of the newest attempt; None before the first."""
    attempt: int = 0
    reason: Reason | None = None
    owner: str | None = None
    """Instance id of the newest attempt's worker."""
    running: bool = False
    token: int | None = None
    """Fencing token of the newest attempt. Absent until the first write after its claim: until then it is the node's revision."""
    claimed: datetime | None = None
    ended: datetime | None = None
    outcome: Outcome | None = None
    checkpoint: Any = None
    to_recover: bool = False
    """The newest attempt was interrupted, and failover shall run its fire again."""
    overdue: bool = False
    """The leader took the item from an owner that left a fire unclaimed for too long."""
    hand_over: bool = False
    """The leader wants to move the item when its attempt ends: its owner leaves it idle for HAND_OVER then."""
    asked: Asked | None = None
    """A run that was asked for, and is not claimed yet."""
    asked_revision: int | None = None
    """At which revision of the registry the newest request was made that was taken note of."""
    unscheduled: bool = False
    """The newest attempt is of a run that was asked for."""
    usual_seconds: float | None = None
    """How long the last successful runs took, from claim to end, on average; None before the first."""
    usual_runs: int = 0
    """How many of them that is the average of; at most USUAL_OF."""

    # -- what happens to an entry --

    def ask(self, instant: datetime, reason: Reason, *, revision: int | None = None) -> Entry:
        """Take note of a request. With one that waits already it becomes one, of the later instant. `revision`: of the registry,
        at which somebody wrote the request; one that was taken note of before changes nothing."""
        if revision is not None and self.asked_revision is not None and revision <= self.asked_revision:
            return self
        if self.fire is not None and instant <= self.fire and self.unscheduled:
            instant = self.fire + JUST_BEFORE  # a run of its own
        asked = Asked(instant, reason)
        if self.asked is not None:
            claimed_before = self.asked.instant == self.fire  # and given back: it keeps its instant
            asked = self.asked if claimed_before else replace(self.asked, instant=max(instant, self.asked.instant))
        return replace(self, asked=asked, asked_revision=revision or self.asked_revision)

    def ask_by_trigger(self, written: datetime, revision: int) -> Entry:
        """Take note of a trigger, a node that was written at that time and revision. All items that are triggered together get
        the same instant, whichever workers have them, and none that a schedule can have."""
        return self.ask(written if written.microsecond else written + JUST_BEFORE, Reason.TRIGGER, revision=revision)

    def claim_asked(self, asked: Asked, owner: str, now: datetime, *, monitored: bool) -> Entry:
        """The first attempt of a run that was asked for."""
        claimed = self.claim(asked.instant, asked.reason, owner, now, monitored=monitored)
        return replace(claimed, asked=None, unscheduled=True)

    def refuse_asked(self, asked: Asked, why: NotRun) -> Entry:
        """Record a run that was asked for as not run."""
        return replace(self._not_run_at(asked.instant, why), asked=None)

    def claim(self, fire: datetime, reason: Reason, owner: str, now: datetime, *, monitored: bool) -> Entry:
        """A new attempt: the next one of the same fire, keeping its checkpoint, or the first of another."""
        again = self.fire == fire
        return replace(
            self,
            fire=fire,
            attempt=self.attempt + 1 if again else 1,
            reason=reason,
            owner=owner,
            running=monitored,
            token=None,
            claimed=now,
            ended=None,
            outcome=None,
            checkpoint=self.checkpoint if again else None,
            to_recover=False,
            overdue=False,
            hand_over=False,
            unscheduled=again and self.unscheduled,
        )

    def end(self, outcome: Outcome, token: int, now: datetime) -> Entry:
        ended = replace(self, running=False, outcome=outcome, token=token, ended=now, checkpoint=None, to_recover=False)
        if outcome is not Outcome.SUCCEEDED or self.claimed is None:
            return ended
        took, runs = max(0.0, (now - self.claimed).total_seconds()), min(self.usual_runs + 1, USUAL_OF)
        usual = self.usual_seconds or 0.0
        return replace(ended, usual_seconds=round(usual + (took - usual) / runs, 3), usual_runs=runs)

    def interrupt(self, token: int, now: datetime, *, recover: bool, why: NotRun = NotRun.INTERRUPTED) -> Entry:
        """The attempt did not end by itself. With `recover` its fire waits for a further attempt, from the checkpoint;
        otherwise it is recorded as not run, `why`."""
        ended = self.end(Outcome.INTERRUPTED, token, now)
        if recover:
            return replace(ended, to_recover=True, checkpoint=self.checkpoint)
        if self.fire is None:
            return ended
        if self.unscheduled:
            return ended._not_run_at(self.fire, why)
        return ended.record(self.fire - JUST_BEFORE, self.fire, why)

    def give_back(self, token: int, fire: datetime) -> Entry:
        """Undo a claim whose body was never entered: its fire is due again, and its next claim is a further attempt."""
        idle = replace(self, running=False, outcome=None, token=token, claimed=None)
        if self.unscheduled:
            return replace(idle, asked=Asked(fire, self.reason or Reason.TRIGGER))
        return replace(idle, accounted_until=min(self.accounted_until, fire - JUST_BEFORE))

    def save(self, checkpoint: Any, token: int) -> Entry:
        return replace(self, checkpoint=checkpoint, token=token)

    def account(self, until: datetime) -> Entry:
        """Everything up to `until` is accounted for. Never moves back."""
        return replace(self, accounted_until=max(self.accounted_until, until))

    def record(self, after: datetime, until: datetime, why: NotRun) -> Entry:
        """Fires of (after, until] were not run. A range that follows on the last one with the same reason extends it."""
        ranges = list(self.not_run)
        if ranges and ranges[-1].why is why and ranges[-1].until == after:
            ranges[-1] = replace(ranges[-1], until=until)
        else:
            ranges.append(NotRunRange(after, until, why))
        return replace(self, not_run=tuple(ranges[-NOT_RUN_KEPT:])).account(until)

    def _not_run_at(self, instant: datetime, why: NotRun) -> Entry:
        """Record one instant that is not of the schedule: what that yields stays accounted for as it is."""
        ranges = (*self.not_run, NotRunRange(instant - JUST_BEFORE, instant, why))
        return replace(self, not_run=ranges[-NOT_RUN_KEPT:])

    def mark_overdue(self) -> Entry:
        return replace(self, overdue=True, hand_over=False)

    def ask_for_hand_over(self, wanted: bool = True) -> Entry:
        return replace(self, hand_over=wanted)

    def rebase(self, basis: Basis, since: datetime, *, suspended: bool = False) -> Entry:
        """From `since` on `basis` counts, and the item is suspended or not; what passed before is not due any more."""
        return replace(self, basis=basis, suspended=suspended, to_recover=False, overdue=False).account(since)


def new_entry(basis: Basis, now: datetime) -> Entry:
    """The entry of an item that is first seen at `now`: it starts at its next fire."""
    return Entry(accounted_until=now, basis=basis)
