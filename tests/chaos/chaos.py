"""Chaos on real processes: three workers, one job, a fire a second, and a seeded schedule of starts, SIGTERMs, kill -9s and
SIGSTOPs; then every due (fire, item) is matched to its runs.

    scripts/chaos --seconds 100 --faults 20 --seed 1 [--zookeeper host:port | --sqlite]

prints one JSON line with the counts and exits 1 if a promise was broken. Without `--zookeeper` it starts a server of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from random import Random

from ejpy.coordination.ledger import JUST_BEFORE, Entry
from ejpy.terms import CatchUp, Outcome, Reason
from ejpy.testing import history
from ejpy.testing.checker import Limits, Violation, check
from ejpy.testing.history import Event
from tests.support.fleet import Fleet, job, now, sqlite_url, zookeeper_url
from tests.support.jobs import Execution
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer

JOB = "chaos"
EVERY_SECOND = "* * * * * ?"
SESSION_SECONDS = 4
MOST_WORKERS = 5


@dataclass(frozen=True, slots=True)
class Scenario:
    seed: int
    seconds: int
    faults: int
    items: int = 30
    workers: int = 3
    body_seconds: float = 0.2
    catch_up: str = "latest"
    misfire: bool = True


@dataclass(slots=True)
class Report:
    """What came of it. A pair is a due (fire, item)."""

    scenario: Scenario
    faults: Counter[str]
    pairs: int = 0
    run_once: int = 0
    recovered: Counter[str] = field(default_factory=Counter)
    """Runs that make up for something, by reason."""
    not_run: Counter[str] = field(default_factory=Counter)
    """Records of pairs that were not run, by reason."""
    violations: list[Violation] = field(default_factory=list)
    fallen: list[str] = field(default_factory=list)
    """Workers that ended though nobody had told them to."""

    @property
    def passed(self) -> bool:
        return not self.violations and not self.fallen and self.pairs > 0

    def line(self) -> str:
        return json.dumps(
            {
                "seed": self.scenario.seed,
                "seconds": self.scenario.seconds,
                "faults": dict(self.faults),
                "pairs": self.pairs,
                "run_once": self.run_once,
                "recoveries": dict(self.recovered),
                "not_run": dict(self.not_run),
                "violations": dict(Counter(violation.invariant.value for violation in self.violations)),
                "fallen": self.fallen,
                "examples": [str(violation) for violation in self.violations[:5]],
            }
        )


def run(scenario: Scenario, url: str, directory: Path) -> Report:
    """Play the scenario against an empty registry; `directory` takes logs and the record of runs."""
    described = job(
        items=scenario.items,
        settings={"failover": True, "misfire": scenario.misfire, "catch_up": scenario.catch_up},
        seconds=scenario.body_seconds,
    )
    with Fleet(url, directory) as fleet:
        stage = _Stage(fleet, fleet.write("jobs.yml", {JOB: described}), Random(scenario.seed))
        for _ in range(scenario.workers):
            stage.start()
        for worker in fleet.workers:
            worker.wait_ready(PATIENCE_SECONDS)
        first = now().replace(microsecond=0) + timedelta(seconds=1)
        last = first + timedelta(seconds=scenario.seconds - 1)
        began = time.monotonic()
        for moment in _moments(stage.random, scenario):
            stage.play_until(began + moment)
            stage.fault()
        stage.play_until(began + (last - first).total_seconds() + 1)
        stage.resume_all()
        if not any(worker.alive for worker in fleet.workers):
            stage.start()

        def accounted() -> bool:
            entries = fleet.ledger(JOB).values()
            return len(entries) == scenario.items and all(e.accounted_until >= last and not e.running for e in entries)

        wait_until(accounted, PATIENCE_SECONDS, "every item's ledger accounts for the whole time")
        ledger = fleet.ledger(JOB)
        stage.stop_all()
        report = Report(scenario, stage.faults, fallen=stage.fallen())
        runs = fleet.runs(JOB)
        verdict = check(_history(scenario, runs, ledger, first, last))
        within = [one for one in runs if first <= one.scheduled_time <= last]
        report.pairs, report.violations = verdict.fires, verdict.violations
        report.run_once = sum(number == 1 for number in Counter((one.item, one.scheduled_time) for one in within).values())
        report.recovered = Counter(one.reason.value for one in within if one.reason is not Reason.SCHEDULED)
        report.not_run = verdict.not_run
    return report


class _Stage:
    """The workers, and what is done to them."""

    def __init__(self, fleet: Fleet, config: Path, random: Random) -> None:
        self.random = random
        self.faults: Counter[str] = Counter()
        self._fleet = fleet
        self._config = config
        self._paused: dict[WorkerProcess, float] = {}
        """Until when (monotonic)."""
        self._ended: set[WorkerProcess] = set()
        """Those that were told to end, or killed."""

    def start(self) -> None:
        name = f"w{len(self._fleet.workers)}"
        self._fleet.launch(self._config, name, options=("--log-level", "debug"))

    def fault(self) -> None:
        """One of them, at random."""
        able = [worker for worker in self._fleet.workers if worker.alive and worker not in self._paused]
        kind = self.random.choice(["start", "sigterm", "kill9", "pause"])
        if kind == "start" or len(able) < 2:
            kind = "start"
            if sum(worker.alive for worker in self._fleet.workers) < MOST_WORKERS:
                self.start()
        elif kind == "pause":
            worker = self.random.choice(able)
            self._paused[worker] = time.monotonic() + self.random.uniform(0.5, 2.5 * SESSION_SECONDS)
            worker.pause()
        else:
            worker = self.random.choice(able)
            self._ended.add(worker)
            worker.sigterm() if kind == "sigterm" else worker.kill9()
        self.faults[kind] += 1

    def play_until(self, moment: float) -> None:
        """Let them run until then (monotonic), and let those go on whose pause is over.

        The instants of the faults are the scenario itself, so nothing that happens can stand for them. What can happen
        meanwhile is that a worker ends by itself: then nothing further is worth waiting for.
        """
        while self._paused and min(self._paused.values()) < moment:
            worker = min(self._paused, key=self._paused.__getitem__)
            self._wait_for(self._paused.pop(worker))
            worker.resume()
        self._wait_for(moment)

    def resume_all(self) -> None:
        for worker in self._paused:
            worker.resume()
        self._paused.clear()

    def stop_all(self) -> None:
        """Tell all to end, and wait for that."""
        for worker in self._fleet.workers:
            if worker.alive and worker not in self._ended:
                self._ended.add(worker)
                worker.sigterm()
        for worker in self._ended:
            worker.wait_exit(PATIENCE_SECONDS)

    def fallen(self) -> list[str]:
        """Workers that ended by themselves."""
        return [worker.name for worker in self._fleet.workers if not worker.alive and worker not in self._ended]

    def _wait_for(self, moment: float) -> None:
        left = moment - time.monotonic()
        wait_until(lambda: time.monotonic() >= moment or self.fallen(), max(0.0, left) + PATIENCE_SECONDS, f"in {left:g} s")


def _moments(random: Random, scenario: Scenario) -> Iterator[float]:
    return iter(sorted(random.uniform(1, scenario.seconds * 0.95) for _ in range(scenario.faults)))


def _history(scenario: Scenario, runs: list[Execution], ledger: dict[int, Entry], first: datetime, last: datetime) -> list[Event]:
    """What was recorded of the instants from `first` to `last`, as rows that the checker reads.

    The schedule counts from just before `first` until just after `last`. All was given its time after that, so a fire that is not
    accounted for by now never will be.
    """
    begin, end = first.timestamp(), last.timestamp()
    schedule = history.Configured(
        at=begin - JUST_BEFORE.total_seconds(),
        job=JOB,
        cron=EVERY_SECOND,
        time_zone="UTC",
        items=scenario.items,
        failover=True,
        misfire=scenario.misfire,
        catch_up=CatchUp(scenario.catch_up),
        misfire_grace=300.0,
        claim_timeout=30.0,
        strategy="AVG_ALLOCATION",
        monitored=True,
    )
    rows: list[Event] = [schedule, replace(schedule, at=end + JUST_BEFORE.total_seconds(), cron=None)]
    for one in runs:
        fire, who = one.scheduled_time.timestamp(), str(one.pid)
        rows.append(history.Claimed(one.start, JOB, one.item, fire, one.attempt, one.reason, one.token, who))
        rows.append(history.Entered(one.start, JOB, one.item, fire, one.attempt, one.reason, one.token, who))
        if one.end is not None:
            outcome = Outcome.SUCCEEDED if one.how == "returned" else Outcome.FAILED
            rows.append(history.Left(one.end, JOB, one.item, fire, one.attempt, one.token, who, outcome))
    for item, entry in ledger.items():
        for left in entry.not_run:
            rows.append(history.FiresNotRun(end, JOB, item, left.after.timestamp(), left.until.timestamp(), left.why))
    rows.sort(key=lambda row: row.at)
    judged = max(rows[-1].at, end)
    return [
        *rows,
        history.Quiet(judged),
        history.AtRest(judged + 2 * Limits().noticed),
        history.Finished(judged + 2 * Limits().noticed),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=int, default=100)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--catch-up", choices=["latest", "all", "none"], default="latest")
    parser.add_argument("--zookeeper", metavar="HOST:PORT")
    parser.add_argument("--sqlite", action="store_true", help="on the embedded registry")
    parser.add_argument("--directory", type=Path, help="where logs are kept (default: a temporary directory)")
    arguments = parser.parse_args()
    scenario = Scenario(arguments.seed, arguments.seconds, arguments.faults, catch_up=arguments.catch_up)
    with ExitStack() as stack:
        directory = arguments.directory or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(parents=True, exist_ok=True)
        if arguments.sqlite:
            url = sqlite_url(directory, SESSION_SECONDS)
        else:
            url = zookeeper_url(arguments.zookeeper or stack.enter_context(ZooKeeperServer()).address, SESSION_SECONDS)
        report = run(scenario, url, directory)
    print(report.line())
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
