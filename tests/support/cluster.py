"""A job on real worker processes and a real ZooKeeper server, and what can be seen of it from outside.

    with Cluster(server.address, tmp_path, items=4, seconds=0.2) as cluster:
        a, b = cluster.start("a", "b")
        cluster.expire(a)
        cluster.wait_for_fires(2)
        assert cluster.view().leader in (cluster.id_of(a), cluster.id_of(b))

Each cluster has a namespace of its own. It is looked at in three ways: the nodes, read over a session of its own that waits
out a server's absence; what the bodies recorded; and what the `ejpy` command says. `Cluster.change` plays the operator, or
whoever else writes into the tree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import yaml

from ejpy.coordination.ledger import Entry, decode
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView, view_of
from ejpy.registry.base import Node, Operation
from ejpy.terms import Outcome
from tests.support.jobs import RECORD_VARIABLE, Execution, read_executions
from tests.support.observer import Observer
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, WorkerProcess
from tests.support.zookeeper import expire_session

JOB = "counted"
PATIENCE_SECONDS = 60.0
"""Far more than anything here takes, also on a busy machine: it is met only by what would never come."""
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
        self.namespace = f"/cluster-{uuid4().hex}"
        self.paths = JobPaths(self.namespace, JOB)
        self.workers: list[WorkerProcess] = []
        self._directory = directory
        self._session_seconds = session_seconds
        self._config = directory / "jobs.yml"
        self.record = directory / "record.jsonl"
        self._observer = Observer(address)
        self._stack = ExitStack()
        job = {
            "class": "tests.support.jobs:RecordingJob",
            "cron": "* * * * * ?",
            "time_zone": "UTC",
            "sharding_total_count": items,
            "failover": True,
            "job_parameter": json.dumps(behaviour),
            **(settings or {}),
        }
        self._config.write_text(yaml.safe_dump({"jobs": {JOB: job}}))

    def __enter__(self) -> Cluster:
        self._stack.enter_context(self._observer)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    # -- workers --

    def launch(
        self,
        *names: str,
        via: str | None = None,
        grace: float = 10,
        options: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> list[WorkerProcess]:
        """Start workers, right one after the other. `via`: the address at which they find the server, if not its own."""
        variables = {RECORD_VARIABLE: str(self.record), **(env or {})}
        chosen = ("--grace", f"{grace:g}", "--log-format", "json", "--connection-timeout", "30", *options)
        workers = [WorkerProcess(self._config, self.url(via), self._directory, variables, name, chosen) for name in names]
        for worker in workers:
            self._stack.enter_context(worker)
        self.workers += workers
        return workers

    def start(self, *names: str, **how: Any) -> list[WorkerProcess]:
        """`launch`, and wait until all are ready."""
        workers = self.launch(*names, **how)
        for worker in workers:
            worker.wait_ready(PATIENCE_SECONDS)
        return workers

    def url(self, via: str | None = None) -> str:
        return f"zookeeper://{via or self.address}{self.namespace}?session_timeout={self._session_seconds:g}s"

    def stop(self) -> None:
        """Stop all that live in an orderly way. No worker, also of those that ended before, may have logged a fault."""
        living = [worker for worker in self.workers if worker.alive]
        for worker in living:
            worker.sigterm()
        assert [worker.wait_exit(PATIENCE_SECONDS) for worker in living] == [0] * len(living)
        for worker in self.workers:
            assert not faults(worker), f"{worker.name} logged a stack trace"

    def id_of(self, worker: WorkerProcess) -> str:
        """The instance id of a worker that has begun to run."""
        instance: str = wait_until(
            lambda: next((e["instance"] for e in worker.events if "instance" in e), None), PATIENCE_SECONDS, "an instance id"
        )
        return instance

    def worker_of(self, instance_id: str | None) -> WorkerProcess:
        return next(worker for worker in self.workers if worker.alive and self.id_of(worker) == instance_id)

    # -- the tree --

    def nodes(self) -> dict[str, Node]:
        """The job's nodes by path."""
        return self._observer.ask(lambda registry: registry.tree(self.paths.root))

    def view(self) -> JobView:
        return view_of(self.nodes(), self.paths)

    def ledger(self) -> dict[int, Entry]:
        """The entries of the items that have one."""
        paths = [self.paths.ledger(item) for item in range(self.items)]
        nodes = self._observer.ask(lambda registry: registry.read(paths))
        return {
            item: decode(node.data, node.revision, path)
            for item, (path, node) in enumerate(zip(paths, nodes, strict=True))
            if node is not None
        }

    def change(self, *operations: Operation) -> int:
        """Change nodes by hand, as one transaction; returns its revision."""
        return self._observer.ask(lambda registry: registry.commit(operations)).revision

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
        """Wait until these, and nobody else, are registered, and each of them has an item."""
        ids = {self.id_of(worker) for worker in workers}

        def assigned() -> bool:
            view = self.view()
            owners = {item: one.instance_id for item, one in view.assigned.items()}
            return view.instances.keys() == ids == set(owners.values()) and owners.keys() == set(range(self.items))

        wait_until(assigned, PATIENCE_SECONDS, f"the items are spread over {', '.join(w.name for w in workers)}")

    # -- what was run --

    def executions(self) -> list[Execution]:
        return read_executions(self.record)

    def fires(self, after: datetime | None = None) -> dict[datetime, dict[int, list[Execution]]]:
        """Attempts by scheduled time and item; those later than `after`."""
        fires: dict[datetime, dict[int, list[Execution]]] = {}
        for one in self.executions():
            if after is None or one.scheduled_time > after:
                fires.setdefault(one.scheduled_time, defaultdict(list))[one.item].append(one)
        return fires

    def wait_for_fires(self, number: int, after: datetime | None = None) -> list[datetime]:
        """Wait until so many fires later than `after` (default: now) have run to their end on every item; the first of them."""
        begin = after or datetime.now(timezone.utc)

        def complete() -> list[datetime] | None:
            whole = sorted(
                fire
                for fire, by_item in self.fires(begin).items()
                if by_item.keys() == set(range(self.items)) and all(runs[-1].end for runs in by_item.values())
            )
            return whole[:number] if len(whole) >= number else None

        return wait_until(complete, PATIENCE_SECONDS, f"{number} complete fires after {begin}")

    def counted(self, fire: datetime, item: int) -> int:
        """How often the workers say that a run of this fire and item succeeded, and that it counts."""
        when = fire.isoformat().replace("+00:00", "Z")
        said = [event for worker in self.workers for event in worker.events if event["logger"] == "ejpy.history"]
        return sum(
            (event.get("item"), event.get("scheduled_time"), event["message"]) == (item, when, Outcome.SUCCEEDED.value)
            for event in said
        )

    # -- the command --

    def jobs_list(self) -> dict[str, Any]:
        """This job's row of `ejpy jobs list`."""
        [row] = self._json("jobs", "list")
        assert row["job"] == JOB
        return row

    def shards_list(self) -> dict[int, dict[str, Any]]:
        """The rows of `ejpy shards list` by item."""
        return {row["item"]: row for row in self._json("shards", "list", JOB)}

    def _json(self, *command: str) -> list[dict[str, Any]]:
        done = run_ejpy(*command, "--registry", self.url(), "-o", "json", timeout=PATIENCE_SECONDS)
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows


def run_ejpy(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a command of ejpy to its end, within `timeout` seconds (subprocess.TimeoutExpired)."""
    command = [str(Path(sys.executable).with_name("ejpy")), *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EJPY_")}
    return subprocess.run(
        command, env={**clean, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=timeout, check=False
    )


def faults(worker: WorkerProcess) -> list[str]:
    """What a worker wrote that has to do with a stack trace."""
    return [line for line in worker.log.split("\n") if '"exception"' in line or "Traceback" in line]


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
