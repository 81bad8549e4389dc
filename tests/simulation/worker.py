"""A worker in virtual time: the real JobScheduler and coordination code, the in-memory registry behind an unreliable network,
bodies that only take time, and what an outsider sees of all that.

A crashed worker is one that nothing leaves or reaches any more. A paused one sees and says nothing until it goes on. The wall
clock of one may be wrong.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import TypeVar

from ejpy.attempt import Attempt
from ejpy.config.model import JobConfig
from ejpy.execution.base import Ended, SaveCheckpoint
from ejpy.history.records import AttemptEnded, AttemptStarted, FiresNotRun, Record
from ejpy.registry.group import GroupCommit
from ejpy.registry.memory import MemoryStore
from ejpy.schedule.timer import NextAfter
from ejpy.scheduler import JobScheduler
from ejpy.scheduler.host import Host
from ejpy.terms import Outcome, Reason
from tests.support.unreliable import Trouble, UnreliableRegistry
from tests.support.virtual_loop import LoopClock, VirtualLoop

T = TypeVar("T")

NAMESPACE = "/sim"
SESSION_TIMEOUT = 4.0
LATE_SECONDS = 0.001


@dataclass(slots=True)
class Run:
    """One body that was entered."""

    worker: str
    item: int
    fire: datetime
    attempt: int
    reason: Reason
    token: int
    entered: float
    ended: float | None = None
    outcome: Outcome | None = None


@dataclass
class Evidence:
    """What happened, as an outsider sees it."""

    runs: list[Run] = field(default_factory=list)
    not_run: list[FiresNotRun] = field(default_factory=list)
    recorded: list[AttemptEnded] = field(default_factory=list)
    started: list[AttemptStarted] = field(default_factory=list)

    def write(self, record: Record) -> None:
        if isinstance(record, FiresNotRun):
            self.not_run.append(record)
        elif isinstance(record, AttemptEnded):
            self.recorded.append(record)
        elif isinstance(record, AttemptStarted):
            self.started.append(record)


class VirtualTimer:
    """Calls at instants, by the worker's clock, and a moment late, as every real timer does."""

    def __init__(self, loop: VirtualLoop, clock: LoopClock, awake: Callable[[Callable[[], None]], None]) -> None:
        self._loop = loop
        self._clock = clock
        self._awake = awake
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def set(self, name: str, next_after: NextAfter, due: Callable[[], None]) -> None:
        self.remove(name)

        def arm() -> None:
            now = self._clock.now()
            fire = next_after(now)
            if fire is not None:
                self._handles[name] = self._loop.call_later((fire - now).total_seconds() + LATE_SECONDS, ring)

        def ring() -> None:
            self._awake(due)
            arm()

        arm()

    def remove(self, name: str) -> None:
        if handle := self._handles.pop(name, None):
            handle.cancel()

    def stop(self) -> None:
        for name in list(self._handles):
            self.remove(name)


class VirtualRunner:
    """Bodies that take time and do nothing. `deaf` ones do not listen to cancellation; `waiting` may be set at will."""

    def __init__(self, worker: SimWorker, seconds: Callable[[], float], deaf: bool) -> None:
        self._worker = worker
        self._seconds = seconds
        self._deaf = deaf
        self.waiting = 0

    def start(
        self,
        attempt: Attempt,
        *,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
    ) -> VirtualExecution:
        return VirtualExecution(self._worker, attempt, self._seconds(), self._deaf, may_enter, on_ended)

    async def close(self, timeout: float) -> list[Attempt]:
        return []


