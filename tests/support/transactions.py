"""ZooKeeper's own record of who changed what: its transaction log, read from the data directory of a test's server.

The tree says what is there; only the log says which session wrote it, and what was there in between. So this is what tests
ask whether a worker wrote something that it had no right to write any more.

Format: `FileTxnLog` and zookeeper.jute of ZooKeeper 3.5 to 3.9. A file is a header and records; each is a checksum, a length,
a header with the session's id, and the request's fields, of which the path always comes first and the data second.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from tests.support.zookeeper import ZooKeeperServer

_FILE_HEADER = struct.Struct("!4siq")
_RECORD_HEADER = struct.Struct("!qi")
_TRANSACTION_HEADER = struct.Struct("!qiqqi")
_MULTI, _CLOSE_SESSION, _ERROR = 14, -11, -1


class Kind(Enum):
    CREATE = "create"
    DELETE = "delete"
    SET_DATA = "set data"
    CHECK = "check"


_KINDS = {1: Kind.CREATE, 15: Kind.CREATE, 19: Kind.CREATE, 2: Kind.DELETE, 20: Kind.DELETE, 5: Kind.SET_DATA, 13: Kind.CHECK}


@dataclass(frozen=True, slots=True)
class Change:
    """One operation of a transaction. `data`: of CREATE and SET_DATA."""

    kind: Kind
    path: str
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Transaction:
    """What was committed at once. `session_id` is signed, as everywhere in ejpy; `time` is seconds since the epoch."""

    revision: int
    session_id: int
    time: float
    changes: tuple[Change, ...]
    ends_session: bool
    """The session was closed or had expired; the changes are the deletions of its ephemeral nodes."""


def transactions(server: ZooKeeperServer, under: str = "/") -> list[Transaction]:
    """All that the server ever committed, in order, with those changes that are at `under` or below."""
    below = under.rstrip("/") + "/"
    found = []
    for file in sorted((server.log_path.parent / "data" / "version-2").glob("log.*"), key=lambda f: int(f.suffix[1:], 16)):
        for one in _records(file.read_bytes()):
            changes = tuple(c for c in one.changes if c.path == under or c.path.startswith(below))
            if changes or one.ends_session:
                found.append(Transaction(one.revision, one.session_id, one.time, changes, one.ends_session))
    return found


def _records(log: bytes) -> Iterator[Transaction]:
    at = _FILE_HEADER.size
    while at + _RECORD_HEADER.size <= len(log):
        _, length = _RECORD_HEADER.unpack_from(log, at)
        at += _RECORD_HEADER.size
        if length == 0 or at + length >= len(log):
            return  # the rest of the file is reserved, or is being written
        record = log[at : at + length]
        at += length + 1  # a mark follows
        session_id, _, revision, milliseconds, code = _TRANSACTION_HEADER.unpack_from(record)
        changes = tuple(_changes(code, record[_TRANSACTION_HEADER.size :]))
        yield Transaction(revision, session_id, milliseconds / 1000, changes, code == _CLOSE_SESSION)


def _changes(code: int, fields: bytes) -> Iterable[Change]:
    if code == _MULTI:
        count, at = _int(fields, 0), 4
        parts = []
        for _ in range(count):
            parts.append((_int(fields, at), _buffer(fields, at + 4)))
            at += 8 + len(parts[-1][1])
        if _ERROR not in (part_code for part_code, _ in parts):  # otherwise nothing was applied
            for part_code, data in parts:
                yield from _changes(part_code, data)
    elif code == _CLOSE_SESSION and fields:
        count, at = _int(fields, 0), 4
        for _ in range(count):
            path = _buffer(fields, at)
            at += 4 + len(path)
            yield Change(Kind.DELETE, path.decode())
    elif code in _KINDS:
        path = _buffer(fields, 0)
        data = _buffer(fields, 4 + len(path)) if _KINDS[code] in (Kind.CREATE, Kind.SET_DATA) else b""
        yield Change(_KINDS[code], path.decode(), data)


def _int(fields: bytes, at: int) -> int:
    number: int = struct.unpack_from("!i", fields, at)[0]
    return number


def _buffer(fields: bytes, at: int) -> bytes:
    length = max(0, _int(fields, at))
    return fields[at + 4 : at + 4 + length]
