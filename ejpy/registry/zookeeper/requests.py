"""Requests and replies of ZooKeeper's protocol, as bytes.

A request is put into bytes when it is made, on the loop: what cannot be serialised is refused to the caller, and not in
kazoo's thread, which would die of it. A reply is taken apart in kazoo's thread, into what the contract promises.

kazoo 2.11 lacks three things, which are here: `multiRead` (reads of many nodes in one request), `addWatch` (watches that
stand), both known to servers from 3.6 on, and a transaction whose reply tells its own revision (zxid).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Generic, TypeVar

from kazoo.protocol.serialization import (
    int_struct,
    multiheader_struct,
    read_buffer,
    read_string,
    stat_struct,
    write_buffer,
    write_string,
)
from kazoo.security import ACL

from ejpy.errors import RegistryError
from ejpy.registry.base import Create, Delete, Node, Operation, SetData
from ejpy.registry.zookeeper.faults import from_operation

T = TypeVar("T")

# Operation codes (ZooKeeper: ZooDefs.OpCode).
CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_CHILDREN, SYNC = 1, 2, 3, 4, 5, 8, 9
CHECK, MULTI, REMOVE_WATCHES, MULTI_READ, ADD_WATCH = 13, 14, 18, 22, 106
ERROR = -1

EPHEMERAL, SEQUENTIAL = 1, 2
PERSISTENT_RECURSIVE = 1
ANY_WATCH = 3
ANY_VERSION = -1

OK, ROLLED_BACK, NO_NODE = 0, -2, -101
"""Error codes that stand in the replies of multi requests; -2 marks what came after the culprit."""


@dataclass(frozen=True, slots=True)
class Request(Generic[T]):
    """What goes to the server, and how its reply is read.

    `decode` gets the reply's bytes, the offset of its body, and the zxid of its header.
    """

    opcode: int
    payload: bytes
    decode: Callable[[bytes, int, int], T]
    weight: int = 1
    """How many operations it counts for in the window of requests under way."""


@dataclass(frozen=True, slots=True)
class Refused:
    """One path of a read that the server refused, with its error code."""

    code: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """The reply to a transaction: applied, with the versions after it, or refused because of one operation."""

    revision: int
    versions: tuple[int, ...]
    culprit: int | None = None
    code: int = OK


# ---- writes -------------------------------------------------------------------------------------------------------


def transaction(operations: Sequence[Operation], acl: Sequence[ACL]) -> Request[list[Transaction]]:
    """All operations as one `multi`. The reply is a list of one, since kazoo takes the reply to a multi for a list."""
    written_acl = _write_acl(acl)
    parts = []
    for operation in operations:
        opcode, body = _write_operation(operation, written_acl)
        parts.append(multiheader_struct.pack(opcode, False, -1))
        parts.append(body)
    parts.append(multiheader_struct.pack(-1, True, -1))
    return Request(MULTI, b"".join(parts), _read_transaction, weight=max(1, len(operations)))


def create_sequential(prefix: str, data: bytes, ephemeral: bool, acl: Sequence[ACL]) -> Request[str]:
    """A node whose name the server completes; the reply is its path."""
    flags = SEQUENTIAL | (EPHEMERAL if ephemeral else 0)
    payload = write_string(prefix) + write_buffer(data) + _write_acl(acl) + int_struct.pack(flags)
    return Request(CREATE, payload, lambda buffer, offset, _: str(read_string(buffer, offset)[0]))


def _write_acl(acl: Sequence[ACL]) -> bytes:
    entries = (int_struct.pack(entry.perms) + write_string(entry.id.scheme) + write_string(entry.id.id) for entry in acl)
    return bytes(int_struct.pack(len(acl))) + b"".join(entries)


def _write_operation(operation: Operation, acl: bytes) -> tuple[int, bytes]:
    path = write_string(operation.path)
    if isinstance(operation, Create):
        flags = int_struct.pack(EPHEMERAL if operation.ephemeral else 0)
        return CREATE, path + write_buffer(operation.data) + acl + flags
    version = int_struct.pack(ANY_VERSION if operation.version is None else operation.version)
    if isinstance(operation, SetData):
        return SET_DATA, path + write_buffer(operation.data) + version
    return (DELETE if isinstance(operation, Delete) else CHECK), path + version


def _read_transaction(buffer: bytes, offset: int, zxid: int) -> list[Transaction]:
    versions: list[int] = []
    culprit, code = None, OK
    while True:
        opcode, done, _ = multiheader_struct.unpack_from(buffer, offset)
        offset += multiheader_struct.size
        if done:
            return [Transaction(zxid, tuple(versions), culprit, code)]
        version = -1
        if opcode == CREATE:
            _, offset = read_string(buffer, offset)
            version = 0
        elif opcode == SET_DATA:
            version = stat_struct.unpack_from(buffer, offset)[4]
            offset += stat_struct.size
        elif opcode == ERROR:
            error = int_struct.unpack_from(buffer, offset)[0]
            offset += int_struct.size
            if culprit is None and error not in (OK, ROLLED_BACK):
                culprit, code = len(versions), error
        versions.append(version)


# ---- reads --------------------------------------------------------------------------------------------------------


def read_many(paths: Sequence[str], opcodes: Sequence[int]) -> Request[list[Node | list[str] | Refused]]:
    """Each of `opcodes` (GET_DATA, GET_CHILDREN) for each path, as one `multiRead`; the replies in this order."""
    headers = [multiheader_struct.pack(opcode, False, -1) for opcode in opcodes]
    parts: list[bytes] = []
    for path in paths:
        body = write_string(path) + b"\0"
        parts.extend(header + body for header in headers)
    parts.append(multiheader_struct.pack(-1, True, -1))
    return Request(MULTI_READ, b"".join(parts), _read_many, weight=max(1, len(paths) * len(opcodes)))


def _read_many(buffer: bytes, offset: int, _zxid: int) -> list[Node | list[str] | Refused]:
    replies: list[Node | list[str] | Refused] = []
    while True:
        opcode, done, _ = multiheader_struct.unpack_from(buffer, offset)
        offset += multiheader_struct.size
        if done:
            return replies
        if opcode == GET_DATA:
            node, offset = _read_node(buffer, offset)
            replies.append(node)
        elif opcode == GET_CHILDREN:
            count = int_struct.unpack_from(buffer, offset)[0]
            offset += int_struct.size
            names = []
            for _ in range(count):
                name, offset = read_string(buffer, offset)
                names.append(name)
            names.sort()
            replies.append(names)
        else:
            replies.append(Refused(int_struct.unpack_from(buffer, offset)[0]))
            offset += int_struct.size


def watch_node(path: str) -> Request[None]:
    """A one-shot watch of one node, whether it exists or not (`exists`; a watch by `getData` needs the node)."""
    return Request(EXISTS, write_string(path) + b"\1", _read_nothing)


def sync() -> Request[None]:
    """Answered by way of ZooKeeper's leader, after everything that was committed before; refused if the session is over."""
    return Request(SYNC, write_string("/"), _read_nothing)


