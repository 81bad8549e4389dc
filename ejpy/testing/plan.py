"""A cluster, its jobs and what is done to it, as plain data: printed, kept, replayed, and made smaller.

`plan_of(seed)` yields the plan of a seed. A fault stands for itself: it says when it begins, how long it lasts and whom it
concerns, so that any of them can be left out and the others stay what they were.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from random import Random
from typing import Any

from ejpy.config.model import JobConfig, ShardingStrategyName
from ejpy.terms import CatchUp


class FaultKind(str, Enum):
    """What can be done to a worker, the network, the registry or the configuration."""

    CRASH = "crash"
    """The worker does nothing any more; `seconds` later another one starts in its place (0: none does)."""
    CRASH_BEFORE = "crash_before"
    """It crashes when it is about to send its `amount`-th request from now on."""
    CRASH_AFTER = "crash_after"
    """It crashes when that request was carried out, before it hears of it."""
    PAUSE = "pause"
    CUT = "cut"
    """Nothing gets through, and nobody is told."""
    CUT_OUT = "cut_out"
    """What the worker sends does not arrive."""
    CUT_IN = "cut_in"
    """What it sends arrives; replies and events do not reach it."""
    HOLD_BACK = "hold_back"
    """What it sends arrives only at the end, when its session may be over."""
    DISCONNECT = "disconnect"
    """Its connection breaks, and it notices."""
    EXPIRE = "expire"
    """The registry ends its session, and says so."""
    EXPIRE_AFTER = "expire_after"
    """The registry ends its session after the `amount`-th request from now on, whose reply is lost."""
    LOSE_EVENTS = "lose_events"
    """Events do not reach it, then its connection breaks."""
    LOSE_REPLIES = "lose_replies"
    """The replies to its next `amount` transactions are lost, which are committed."""
    SLOW_NETWORK = "slow_network"
    """Requests, replies and events take up to `amount` seconds, for all."""
    LOSSY_NETWORK = "lossy_network"
    """`amount` of the requests and of the replies are lost, for all."""
    LATE_EVENTS = "late_events"
    """Events come up to `amount` seconds late, many of them twice, for all."""
    CLOCK_JUMP = "clock_jump"
    """Its wall clock moves by `amount` seconds."""
    RESTART_REGISTRY = "restart_registry"
    SLOW_BODIES = "slow_bodies"
    """What it begins meanwhile takes `amount` seconds longer."""
    SATURATE = "saturate"
    """It has no place for further bodies."""
    CHANGE_CRON = "change_cron"
    CHANGE_COUNT = "change_count"
    DISABLE_ITEM = "disable_item"
    DISABLE_SERVER = "disable_server"
    TRIGGER = "trigger"
    DEPOSE = "depose"
    """Somebody removes the leader's node, while what the leader sends is under way for `seconds`, 3 at the most."""
    STUCK = "stuck"
    """As SATURATE, and for good, unless nobody else is left."""
    DISMISS = "dismiss"
    """Somebody removes its node, which is an order to stop the job there; another one starts in its place `seconds` later."""
    STOP = "stop"
    """It is told to end; `seconds` later another one starts in its place (0: none does)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`worker` and `job` are places in the plan's lists."""

    at: float
    kind: FaultKind
    worker: int = 0
    seconds: float = 0.0
    amount: float = 0.0
    job: int = 0


