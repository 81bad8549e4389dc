"""Transactions on a tree that is kept here: by which rules operations are checked and applied.

The rules are ZooKeeper's. Operations are applied one after another to a draft, each seeing the effects of those before it;
the store writes the draft back if all of them held. So a transaction that fails on a guard has touched nothing, and a store
needs to know no rule: it gives the records that are asked for, and writes those that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from ejpy.errors import GuardFailed, GuardFailure
from ejpy.registry.base import Create, Delete, Node, Operation, SetData, parent_of


@dataclass(frozen=True, slots=True)
class Record:
    """A node as it is kept."""

    node: Node
    child_count: int = 0
    children_created: int = 0
    """How many children were ever made below this node: ZooKeeper's rule for sequential names. It never goes back."""


class Transaction:
    """Operations applied one after another to a draft; what is in the store changes when the draft is written back.

    `lookup` gives the record at a path as stored, `session_id` owns the ephemeral nodes, `now` becomes `modified`.
    """

    def __init__(self, lookup: Callable[[str], Record | None], *, revision: int, now: datetime, session_id: int) -> None:
        self.revision = revision
        """What the nodes that it creates or changes carry."""
        self._lookup = lookup
        self._now = now
        self._session_id = session_id
        self.draft: dict[str, Record | None] = {}
        """Every record that differs from the stored one, parents included; None: deleted."""
        self.changed: set[str] = set()
        """Paths of the nodes that were created, changed or deleted: what watches are told."""

    def apply(self, operations: Sequence[Operation]) -> tuple[int, ...]:
        """The node's version after each operation, -1 for Delete and Check. Raises GuardFailed; the draft is void then."""
        versions = []
        for index, operation in enumerate(operations):
            try:
                versions.append(self._apply(operation))
            except _GuardViolation as violation:
                raise GuardFailed(index, operation.path, violation.failure) from None
        return tuple(versions)

    def create_sequential(self, prefix: str, data: bytes, *, ephemeral: bool) -> str:
        """The path of the new node. Raises GuardFailed."""
        parent = self._record(parent_of(prefix))
        path = f"{prefix}{parent.children_created if parent else 0:010d}"
        self.apply([Create(path, data, ephemeral)])
        return path

    def _record(self, path: str) -> Record | None:
        return self.draft[path] if path in self.draft else self._lookup(path)

    def _apply(self, operation: Operation) -> int:
        if isinstance(operation, Create):
            return self._create(operation)
        record = self._record(operation.path)
        if record is None:
            raise _GuardViolation(GuardFailure.NO_NODE)
        if operation.version is not None and operation.version != record.node.version:
            raise _GuardViolation(GuardFailure.BAD_VERSION)
        if isinstance(operation, SetData):
            version = record.node.version + 1
            node = replace(record.node, data=operation.data, version=version, revision=self.revision, modified=self._now)
            self._put(operation.path, replace(record, node=node))
            return version
        if isinstance(operation, Delete):
            if record.child_count or operation.path == "/":
                raise _GuardViolation(GuardFailure.NOT_EMPTY)
            self._put(operation.path, None)
            self._count_child(operation.path, -1)
        return -1

    def _create(self, operation: Create) -> int:
        parent = self._record(parent_of(operation.path))
        if parent is None:
            raise _GuardViolation(GuardFailure.NO_NODE)
        if self._record(operation.path) is not None:
            raise _GuardViolation(GuardFailure.NODE_EXISTS)
        if parent.node.session_id is not None:
            raise _GuardViolation(GuardFailure.EPHEMERAL_PARENT)
        owner = self._session_id if operation.ephemeral else None
        node = Node(operation.data, 0, self.revision, self.revision, self._now, owner)
        self._put(operation.path, Record(node))
        self._count_child(operation.path, 1)
        return 0

    def _put(self, path: str, record: Record | None) -> None:
        self.draft[path] = record
        self.changed.add(path)

    def _count_child(self, path: str, difference: int) -> None:
        parent_path = parent_of(path)
        parent = self._record(parent_path)
        assert parent is not None, f"{path} has no parent"
        self.draft[parent_path] = replace(
            parent,
            child_count=parent.child_count + difference,
            children_created=parent.children_created + max(difference, 0),
        )


class _GuardViolation(Exception):
    def __init__(self, failure: GuardFailure) -> None:
        self.failure = failure
