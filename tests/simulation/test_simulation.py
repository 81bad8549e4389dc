"""Seeded histories of a cluster under faults, each checked against what ejpy promises.

A seed that breaks something is played again, and made shorter, by `python -m ejpy.testing.simulate --seeds 17:18`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ejpy.testing.checker import Invariant
from ejpy.testing.plan import Scope, from_json, plan_of
from ejpy.testing.simulate import breaks, judge, main
from tests.simulation.guards import misfire_grace

TOGETHER = 10
SEEDS = 150


@pytest.fixture(autouse=True)
def nothing_is_logged() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(before)


@pytest.mark.parametrize("first", range(0, SEEDS, TOGETHER))
@pytest.mark.parametrize("strategy", ["AVG_ALLOCATION", "STICKY"])
def test_histories_keep_the_promises(strategy: str, first: int) -> None:
    scope = Scope(strategy=strategy)
    for seed in range(first, first + TOGETHER):
        outcome, _ = judge(plan_of(seed, scope))
        assert outcome.passed, (seed, outcome.raised, [str(violation) for violation in outcome.verdict.violations[:5]])
        assert outcome.verdict.claims, seed


def test_the_same_seed_gives_the_same_history_byte_for_byte() -> None:
    """In another process, too, whose sets are in another order."""

    def digest(hash_seed: str) -> str:
        command = [sys.executable, "-m", "ejpy.testing.simulate", "--seeds", "0:6", "--processes", "1", "--digest"]
        run = subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True)
        return str(json.loads(run.stdout)["digest"])

    assert digest("1") == digest("2")


def test_the_command_counts_what_happened(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:3", "--processes", "1"]) == 0
    out, err = capsys.readouterr()
    line = json.loads(out)
    assert (line["histories"], line["violations"], line["broken"], err) == (3, 0, [], "")
    assert line["fires"] > 0
    assert line["claims"] >= line["runs"] > 0
    assert line["recoveries"]


def test_the_command_shows_the_shortest_history_that_breaks_something(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    misfire_grace(monkeypatch)
    assert main(["--seeds", "0:60", "--processes", "1", "--shrink", "40"]) == 1
    out, err = capsys.readouterr()
    [first, *_] = json.loads(out)["broken"]
    assert "S6" in first["invariants"]
    told = err.splitlines()
    assert told[0].startswith(f"seed {first['seed']} breaks ")
    [line] = [line for line in told if line.startswith("plan: ")]
    shortest = from_json(line.removeprefix("plan: "))
    assert shortest.size() < plan_of(first["seed"]).size()
    assert breaks(Invariant.S6)(shortest)
    assert json.loads(told[-1])["event"] == "finished"


def test_what_is_raised_where_nobody_sees_it_ends_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **more: object) -> None:
        raise ZeroDivisionError("planned")

    monkeypatch.setattr("ejpy.coordination.claims.decide", broken)
    outcome, history = judge(plan_of(0))
    assert not outcome.passed
    assert "planned" in str(outcome.raised)
    assert history == []
