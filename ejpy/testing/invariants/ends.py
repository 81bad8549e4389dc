"""L4, L5: of workers that end, and what they leave."""

from __future__ import annotations

from collections.abc import Iterator

from ejpy.testing.invariants.base import Invariant, Limits, Violation
from ejpy.testing.invariants.told import Told


def find(told: Told, limits: Limits) -> Iterator[Violation]:
    for row in told.left_over:
        yield Violation(Invariant.L4, row.at, row.job or row.kind, f"{row.kind} left over: {row.what}")
    for end in told.stopped:
        took = end.at - end.begun - end.held
        if took > end.grace + limits.closing:
            text = f"took {took:.1f} s to end, its grace is {end.grace:g} s"
            yield Violation(Invariant.L5, end.at, end.instance, text)