@dataclass(frozen=True, slots=True)
class JobPlan:
    """A job and its bodies. `body_seconds`: the longest that an ordinary one takes."""

    name: str
    items: int
    period: int
    strategy: str
    failover: bool = True
    misfire: bool = True
    catch_up: str = "latest"
    monitored: bool = True
    running_marks: bool = False
    misfire_grace: float = 300.0
    claim_timeout: float = 6.0
    body_seconds: float = 0.0
    deaf: bool = False
    checkpoints: bool = False

    def config(self) -> JobConfig:
        return JobConfig.model_validate(
            {
                "job_name": self.name,
                "job_class": "m:J",
                "cron": cron(self.period),
                "time_zone": "UTC",
                "sharding_total_count": self.items,
                "failover": self.failover,
                "misfire": self.misfire,
                "catch_up": self.catch_up,
                "misfire_grace": f"{self.misfire_grace:g}s",
                "claim_timeout": f"{self.claim_timeout:g}s",
                "job_sharding_strategy_type": self.strategy,
                "monitor_execution": self.monitored,
                "running_marks": self.running_marks,
            }
        )


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """A place for a worker: when the first one starts there, and how far its wall clock is ahead."""

    starts: float = 0.0
    ahead: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Faults last until `faults_seconds` at the most, and nothing is done for `quiet_seconds` after that; then all workers are
    told to end."""

    seed: int
    jobs: tuple[JobPlan, ...]
    workers: tuple[WorkerPlan, ...]
    faults: tuple[Fault, ...] = ()
    faults_seconds: float = 65.0
    quiet_seconds: float = 35.0
    session_timeout: float = 4.0
    grace: float = 5.0
    patience: float = 0.05

    def size(self) -> tuple[int, int, int, float]:
        """What is smaller is easier to read."""
        items = sum(job.items for job in self.jobs)
        return len(self.faults), len(self.workers) + len(self.jobs), items, self.faults_seconds + self.quiet_seconds


@dataclass(frozen=True, slots=True)
class Scope:
    """What plans are drawn from. None: the seed decides."""

    workers: int | None = None
    jobs: int | None = None
    items: int | None = None
    strategy: str | None = ShardingStrategyName.AVG_ALLOCATION.value
    seconds: float = 100.0
    faults: tuple[FaultKind, ...] | None = None
    """No other kinds than these."""
    body_seconds: float | None = None


def cron(period: int) -> str:
    """Every so many seconds, up to 60."""
    return f"0/{period} * * * * ?" if period < 60 else "0 * * * * ?"


def plan_of(seed: int, scope: Scope = Scope()) -> Plan:
    """The plan of a seed."""
    random = Random(f"ejpy/{seed}")
    jobs = tuple(_job(random, place, scope) for place in range(scope.jobs or random.choice([1, 1, 1, 2])))
    number = scope.workers or random.choice([2, 3, 3, 4])
    workers = tuple(
        WorkerPlan(
            starts=0.0 if place == 0 or random.random() < 0.7 else round(random.uniform(0.0, 40.0), 3),
            ahead=random.choice([0.0, 0.0, 0.0, round(random.uniform(-1.5, 1.5), 3)]),
        )
        for place in range(number)
    )
    quiet = 35.0
    plan = Plan(
        seed,
        jobs,
        workers,
        faults_seconds=max(10.0, scope.seconds - quiet),
        quiet_seconds=quiet,
        patience=random.choice([0.05, 1.0]),
    )
    faults = sorted((_fault(random, plan, scope) for _ in range(random.randint(3, 14))), key=lambda fault: fault.at)
    return replace(plan, faults=tuple(faults))


def _job(random: Random, place: int, scope: Scope) -> JobPlan:
    monitored = random.random() < 0.85
    marked = monitored and random.random() < 0.2
    # Where marks decide on failover, only a worker that runs nothing of the job takes an item over (ElasticJob's rule): with
    # bodies as long as the period somebody always runs something, and the item waits without end.
    lengths = [0.0, 0.5] if marked or not monitored else [0.0, 0.5, 3.0, 7.0]
    return JobPlan(
        name="job" if place == 0 else f"job{place + 1}",
        items=scope.items or random.choice([1, 2, 3, 5, 7]),
        period=random.choice([5, 5, 10, 15]),
        strategy=scope.strategy or random.choice(list(ShardingStrategyName)).value,
        failover=random.random() < 0.6,
        misfire=random.random() < 0.6,
        catch_up=random.choice(list(CatchUp)).value,
        monitored=monitored,
        running_marks=marked,
        misfire_grace=random.choice([8.0, 300.0, 300.0]),
        body_seconds=_fixed(None if marked else scope.body_seconds, random.choice(lengths)),
        deaf=random.random() < 0.3,
        checkpoints=monitored and random.random() < 0.4,
    )


def _fixed(asked: float | None, drawn: float) -> float:
    """What is asked for changes nothing of what is drawn after it."""
    return drawn if asked is None else asked


_WEIGHTS = {
    FaultKind.CRASH: 6,
    FaultKind.CRASH_BEFORE: 4,
    FaultKind.CRASH_AFTER: 5,
    FaultKind.PAUSE: 8,
    FaultKind.CUT: 5,
    FaultKind.CUT_OUT: 4,
    FaultKind.CUT_IN: 5,
    FaultKind.HOLD_BACK: 4,
    FaultKind.DISCONNECT: 3,
    FaultKind.EXPIRE: 5,
    FaultKind.EXPIRE_AFTER: 4,
    FaultKind.LOSE_EVENTS: 4,
    FaultKind.LOSE_REPLIES: 6,
    FaultKind.SLOW_NETWORK: 3,
    FaultKind.LOSSY_NETWORK: 3,
    FaultKind.LATE_EVENTS: 4,
    FaultKind.CLOCK_JUMP: 2,
    FaultKind.RESTART_REGISTRY: 3,
    FaultKind.SLOW_BODIES: 4,
    FaultKind.SATURATE: 3,
    FaultKind.CHANGE_CRON: 2,
    FaultKind.CHANGE_COUNT: 4,
    FaultKind.DISABLE_ITEM: 3,
    FaultKind.DISABLE_SERVER: 2,
    FaultKind.TRIGGER: 2,
    FaultKind.DEPOSE: 3,
    FaultKind.STUCK: 2,
    FaultKind.DISMISS: 3,
    FaultKind.STOP: 6,
}


def _fault(random: Random, plan: Plan, scope: Scope) -> Fault:
    weights = {kind: weight for kind, weight in _WEIGHTS.items() if scope.faults is None or kind in scope.faults}
    kind = random.choices(list(weights), list(weights.values()))[0]
    at = _moment(random, plan)
    seconds = round(random.uniform(0.05, 3 * plan.session_timeout), 3)
    amount = 0.0
    if kind in (FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER, FaultKind.EXPIRE_AFTER):
        amount = random.randint(1, 12)
    elif kind is FaultKind.LOSE_REPLIES:
        amount = random.randint(1, 3)
    elif kind is FaultKind.SLOW_NETWORK:
        amount = random.choice([0.05, 0.3, 0.8])
    elif kind is FaultKind.LOSSY_NETWORK:
        amount = random.choice([0.05, 0.2])
    elif kind is FaultKind.LATE_EVENTS:
        amount = random.choice([0.3, 1.0, 2.5])
    elif kind is FaultKind.CLOCK_JUMP:
        amount = round(random.uniform(-2.0, 2.0), 3)
    elif kind is FaultKind.SLOW_BODIES:
        amount = random.choice([3.0, 8.0, 20.0])
    elif kind is FaultKind.CHANGE_CRON:
        amount = random.choice([4, 5, 6, 10, 12])
    elif kind is FaultKind.CHANGE_COUNT:
        amount = random.choice([1, 2, 3, 4, 6, 8])
    elif kind is FaultKind.DISABLE_ITEM:
        amount = random.randint(0, 4)
    elif kind is FaultKind.PAUSE:
        amount = random.choice([0.0, 0.002])
    if kind is FaultKind.LOSE_EVENTS:
        seconds = min(seconds, plan.session_timeout)  # a connection on which nothing comes is given up by then
    if kind in (FaultKind.CRASH, FaultKind.STOP) and random.random() < 0.3:
        seconds = 0.0
    return Fault(at, kind, random.randrange(len(plan.workers)), seconds, amount, random.randrange(len(plan.jobs)))


def _moment(random: Random, plan: Plan) -> float:
    """Anywhere, but half of the time close to an instant at which something is due."""
    at = random.uniform(0.5, plan.faults_seconds - 1.0)
    if random.random() < 0.5:
        at = 5 * round(at / 5) + random.uniform(-0.03, 0.1)
    return round(min(max(at, 0.1), plan.faults_seconds - 1.0), 4)


def to_json(plan: Plan) -> str:
    """A plan in one line."""
    return json.dumps(asdict(plan), separators=(",", ":"))


def from_json(text: str) -> Plan:
    """Raises ValueError, KeyError, TypeError for what is no plan."""
    document: dict[str, Any] = json.loads(text)
    document["jobs"] = tuple(JobPlan(**job) for job in document["jobs"])
    document["workers"] = tuple(WorkerPlan(**worker) for worker in document["workers"])
    document["faults"] = tuple(Fault(**{**fault, "kind": FaultKind(fault["kind"])}) for fault in document["faults"])
    return Plan(**document)
