"""Workers on any registry, with any jobs and files, and what can be seen of them from outside.

    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        jobs = fleet.write("jobs.yml", {"fast": job(items=4), "slow": job(seconds=5)})
        a, b = fleet.start(jobs, "a", "b")
        fleet.wait_for_fires("fast", 3)
        assert fleet.ledger("slow")[0].running

Each fleet has a namespace of its own. It is looked at in three ways: the nodes, read over a session of its own that waits out a
registry's absence; what the bodies recorded; and what the `ejpy` command says. `Fleet.change` plays the operator, or whoever
else writes into the tree. `tests.support.cluster` knows more of one job on ZooKeeper: sessions, outages, leaders.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from subprocess import CompletedProcess
from types import TracebackType
from typing import Any
from uuid import uuid4

import yaml
from typing_extensions import Self

from ejpy.config.registry_url import parse_url
from ejpy.coordination.ledger import Entry
from ejpy.coordination.ledger_document import decode
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView, view_of
from ejpy.registry.base import Node, Operation
from tests.support.command import run_ejpy
from tests.support.jobs import RECORD_VARIABLE, Execution, read_executions
from tests.support.observer import Observer
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess, faults

SESSION_SECONDS = 3.0
NEVER = "0 0 0 1 1 ? 2099"
"""A schedule that does not fire in a test."""


def zookeeper_url(address: str, session_seconds: float = SESSION_SECONDS) -> str:
    """A registry URL with a namespace that nobody else has. `address` may begin with `user:password@`."""
    return f"zookeeper://{address}/fleet-{uuid4().hex}?session_timeout={session_seconds:g}s"


def sqlite_url(directory: Path, session_seconds: float = SESSION_SECONDS) -> str:
    """A registry URL of a file in this directory."""
    return f"sqlite:///{directory.resolve()}/registry.db?session_timeout={session_seconds:g}s"


def job(
    *,
    cron: str = "* * * * * ?",
    items: int = 1,
    body: str = "tests.support.jobs:RecordingJob",
    settings: Mapping[str, Any] | None = None,
    **behaviour: Any,
) -> dict[str, Any]:
    """A job for a file: by default one that records its runs. `settings` are further keys; `behaviour` is the job parameter."""
    return {
        "class": body,
        "cron": cron,
        "time_zone": "UTC",
        "sharding_total_count": items,
        "job_parameter": json.dumps(behaviour),
        **(settings or {}),
    }


class Fleet:
    """See the module's text. Everything it started is killed at the end of the `with` block."""

    def __init__(self, url: str, directory: Path) -> None:
        """`directory` takes files, logs and the record of runs, and is where workers run."""
        self.url = url
        self.directory = directory
        self.namespace = parse_url(url).namespace
        self.record = directory / "record.jsonl"
        self.workers: list[WorkerProcess] = []
        self._observer = Observer(url)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self._observer)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    # -- workers --

    def write(self, name: str, jobs: Mapping[str, Mapping[str, Any]]) -> Path:
        """A configuration file with these jobs."""
        path = self.directory / name
        path.write_text(yaml.safe_dump({"jobs": dict(jobs)}))
        return path

    def launch(
        self,
        config: Path,
        *names: str,
        url: str | None = None,
        grace: float = 10,
        options: Iterable[str] = (),
        env: Mapping[str, str] | None = None,
        kind: type[WorkerProcess] = WorkerProcess,
    ) -> list[WorkerProcess]:
        """Start workers, right one after the other. `url`: how they reach the registry, if not as the fleet does."""
        variables = {RECORD_VARIABLE: str(self.record), **(env or {})}
        chosen = ("--grace", f"{grace:g}", "--log-format", "json", "--connection-timeout", "30", *options)
        workers = [kind(config, url or self.url, self.directory, variables, name, chosen) for name in names]
        for worker in workers:
            self._stack.enter_context(worker)
        self.workers += workers
        return workers

    def start(self, config: Path, *names: str, **how: Any) -> list[WorkerProcess]:
        """`launch`, and wait until all are ready."""
        workers = self.launch(config, *names, **how)
        for worker in workers:
            worker.wait_ready(PATIENCE_SECONDS)
        return workers

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
        return worker.id

    # -- the tree --

    def paths(self, job: str) -> JobPaths:
        return JobPaths(self.namespace, job)

    def tree(self, root: str = "/") -> dict[str, Node]:
        return self._observer.ask(lambda registry: registry.tree(root))

    def nodes(self, job: str) -> dict[str, Node]:
        """The job's nodes by path."""
        return self.tree(self.paths(job).root)

    def view(self, job: str) -> JobView:
        return view_of(self.nodes(job), self.paths(job))

    def owners(self, job: str) -> dict[int, str]:
        """To whom the items are assigned."""
        return {item: one.instance_id for item, one in self.view(job).assigned.items()}

    def ledger(self, job: str) -> dict[int, Entry]:
        """The entries of the items that have one."""
        paths = self.paths(job)
        nodes = self.tree(paths.term)
        prefix = paths.term + "/"
        return {
            int(path.removeprefix(prefix)): decode(node.data, node.revision, path)
            for path, node in nodes.items()
            if path.startswith(prefix)
        }

    def change(self, *operations: Operation) -> int:
        """Change nodes by hand, as one transaction; returns its revision."""
        return self._observer.ask(lambda registry: registry.commit(operations)).revision

    def wait_until_shared(self, job: str, items: int, *workers: WorkerProcess) -> dict[int, str]:
        """Wait until these, and nobody else, are registered and the items are spread over them evenly; the owners."""
        ids = {self.id_of(worker) for worker in workers}

        def shared() -> dict[int, str] | None:
            view = self.view(job)
            owners = {item: one.instance_id for item, one in view.assigned.items()}
            counts = Counter(owners.values())
            even = max(counts.values(), default=0) - min((counts[one] for one in ids), default=0) <= 1
            complete = view.items == owners.keys() == set(range(items))
            return owners if view.instances.keys() == ids >= counts.keys() and complete and even else None

        return wait_until(shared, PATIENCE_SECONDS, f"the {items} items of {job} are spread over {[w.name for w in workers]}")

    # -- what was run --

    def runs(self, job: str) -> list[Execution]:
        return read_executions(self.record, job)

    def fires(self, job: str, after: datetime | None = None) -> dict[datetime, dict[int, list[Execution]]]:
        """Attempts by scheduled time and item; those later than `after`."""
        fires: dict[datetime, dict[int, list[Execution]]] = {}
        for run in self.runs(job):
            if after is None or run.scheduled_time > after:
                fires.setdefault(run.scheduled_time, {}).setdefault(run.item, []).append(run)
        return dict(sorted(fires.items()))

    def wait_for_runs(self, job: str, number: int, condition: Callable[[Execution], bool]) -> list[Execution]:
        """Wait until so many attempts meet a condition; all that do."""

        def found() -> list[Execution] | None:
            runs = [run for run in self.runs(job) if condition(run)]
            return runs if len(runs) >= number else None

        return wait_until(found, PATIENCE_SECONDS, f"{number} runs of {job}")

    def wait_for_fires(self, job: str, number: int, *, items: int = 1, after: datetime | None = None) -> list[datetime]:
        """Wait until so many fires later than `after` (default: now) have run to their end on every item; those fires."""
        begin = after or now()

        def complete() -> list[datetime] | None:
            whole = [
                fire
                for fire, by_item in self.fires(job, begin).items()
                if by_item.keys() == set(range(items)) and all(runs[-1].end for runs in by_item.values())
            ]
            return whole[:number] if len(whole) >= number else None

        return wait_until(complete, PATIENCE_SECONDS, f"{number} complete fires of {job} after {begin}")

    # -- the command --

    def rows(self, *command: str) -> list[dict[str, Any]]:
        """What a command of ejpy prints as JSON."""
        done = self.ejpy(*command, "-o", "json")
        assert done.returncode == 0, done.stderr
        rows: list[dict[str, Any]] = json.loads(done.stdout)
        return rows

    def ejpy(self, *command: str) -> CompletedProcess[str]:
        """Run a command of ejpy on this registry to its end."""
        return run_ejpy(*command, "--registry", self.url, timeout=PATIENCE_SECONDS)


def now() -> datetime:
    return datetime.now(timezone.utc)
