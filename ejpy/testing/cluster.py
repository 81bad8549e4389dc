"""A whole cluster in one process and in virtual time: workers, the store that they share, and what is in it.

    async def story(loop):
        cluster = SimCluster(loop, job_config())
        a, b = await cluster.add_leader(), await cluster.add()
        await cluster.until_shared(a, b)

Waiting costs no time but virtual time: a condition is looked at every millisecond of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from random import Random
from typing import Any

from ejpy.config.model import JobConfig
from ejpy.coordination.ledger import Entry
from ejpy.coordination.ledger_document import decode
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView, view_of
from ejpy.registry.base import Node
from ejpy.registry.memory import MemoryStore
from ejpy.testing.bodies import Evidence, Run
from ejpy.testing.network import Trouble
from ejpy.testing.virtual_loop import EPOCH, LoopClock, VirtualLoop
from ejpy.testing.worker import NAMESPACE, SimWorker

JOB = "job"
STEP_SECONDS = 0.001


def job_config(*, items: int = 1, cron: str = "0/5 * * * * ?", **settings: Any) -> JobConfig:
    """A job's configuration; `settings` are further fields of it."""
    return JobConfig(
        job_name=JOB, job_class="m:J", cron=cron, time_zone="UTC", sharding_total_count=items, **{"failover": True, **settings}
    )


def instant(seconds: float) -> datetime:
    """The moment so long after the beginning, by a clock that is right."""
    return EPOCH + timedelta(seconds=seconds)


class SimCluster:
    """See the module's text. `trouble` is that of every worker's network, and may be changed at any time."""

    def __init__(self, loop: VirtualLoop, config: JobConfig, *, seed: int = 0) -> None:
        self.loop = loop
        self.config = config
        self.store = MemoryStore(LoopClock(loop))
        self.evidence = Evidence()
        self.trouble = Trouble(delay_seconds=0.01, lost_requests=0.0, lost_replies=0.0)
        self.workers: list[SimWorker] = []
        self.paths = JobPaths(NAMESPACE, JOB)
        self._seed = seed

    # -- workers --

    def make(
        self, *, body_seconds: Callable[[], float] = lambda: 0.0, deaf: bool = False, ahead: timedelta = timedelta(0)
    ) -> SimWorker:
        """A further worker, not started yet."""
        worker = SimWorker(
            str(len(self.workers) + 1),
            self.loop,
            self.store,
            [self.config],
            self.evidence,
            Random(self._seed * 1000 + len(self.workers)),
            self.trouble,
            deaf=deaf,
            body_seconds=body_seconds,
            ahead=ahead,
        )
        self.workers.append(worker)
        return worker

    async def add(self, **how: Any) -> SimWorker:
        """A further worker, started; `how`: see `make`."""
        worker = self.make(**how)
        await worker.start()
        return worker

    async def add_leader(self, **how: Any) -> SimWorker:
        """The first worker, started and elected."""
        worker = await self.add(**how)
        await self.until(lambda: self.leader() is worker, "the first worker leads")
        return worker

    def living(self) -> list[SimWorker]:
        return [worker for worker in self.workers if not worker.dead]

    # -- the tree --

    def nodes(self) -> dict[str, Node]:
        """The job's nodes by path."""
        return self.store.tree(self.paths.root)

    def view(self) -> JobView:
        return view_of(self.nodes(), self.paths)

    def leader(self) -> SimWorker | None:
        """The worker that leads by the tree, if it lives."""
        leader = self.view().leader
        return next((worker for worker in self.living() if worker.host.instance_id == leader), None)

    def items_of(self, worker: SimWorker) -> list[int]:
        """What is assigned to a worker."""
        return self.view().items_of(worker.host.instance_id, self.config.sharding_total_count)

    def entry(self, item: int) -> Entry | None:
        """The ledger entry of an item."""
        path = self.paths.ledger(item)
        node = self.store.read(path)
        return decode(node.data, node.revision, path) if node else None

    # -- what was run --

    def runs(self, fire: datetime | None = None) -> list[Run]:
        """Bodies that were entered; those of one fire, if it is given."""
        return [run for run in self.evidence.runs if fire is None or run.fire == fire]

    # -- time --

    async def until(self, condition: Callable[[], object], what: str, *, within: float = 20.0) -> None:
        """Return when `condition` holds. Raises AssertionError after `within` virtual seconds."""
        deadline = self.loop.time() + within
        while not condition():
            assert self.loop.time() < deadline, f"not within {within:g} s: {what}"
            await asyncio.sleep(STEP_SECONDS)

    async def until_time(self, seconds: float) -> None:
        """Return when so much virtual time has passed since the beginning."""
        assert self.loop.time() <= seconds, f"it is {self.loop.time():g} s already"
        await asyncio.sleep(seconds - self.loop.time())

    async def until_shared(self, *workers: SimWorker) -> None:
        """Wait until these are registered, one of them leads, and all items are theirs and spread evenly."""

        def shared() -> bool:
            view = self.view()
            counts = [len(self.items_of(worker)) for worker in workers]
            complete = sum(counts) == self.config.sharding_total_count and max(counts) - min(counts) <= 1
            return view.instances.keys() == {w.host.instance_id for w in workers} and complete and self.leader() in workers

        await self.until(shared, f"the items are spread over {[w.name for w in workers]}")