class VirtualExecution:
    def __init__(
        self,
        worker: SimWorker,
        attempt: Attempt,
        seconds: float,
        deaf: bool,
        may_enter: Callable[[], bool],
        on_ended: Callable[[Attempt, Ended], None],
    ) -> None:
        self.attempt = attempt
        self._worker = worker
        self._deaf = deaf
        self._on_ended = on_ended
        self._run: Run | None = None
        self._done = False
        worker.loop.call_soon(self._enter, may_enter, seconds)

    def _enter(self, may_enter: Callable[[], bool], seconds: float) -> None:
        if self._worker.dead:
            return
        if self._worker.paused:
            self._worker.awake(lambda: self._enter(may_enter, seconds))
            return
        if self._done:
            return
        if not may_enter():
            self._end(None)
            return
        a, w = self.attempt, self._worker
        self._run = Run(w.name, a.sharding_item, a.scheduled_time, a.attempt, a.reason, a.fencing_token, w.loop.time())
        w.evidence.runs.append(self._run)
        w.loop.call_later(seconds, w.awake, lambda: self._end(Outcome.SUCCEEDED))

    def cancel(self, why: str) -> None:
        if not self._deaf or self._run is None:
            outcome = None if self._run is None else Outcome.CANCELLED
            self._worker.loop.call_soon(self._worker.awake, lambda: self._end(outcome))

    def withdraw(self) -> None:
        if self._run is None:
            self._worker.loop.call_soon(self._worker.awake, lambda: self._end(None))

    def _end(self, outcome: Outcome | None) -> None:
        if self._done:
            return
        self._done = True
        now = self._worker.clock.now()
        if self._run is not None:
            self._run.ended, self._run.outcome = self._worker.loop.time(), outcome
        self._on_ended(self.attempt, Ended(outcome, now if self._run else None, now))


class SimRegistry(UnreliableRegistry):
    """Holds everything back while its worker is paused, and for ever once it is dead."""

    worker: SimWorker

    async def _transport(self, apply: Callable[[], T]) -> T:
        await self.worker.until_awake()
        result = await super()._transport(apply)
        await self.worker.until_awake()
        return result

    def _deliver(self, event: Callable[[], None]) -> None:
        super()._deliver(lambda: self.worker.awake(event))


class SimWorker:
    """See the module's text. `ahead`: of its wall clock. `runner` may be replaced before `start`."""

    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        store: MemoryStore,
        config: JobConfig,
        evidence: Evidence,
        random: Random,
        trouble: Trouble,
        *,
        deaf: bool,
        body_seconds: Callable[[], float],
        ahead: timedelta = timedelta(0),
    ) -> None:
        self.name = name
        self.loop = loop
        self.clock = LoopClock(loop, ahead)
        self.evidence = evidence
        self.dead = False
        self.paused = False
        self._woken: list[Callable[[], None]] = []
        self.registry = SimRegistry(store, clock=self.clock, session_timeout=SESSION_TIMEOUT, random=random, trouble=trouble)
        self.registry.worker = self
        self.timer = VirtualTimer(loop, self.clock, self.awake)
        self.runner = VirtualRunner(self, body_seconds, deaf)
        numbers = itertools.count()
        self.host = Host(
            registry=self.registry,
            group=GroupCommit(self.registry, clock=self.clock, loop=loop),
            clock=self.clock,
            timer=self.timer,
            runner_for=lambda config, tree: self.runner,
            namespace=NAMESPACE,
            instance_id=f"10.0.0.{name}@-@{name}.x",
            ip=f"10.0.0.{name}",
            new_uuid=lambda: f"{name}-{next(numbers)}",
        )
        self.job = JobScheduler(self.host, config, evidence)

    # -- being paused and dying --

    def awake(self, event: Callable[[], None]) -> None:
        """Carry out an event, now, or when the worker goes on; never, if it is dead."""
        if self.dead:
            return
        if self.paused:
            self._woken.append(event)
        else:
            event()

    async def until_awake(self) -> None:
        if self.dead:
            await self.loop.create_future()
        if self.paused:
            future = self.loop.create_future()
            self._woken.append(lambda: None if future.done() else future.set_result(None))
            await future

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        woken, self._woken = self._woken, []
        for event in woken:
            self.loop.call_soon(self.awake, event)

    def crash(self) -> None:
        self.dead = True
        self.timer.stop()

    # -- living --

    async def start(self) -> None:
        await self.registry.start(10.0)
        await self.job.start()

    async def stop(self, grace: float) -> None:
        await asyncio.wait_for(self.job.drain(), 5)
        try:
            await asyncio.wait_for(self.job.settled(), grace)
        except asyncio.TimeoutError:
            self.job.cancel("grace is over")
        await self.job.leave()
        await self.registry.stop(1.0)
        self.dead = True

    def state(self) -> str:
        registry = self.registry
        running = [f"{a.sharding_item}@{a.scheduled_time.time()}" for a in self.job.running]
        return (
            f"worker {self.name}: dead={self.dead} paused={self.paused} {registry.state.value} session={registry.session_id}"
            f" running={running}"
        )
