"""One sharding item through simulated time: `decide` is asked as a scheduler asks it, and its steps are carried out.

Owners come, pause, die and lose their sessions; bodies take time; the item is disabled, its schedule changed. What was due is
noted independently of any decision, as is all that was claimed or recorded, and `check` compares them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime, timedelta

from ejpy.coordination.changes import learn
from ejpy.coordination.claims import Claim, Policy, Situation, Wait, decide, give_back
from ejpy.coordination.ledger import Basis, Entry, NotRunRange, new_entry
from ejpy.coordination.ledger_document import decode, encode
from ejpy.terms import CatchUp, NotRun, Outcome, Reason
from tests.unit.coordination.situations import Every, at

MAKING_UP = {Reason.CATCH_UP, Reason.SCHEDULED_TOO_LONG}
MOST_STEPS = 20_000
"""More steps at one moment than any history here asks for: then `decide` will never come to rest."""


@dataclass(frozen=True)
class Claimed:
    """A claim that was granted."""

    fire: datetime
    attempt: int
    reason: Reason
    owner: str
    time: datetime


class History:
    """See the module's text. Starts at 10:00 with a live owner and an item that is first seen."""

    def __init__(self, policy: Policy, schedule: Every, body: timedelta = timedelta(0)) -> None:
        self.policy = policy
        self.body = body
        """How long bodies that start from now on take."""
        self.now = at("10:00")
        self.schedule = schedule
        self.enabled = True
        self.due: list[datetime] = []
        self.claims: list[Claimed] = []
        self.not_run: set[NotRunRange] = set()
        self._given_back: set[datetime] = set()
        self._schedules = {self.basis: schedule}
        self._changes = learn((), self.basis, self.now, self.now)
        self._gone_since: dict[str, datetime] = {}
        self.entry = new_entry(self.basis, self.now)
        self._revision = 1
        self._owners = 1
        self._live = {"owner-1"}
        self._owner = "owner-1"
        self._held_since = self.now
        self._awake = True
        self._ends_at: datetime | None = None
        """When the body ends that the owner runs."""
        self._look_at: datetime | None = None

    @property
    def basis(self) -> Basis:
        return Basis(f"{self.schedule.period}/{self.schedule.offset}", "UTC", 1)

    @property
    def owner_lives(self) -> bool:
        return self._owner in self._live

    @property
    def settled(self) -> bool:
        """The owner has looked at what is known now, and nothing runs."""
        return self.owner_lives and self._awake and not self.entry.running and self._look_at is None

    # -- what happens --

    def passes(self, time: timedelta) -> None:
        """Time goes on; the owner looks at each instant and each end."""
        until = self.now + time
        while True:
            instant = self.schedule.next_after(self.now)
            self.now = min(t for t in (instant, self._ends_at, self._look_at, until) if t is not None and t > self.now)
            if self.now == instant and self.enabled:
                self.due.append(instant)
            if self._ends_at is not None and self.now >= self._ends_at and self._awake:
                self._body_ends()
            self._look()
            if self.now == until:
                return

    def owner_dies(self) -> None:
        if self.owner_lives:
            self._gone_since[self._owner] = self.now
        self._live.discard(self._owner)
        self._ends_at = None

    def owner_pauses(self) -> None:
        self._awake = False

    def owner_goes_on(self) -> None:
        """A body that would have ended during the pause ends now."""
        self._awake = True
        if self._ends_at is not None and self._ends_at <= self.now:
            self._body_ends()
        self._look()

    def owner_loses_its_session(self, *, entered: bool = True) -> None:
        """And has a new one at once. A body that was entered is stopped; one that was not is given back."""
        if not self.owner_lives or not self._awake:
            return
        self._held_since = self.now
        if self._ends_at is not None:
            self._ends_at = None
            if entered:
                self._write(self.entry.interrupt(self.entry.token or 0, self.now, recover=self.policy.failover))
            else:
                assert self.entry.fire is not None
                self._given_back.add(self.entry.fire)
                self._write(give_back(self.entry), back=True)
        self._look()

    def leader_moves_it(self) -> None:
        """At once if it is idle or its owner gone, else when it ends."""
        if self.entry.running and self.owner_lives:
            self._write(self.entry.ask_for_hand_over())
            return
        if self.owner_lives and not self._awake and self.schedule.next_after(self.entry.accounted_until) <= self.now:
            self._write(self.entry.mark_overdue())
        elif self.entry.hand_over:
            self._write(self.entry.ask_for_hand_over(False))
        self._owners += 1
        self._owner = f"owner-{self._owners}"
        self._live.add(self._owner)
        self._held_since = self.now
        self._awake, self._look_at = True, None
        self._look()

    def switched(self) -> None:
        """Disabled, or enabled again."""
        self.enabled = not self.enabled
        self._look()

    def schedule_becomes(self, schedule: Every) -> None:
        self.schedule = schedule
        self._changes = learn(self._changes, self.basis, self.now, self.now)
        self._schedules[self.basis] = schedule
        self._look()

    def settle(self) -> None:
        """Bring it to a state in which everything that was due must be accounted for."""
        self.body = timedelta(0)  # longer ones than the interval would make up for misses for ever
        self.owner_goes_on()
        while not self.settled:
            if not self.owner_lives:
                self.leader_moves_it()
            times = [t for t in (self._ends_at, self._look_at) if t is not None]
            if times:
                self.passes(min(times) - self.now)

    # -- what is done about it --

    def _look(self) -> None:
        if not self.owner_lives or not self._awake or self._ends_at is not None:
            return
        self._look_at = None
        for _ in range(MOST_STEPS):
            step = decide(0, self.entry, self._situation(), held_since=self._held_since, enabled=self.enabled)
            if step is None:
                return
            if isinstance(step, Wait):
                self._look_at = step.until
                return
            before = self.entry
            self._write(step.entry)
            assert self.entry != before, f"a step that changes nothing will be decided again for ever: {step}"
            if isinstance(step, Claim):
                self._claimed(before)
                if self.body:
                    return
        raise AssertionError(f"no end of steps at {self.now}, now {self.entry}")

    def _claimed(self, before: Entry) -> None:
        assert not (before.running and before.owner != self._owner and before.owner in self._live), "two run it"
        assert self.entry.fire is not None
        assert self.entry.reason is not None
        self.claims.append(Claimed(self.entry.fire, self.entry.attempt, self.entry.reason, self._owner, self.now))
        self._ends_at = self.now + self.body
        if not self.body:
            self._body_ends()

    def _body_ends(self) -> None:
        self._ends_at = None
        self._write(self.entry.end(Outcome.SUCCEEDED, self.entry.token or 0, self.now))

    def _write(self, entry: Entry, *, back: bool = False) -> None:
        assert back or entry.accounted_until >= self.entry.accounted_until, "accounted_until went back"
        assert entry.accounted_until <= self.now, "accounted for before its time"
        self._revision += 1
        self.entry = decode(encode(entry), self._revision, "/ledger")
        self.not_run |= set(self.entry.not_run)

    def _situation(self) -> Situation:
        return Situation(
            now=self.now,
            me=self._owner,
            live=self._live,
            policy=self.policy,
            changes=self._changes,
            schedule_of=self._schedules.get,
            gone_since=self._gone_since,
        )

    # -- what must hold --

    def check(self) -> None:
        """Of a settled history."""
        assert self.settled
        attempts: dict[datetime, list[Claimed]] = {}
        for claim in self.claims:
            attempts.setdefault(claim.fire, []).append(claim)
        reasons = self._recorded()
        not_due = attempts.keys() - set(self.due)
        assert not not_due, f"run, and not due: {sorted(not_due)}"
        vanished = [instant for instant in self.due if instant not in attempts and instant not in reasons]
        assert not vanished, f"due, and neither run nor recorded: {vanished}"
        for fire, claims in attempts.items():
            self._check_attempts(fire, claims, reasons.get(fire, set()))
        self._check_reasons()

    def _recorded(self) -> dict[datetime, set[NotRun]]:
        """The due instants that were recorded as not run."""
        reasons: dict[datetime, set[NotRun]] = {}
        for r in self.not_run:
            for instant in self.due[bisect_right(self.due, r.after) : bisect_right(self.due, r.until)]:
                reasons.setdefault(instant, set()).add(r.why)
        return reasons

    def _check_attempts(self, fire: datetime, claims: list[Claimed], recorded: set[NotRun]) -> None:
        assert [claim.attempt for claim in claims] == list(range(1, len(claims) + 1))
        for again in claims[1:]:
            assert again.reason is Reason.OWNER_LOST or fire in self._given_back, again
        known = recorded <= {NotRun.INTERRUPTED, NotRun.TOO_LATE} or fire in self._given_back
        assert known, f"run, and recorded as not run: {fire} {recorded}"

    def _check_reasons(self) -> None:
        reasons = {claim.reason for claim in self.claims}
        assert self.policy.misfire or Reason.MISFIRE not in reasons
        assert self.policy.failover or Reason.OWNER_LOST not in reasons
        anew = {claim.reason for claim in self.claims if claim.fire not in self._given_back}  # what is given back may be on time
        assert self.policy.catch_up is not CatchUp.NONE or not anew & MAKING_UP
        for claim in self.claims:
            assert claim.fire <= claim.time, f"before its time: {claim}"
            if claim.reason is not Reason.OWNER_LOST and claim.reason is not Reason.MISFIRE:
                assert claim.time - claim.fire <= self.policy.misfire_grace, f"an uncontrolled replay: {claim}"
            if claim.reason is Reason.SCHEDULED:
                assert claim.time - claim.fire <= self.policy.claim_timeout, claim
