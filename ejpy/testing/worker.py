"""A worker in virtual time: the real JobScheduler and coordination code, the in-memory registry behind an unreliable network,
and bodies that only take time.

A crashed worker does nothing any more, wherever it was. A paused one goes on where it was, as after SIGSTOP and SIGCONT: what
came meanwhile, its own timers among that, it finds then. The wall clock of one may be wrong, and may jump.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from contextvars import Context
from datetime import timedelta
from random import Random
from typing import TypeVar

from ejpy.attempt import Attempt
from ejpy.config.model import JobConfig
from ejpy.deadlines import within
from ejpy.errors import OutcomeUnknown, RegistryError, RegistryUnavailable, SessionExpired
from ejpy.registry.group import GroupCommit
from ejpy.registry.memory import MemoryStore
from ejpy.schedule.timer import NextAfter
from ejpy.scheduler import JobScheduler
from ejpy.scheduler.host import RETRY_SECONDS, Host
from ejpy.testing.bodies import Behaviour, Evidence, VirtualRunner
from ejpy.testing.network import Trouble, UnreliableRegistry
from ejpy.testing.virtual_loop import LoopClock, Process, VirtualLoop
from ejpy.worker import CANCEL_SECONDS, CLOSE_REGISTRY_SECONDS, DRAIN_SECONDS, LEAVE_SECONDS

T = TypeVar("T")

NAMESPACE = "/sim"
SESSION_TIMEOUT = 4.0
LATE_SECONDS = 0.001
CLOCK_CHECK_SECONDS = 3.0
"""How long after a jump of the clock a timer notices."""


class VirtualTimer:
    """Calls at instants, by the worker's clock, and a moment late, as every real timer does."""

    def __init__(self, loop: VirtualLoop, clock: LoopClock) -> None:
        self._loop = loop
        self._clock = clock
        self._schedules: dict[str, tuple[NextAfter, Callable[[], None]]] = {}
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def set(self, name: str, next_after: NextAfter, due: Callable[[], None]) -> None:
        self.remove(name)
        self._schedules[name] = (next_after, due)
        self._arm(name)

    def remove(self, name: str) -> None:
        self._schedules.pop(name, None)
        if handle := self._handles.pop(name, None):
            handle.cancel()

    def stop(self) -> None:
        for name in list(self._schedules):
            self.remove(name)

    def clock_jumped(self) -> None:
        """Wait for the instants anew, by what the clock says now."""
        for name in self._schedules:
            if handle := self._handles.pop(name, None):
                handle.cancel()
            self._arm(name)

    def _arm(self, name: str) -> None:
        now = self._clock.now()
        fire = self._schedules[name][0](now)
        if fire is not None:
            self._handles[name] = self._loop.call_later((fire - now).total_seconds() + LATE_SECONDS, self._ring, name)

    def _ring(self, name: str) -> None:
        if name in self._schedules:
            self._schedules[name][1]()
            self._arm(name)


class SimRegistry(UnreliableRegistry):
    """Counts what is asked of it, and has its worker crash at the operation that it is told to."""

    worker: SimWorker
    requests: int = 0
    crash_before: int | None = None
    """The worker crashes when it is about to send its so many-th request from now on."""
    crash_after: int | None = None
    """The same when that request was carried out, and its reply is under way."""
    expire_after: int | None = None
    """Then its session ends, and the reply is lost."""

    async def _transport(self, apply: Callable[[], T]) -> T:
        self.requests += 1
        if self._reached("crash_before"):
            self.worker.crash()
            await asyncio.get_running_loop().create_future()
        return await super()._transport(apply)

    def _applied(self) -> bool:
        if self._reached("crash_after"):
            self.worker.crash()
        if self._reached("expire_after") and self.session_id is not None:
            self._store.expire(self.session_id)
            return True
        return False

    def _reached(self, counter: str) -> bool:
        left = getattr(self, counter)
        if left is None:
            return False
        setattr(self, counter, left - 1)
        return bool(left <= 1)

    def _deliver(self, event: Callable[[], None]) -> None:
        super()._deliver(lambda: self.worker.awake(event))

    def _context(self) -> Context:
        return self.worker.process.context.copy()

    def disconnect(self) -> None:
        self.worker.process.run(super().disconnect)

    def reconnect(self) -> None:
        self.worker.process.run(super().reconnect)

    def watches_left(self) -> int:
        """How many watches are armed."""
        return len(self._watches._trees.all()) + len(self._watches._one_shots.all())


