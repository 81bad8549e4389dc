"""Plays a plan, and gives its history: the workers start, the faults happen, all is quiet for a while, the workers end.

The same plan gives the same history, byte for byte, in every process.
"""

from __future__ import annotations

import asyncio
import threading
import zlib
from collections.abc import Coroutine
from datetime import timedelta
from random import Random
from typing import Any

from ejpy.attempt import Attempt
from ejpy.config.model import JobConfig
from ejpy.coordination.paths import JobPaths
from ejpy.history.records import AttemptEnded, Record
from ejpy.testing import history
from ejpy.testing.bodies import Behaviour, BodyHost, Evidence, Run
from ejpy.testing.faults import Faults
from ejpy.testing.history import Event
from ejpy.testing.network import Trouble
from ejpy.testing.observer import ObservedStore
from ejpy.testing.plan import JobPlan, Plan
from ejpy.testing.virtual_loop import LoopClock, VirtualLoop, run_virtual
from ejpy.testing.worker import NAMESPACE, SimWorker
from ejpy.worker import CLOSING_SECONDS

CHECKPOINT_SECONDS = 0.7
LINGER_SECONDS = 5.0
"""How long workers that have ended are watched for signs of life."""


def play(plan: Plan) -> list[Event]:
    """What happens when a plan is played."""
    return run_virtual(lambda loop: Player(loop, plan).play())


class Recorder(Evidence):
    """Tells what bodies do as rows."""

    def __init__(self, rows: list[Event], clock: LoopClock) -> None:
        super().__init__()
        self._rows = rows
        self._clock = clock

    def _now(self) -> float:
        return self._clock.now().timestamp()

    def entered(self, run: Run, attempt: Attempt, host: BodyHost) -> None:
        self._rows.append(
            history.Entered(
                self._now(),
                attempt.job_name,
                run.item,
                run.fire.timestamp(),
                run.attempt,
                run.reason,
                run.token,
                host.instance_id,
                host.clock.ahead.total_seconds(),
                attempt.sharding_total_count,
                attempt.checkpoint,
                host.session_id,
            )
        )

    def saved(self, run: Run, attempt: Attempt, instance_id: str, value: object) -> None:
        self._rows.append(
            history.Saved(
                self._now(), attempt.job_name, run.item, run.fire.timestamp(), run.attempt, run.token, instance_id, value
            )
        )

    def left(self, run: Run, attempt: Attempt, instance_id: str) -> None:
        self._rows.append(
            history.Left(
                self._now(), attempt.job_name, run.item, run.fire.timestamp(), run.attempt, run.token, instance_id, run.outcome
            )
        )

    def write(self, record: Record) -> None:
        if isinstance(record, AttemptEnded):
            a = record.attempt
            self._rows.append(
                history.Recorded(
                    self._now(), a.job_name, a.sharding_item, a.scheduled_time.timestamp(), a.attempt, a.fencing_token,
                    record.instance_id, record.end.outcome, record.recorded,
                )
            )  # fmt: skip


