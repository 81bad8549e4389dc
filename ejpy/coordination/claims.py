"""What the owner of a sharding item does with it now.

`decide` looks at one ledger entry and the situation, and says one next step. It is asked again after each step, at each
instant of the schedule and whenever something changed, so it never needs to know what woke it.

    running, by somebody alive    ──► Wait        look again when the entry changes
    idle, and to be moved         ──► Wait        a little while, for the leader to move it
    running, owner gone           ──► Claim (owner_lost) with failover, else Write (interrupted; too late)
    idle, enabled or schedule changed since ──► Write (what passed before is not due)
    idle, of a Java worker until now ──► Write (what passed before is accounted for)
    idle, a run was asked for     ──► Claim (trigger …), or Write (too late)
    idle, instants passed         ──► Claim, or Write (recorded as not run)
    else                          ──► None

Instants that passed are told apart by what the item was doing then. While its last attempt ran: an *overlap*, for `misfire`
to decide. Otherwise: they were *missed*, for `catch_up` to decide. The oldest come first.

Nothing is made up for later than `misfire_grace` after it could have been: a missed instant counts from its own time, an
overlap from the end of the run that it overlapped, a run that was asked for from its own time or from the end of the run before
it, a lost attempt from the last sign of life of its owner. So a cluster that was down for days replays nothing when it comes
back, and a long run is recovered however long it has lasted.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Protocol

from ejpy.config.model import JobConfig
from ejpy.coordination.changes import Changes, next_change
from ejpy.coordination.ledger import HAND_OVER, JUST_BEFORE, Asked, Basis, Entry
from ejpy.terms import CatchUp, NotRun, Outcome, Reason


class Schedule(Protocol):
    """The instants of a job; aware datetimes, whole seconds, strictly increasing."""

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        """The last instant of (after, until], or None."""
        ...

    def next_after(self, instant: datetime) -> datetime | None: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of a job that claims depend on."""

    failover: bool
    failover_max_duration: timedelta | None
    misfire: bool
    catch_up: CatchUp
    misfire_grace: timedelta
    claim_timeout: timedelta
    monitored: bool

    @classmethod
    def of(cls, config: JobConfig) -> Policy:
        """The settings of a configuration."""
        return cls(
            failover=config.failover,
            failover_max_duration=config.failover_max_duration,
            misfire=config.misfire,
            catch_up=config.catch_up,
            misfire_grace=config.misfire_grace,
            claim_timeout=config.claim_timeout,
            monitored=config.monitor_execution,
        )


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything else that the decision depends on; the same for all items of a job at one look."""

    now: datetime
    me: str
    live: Container[str]
    """Ids of the live instances."""
    policy: Policy
    changes: Changes
    """Which schedule and item count are in force, and which were; at least one."""
    schedule_of: Callable[[Basis], Schedule | None]
    """The instants of a schedule, also an earlier one; None if it cannot be understood any more."""
    gone_since: Mapping[str, datetime]
    """Instances whose end I saw, and when."""
    others_until: datetime | None = None
    """Until when there were instances that keep no ledger: what an item was due before it came here, they have run."""

    @property
    def basis(self) -> Basis:
        """What is in force."""
        return self.changes[-1].basis

    def schedule(self, basis: Basis, item: int) -> Schedule | None:
        """The instants of an item under `basis`; None if it did not exist then."""
        return self.schedule_of(basis) if basis.includes(item) else None


@dataclass(frozen=True, slots=True)
class Claim:
    """Write `entry`; if that succeeds, run the body."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Write:
    """Write `entry`, then ask again."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again when the entry changes: somebody else runs the item, or it is about to be moved. At the latest at `until`."""

    until: datetime | None = None


Step = Claim | Write | Wait | None