class SimWorker:
    """See the module's text. `ahead`: of its wall clock. `runner` may be replaced before `start`. `ip` and `process_id` make
    its instance id; by default they follow from `name`."""

    def __init__(
        self,
        name: str,
        loop: VirtualLoop,
        store: MemoryStore,
        configs: Sequence[JobConfig],
        evidence: Evidence,
        random: Random,
        trouble: Trouble,
        *,
        deaf: bool = False,
        body_seconds: Callable[[], float] = lambda: 0.0,
        behaviour: Callable[[Attempt], Behaviour] | None = None,
        ahead: timedelta = timedelta(0),
        session_timeout: float = SESSION_TIMEOUT,
        ip: str | None = None,
        process_id: str | None = None,
    ) -> None:
        self.name = name
        self.loop = loop
        self.clock = LoopClock(loop, ahead)
        self.evidence = evidence
        self.process = Process(loop)
        self.ip = ip or f"10.0.0.{name}"
        self.instance_id = f"{self.ip}@-@{process_id or f'{name}.x'}"
        self.stopped = False
        """It ended as a worker that is told to."""
        self.stopping = False
        self._store = store
        self.registry = SimRegistry(store, clock=self.clock, session_timeout=session_timeout, random=random, trouble=trouble)
        self.registry.worker = self
        self.timer = VirtualTimer(loop, self.clock)
        self.runner = VirtualRunner(self, body_seconds, deaf, behaviour)
        numbers = itertools.count()
        self.host = Host(
            registry=self.registry,
            group=GroupCommit(self.registry, clock=self.clock, loop=loop),
            clock=self.clock,
            timer=self.timer,
            runner_for=lambda config, tree: self.runner,
            namespace=NAMESPACE,
            instance_id=self.instance_id,
            ip=self.ip,
            new_uuid=lambda: f"{name}-{next(numbers)}",
        )
        self.jobs = [JobScheduler(self.host, config, evidence) for config in configs]

    @property
    def session_id(self) -> int | None:
        return self.registry.session_id

    @property
    def job(self) -> JobScheduler:
        """Its first job."""
        return self.jobs[0]

    @property
    def dead(self) -> bool:
        """It crashed, or has ended."""
        return self.process.dead or self.stopped

    @property
    def paused(self) -> bool:
        return self.process.frozen

    def awake(self, event: Callable[[], None]) -> None:
        """An event of the registry has come; a test may hold it back here."""
        event()

    # -- being paused and dying --

    def pause(self) -> None:
        self.process.freeze()

    def resume(self, apart_seconds: float = 0.0) -> None:
        """Go on; what waited is done with so much time between."""
        self.process.thaw(apart_seconds)

    def crash(self) -> None:
        self.process.die()
        self._store.unsubscribe(self.registry)

    def jump(self, seconds: float) -> None:
        """Move its wall clock."""
        self.clock.ahead += timedelta(seconds=seconds)
        self.process.run(self.loop.call_later, CLOCK_CHECK_SECONDS, self.timer.clock_jumped)

    # -- living --

    async def start(self) -> None:
        """Raises RegistryError, JobConflict, ConfigError."""
        await self.process.task(self._start())

    async def _start(self) -> None:
        await self.registry.start(10.0)
        for job in self.jobs:
            await job.start()

    async def start_patiently(self) -> None:
        """Start, again and again while the registry is away, as a worker under a supervisor does."""
        await self.process.task(self._start_patiently())

    async def _start_patiently(self) -> None:
        while not self.stopping:
            try:
                await self.registry.start(2.0)
                break
            except RegistryError:
                await asyncio.sleep(RETRY_SECONDS)
        await asyncio.gather(*map(self._start_job, range(len(self.jobs))))

    async def _start_job(self, place: int) -> None:
        config = self.jobs[place].config
        while not self.stopping:
            try:
                await self.jobs[place].start()
                return
            except (RegistryUnavailable, OutcomeUnknown, SessionExpired):
                await self.jobs[place].leave()
                self.jobs[place] = JobScheduler(self.host, config, self.evidence)
                await asyncio.sleep(RETRY_SECONDS)

    async def stop(self, grace: float) -> None:
        """End as a worker does that is told to: within `grace` + `ejpy.worker.CLOSING_SECONDS`."""
        await self.process.task(self._stop(grace))

    async def _stop(self, grace: float) -> None:
        self.stopping = True
        until = self.loop.time() + grace
        self.timer.stop()
        await within(min(DRAIN_SECONDS, max(grace, 0.5)), "telling the others", [job.drain() for job in self.jobs])
        settled = [asyncio.ensure_future(job.settled()) for job in self.jobs]
        await asyncio.wait(settled, timeout=max(0.0, until - self.loop.time()))
        if not all(task.done() for task in settled):
            for job in self.jobs:
                job.cancel("grace is over")
            await asyncio.wait(settled, timeout=CANCEL_SECONDS)
        for task in settled:
            task.cancel()
        await within(LEAVE_SECONDS, "removing this worker's nodes", [job.leave() for job in self.jobs])
        await within(LEAVE_SECONDS / 2, "ending writes", [self.host.group.close()])
        await self.registry.stop(CLOSE_REGISTRY_SECONDS)
        self.stopped = True

    def state(self) -> str:
        registry = self.registry
        running = [f"{a.sharding_item}@{a.scheduled_time.time()}" for job in self.jobs for a in job.running]
        return (
            f"worker {self.name}: dead={self.dead} paused={self.paused} {registry.state.value} session={registry.session_id}"
            f" running={running}"
        )