class Player:
    """One play of one plan."""

    def __init__(self, loop: VirtualLoop, plan: Plan) -> None:
        self.rows: list[Event] = []
        self.workers: list[SimWorker] = []
        """All that there ever were."""
        self._loop = loop
        self._plan = plan
        self._clock = LoopClock(loop)
        self._store = ObservedStore(self._clock, NAMESPACE, self.rows.append)
        self._trouble = Trouble(patience_seconds=plan.patience)
        self._evidence = Recorder(self.rows, self._clock)
        self._places: list[list[SimWorker]] = [[] for _ in plan.workers]
        self._stopping: dict[SimWorker, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._jobs: dict[str, JobPlan] = {job.name: job for job in plan.jobs}
        self._configs: list[JobConfig] = [job.config() for job in plan.jobs]
        self._threads = threading.active_count()
        self._faults = Faults(
            loop, plan, self._store, self._trouble, self.rows.append, self._at_place, self._begin, self._begin_stop
        )

    async def play(self) -> list[Event]:
        plan, loop = self._plan, self._loop
        for place, planned in enumerate(plan.workers):
            if planned.starts < plan.faults_seconds:
                loop.call_at(planned.starts, self._begin, place)
        self._faults.schedule()
        await self._until(plan.faults_seconds)
        self._faults.heal()
        if not any(self._at_place(place) for place in range(len(plan.workers))):
            self._begin(0)
        self._tell(history.Quiet(self._now()))
        await self._until(plan.faults_seconds + plan.quiet_seconds)
        self._tell(history.AtRest(self._now()))
        for worker in self._living():
            self._begin_stop(worker)
        await asyncio.sleep(plan.grace + CLOSING_SECONDS + 1.0)
        requests = [worker.registry.requests for worker in self.workers]
        await asyncio.sleep(LINGER_SECONDS)
        self._look_for_what_is_left(requests)
        self._tell(history.Finished(self._now()))
        return self.rows

    # -- workers --

    def _living(self) -> list[SimWorker]:
        return [worker for worker in self.workers if not worker.dead]

    def _at_place(self, place: int) -> SimWorker | None:
        worker = self._places[place][-1] if self._places[place] else None
        return None if worker is None or worker.dead else worker

    def _begin(self, place: int) -> None:
        """Start a worker at a place, if there is none."""
        present = self._at_place(place)
        if present is not None and present not in self._stopping:
            return
        turn = len(self._places[place])
        number = place + 1
        worker = SimWorker(
            f"{number}{chr(ord('a') + turn)}",
            self._loop,
            self._store,
            self._configs,
            self._evidence,
            Random(f"{self._plan.seed}/{place}/{turn}"),
            self._trouble,
            ahead=timedelta(seconds=self._plan.workers[place].ahead),
            session_timeout=self._plan.session_timeout,
            ip=f"10.0.0.{number}",
            process_id=f"{number}.{chr(ord('a') + turn)}",
            behaviour=lambda attempt: self._behaviour(worker, attempt),
        )
        self._places[place].append(worker)
        self.workers.append(worker)
        self._spawn(worker.start_patiently())

    def _begin_stop(self, worker: SimWorker) -> None:
        if worker not in self._stopping:
            self._stopping[worker] = self._now()
            self._spawn(self._stop(worker))

    async def _stop(self, worker: SimWorker) -> None:
        await worker.stop(self._plan.grace)
        self._tell_stopped(worker)

    def _tell_stopped(self, worker: SimWorker) -> None:
        held = worker.process.held_seconds
        self._tell(history.Stopped(self._now(), worker.instance_id, self._stopping[worker], self._plan.grace, held))

    def _behaviour(self, worker: SimWorker, attempt: Attempt) -> Behaviour:
        job = self._jobs[attempt.job_name]
        key = f"{self._plan.seed}/{attempt.idempotency_key}/{attempt.attempt}"
        chance, long, late = (zlib.crc32(f"{key}/{what}".encode()) / 2**32 for what in "abc")
        return Behaviour(
            seconds=long * job.body_seconds + self._faults.slower_by(worker),
            deaf=job.deaf,
            waits_seconds=late * 30 if late < 0.1 else 0.0,
            checkpoint_every=CHECKPOINT_SECONDS if job.checkpoints else None,
            fails=chance < 0.03,
        )

    # -- the end --

    def _look_for_what_is_left(self, requests: list[int]) -> None:
        for worker, before in zip(self.workers, requests, strict=True):
            if worker.process.dead:
                continue
            if not worker.stopped:
                self._tell_stopped(worker)
                continue
            if worker.registry.requests > before:
                self._left("request", f"{worker.registry.requests - before} of {worker.name}, which has ended")
            if worker.registry.watches_left():
                self._left("watch", f"{worker.registry.watches_left()} of {worker.name}")
        for session in self._store.sessions():
            self._left("session", str(session))
        if self._store.subscribers():
            self._left("connection", f"{self._store.subscribers()}")
        if threading.active_count() > self._threads:
            self._left("thread", f"{threading.active_count() - self._threads}")
        for job in self._plan.jobs:
            paths = JobPaths(NAMESPACE, job.name)
            for path, node in self._store.tree(paths.root).items():
                below = [paths.latch + "/", paths.triggers + "/", paths.failover_items + "/", paths.failover_latch + "/"]
                mark = path.startswith(paths.sharding) and path.rpartition("/")[2] in ("running", "failover", "failovering")
                if node.session_id is not None or mark or any(path.startswith(above) for above in below):
                    self._left("node", path, job.name)

    def _left(self, kind: str, what: str, job: str = "") -> None:
        self._tell(history.LeftOver(self._now(), kind, what, job))

    # -- small things --

    def _tell(self, event: Event) -> None:
        self.rows.append(event)

    def _now(self) -> float:
        return self._clock.now().timestamp()

    async def _until(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds - self._loop.time()))

    def _spawn(self, deed: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(deed)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
