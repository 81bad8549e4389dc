"""Every combination of the settings and states that a claim depends on, against the rules in a second, plain wording."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import Enum
from itertools import product

import pytest

from ejpy.coordination.claims import Claim, Situation, Step, Wait, Write, decide
from ejpy.coordination.ledger import JUST_BEFORE, Basis, Entry, NotRunRange
from ejpy.terms import CatchUp, NotRun, Outcome, Reason
from tests.unit.coordination.situations import (
    BASIS,
    CHANGED,
    GONE,
    HOUR,
    ME,
    MINUTE,
    OTHER,
    Instants,
    at,
    idle,
    policy,
    ran,
    running,
    situation,
)

NOW, CHANGED_AT = at("10:17"), at("10:12")
FIVES = Instants("10:00", "10:05", "10:10", "10:15", "10:20")
SHORT, LONG = 8 * MINUTE, HOUR
"""At 10:17 the short grace reaches back to 10:09."""


class Condition(Enum):
    """What the entry says. The last fire that was claimed is 10:00."""

    QUIET = ran("10:00", "10:00", "10:01", accounted_until=at("10:16"))
    MISSED = ran("10:00", "10:00", "10:01")
    OVERLAPPED = ran("10:00", "10:00", "10:11")
    NEVER_RAN = idle("10:02")
    RUN_BY_THE_DEAD = running("10:00", GONE)
    RUN_BY_ME_BEFORE_A_CRASH = running("10:00", ME)
    RUN_BY_ANOTHER = running("10:00", OTHER)
    STOPPED = running("10:00", ME).interrupt(7, at("10:03"), recover=True)


RUNNING = {Condition.RUN_BY_THE_DEAD, Condition.RUN_BY_ME_BEFORE_A_CRASH, Condition.RUN_BY_ANOTHER}


@dataclass(frozen=True)
class Case:
    condition: Condition
    misfire: bool
    catch_up: CatchUp
    grace: timedelta
    failover: bool
    enabled: bool
    suspended: bool
    """Whether it was not enabled when it was last seen."""
    changed: bool
    """Whether the schedule was changed, at 10:12, from FIVES to one that has nothing before 10:30."""

    def __str__(self) -> str:
        words = [self.condition.name, self.catch_up.value, "short" if self.grace is SHORT else "long"]
        words += [name for name in ("misfire", "failover", "enabled", "suspended", "changed") if getattr(self, name)]
        return "-".join(words)

    @property
    def entry(self) -> Entry:
        return replace(self.condition.value, suspended=self.suspended)

    @property
    def basis(self) -> Basis:
        return CHANGED if self.changed else BASIS


@dataclass(frozen=True)
class Expected:
    """What a step is: `kind`, and of the entry what matters."""

    kind: str
    fire: datetime | None = None
    attempt: int = 0
    reason: Reason | None = None
    not_run: tuple[NotRunRange, ...] = ()
    accounted_until: datetime | None = None
    suspended: bool = False
    basis: Basis = BASIS
    outcome: Outcome | None = None


def found(case: Case, step: Step) -> Expected:
    if step is None or isinstance(step, Wait):
        return Expected("nothing" if step is None else "wait")
    entry = step.entry
    assert not entry.to_recover, "decided, and so not open any more"
    assert entry.running == isinstance(step, Claim)
    if isinstance(step, Write):
        assert (entry.fire, entry.attempt, entry.reason) == (case.entry.fire, case.entry.attempt, case.entry.reason)
        changed = entry.outcome if entry.outcome is not case.entry.outcome or case.condition is Condition.STOPPED else None
        return Expected("write", None, 0, None, entry.not_run, entry.accounted_until, entry.suspended, entry.basis, changed)
    assert (entry.owner, entry.claimed, entry.token, entry.ended, entry.outcome) == (ME, NOW, None, None, None)
    rest = (entry.not_run, entry.accounted_until, entry.suspended, entry.basis)
    return Expected("claim", entry.fire, entry.attempt, entry.reason, *rest)


def expected(case: Case) -> Expected:
    entry, condition = case.entry, case.condition
    if condition is Condition.RUN_BY_ANOTHER:
        return Expected("wait")
    if condition in RUNNING or (condition is Condition.STOPPED and case.enabled):
        return of_the_unfinished(case)
    if not case.enabled and case.suspended:
        return Expected("nothing")
    if case.suspended:  # nothing that passed before is due any more
        return Expected("write", accounted_until=NOW, basis=case.basis)
    due = [instant for instant in FIVES.all if entry.accounted_until < instant <= (CHANGED_AT if case.changed else NOW)]
    if due:
        return of_what_passed(case, due)
    if case.changed:
        return Expected("write", accounted_until=max(entry.accounted_until, CHANGED_AT), basis=CHANGED)
    return Expected("nothing")


def of_the_unfinished(case: Case) -> Expected:
    accounted, fire = at("10:00"), at("10:00")
    too_late = case.grace is SHORT and case.condition is not Condition.RUN_BY_ME_BEFORE_A_CRASH
    if case.failover and case.enabled and not too_late:
        return Expected("claim", fire, 2, Reason.OWNER_LOST, (), accounted, case.suspended)
    lost = NotRunRange(fire - JUST_BEFORE, fire, NotRun.TOO_LATE if case.failover and case.enabled else NotRun.INTERRUPTED)
    return Expected("write", not_run=(lost,), accounted_until=accounted, suspended=case.suspended, outcome=Outcome.INTERRUPTED)


def of_what_passed(case: Case, due: list[datetime]) -> Expected:
    start = case.entry.accounted_until

    def until(last: list[datetime], why: NotRun) -> tuple[NotRunRange, ...]:
        return (NotRunRange(start, last[-1], why),) if last else ()

    def write(last: list[datetime], why: NotRun) -> Expected:
        return Expected("write", not_run=until(last, why), accounted_until=last[-1])

    def claim(fire: datetime, reason: Reason, before: list[datetime], why: NotRun) -> Expected:
        return Expected("claim", fire, 1, reason, until(before, why), fire)

    if case.condition is Condition.OVERLAPPED:
        during = [instant for instant in due if instant <= at("10:11")]
        if case.misfire:
            return claim(during[-1], Reason.MISFIRE, during[:-1], NotRun.OVERLAP)
        return write(during, NotRun.OVERLAP)
    too_late = [instant for instant in due if NOW - instant > case.grace]
    if too_late:
        return write(too_late, NotRun.TOO_LATE)
    if case.catch_up is CatchUp.NONE:
        return write(due, NotRun.MISSED)
    if case.catch_up is CatchUp.ALL:
        return claim(due[0], Reason.CATCH_UP, [], NotRun.MISSED)
    return claim(due[-1], Reason.CATCH_UP, due[:-1], NotRun.MISSED)


YES_NO = (True, False)
CASES = [
    Case(condition, misfire, catch_up, grace, failover, enabled, suspended, changed)
    for condition, catch_up, grace in product(Condition, CatchUp, (SHORT, LONG))
    for misfire, failover, enabled, suspended, changed in product(YES_NO, repeat=5)
    if not (suspended and (condition in RUNNING or condition is Condition.STOPPED))  # an end comes before a suspension
]


def situation_of(case: Case) -> Situation:
    settings = policy(misfire=case.misfire, catch_up=case.catch_up, misfire_grace=case.grace, failover=case.failover)
    schedules = {BASIS: FIVES, CHANGED: Instants("10:30")}
    changed_at = "10:12" if case.changed else "00:00"
    return situation("10:17", schedules, policy=settings, basis=case.basis, changed_at=changed_at)


def step_of(case: Case, entry: Entry) -> Step:
    return decide(0, entry, situation_of(case), held_since=at("10:16:50"), enabled=case.enabled)


@pytest.mark.parametrize("condition", Condition, ids=lambda condition: condition.name)
@pytest.mark.parametrize("catch_up", CatchUp)
def test_each_combination(condition: Condition, catch_up: CatchUp) -> None:
    cases = [case for case in CASES if (case.condition, case.catch_up) == (condition, catch_up)]
    for case in cases:
        if case.enabled or case.suspended or condition in RUNNING:  # a suspension may take several steps
            assert found(case, step_of(case, case.entry)) == expected(case), str(case)
        comes_to_rest(case)
    assert len(cases) == (64 if condition is not Condition.STOPPED and condition not in RUNNING else 32)


def comes_to_rest(case: Case) -> None:
    """With bodies that end at once: in a few steps, after which there is nothing to do."""
    entry = case.entry
    for _ in range(8):
        step = step_of(case, entry)
        if not isinstance(step, Claim | Write):
            break
        assert step.entry.accounted_until >= entry.accounted_until, str(case)
        assert case.enabled or isinstance(step, Write), f"{case}: it is disabled, and was claimed"
        entry = step.entry
        if isinstance(step, Claim):
            entry = entry.end(Outcome.SUCCEEDED, 8, NOW)
    else:
        pytest.fail(f"{case}: it goes on with {step}")
    if isinstance(step, Wait):
        assert case.condition is Condition.RUN_BY_ANOTHER
        return
    assert (entry.running, entry.to_recover, entry.suspended) == (False, False, not case.enabled), str(case)
    assert case.enabled or (entry.fire, entry.attempt) == (case.entry.fire, case.entry.attempt), str(case)
    assert case.condition is not Condition.QUIET or entry.not_run == (), f"{case}: there was nothing to record"
    if entry.suspended != case.suspended:
        assert (entry.accounted_until, entry.basis) == (NOW, case.basis), str(case)


@pytest.mark.parametrize("setting", ["misfire", "catch_up", "grace", "failover", "enabled", "suspended", "changed"])
def test_the_table_tells_the_cases_apart(setting: str) -> None:
    """Each setting makes a difference somewhere, or the table would not test it."""
    names = [field.name for field in fields(Case) if field.name != setting]
    answers: dict[tuple[object, ...], set[Expected]] = {}
    for case in CASES:
        answers.setdefault(tuple(getattr(case, name) for name in names), set()).add(expected(case))
    assert any(len(different) > 1 for different in answers.values())
