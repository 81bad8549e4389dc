"""Seeded histories of a cluster under faults, each checked against what ejpy promises.

A failing seed replays exactly: `EJPY_SIMULATION_SEEDS=17:18 pytest tests/simulation`.
"""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

import pytest

from ejpy.config.model import ShardingStrategyName
from ejpy.coordination.ledger import Entry
from ejpy.errors import RegistryError
from ejpy.terms import CatchUp, Outcome, Reason
from tests.simulation.cluster import SimCluster, job_config
from tests.simulation.worker import SESSION_TIMEOUT, Evidence
from tests.support.virtual_loop import EPOCH, VirtualLoop, run_virtual

FAULTS_SECONDS = 60.0
QUIET_SECONDS = 40.0
RECOVERIES = {Reason.OWNER_LOST, Reason.CATCH_UP, Reason.SCHEDULED_TOO_LONG, Reason.MISFIRE, Reason.SCHEDULED}


@dataclass(frozen=True)
class Plan:
    """What varies between histories."""

    items: int
    period: int
    failover: bool
    misfire: bool
    catch_up: CatchUp
    strategy: ShardingStrategyName
    monitored: bool
    deaf: bool
    body: float


def plan_of(random: Random) -> Plan:
    monitored = random.random() < 0.8
    return Plan(
        items=random.choice([1, 2, 5, 9]),
        period=random.choice([1, 2, 5]),
        failover=random.random() < 0.5,
        misfire=random.random() < 0.5,
        catch_up=random.choice(list(CatchUp)),
        strategy=random.choice(list(ShardingStrategyName)),
        monitored=monitored,
        deaf=random.random() < 0.3,
        body=random.choice([0.0, 0.2, 1.5, 4.0] if monitored else [0.0, 0.2]),
    )


@dataclass
class History:
    plan: Plan
    evidence: Evidence
    entries: dict[int, Entry]
    violations: list[str]
    states: list[str] = field(default_factory=list)


async def simulate(loop: VirtualLoop, seed: int) -> History:
    random = Random(seed)
    plan = plan_of(random)
    config = job_config(
        items=plan.items,
        cron=f"0/{plan.period} * * * * ?",
        failover=plan.failover,
        misfire=plan.misfire,
        catch_up=plan.catch_up,
        job_sharding_strategy_type=plan.strategy,
        monitor_execution=plan.monitored,
        claim_timeout=timedelta(seconds=6),
    )
    cluster = SimCluster(loop, config, seed=seed)
    store, trouble, workers, living = cluster.store, cluster.trouble, cluster.workers, cluster.living

    async def add() -> None:
        worker = cluster.make(deaf=plan.deaf, body_seconds=lambda: random.uniform(0, plan.body))
        try:
            await worker.start()
        except RegistryError:
            worker.crash()

    for _ in range(3):
        await add()
    stopping: list[asyncio.Task[None]] = []

    while loop.time() < FAULTS_SECONDS:
        await asyncio.sleep(random.uniform(0.1, 4))
        alive = [w for w in living() if not w.paused]
        kind = random.choice(["add", "crash", "pause", "cut", "stop", "expire", "trouble", "calm"])
        if kind == "add" and len(living()) < 5:
            await add()
        elif kind == "crash" and len(alive) > 1:
            random.choice(alive).crash()
        elif kind == "stop" and len(alive) > 1:
            stopping.append(loop.create_task(random.choice(alive).stop(grace=5)))
        elif kind == "pause" and alive:
            worker = random.choice(alive)
            worker.pause()
            loop.call_later(random.uniform(0.1, 3 * SESSION_TIMEOUT), worker.resume)
        elif kind == "cut" and alive:
            worker = random.choice(alive)
            worker.registry.disconnect()
            loop.call_later(random.uniform(0.1, 3 * SESSION_TIMEOUT), worker.registry.reconnect)
        elif kind == "expire" and alive:
            worker = random.choice(alive)
            if worker.registry.session_id is not None:
                store.expire(worker.registry.session_id)
        elif kind == "trouble":
            trouble.delay_seconds = random.choice([0.005, 0.05, 0.3])
            trouble.lost_requests = random.choice([0.0, 0.05])
            trouble.lost_replies = random.choice([0.0, 0.05])
        elif kind == "calm":
            trouble.delay_seconds, trouble.lost_requests, trouble.lost_replies = 0.005, 0.0, 0.0
    trouble.delay_seconds, trouble.lost_requests, trouble.lost_replies = 0.005, 0.0, 0.0
    await asyncio.sleep(3 * SESSION_TIMEOUT + 2)
    if not living():
        await add()
    await asyncio.sleep(QUIET_SECONDS)
    history = History(plan, cluster.evidence, {}, [])
    for item in range(plan.items):
        entry = cluster.entry(item)
        if entry is None:
            history.violations.append(f"item {item} has no ledger entry")
        else:
            history.entries[item] = entry
    view = cluster.view()
    up = {w.host.instance_id for w in living()}
    if set(view.instances) != up:
        history.violations.append(f"instances {sorted(view.instances)}, alive {sorted(up)}")
    if view.leader not in up:
        history.violations.append(f"leader {view.leader} is not alive")
    loads: defaultdict[str, int] = defaultdict(int)
    for item in range(plan.items):
        owner = view.assigned[item].instance_id if item in view.assigned else "nobody"
        loads[owner] += 1
        if owner not in up:
            history.violations.append(f"item {item} belongs to {owner}")
    if loads and max(loads.values()) - min(loads[i] for i in up) > 1:
        history.violations.append(f"unbalanced: {dict(loads)} over {sorted(up)}")
    if any(path.startswith(cluster.paths.latch + "/") for path in cluster.nodes()):
        history.violations.append("latch nodes are left over")
    check(history, loop.time())
    if history.violations:
        history.states = [worker.state() for worker in workers]
    for worker in living():
        worker.crash()
    for task in stopping:
        task.cancel()
    return history