def decide(
    item: int, entry: Entry, s: Situation, *, held_since: datetime, enabled: bool, written: datetime | None = None
) -> Step:
    """The next step for an item that is assigned to me and whose body does not run here (an entry that says that I run it
    is of a body that did not survive: its owner counts as gone).

    `held_since`: since when I could have run it: the item was assigned to me, and I had a session. `enabled`: the job and
    the item are. `written`: when the entry was last written, if that is known.
    """
    if entry.running and entry.owner != s.me and entry.owner in s.live:
        return Wait()
    if entry.hand_over and entry.ended is not None and s.now < entry.ended + HAND_OVER:
        return Wait(entry.ended + HAND_OVER)
    if not enabled:
        return _suspend(item, entry, s)
    if entry.running or entry.to_recover:
        return _recover(entry, s, written)
    if entry.suspended:
        return Write(entry.rebase(s.basis, s.now))
    if s.others_until is not None and entry.accounted_until < (theirs := min(held_since, s.others_until)):
        return Write(entry.account(theirs))
    change = next_change(s.changes, entry)
    given_back = entry.fire is not None and not entry.unscheduled and entry.accounted_until < entry.fire
    if entry.asked is not None and change is None and not given_back:  # else the count of that fire's attempts would be lost
        return _asked(entry, entry.asked, s)
    schedule = s.schedule(entry.basis, item)
    step = _pending(entry, s, schedule, min(change.since, s.now) if change else s.now, held_since) if schedule else None
    if step is None and change is not None and change.since <= s.now:
        return Write(entry.rebase(change.basis, change.since))
    return step


def _suspend(item: int, entry: Entry, s: Situation) -> Step:
    if entry.running or entry.to_recover:
        return Write(entry.interrupt(entry.token or 0, s.now, recover=False))
    if entry.asked is not None:
        return Write(entry.refuse_asked(entry.asked, NotRun.DISABLED))
    if entry.suspended:
        return None
    return _give_up_all(item, entry, s) or Write(entry.rebase(s.basis, s.now, suspended=True))


def _give_up_all(item: int, entry: Entry, s: Situation) -> Step:
    """Record what was due, under one schedule after the other, and is not claimed any more."""
    while True:
        change = next_change(s.changes, entry)
        step = _give_up(entry, s.schedule(entry.basis, item), min(change.since, s.now) if change else s.now)
        if step is not None or change is None:
            return step
        entry = entry.rebase(change.basis, change.since)


def _give_up(entry: Entry, schedule: Schedule | None, until: datetime) -> Step:
    first = _next(schedule, entry.accounted_until) if schedule else None
    if schedule is None or first is None or first > until:
        return None
    ran_until = _ran_until(entry, first)
    last = _latest(schedule, entry.accounted_until, min(ran_until, until) if ran_until else _missed_until(entry, first, until))
    if last is None:
        return None
    return Write(entry.record(entry.accounted_until, last, NotRun.OVERLAP if ran_until else NotRun.MISSED))


def _recover(entry: Entry, s: Situation, written: datetime | None) -> Step:
    if not s.policy.failover or entry.fire is None or _takes_too_long(entry, s.policy.failover_max_duration):
        return Write(entry.interrupt(entry.token or 0, s.now, recover=False))
    if s.now - _last_sign_of_life(entry, s, written) > s.policy.misfire_grace:
        return Write(entry.interrupt(entry.token or 0, s.now, recover=False, why=NotRun.TOO_LATE))
    return Claim(entry.claim(entry.fire, Reason.OWNER_LOST, s.me, s.now, monitored=s.policy.monitored))


def _takes_too_long(entry: Entry, most: timedelta | None) -> bool:
    return most is not None and entry.usual_seconds is not None and entry.usual_seconds > most.total_seconds()


def _last_sign_of_life(entry: Entry, s: Situation, written: datetime | None) -> datetime:
    """Until when the lost attempt is known to have had an owner who lived. Nobody writes down when an owner dies: whoever saw
    him go knows; who came later has the claim, and the last checkpoint."""
    if entry.to_recover and entry.ended is not None:
        return entry.ended
    if entry.owner == s.me:
        return s.now
    signs = [entry.claimed, written, s.gone_since.get(entry.owner or "")]
    return max((sign for sign in signs if sign is not None), default=entry.accounted_until)


def _asked(entry: Entry, asked: Asked, s: Situation) -> Step:
    could_have_been = max(asked.instant, entry.ended) if entry.ended is not None else asked.instant
    if s.now - could_have_been > s.policy.misfire_grace:
        return Write(entry.refuse_asked(asked, NotRun.TOO_LATE))
    return Claim(entry.claim_asked(asked, s.me, s.now, monitored=s.policy.monitored))


def _pending(entry: Entry, s: Situation, schedule: Schedule, until: datetime, held_since: datetime) -> Step:
    first = _next(schedule, entry.accounted_until)
    if first is None or first > until:
        return None
    if ran_until := _ran_until(entry, first):
        return _overlap(entry, s, schedule, ran_until, min(ran_until, until))
    return _missed(entry, s, schedule, first, until, held_since)


