"""A job on real worker processes and a real ZooKeeper server: its sessions, outages and leaders.

    with Cluster(server.address, tmp_path, items=4, seconds=0.2) as cluster:
        a, b = cluster.start("a", "b")
        cluster.expire(a)
        cluster.wait_for_fires(2)
        assert cluster.view().leader in (cluster.id_of(a), cluster.id_of(b))

It is a `Fleet` (`tests.support.fleet`) of one job, in a namespace of its own, with one configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from ejpy.coordination.ledger import Entry
from ejpy.coordination.view import JobView
from ejpy.registry.base import Node, Operation
from ejpy.terms import Outcome
from tests.support.command import run_ejpy
from tests.support.fleet import Fleet, job, now, zookeeper_url
from tests.support.jobs import Execution
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess, faults, said
from tests.support.zookeeper import expire_session

__all__ = ["PATIENCE_SECONDS", "Cluster", "believes_to_lead", "faults", "run_ejpy"]

JOB = "counted"
_BIRTH = "is the leader"
_ENDS = ("no longer the leader", "gave up the leadership", "another leader was elected")


class Cluster:
    """See the module's text. Everything it started is killed at the end of the `with` block."""

    def __init__(
        self,
        address: str,
        directory: Path,
        *,
        items: int = 3,
        session_seconds: float = 4,
        settings: Mapping[str, Any] | None = None,
        **behaviour: Any,
    ) -> None:
        """`settings` are further keys of the job; `behaviour` is what its bodies do (see `tests.support.jobs`)."""
        self.address = address
        self.items = items
        self._fleet = Fleet(zookeeper_url(address, session_seconds), directory)
        self.namespace = self._fleet.namespace
        self.paths = self._fleet.paths(JOB)
        self.record = self._fleet.record
        described = job(items=items, settings={"failover": True, **(settings or {})}, **behaviour)
        self._config = self._fleet.write("jobs.yml", {JOB: described})

    def __enter__(self) -> Cluster:
        self._fleet.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._fleet.__exit__(kind, error, trace)

    # -- workers --

    @property
    def workers(self) -> list[WorkerProcess]:
        return self._fleet.workers

    def launch(self, *names: str, via: str | None = None, **how: Any) -> list[WorkerProcess]:
        """Start workers, right one after the other. `via`: the address at which they find the server, if not its own; `how`:
        see `Fleet.launch`."""
        return self._fleet.launch(self._config, *names, url=self.url(via), **how)

    def start(self, *names: str, via: str | None = None, **how: Any) -> list[WorkerProcess]:
        """`launch`, and wait until all are ready."""
        return self._fleet.start(self._config, *names, url=self.url(via), **how)

    def url(self, via: str | None = None) -> str:
        return self._fleet.url.replace(self.address, via or self.address)

    def stop(self) -> None:
        """Stop all that live in an orderly way. No worker, also of those that ended before, may have logged a fault."""
        self._fleet.stop()

    def id_of(self, worker: WorkerProcess) -> str:
        """The instance id of a worker that has begun to run."""
        return worker.id

    def worker_of(self, instance_id: str | None) -> WorkerProcess:
        return next(worker for worker in self.workers if worker.alive and worker.id == instance_id)

    # -- the tree --

    def nodes(self) -> dict[str, Node]:
        """The job's nodes by path."""
        return self._fleet.nodes(JOB)

    def view(self) -> JobView:
        return self._fleet.view(JOB)

    def ledger(self) -> dict[int, Entry]:
        """The entries of the items that have one."""
        return self._fleet.ledger(JOB)

    def change(self, *operations: Operation) -> int:
        """Change nodes by hand, as one transaction; returns its revision."""
        return self._fleet.change(*operations)

    def session_of(self, worker: WorkerProcess) -> int | None:
        """The session under which the others see a worker; None if they do not."""
        instance = self.view().instances.get(self.id_of(worker))
        return instance.session_id if instance else None

    def expire(self, worker: WorkerProcess) -> int:
        """End a worker's session while it lives; returns the session. Its ephemeral nodes are gone then."""
        session_id = wait_until(lambda: self.session_of(worker), PATIENCE_SECONDS, f"{worker.name} is registered")
        expire_session(self.address, (session_id, session_password(session_id)))
        return session_id

    def wait_for_leader(self, among: Iterable[WorkerProcess]) -> WorkerProcess:
        """Wait until one of these leads by the tree, in the very session that it is registered with; returns it."""
        by_id = {self.id_of(worker): worker for worker in among}

        def leader() -> WorkerProcess | None:
            view = self.view()
            instance = view.instances.get(view.leader or "")
            if instance is None or instance.session_id != view.leader_session:
                return None
            return by_id.get(instance.id)

        return wait_until(leader, PATIENCE_SECONDS, f"one of {', '.join(w.name for w in by_id.values())} leads")

    def wait_until_assigned(self, *workers: WorkerProcess) -> None:
        """Wait until these, and nobody else, are registered, and the items are spread over them evenly."""
        self._fleet.wait_until_shared(JOB, self.items, *workers)

    # -- what was run --

    def executions(self) -> list[Execution]:
        return self._fleet.runs(JOB)

    def fires(self, after: datetime | None = None) -> dict[datetime, dict[int, list[Execution]]]:
        """Attempts by scheduled time and item; those later than `after`."""
        return self._fleet.fires(JOB, after)

    def wait_for_fires(self, number: int, after: datetime | None = None) -> list[datetime]:
        """Wait until so many fires later than `after` (default: now) have run to their end on every item; the first of them."""
        return self._fleet.wait_for_fires(JOB, number, items=self.items, after=after or now())

    def counted(self, fire: datetime, item: int) -> int:
        """How often the workers say that a run of this fire and item succeeded, and that it counts."""
        about = {
            "item": item,
            "scheduled_time": fire.isoformat().replace("+00:00", "Z"),
            "message": Outcome.SUCCEEDED.value,
        }
        return sum(len(said(worker, "ejpy.history", **about)) for worker in self.workers)

    # -- the command --

    def jobs_list(self) -> dict[str, Any]:
        """This job's row of `ejpy jobs list`."""
        [row] = self._fleet.rows("jobs", "list")
        assert row["job"] == JOB
        return row

    def shards_list(self) -> dict[int, dict[str, Any]]:
        """The rows of `ejpy shards list` by item."""
        return {row["item"]: row for row in self._fleet.rows("shards", "list", JOB)}


def believes_to_lead(worker: WorkerProcess) -> bool:
    """What a worker thinks of its leadership, by its log."""
    said = [event["message"] for event in worker.events if event["message"] in (_BIRTH, *_ENDS)]
    return bool(said) and said[-1] == _BIRTH


def session_password(session_id: int) -> bytes:
    """The password of a session: ZooKeeper derives it from the id (`ZooKeeperServer.generatePasswd`), with java.util.Random."""
    seed = ((session_id ^ 0xB3415C00) ^ 0x5DEECE66D) & (1 << 48) - 1
    password = b""
    for _ in range(4):
        seed = (seed * 0x5DEECE66D + 0xB) & (1 << 48) - 1
        password += (seed >> 16 & 0xFFFFFFFF).to_bytes(4, "little")
    return password
