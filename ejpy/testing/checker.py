"""Finds what is wrong in a history: of the simulation, of a chaos run, of production.

    verdict = check(history)
    for violation in verdict.violations: …

It is told what happened and nothing else: it knows no worker and no registry, and decides from the rows alone. What a history
does not tell of is not judged: without the registry's side there is nothing to say of assignments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ejpy.terms import Reason
from ejpy.testing.history import Event
from ejpy.testing.invariants import attempts, ends, fires, sharding
from ejpy.testing.invariants.base import Invariant, Limits, Violation
from ejpy.testing.invariants.told import told

__all__ = ["Invariant", "Limits", "Verdict", "Violation", "check"]


@dataclass(slots=True)
class Verdict:
    """What a history holds, and what is wrong with it, in the order of time."""

    violations: list[Violation] = field(default_factory=list)
    fires: int = 0
    """Pairs of fire and item that were due."""
    claims: int = 0
    runs: int = 0
    """Bodies that were entered."""
    recoveries: Counter[str] = field(default_factory=Counter)
    """Claims that make up for something, by reason."""
    not_run: Counter[str] = field(default_factory=Counter)
    """Records of fires that were not run, by reason."""

    @property
    def passed(self) -> bool:
        return not self.violations

    def broken(self) -> set[Invariant]:
        return {violation.invariant for violation in self.violations}


def check(history: Iterable[Event], limits: Limits | None = None) -> Verdict:
    """Judge a history."""
    limits = limits or Limits()
    sorted_by_subject = told(history)
    verdict = Verdict(fires=fires.due_fires(sorted_by_subject))
    for subject in (attempts, sharding, fires, ends):
        verdict.violations += subject.find(sorted_by_subject, limits)
    verdict.violations.sort(key=lambda violation: (violation.at, violation.invariant.value, violation.where))
    for job in sorted_by_subject.jobs.values():
        for item in job.items.values():
            verdict.claims += len(item.claimed)
            verdict.runs += len(item.entered)
            verdict.recoveries.update(
                claim.reason.value for claim in item.claimed if claim.reason not in (Reason.SCHEDULED, Reason.TRIGGER)
            )
            verdict.not_run.update(row.why.value for row in item.not_run)
    return verdict
