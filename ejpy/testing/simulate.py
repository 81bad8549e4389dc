"""Plays histories of clusters under faults, seed by seed, and checks each.

    python -m ejpy.testing.simulate --seeds 0:1000

prints one line of JSON: how many histories, due fires, claims, recoveries by reason, and what was broken. If something was, the
exit code is 1, and standard error has the seed, the invariant, and the shortest history that still breaks it. The same seed
gives the same history, byte for byte; `--plan` plays one plan again.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from ejpy.config.model import ShardingStrategyName
from ejpy.testing.checker import Invariant, Limits, Verdict, Violation, check
from ejpy.testing.faults import MOST_AHEAD
from ejpy.testing.history import Event, write_lines
from ejpy.testing.plan import FaultKind, Plan, Scope, from_json, plan_of, to_json
from ejpy.testing.play import play
from ejpy.testing.shrink import shrink
from ejpy.testing.virtual_loop import Stuck

ANY = "any"
PROCESSES = 2
SELDOM = (20_000, 20, 50)
"""Garbage is collected seldom: a history makes little, and is soon over."""
TOLERANCE = 0.005
MOST_SHOWN = 5
"""So many violations of a history are shown."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one plan. `raised`: what ended it, if it did not come to its end."""

    seed: int
    verdict: Verdict
    raised: str | None = None
    digest: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict.passed and self.raised is None

    @property
    def broken(self) -> Invariant | None:
        """What is looked at first."""
        return self.verdict.violations[0].invariant if self.verdict.violations else None


@dataclass(slots=True)
class Summary:
    """What came of many."""

    histories: int = 0
    fires: int = 0
    claims: int = 0
    runs: int = 0
    recoveries: Counter[str] = field(default_factory=Counter)
    not_run: Counter[str] = field(default_factory=Counter)
    broken: list[Outcome] = field(default_factory=list)
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def add(self, outcome: Outcome) -> None:
        self.histories += 1
        self.fires += outcome.verdict.fires
        self.claims += outcome.verdict.claims
        self.runs += outcome.verdict.runs
        self.recoveries += outcome.verdict.recoveries
        self.not_run += outcome.verdict.not_run
        self.digest.update(outcome.digest.encode())
        if not outcome.passed:
            self.broken.append(outcome)

    def line(self, scope: Scope, seconds: float, *, digests: bool = False) -> str:
        return json.dumps(
            {
                "histories": self.histories,
                "virtual_seconds": scope.seconds,
                "strategy": scope.strategy or ANY,
                "fires": self.fires,
                "claims": self.claims,
                "runs": self.runs,
                "recoveries": dict(sorted(self.recoveries.items())),
                "not_run": dict(sorted(self.not_run.items())),
                "violations": sum(len(outcome.verdict.violations) + (outcome.raised is not None) for outcome in self.broken),
                "broken": [
                    {"seed": o.seed, "invariants": sorted(i.value for i in o.verdict.broken()), "raised": o.raised}
                    for o in self.broken[:20]
                ],
                **({"digest": self.digest.hexdigest()} if digests else {}),
                "histories_a_minute": round(self.histories / seconds * 60),
            }
        )


def judge(plan: Plan, limits: Limits | None = None) -> tuple[Outcome, list[Event]]:
    """Play a plan and check its history."""
    limits = limits or limits_of(plan)
    try:
        history = play(plan)
    except (AssertionError, Stuck) as error:  # something was raised where nobody would have seen it
        return Outcome(plan.seed, Verdict(), raised=f"{type(error).__name__}: {error}"[:500]), []
    return Outcome(plan.seed, check(history, limits)), history


def outcome_of(scope: Scope, digests: bool, seed: int) -> Outcome:
    """What comes of a seed."""
    outcome, history = judge(plan_of(seed, scope))
    return replace(outcome, digest=digest_of(history)) if digests else outcome


def limits_of(plan: Plan) -> Limits:
    """What is in time, where clocks are off by no more than in this plan."""
    jumps = any(fault.kind is FaultKind.CLOCK_JUMP for fault in plan.faults)
    ahead = MOST_AHEAD if jumps else max(abs(worker.ahead) for worker in plan.workers)
    return replace(Limits(), session_timeout=plan.session_timeout, skew=ahead + TOLERANCE)