def _ran_until(entry: Entry, first: datetime) -> datetime | None:
    """If the last attempt ran at `first`: until when it ran. Of one that was interrupted nobody knows how long it ran."""
    if entry.outcome is Outcome.INTERRUPTED or entry.claimed is None or entry.ended is None:
        return None
    return entry.ended if entry.claimed < first <= entry.ended else None


def _overlap_after(entry: Entry, schedule: Schedule, last: datetime, until: datetime) -> datetime | None:
    """The last instant after `last` at which the last attempt ran."""
    first = _next(schedule, last)
    ran_until = _ran_until(entry, first) if first is not None else None
    return _latest(schedule, last, min(ran_until, until)) if ran_until else None


def _missed_until(entry: Entry, first: datetime, until: datetime) -> datetime:
    """What was missed before the last attempt was claimed does not reach into its run."""
    return min(until, entry.claimed) if entry.claimed is not None and first <= entry.claimed else until


def _overlap(entry: Entry, s: Situation, schedule: Schedule, ended: datetime, until: datetime) -> Step:
    last = _latest(schedule, entry.accounted_until, until)
    if last is None:
        return None
    if not s.policy.misfire:
        return Write(entry.record(entry.accounted_until, last, NotRun.OVERLAP))
    if s.now - ended > s.policy.misfire_grace:
        return Write(entry.record(entry.accounted_until, last, NotRun.TOO_LATE))
    return _claim(_record_before(entry, schedule, last, NotRun.OVERLAP), s, last, Reason.MISFIRE)


def _missed(entry: Entry, s: Situation, schedule: Schedule, first: datetime, end: datetime, held_since: datetime) -> Step:
    until = _missed_until(entry, first, end)
    too_late = min(s.now - s.policy.misfire_grace - JUST_BEFORE, until)
    if first <= too_late and (late := _latest(schedule, entry.accounted_until, too_late)):
        return Write(entry.record(entry.accounted_until, late, NotRun.TOO_LATE))
    last = _latest(schedule, entry.accounted_until, until)
    if last is None:
        return None
    if s.policy.catch_up is CatchUp.LATEST and (later := _overlap_after(entry, schedule, last, end)):
        # The last attempt began late, and more instants passed while it ran: they are told apart now, or never.
        if s.policy.misfire:
            return Write(entry.record(entry.accounted_until, last, NotRun.MISSED))
        merged = _record_before(entry, schedule, last, NotRun.MISSED).account(last).record(last, later, NotRun.OVERLAP)
        return _claim(merged, s, last, Reason.CATCH_UP)
    fire = first if s.policy.catch_up is CatchUp.ALL else last
    on_time = fire == last and fire >= held_since and s.now - fire <= s.policy.claim_timeout
    if s.policy.catch_up is CatchUp.NONE and not on_time:
        return Write(entry.record(entry.accounted_until, last, NotRun.MISSED))
    late_reason = Reason.SCHEDULED_TOO_LONG if entry.overdue else Reason.CATCH_UP
    again = fire == entry.fire  # it was claimed before, and given back: a further claim has a reason
    reason = Reason.SCHEDULED if on_time and not again else late_reason
    return _claim(_record_before(entry, schedule, fire, NotRun.MISSED), s, fire, reason)


def _record_before(entry: Entry, schedule: Schedule, fire: datetime, why: NotRun) -> Entry:
    """Record the instants before `fire` that are not accounted for; they are merged into its run, or given up."""
    earlier = _latest(schedule, entry.accounted_until, fire - JUST_BEFORE)
    return entry.record(entry.accounted_until, earlier, why) if earlier else entry


def _latest(schedule: Schedule, after: datetime, until: datetime) -> datetime | None:
    return _utc(schedule.latest(after, until))


def _next(schedule: Schedule, instant: datetime) -> datetime | None:
    return _utc(schedule.next_after(instant))


def _utc(instant: datetime | None) -> datetime | None:
    """Two times of one zone are compared by the wall clock, which goes back in autumn: so nothing stays in a zone here."""
    return None if instant is None else instant.astimezone(timezone.utc)


def _claim(entry: Entry, s: Situation, fire: datetime, reason: Reason) -> Claim:
    return Claim(entry.account(fire).claim(fire, reason, s.me, s.now, monitored=s.policy.monitored))


def give_back(entry: Entry) -> Entry:
    """The entry after a claim whose body was never entered."""
    if entry.fire is None:
        return entry
    if entry.reason is Reason.OWNER_LOST:  # the earlier attempt had been entered: the fire still waits for a further one
        return replace(entry, running=False, token=entry.token, to_recover=True)
    return entry.give_back(entry.token or 0, entry.fire)
