"""A job's nodes, made up or as ElasticJob left them, and changed as the registry would change them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from ejpy.coordination.assignment import LedgerNode
from ejpy.coordination.ledger import Entry, decode, encode
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView, instance_document, view_of
from ejpy.registry.base import Node, Operation, Registry, ancestors, operation_bytes
from ejpy.registry.memory import Record, Transaction

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
    """The tree of one job and its ledger, with what the leader does to them; a transaction is applied as a whole or not."""

    def __init__(self, instances: Iterable[str], *, namespace: str = "/ns", job: str = "job") -> None:
        self.paths = JobPaths(namespace, job)
        self.nodes: dict[str, Node] = {}
        p = self.paths
        for path in (p.config, p.leader, p.sharding, p.servers, p.instances, p.term):
            for above in [*ancestors(path), path]:
                self.put(above)
        for instance in instances:
            self.join(instance)

    @property
    def view(self) -> JobView:
        return view_of({path: n for path, n in self.nodes.items() if path.startswith(self.paths.root + "/")}, self.paths)

    @property
    def owners(self) -> dict[int, str]:
        return {item: assigned.instance_id for item, assigned in self.view.assigned.items()}

    def put(self, path: str, data: bytes | str = b"", *, session: int | None = None) -> None:
        """Write a node past all guards, with a version of its own."""
        before = self.nodes.get(path)
        self.nodes[path] = node(data, session=session, version=before.version + 1 if before else 0)

    def join(self, instance: str) -> None:
        ip = instance.partition("@")[0]
        self.put(self.paths.server(ip), "ENABLED")
        self.put(self.paths.instance(instance), instance_document(instance, ip), session=hash(instance) % 2**31 + 2)

    def leave(self, instance: str) -> None:
        del self.nodes[self.paths.instance(instance)]

    def entry(self, item: int) -> Entry:
        found = self.nodes[self.paths.ledger(item)]
        return decode(found.data, found.revision, self.paths.ledger(item))

    def write_entry(self, item: int, entry: Entry) -> None:
        self.put(self.paths.ledger(item), encode(entry))

    def ledger(self, items: Iterable[int]) -> Mapping[int, LedgerNode | None]:
        """As the leader reads it."""
        paths = {item: self.paths.ledger(item) for item in items}
        return {
            item: LedgerNode(self.entry(item), self.nodes[path].version) if path in self.nodes else None
            for item, path in paths.items()
        }

    def commit(self, operations: Sequence[Operation]) -> None:
        """Apply one transaction, as the in-memory registry does. Raises GuardFailed, and then nothing was applied."""
        assert len(operations) < Registry.max_operations, "no room for the guard of the leader's term"
        assert sum(map(operation_bytes, operations)) < Registry.max_bytes - 1024
        records = {path: self._record(path) for path in self.nodes}
        transaction = Transaction(records.get, revision=9, now=MODIFIED, session_id=LEADER_SESSION)
        transaction.apply(operations)
        for path, record in transaction.changed.items():
            if record is None:
                del self.nodes[path]
            else:
                self.nodes[path] = record.node

    def _record(self, path: str) -> Record:
        return replace(Record(self.nodes[path]), children=sum(other.rpartition("/")[0] == path for other in self.nodes))
