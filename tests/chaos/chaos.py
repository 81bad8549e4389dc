"""Chaos on real processes: three workers, one job, a fire a second, and a seeded schedule of starts, SIGTERMs, kill -9s and
SIGSTOPs; then every due (fire, item) is matched to its runs.

    scripts/chaos --seconds 100 --faults 20 --seed 1 [--zookeeper host:port | --sqlite]

prints one JSON line with the counts and exits 1 if a promise was broken. Without `--zookeeper` it starts a server of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from uuid import uuid4

import yaml

from ejpy.clock import SystemClock
from ejpy.config.registry_url import parse_url
from ejpy.coordination.ledger import Entry, decode
from ejpy.coordination.paths import JobPaths
from ejpy.registry.open import open_registry
from ejpy.terms import Reason
from tests.support.jobs import RECORD_VARIABLE, Execution, read_executions
from tests.support.waiting import wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer

JOB = "chaos"
SESSION_SECONDS = 4
PATIENCE_SECONDS = 60
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
    """Pairs recorded as not run, by reason."""
    lost: list[str] = field(default_factory=list)
    """Pairs neither run nor recorded."""
    doubled: list[str] = field(default_factory=list)
    """Pairs run more than once without a recovery reason, or twice with the same attempt or token."""

    @property
    def passed(self) -> bool:
        return not self.lost and not self.doubled and self.pairs > 0

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
                "lost": len(self.lost),
                "doubled": len(self.doubled),
                "examples": (self.lost + self.doubled)[:5],
            }
        )


def zookeeper_url(address: str) -> str:
    """A namespace of its own on a server."""
    return f"zookeeper://{address}/chaos-{uuid4().hex}?session_timeout={SESSION_SECONDS}s"


def sqlite_url(directory: Path) -> str:
    return f"sqlite:///{directory.resolve()}/registry.db?session_timeout={SESSION_SECONDS}s"


def run(scenario: Scenario, url: str, directory: Path) -> Report:
    """Play the scenario against an empty registry; `directory` takes logs and the record of runs."""
    random = Random(scenario.seed)
    config, record = directory / "jobs.yml", directory / "record.jsonl"
    job = {
        "class": "tests.support.jobs:RecordingJob",
        "cron": "* * * * * ?",
        "time_zone": "UTC",
        "sharding_total_count": scenario.items,
        "failover": True,
        "misfire": scenario.misfire,
        "catch_up": scenario.catch_up,
        "job_parameter": json.dumps({"seconds": scenario.body_seconds}),
    }
    config.write_text(yaml.safe_dump({"jobs": {JOB: job}}))
    faults: Counter[str] = Counter()
    with ExitStack() as stack:
        workers: list[WorkerProcess] = []
        paused: dict[WorkerProcess, float] = {}

        def start() -> None:
            name = f"w{len(workers)}"
            options = ("--grace", "10", "--log-level", "debug")
            worker = WorkerProcess(config, url, directory, {RECORD_VARIABLE: str(record)}, name, options)
            workers.append(stack.enter_context(worker))

        for _ in range(scenario.workers):
            start()
        for worker in workers:
            worker.wait_ready(PATIENCE_SECONDS)
        first = datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=1)
        last = first + timedelta(seconds=scenario.seconds - 1)
        began = time.monotonic()
        for moment in _moments(random, scenario):
            while (now := time.monotonic()) < began + moment:
                due = [w for w, until in paused.items() if until <= now]
                for worker in due:
                    del paused[worker]
                    worker.resume()
                time.sleep(0.02)
            able = [w for w in workers if w.alive and w not in paused]
            kind = random.choice(["start", "sigterm", "kill9", "pause"])
            if kind == "start" or len(able) < 2:
                kind = "start"
                if sum(w.alive for w in workers) < MOST_WORKERS:
                    start()
            elif kind == "sigterm":
                random.choice(able).sigterm()
            elif kind == "kill9":
                random.choice(able).kill9()
            else:
                paused[random.choice(able)] = time.monotonic() + random.uniform(0.5, 2.5 * SESSION_SECONDS)
                list(paused)[-1].pause()
            faults[kind] += 1
        while datetime.now(timezone.utc) <= last:
            time.sleep(0.05)
        for worker in paused:
            worker.resume()
        if not any(w.alive for w in workers):
            start()
        accounted = wait_until(
            lambda: all(e.accounted_until >= last and not e.running for e in _ledger(url, scenario.items).values()),
            PATIENCE_SECONDS,
            "every item's ledger accounts for the whole time",
        )
        assert accounted
        ledger = _ledger(url, scenario.items)
        alive = [w for w in workers if w.alive]
        for worker in alive:
            worker.sigterm()
        for worker in alive:
            worker.wait_exit(PATIENCE_SECONDS)
    report = Report(scenario, faults)
    _match(report, read_executions(record), ledger, first, last)
    return report


def _moments(random: Random, scenario: Scenario) -> Iterator[float]:
    return iter(sorted(random.uniform(1, scenario.seconds * 0.95) for _ in range(scenario.faults)))


def _ledger(url: str, items: int) -> dict[int, Entry]:
    async def read() -> dict[int, Entry]:
        address = parse_url(url)
        registry = open_registry(address, SystemClock())
        await registry.start(PATIENCE_SECONDS)
        try:
            paths = JobPaths(address.namespace, JOB)
            nodes = await registry.read([paths.ledger(item) for item in range(items)])
            return {i: decode(node.data, node.revision, paths.ledger(i)) for i, node in enumerate(nodes) if node is not None}
        finally:
            await registry.stop(2)

    return asyncio.run(read())


def _match(report: Report, runs: list[Execution], ledger: dict[int, Entry], first: datetime, last: datetime) -> None:
    by_pair: dict[tuple[datetime, int], list[Execution]] = defaultdict(list)
    for one in runs:
        by_pair[(one.scheduled_time, one.item)].append(one)
    fire = first
    while fire <= last:
        for item in range(report.scenario.items):
            report.pairs += 1
            attempts = by_pair[(fire, item)]
            name = f"{fire:%H:%M:%S} item {item}"
            if not attempts:
                why = next((r.why for r in ledger[item].not_run if r.after < fire <= r.until), None)
                if why is None:
                    report.lost.append(name)
                else:
                    report.not_run[why.value] += 1
                continue
            attempts.sort(key=lambda one: one.attempt)
            report.run_once += len(attempts) == 1
            report.recovered.update(one.reason.value for one in attempts if one.reason is not Reason.SCHEDULED)
            further = [one for one in attempts if one.attempt > 1]
            if (
                any(one.reason is Reason.SCHEDULED for one in further)
                or len({one.attempt for one in attempts}) < len(attempts)
                or [one.token for one in attempts] != sorted({one.token for one in attempts})
            ):
                report.doubled.append(f"{name}: {[(o.attempt, o.reason.value, o.token, o.pid) for o in attempts]}")
        fire += timedelta(seconds=1)


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
            url = sqlite_url(directory)
        else:
            url = zookeeper_url(arguments.zookeeper or stack.enter_context(ZooKeeperServer()).address)
        report = run(scenario, url, directory)
    print(report.line())
    sys.exit(0 if report.passed else 1)


if __name__ == "__main__":
    main()