def check(history: History, end: float) -> None:
    plan, bad = history.plan, history.violations
    by_attempt = defaultdict(list)
    by_item = defaultdict(list)
    for run in history.evidence.runs:
        by_attempt[(run.item, run.fire, run.attempt)].append(run)
        by_item[run.item].append(run)
        if run.fire > EPOCH + timedelta(seconds=run.entered):
            bad.append(f"before its time: {run}")
        if run.attempt > 1 and run.reason not in RECOVERIES - {Reason.SCHEDULED}:
            bad.append(f"further attempt without a recovery reason: {run}")
    bad += [f"entered twice: {runs}" for runs in by_attempt.values() if len(runs) > 1]
    for item, runs in by_item.items():
        tokens = [run.token for run in sorted(runs, key=lambda run: (run.fire, run.attempt))]
        if tokens != sorted(set(tokens)):
            bad.append(f"item {item}: tokens do not grow with fires and attempts: {tokens}")
    for item, entry in history.entries.items() if plan.monitored else ():
        entered = {run.fire for run in by_item[item]}
        claimed = {s.attempt.scheduled_time for s in history.evidence.started if s.attempt.sharding_item == item}
        ranges = [(r.after, r.until) for r in history.evidence.not_run if r.item == item]
        ranges += [(r.after, r.until) for r in entry.not_run]
        first = min(claimed | {r[0] + timedelta(seconds=1) for r in ranges}, default=None)
        if first is None:
            bad.append(f"item {item} never fired")
            continue
        fire = EPOCH + timedelta(seconds=plan.period * (int((first - EPOCH).total_seconds()) // plan.period))
        if fire < first:
            fire += timedelta(seconds=plan.period)
        while fire <= EPOCH + timedelta(seconds=end - 3 - max(plan.body, 1) * 2 - SESSION_TIMEOUT):
            if fire not in entered and not any(after < fire <= until for after, until in ranges):
                why = "claimed and not run" if fire in claimed else "lost"
                interrupted = entry.fire == fire or any(
                    s.attempt.scheduled_time == fire and s.attempt.sharding_item == item for s in history.evidence.started
                )
                pending = fire > entry.accounted_until and (entry.running or _recent(entry, end))
                if not pending and not (why == "claimed and not run" and interrupted and not plan.failover):
                    bad.append(f"item {item}: {fire.time()} {why}")
            fire += timedelta(seconds=plan.period)
    successes: defaultdict[tuple[int, datetime], int] = defaultdict(int)
    for record in history.evidence.recorded:
        if record.recorded and record.end.outcome is Outcome.SUCCEEDED:
            successes[(record.attempt.sharding_item, record.attempt.scheduled_time)] += 1
    if plan.monitored:
        bad += [f"succeeded {n} times: {key}" for key, n in successes.items() if n > 1]


def _recent(entry: Entry, end: float) -> bool:
    """The item works off a backlog."""
    return entry.ended is not None and entry.ended > EPOCH + timedelta(seconds=end - 5)


def seeds() -> range:
    first, last = os.environ.get("EJPY_SIMULATION_SEEDS", "0:40").split(":")
    return range(int(first), int(last))


@pytest.mark.parametrize("seed", seeds())
def test_history_keeps_the_promises(seed: int) -> None:
    history = run_virtual(lambda loop: simulate(loop, seed))
    assert history.evidence.runs, history.plan
    assert not history.violations, (history.plan, history.violations[:10])
