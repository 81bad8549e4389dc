"""A job's nodes, made up or as ElasticJob left them, and changed as the registry would change them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from ejpy.coordination.assignment import LedgerNode
from ejpy.coordination.ledger import Entry
from ejpy.coordination.ledger_document import decode, encode
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView, instance_document, view_of
from ejpy.registry.base import Create, Delete, Node, Operation, Registry, SetData, ancestors, operation_bytes
from ejpy.registry.transaction import Record, Transaction

MODIFIED = datetime(2026, 3, 2, tzinfo=timezone.utc)
LEADER_SESSION = 1


def node(data: bytes | str = b"", *, session: int | None = None, version: int = 0) -> Node:
    data = data.encode() if isinstance(data, str) else data
    return Node(data, version, created_revision=1, revision=1, modified=MODIFIED, session_id=session)


def elasticjob_tree(moment: str) -> tuple[JobPaths, dict[str, Node]]:
    """The nodes of a real ElasticJob's job at a moment: path → data, version and, if it is ephemeral, the session."""
    trees = json.loads((Path(__file__).parent / "data" / "elasticjob_trees.json").read_text())
    [name] = [name for name in trees if name.split("-")[0] == moment]
    nodes = {
        path: node(data, version=version, session=session[0] if session else None)
        for path, (data, version, *session) in trees[name].items()
    }
    root = min(nodes, key=len)
    return JobPaths(*root.rsplit("/", 1)), nodes


class Job:
    """The tree of one job and its ledger, with the registry's own rules for what is done to them."""

    def __init__(self, *instances: str, namespace: str = "/ns", job: str = "job") -> None:
        self.paths = JobPaths(namespace, job)
        self._records: dict[str, Record] = {"/": Record(node())}
        self._revision = 1
        p = self.paths
        for path in (p.config, p.leader, p.sharding, p.resharding_necessary, p.servers, p.instances, p.term):
            for above in ancestors(path):
                if above not in self._records:
                    self.put(above)
        for path in (p.sharding, p.servers, p.instances, p.term):
            self.put(path)
        for session, instance in enumerate(instances, LEADER_SESSION + 1):
            self.join(instance, session)

    @property
    def nodes(self) -> dict[str, Node]:
        return {path: record.node for path, record in self._records.items()}

    @property
    def view(self) -> JobView:
        return view_of({path: n for path, n in self.nodes.items() if path.startswith(self.paths.root + "/")}, self.paths)

    @property
    def owners(self) -> dict[int, str]:
        return {item: assigned.instance_id for item, assigned in self.view.assigned.items()}

    def put(self, path: str, data: bytes | str = b"", *, session: int | None = None) -> None:
        """Write a node without guard."""
        data = data.encode() if isinstance(data, str) else data
        there = path in self._records
        operation = SetData(path, data) if there else Create(path, data, ephemeral=session is not None)
        self._apply([operation], session or LEADER_SESSION)

    def put_below(self, path: str, data: bytes | str = b"") -> None:
        """Write a node below the job's root, and its parents that are missing."""
        whole = f"{self.paths.root}/{path}"
        for above in ancestors(whole):
            if above not in self._records:
                self.put(above)
        self.put(whole, data)

    def remove(self, path: str) -> None:
        """With everything below it."""
        for below in sorted((p for p in self._records if p == path or p.startswith(path + "/")), reverse=True):
            self._apply([Delete(below)], LEADER_SESSION)

    def join(self, instance: str, session: int = 99) -> None:
        ip = instance.partition("@")[0]
        self.put(self.paths.server(ip), "ENABLED")
        self.put(self.paths.instance(instance), instance_document(instance, ip), session=session)

    def leave(self, instance: str) -> None:
        self.remove(self.paths.instance(instance))

    def drain(self, instance: str) -> None:
        self.put(self.paths.instance(instance), instance_document(instance, instance.partition("@")[0], draining=True))

    def entry(self, item: int) -> Entry:
        path = self.paths.ledger(item)
        found = self._records[path].node
        return decode(found.data, found.revision, path)

    def write_entry(self, item: int, entry: Entry) -> None:
        self.put(self.paths.ledger(item), encode(entry))

    def ledger(self, items: Iterable[int]) -> Mapping[int, LedgerNode | None]:
        """As the leader reads it."""
        paths = {item: self.paths.ledger(item) for item in items}
        return {
            item: LedgerNode(self.entry(item), self._records[path].node.version) if path in self._records else None
            for item, path in paths.items()
        }

    def commit(self, operations: Sequence[Operation]) -> None:
        """Apply one of the leader's transactions. Raises GuardFailed, and then nothing was applied."""
        assert len(operations) < Registry.max_operations, "with the guard of the leader's term it has too many operations"
        size = sum(map(operation_bytes, operations))
        assert size < Registry.max_bytes - 1024, f"with the guard of the leader's term its {size} bytes are too many"
        self._apply(operations, LEADER_SESSION)

    def _apply(self, operations: Sequence[Operation], session: int) -> None:
        self._revision += 1
        transaction = Transaction(self._records.get, revision=self._revision, now=MODIFIED, session_id=session)
        transaction.apply(operations)
        for path, record in transaction.draft.items():
            if record is None:
                self._records.pop(path, None)  # made and removed in one
            else:
                self._records[path] = record
