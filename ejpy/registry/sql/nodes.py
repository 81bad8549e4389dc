"""Nodes as rows: reading them, and writing back what a transaction changed.

The rules by which operations are applied are `Transaction`'s; here is only how a node is kept. However many operations a
transaction has, it takes the same few statements: one to read all that it looks at, one for each kind of change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from sqlalchemy import BindParameter, Connection, and_, bindparam, delete, insert, or_, select, update

from ejpy.registry.base import Node, parent_of
from ejpy.registry.sql.schema import changes, nodes
from ejpy.registry.transaction import Record, Transaction

_CHUNK = 500
"""How many values go into one IN list; databases limit it."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


# ---- reading ------------------------------------------------------------------------------------------------------


def read_records(connection: Connection, paths: Iterable[str]) -> dict[str, Record]:
    """The records at `paths`; nothing for those where there is no node."""
    found: dict[str, Record] = {}
    for chunk in _chunks(paths):
        found.update(_record(row) for row in connection.execute(_SELECT_NODES, {"paths": chunk}))
    return found


def read_children(connection: Connection, paths: Iterable[str]) -> dict[str, list[str]]:
    """The names of the children, sorted, of each path; nothing for those where there is no node."""
    names: dict[str, list[str]] = {}
    for chunk in _chunks(paths):
        existing = connection.execute(_SELECT_EXISTING, {"paths": chunk}).scalars()
        names.update((path, []) for path in existing)
        for path, parent in connection.execute(_SELECT_BELOW, {"paths": chunk}):
            names[parent].append(path.rpartition("/")[2])
    return {path: sorted(below) for path, below in names.items()}


def read_tree(connection: Connection, root: str) -> dict[str, Node]:
    below = root.rstrip("/") + "/"
    # "0" follows "/": between the two lie the paths that begin with `below`, as a range of the primary key.
    values = {"root": root, "below": below, "beyond": below[:-1] + "0"}
    rows = connection.execute(_SELECT_TREE, values).all()
    return {path: record.node for path, record in map(_record, rows)}


# ---- writing ------------------------------------------------------------------------------------------------------


class Draft:
    """A `Transaction` whose records come from the database, and go back there."""

    def __init__(self, connection: Connection, paths: Sequence[str], *, revision: int, now: datetime, session_id: int) -> None:
        self._connection = connection
        # One query for all that the operations will look at, as far as it is known beforehand.
        wanted = {*paths, *map(parent_of, paths)}
        self._stored: dict[str, Record | None] = dict.fromkeys(wanted)
        self._stored.update(read_records(connection, wanted))
        self.transaction = Transaction(self._lookup, revision=revision, now=now, session_id=session_id)

    def write_back(self) -> None:
        """Write what changed: the nodes, their parents' counts, the log of changes."""
        removed: list[dict[str, object]] = []
        changed: list[dict[str, object]] = []
        counted: list[dict[str, object]] = []
        made: list[dict[str, object]] = []
        for path, record in self.transaction.draft.items():
            if record is None:
                removed.append({"of_path": path})
            elif self._lookup(path) is None:
                made.append({"path": path, "parent": parent_of(path), **_columns(record)})
            elif path in self.transaction.changed:
                changed.append({"of_path": path, **_columns(record)})
            else:
                counts = {"child_count": record.child_count, "children_created": record.children_created}
                counted.append({"of_path": path, **counts})
        logged: list[dict[str, object]] = [
            {"revision": self.transaction.revision, "path": path} for path in sorted(self.transaction.changed)
        ]
        for statement, rows in [
            (_DELETE_NODE, removed),
            (_UPDATE_NODE, changed),
            (_UPDATE_COUNTS, counted),
            (_INSERT_NODE, made),
            (_INSERT_CHANGE, logged),
        ]:
            if rows:
                self._connection.execute(statement, rows)

    def _lookup(self, path: str) -> Record | None:
        if path not in self._stored:
            self._stored[path] = read_records(self._connection, [path]).get(path)
        return self._stored[path]


def insert_root(connection: Connection, revision: int, now: datetime) -> None:
    """The node that always exists, in a new table."""
    root = Record(Node(b"", 0, revision, revision, now, None))
    connection.execute(_INSERT_NODE, [{"path": "/", "parent": None, **_columns(root)}])


# ---- rows ---------------------------------------------------------------------------------------------------------


def _record(row: Sequence[Any]) -> tuple[str, Record]:
    """Path and record of a row of `_NODE_COLUMNS`."""
    path, data, version, created_revision, revision, modified_us, session_id, child_count, children_created = row
    modified = _EPOCH + timedelta(microseconds=modified_us)
    node = Node(data, version, created_revision, revision, modified, session_id)
    return path, Record(node, child_count, children_created)


def _columns(record: Record) -> dict[str, object]:
    node = record.node
    return {
        "data": node.data,
        "version": node.version,
        "created_revision": node.created_revision,
        "revision": node.revision,
        "modified_us": microseconds_of(node.modified),
        "session_id": node.session_id,
        "child_count": record.child_count,
        "children_created": record.children_created,
    }


def _chunks(values: Iterable[str]) -> Iterator[list[str]]:
    distinct = list(dict.fromkeys(values))
    for start in range(0, len(distinct), _CHUNK):
        yield distinct[start : start + _CHUNK]


def microseconds_of(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


# ---- statements: built once, since building one takes longer than executing it ------------------------------------

_NODE_COLUMNS = (
    nodes.c.path,
    nodes.c.data,
    nodes.c.version,
    nodes.c.created_revision,
    nodes.c.revision,
    nodes.c.modified_us,
    nodes.c.session_id,
    nodes.c.child_count,
    nodes.c.children_created,
)
_OF_PATHS: BindParameter[list[str]] = bindparam("paths", expanding=True)
_SELECT_NODES = select(*_NODE_COLUMNS).where(nodes.c.path.in_(_OF_PATHS))
_SELECT_EXISTING = select(nodes.c.path).where(nodes.c.path.in_(_OF_PATHS))
_SELECT_BELOW = select(nodes.c.path, nodes.c.parent).where(nodes.c.parent.in_(_OF_PATHS))
_SELECT_TREE = (
    select(*_NODE_COLUMNS)
    .where(
        or_(
            nodes.c.path == bindparam("root"),
            and_(nodes.c.path > bindparam("below"), nodes.c.path < bindparam("beyond")),
        )
    )
    .order_by(nodes.c.path)
)
_OF_PATH = nodes.c.path == bindparam("of_path")
_INSERT_NODE = insert(nodes)
_UPDATE_NODE = (
    update(nodes)
    .where(_OF_PATH)
    .values({column: bindparam(column.name) for column in _NODE_COLUMNS if column is not nodes.c.path})
)
_UPDATE_COUNTS = (
    update(nodes).where(_OF_PATH).values(child_count=bindparam("child_count"), children_created=bindparam("children_created"))
)
_DELETE_NODE = delete(nodes).where(_OF_PATH)

_INSERT_CHANGE = insert(changes)
