"""The tree that a cluster in one process shares: what a registry's server is.

There are no threads and no randomness. Time comes from the clock that is passed in, timers from the running loop. A
transaction is applied, and every connection told of it, within the turn of the loop that asks for it.

A session ends when it was not heard of for its time-out, by the store's clock, and its ephemeral nodes go with it, in one
transaction: so a worker that is cut off is missed here as it would be on a real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ejpy.clock import Clock
from ejpy.errors import SessionExpired
from ejpy.registry.base import Committed, Delete, Node, Operation, parent_of
from ejpy.registry.transaction import Record, Transaction

T = TypeVar("T")


@dataclass(slots=True)
class _Session:
    timeout: float
    deadline: float
    """Instant of the store's clock at which the session ends if nothing more is heard of it."""
    timer: asyncio.TimerHandle
    on_expired: Callable[[], None]


class MemoryStore:
    """The shared tree of a cluster in one process; `clock` is the registry's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._revision = 0
        self._records: dict[str, Record] = {"/": Record(Node(b"", 0, 0, 0, clock.now(), None))}
        self._children: dict[str, set[str]] = {"/": set()}
        self._sessions: dict[int, _Session] = {}
        self._last_session_id = 0
        self._subscribers: dict[object, Callable[[frozenset[str]], None]] = {}

    @property
    def revision(self) -> int:
        """Revision of the last transaction; one more with each."""
        return self._revision

    def expire(self, session_id: int) -> None:
        """End a session now, as if nothing had been heard of it for its time-out. No effect if there is none."""
        session = self._sessions.get(session_id)
        if session is not None:
            self.close_session(session_id)
            session.on_expired()

    # -- what a connection asks for --

    def open_session(self, timeout: float, on_expired: Callable[[], None]) -> int:
        """A new session's id. It ends `timeout` seconds after it was last heard of; `on_expired` is called then."""
        self._last_session_id += 1
        session_id = self._last_session_id
        timer = asyncio.get_running_loop().call_later(timeout, self._look_at_deadline, session_id)
        self._sessions[session_id] = _Session(timeout, self._clock.monotonic() + timeout, timer, on_expired)
        return session_id

    def touch(self, session_id: int) -> None:
        """The session is heard of. Raises SessionExpired."""
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionExpired(f"session {session_id} has ended")
        session.deadline = self._clock.monotonic() + session.timeout

    def close_session(self, session_id: int) -> None:
        """End a session and remove its ephemeral nodes, in one transaction."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        session.timer.cancel()
        owned = [path for path, record in self._records.items() if record.node.session_id == session_id]
        if owned:
            self.commit(session_id, [Delete(path) for path in owned])

    def read(self, path: str) -> Node | None:
        record = self._records.get(path)
        return record.node if record else None

    def children(self, path: str) -> list[str] | None:
        return sorted(self._children[path]) if path in self._children else None

    def tree(self, root: str) -> dict[str, Node]:
        found: dict[str, Node] = {}
        level = [root] if root in self._records else []
        while level:
            found.update((path, self._records[path].node) for path in level)
            level = [f"{path.rstrip('/')}/{name}" for path in level for name in sorted(self._children[path])]
        return found

    def commit(self, session_id: int, operations: Sequence[Operation]) -> Committed:
        """Raises GuardFailed. Not refused to a session that has ended; a connection asks `touch` first."""
        return self.write(session_id, lambda transaction: Committed(transaction.revision, transaction.apply(operations)))

    def write(self, session_id: int, change: Callable[[Transaction], T]) -> T:
        """Do `change` in a transaction of the session, as `commit`."""
        transaction = Transaction(self._records.get, revision=self._revision + 1, now=self._clock.now(), session_id=session_id)
        result = change(transaction)
        self._write_back(transaction)
        return result

    def subscribe(self, subscriber: object, on_changed: Callable[[frozenset[str]], None]) -> None:
        """Have `on_changed` called, within the transaction's turn, with what each transaction changed."""
        self._subscribers[subscriber] = on_changed

    def unsubscribe(self, subscriber: object) -> None:
        self._subscribers.pop(subscriber, None)

    # -- within --

    def _write_back(self, transaction: Transaction) -> None:
        self._revision += 1
        for path, record in transaction.draft.items():
            if record is not None:
                self._records[path] = record
                self._children.setdefault(path, set())
            elif path in self._records:
                del self._records[path], self._children[path]
        for path in transaction.changed - {"/"}:
            siblings = self._children.get(parent_of(path))
            if siblings is not None:
                name = path.rpartition("/")[2]
                if path in self._records:
                    siblings.add(name)
                else:
                    siblings.discard(name)
        changed = frozenset(transaction.changed)
        for on_changed in list(self._subscribers.values()):
            on_changed(changed)

    def _look_at_deadline(self, session_id: int) -> None:
        session = self._sessions[session_id]
        remaining = session.deadline - self._clock.monotonic()
        if remaining > 0:
            # Never less than a millisecond: a remainder lost in rounding would make a virtual clock stand still.
            loop = asyncio.get_running_loop()
            session.timer = loop.call_later(max(remaining, 0.001), self._look_at_deadline, session_id)
        else:
            self.expire(session_id)
