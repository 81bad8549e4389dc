"""ElasticJob's golden job on workers of ejpy, brought into one moment after the other.

    with Stage(server.address, tmp_path) as stage:
        stage.start("w")
        stage.hold()
        stage.fire()
        stage.wait_until_running()
        stage.look("a2")
        …
        stage.stop()
    assert stage.unlike == {…}

The job's configuration is the golden one; only its schedule is the test's, which fires when the test says. Orders are given
with ejpy's operations, where they were given through ElasticJob's operation API there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from kazoo.client import KazooClient
from typing_extensions import Self

from ejpy.config.document import from_document, to_document
from ejpy.coordination.ledger import Entry
from ejpy.coordination.marks import Marks, marks_of
from ejpy.coordination.view import JobView
from ejpy.registry.base import Registry, SetData
from tests.cluster.golden.jobs import HOLD_VARIABLE
from tests.cluster.golden.trees import JOB, Tree, differences
from tests.support.cluster import session_password
from tests.support.fleet import NEVER, Fleet, now, zookeeper_url
from tests.support.observer import Observer
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import expire_session

CLASS = "Worker$Body"
"""The class of the golden job, which Python workers run a class of their own for."""
HELD_JOB = "tests.cluster.golden.jobs:HeldJob"
ITEMS = 3
SESSION_SECONDS = 20.0
"""So long that no session ends by itself."""


class Stage:
    """See the module's text. Everything it started is killed at the end of the `with` block."""

    def __init__(self, address: str, directory: Path, *, credentials: tuple[str, str] | None = None, **settings: Any) -> None:
        """`settings` are keys of the job that differ from the first golden story's."""
        self._address = address
        self._credentials = credentials
        user = f"{':'.join(credentials)}@" if credentials else ""
        self._fleet = Fleet(zookeeper_url(user + address, SESSION_SECONDS), directory)
        self._observer = Observer(self._fleet.url)
        self._holds = directory / "holds"
        self._holds.mkdir()
        self._paths = self._fleet.paths(JOB)
        self._ids: set[str] = set()
        described = {
            "class": CLASS,
            "python_class": HELD_JOB,
            "cron": NEVER,
            "sharding_total_count": ITEMS,
            "sharding_item_parameters": "0=Beijing,1=Shanghai,2=Guangzhou",
            "job_parameter": "pp",
            "running_marks": True,
            **settings,
        }
        self._config = self._fleet.write("jobs.yml", {JOB: described})
        self._stack = ExitStack()
        self.unlike: dict[str, set[str]] = {}
        """Moment → how the tree differed from ElasticJob's."""

    def __enter__(self) -> Self:
        self._stack.enter_context(self._fleet)
        self._stack.enter_context(self._observer)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    # -- workers --

    def start(self, name: str, *, ip: str = "10.9.0.1") -> WorkerProcess:
        """Start a worker, and wait until it is ready."""
        env = {HOLD_VARIABLE: str(self._holds), "TZ": "UTC"}
        [worker] = self._fleet.start(self._config, name, options=("--ip", ip), env=env)
        self._ids.add(worker.id)
        return worker

    def kill(self, worker: WorkerProcess) -> Callable[[], None]:
        """Kill a worker; its session goes on until what is returned is called."""
        session_id = self.view().instances[worker.id].session_id
        assert session_id is not None
        worker.kill9()
        worker.wait_exit(PATIENCE_SECONDS)
        return partial(expire_session, self._address, (session_id, session_password(session_id)))

    def stop(self) -> None:
        """Stop all that live in an orderly way. No worker may have logged a fault."""
        self._fleet.stop()

    # -- bodies --

    def hold(self, *items: int) -> None:
        """No body of these items (default: of any) ends from now on."""
        for item in items or range(ITEMS + 1):
            (self._holds / str(item)).touch()

    def release(self, *items: int) -> None:
        """The bodies of these items (default: all) end."""
        for item in items or range(ITEMS + 1):
            (self._holds / str(item)).unlink(missing_ok=True)

    # -- orders --

    def operate(self, operation: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any, **how: Any) -> None:
        """Carry out one of `ejpy.admin.operations` on the job."""

        async def carry_out(registry: Registry) -> None:
            await operation(registry, self._fleet.namespace, JOB, *arguments, **how)

        self._observer.ask(carry_out)

    def configure(self, **changes: Any) -> None:
        """Change the configuration in the registry."""
        node = self._fleet.nodes(JOB)[self._paths.config]
        config = from_document(node.data, JOB, CLASS, HELD_JOB).model_copy(update=changes)
        self._fleet.change(SetData(self._paths.config, to_document(config, previous=node.data), node.version))

    def fire(self) -> datetime:
        """Have the job fire soon, once; the instant."""
        instant = now().replace(microsecond=0) + timedelta(seconds=3)
        self.configure(cron=f"{instant:%-S %-M %-H %-d %-m ? %Y}")
        return instant

    # -- waiting --

    def view(self) -> JobView:
        return self._fleet.view(JOB)

    def marks(self) -> Marks:
        return marks_of(self._fleet.nodes(JOB), self._paths)

    def ledger(self) -> dict[int, Entry]:
        return self._fleet.ledger(JOB)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        wait_until(condition, PATIENCE_SECONDS, what)

    def wait_until_settled(self, *workers: WorkerProcess, items: int = ITEMS) -> None:
        """Wait until these, and nobody else, have the items, and one of them leads."""
        self._fleet.wait_until_shared(JOB, items, *workers)
        ids = {worker.id for worker in workers}
        self.wait(lambda: self.view().leader in ids, f"one of {ids} leads")

    def wait_until_running(self, *items: int) -> None:
        """Wait until these items (default: all three) run, and no other: by the marks, and in their bodies."""
        wanted = set(items or range(ITEMS))

        def running() -> bool:
            marks = self.marks()
            entered = {int(file.stem) for file in self._holds.glob("*.entered")}
            return marks.running.keys() == entered == wanted and not marks.triggers

        self.wait(running, f"{wanted} run")

    def wait_until_ended(self, fire: datetime | None = None, items: int = ITEMS) -> None:
        """Wait until all items have ended their newest run, of this fire if one is named."""

        def ended() -> bool:
            ledger = self.ledger()
            fires = {entry.fire for entry in ledger.values()}
            over = not self.marks().running and not any(entry.running for entry in ledger.values())
            return over and len(ledger) == items and (fire is None or fires == {fire})

        self.wait(ended, f"all {items} items have ended")

    def wait_until_suspended(self, *items: int) -> None:
        """Wait until the worker has seen that these items are disabled, and no other."""

        def suspended() -> bool:
            return {item for item, entry in self.ledger().items() if entry.suspended} == set(items)

        self.wait(suspended, f"{items} are suspended")

    # -- comparing --

    def look(self, moment: str) -> None:
        """Compare the tree as it is now with ElasticJob's of that moment."""
        self.unlike[moment] = differences(moment, self._tree(), self._ids)

    def _tree(self) -> Tree:
        """The whole namespace, read with a client that knows nothing of ejpy."""
        auth = [("digest", ":".join(self._credentials))] if self._credentials else None
        client = KazooClient(self._address, auth_data=auth)
        client.start(PATIENCE_SECONDS)
        try:
            nodes: dict[str, tuple[str, int | None]] = {}
            access: set[tuple[str, str, int]] = set()
            waiting = [self._fleet.namespace]
            while waiting:
                path = waiting.pop()
                data, stat = client.get(path)
                nodes[path] = (data.decode(), stat.ephemeralOwner or None)
                access |= {(acl.id.scheme, acl.id.id, acl.perms) for acl in client.get_acls(path)[0]}
                waiting += [f"{path}/{child}" for child in client.get_children(path)]
            return Tree(self._fleet.namespace, nodes, frozenset(access))
        finally:
            client.stop()
            client.close()
