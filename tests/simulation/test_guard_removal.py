"""The checker notices when a guard of the implementation is gone: of each, a history is known that breaks what it protects.

A guard that is not missed near its known history any more is looked for from the first seed on:

    EJPY_GUARD_SEEDS=0:2000 scripts/test tests/simulation/test_guard_removal.py
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from ejpy.testing.plan import plan_of
from ejpy.testing.simulate import judge
from tests.simulation.guards import GUARDS, SELDOM, Guard


@pytest.fixture(autouse=True)
def nothing_is_logged() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


NEAR = 20
"""The order of events changes a little with each change of the implementation; the next few histories show it then."""
ASKED = os.environ.get("EJPY_GUARD_SEEDS")


def seeds(guard: Guard) -> range:
    first, after_last = ASKED.split(":") if ASKED else (guard.seed, guard.seed + NEAR)
    return range(int(first), int(after_last))


@pytest.mark.parametrize("guard", [*GUARDS, *(SELDOM if ASKED else ())], ids=lambda guard: guard.name)
def test_a_guard_that_is_gone_is_missed(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    guard.remove(monkeypatch)
    for seed in seeds(guard):
        outcome, _ = judge(plan_of(seed, guard.scope))
        if outcome.verdict.broken() & guard.found_by:
            return
    pytest.fail(f"nothing of {sorted(i.value for i in guard.found_by)} breaks in the histories {seeds(guard)}")


def test_with_all_guards_none_of_these_histories_breaks_anything() -> None:
    broken = {
        guard.name: outcome.verdict.violations
        for guard in GUARDS
        if not (outcome := judge(plan_of(guard.seed, guard.scope))[0]).passed
    }
    assert broken == {}