def _read_node(buffer: bytes, offset: int) -> tuple[Node, int]:
    data, offset = read_buffer(buffer, offset)
    czxid, mzxid, _, mtime, version, _, _, owner, _, _, _ = stat_struct.unpack_from(buffer, offset)
    node = Node(
        data=data or b"",
        version=version,
        created_revision=czxid,
        revision=mzxid,
        modified=datetime.fromtimestamp(mtime / 1000, tz=timezone.utc),
        session_id=owner or None,
    )
    return node, offset + stat_struct.size


def as_node(path: str, reply: Node | list[str] | Refused) -> Node | None:
    """The reply to a GET_DATA of `path`: None if there is no node. Raises if the server refused it for another reason."""
    if isinstance(reply, Node):
        return reply
    _require_missing(path, reply)
    return None


def as_names(path: str, reply: Node | list[str] | Refused) -> list[str] | None:
    """The reply to a GET_CHILDREN of `path`, as `as_node`."""
    if isinstance(reply, list):
        return reply
    _require_missing(path, reply)
    return None


def _require_missing(path: str, reply: Node | list[str] | Refused) -> None:
    if not isinstance(reply, Refused):
        raise RegistryError(f"{path}: the server's reply does not fit the request")
    if reply.code != NO_NODE:
        raise from_operation(0, path, reply.code)


# ---- watches ------------------------------------------------------------------------------------------------------


def add_watch(root: str) -> Request[None]:
    """A watch of `root` and everything below it that stands until the connection ends."""
    return Request(ADD_WATCH, write_string(root) + int_struct.pack(PERSISTENT_RECURSIVE), _read_nothing)


def remove_watches(root: str) -> Request[None]:
    return Request(REMOVE_WATCHES, write_string(root) + int_struct.pack(ANY_WATCH), _read_nothing)


def _read_nothing(_buffer: bytes, _offset: int, _zxid: int) -> None:
    return None