def digest_of(history: Iterable[Event]) -> str:
    """The same for the same history, byte for byte, and for no other."""
    return hashlib.sha256("\n".join(write_lines(history)).encode()).hexdigest()


def breaks(invariant: Invariant | None) -> Callable[[Plan], bool]:
    """Whether a plan breaks an invariant; None: whether playing it raises."""

    def does(plan: Plan) -> bool:
        outcome, _ = judge(plan)
        return outcome.raised is not None if invariant is None else invariant in outcome.verdict.broken()

    return does


def outcomes(scope: Scope, seeds: Iterable[int], *, processes: int = 1, digests: bool = False) -> Iterator[Outcome]:
    """In the order of the seeds."""
    with ExitStack() as stack:
        if processes == 1:
            yield from map(partial(outcome_of, scope, digests), seeds)
        else:
            workers = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_prepare)
            pool = stack.enter_context(workers)
            yield from pool.map(partial(outcome_of, scope, digests), seeds, chunksize=10)


def _prepare() -> None:
    """A process that does nothing else."""
    logging.disable(logging.CRITICAL)
    gc.set_threshold(*SELDOM)


def report(plan: Plan, outcome: Outcome, *, budget: int) -> Iterator[str]:
    """What is told of a plan that breaks something: the shortest history that still does."""
    shortest = shrink(plan, breaks(outcome.broken), budget=budget) if budget else plan
    last, history = judge(shortest)
    yield f"seed {plan.seed} breaks {outcome.broken.value if outcome.broken else outcome.raised}"
    yield from map(str, _first(last.verdict.violations))
    yield f"plan: {to_json(shortest)}"
    yield from write_lines(history)


def _first(violations: list[Violation]) -> list[Violation]:
    return violations[:MOST_SHOWN]


def main(arguments: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    options = _parser().parse_args(arguments)
    strategy = None if options.strategy == ANY else options.strategy
    scope = Scope(options.workers, options.jobs, options.items, strategy, options.seconds, options.faults)
    began, summary = time.monotonic(), Summary()
    if options.plan is not None:
        plans = [from_json(options.plan.read_text())]
        summary.add(judge(plans[0])[0])
    else:
        for outcome in outcomes(scope, options.seeds, processes=options.processes, digests=options.digest):
            summary.add(outcome)
    sys.stdout.write(summary.line(scope, time.monotonic() - began, digests=options.digest) + "\n")
    if not summary.broken:
        return 0
    first = summary.broken[0]
    plan = plans[0] if options.plan is not None else plan_of(first.seed, scope)
    for line in report(plan, first, budget=options.shrink):
        sys.stderr.write(line + "\n")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ejpy.testing.simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    strategies = [strategy.value for strategy in ShardingStrategyName]
    parser.add_argument("--seeds", type=_seeds, default=range(100), metavar="FIRST:AFTER_LAST", help="default: 0:100")
    parser.add_argument("--workers", type=int, help="how many places for workers there are (default: the seed decides)")
    parser.add_argument("--jobs", type=int, help="how many jobs (default: the seed decides)")
    parser.add_argument("--items", type=int, help="how many items each job has at first (default: the seed decides)")
    parser.add_argument("--strategy", choices=[*strategies, ANY], default=ShardingStrategyName.AVG_ALLOCATION.value)
    parser.add_argument("--seconds", type=float, default=100.0, help="virtual seconds until the workers are told to end")
    parser.add_argument(
        "--faults", type=_kinds, metavar="KIND,…", help=f"only these: {', '.join(kind.value for kind in FaultKind)}"
    )
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--shrink", type=int, default=150, metavar="PLAYS", help="how many plans are tried to find a shorter one")
    parser.add_argument("--digest", action="store_true", help="add a digest of all that happened, to compare with another run")
    parser.add_argument("--plan", type=Path, help="play this plan (one line of JSON) instead of seeds")
    return parser


def _kinds(text: str) -> tuple[FaultKind, ...]:
    return tuple(FaultKind(kind) for kind in text.split(","))


def _seeds(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last)) if last else range(int(first), int(first) + 1)


if __name__ == "__main__":
    _prepare()
    sys.exit(main())
