"""The registry inside one process: the twin that unit tests and the simulation run on.

`MemoryStore` is what a cluster shares (the server), `MemoryRegistry` one worker's connection and session. There are no
threads and no randomness; time comes from the clock that is passed in, timers and later turns from the running loop. Under
a loop with virtual time the same calls give the same history.

It keeps sessions as a real one does, so that it fails as a real one does. The client renews its lease by a request every
third of the session time-out; a request that is not answered makes it SUSPENDED; the lease running out on the local clock
makes it LOST, whatever the store thinks; the store ends a session that it has not heard of for the session time-out.

Faults are plain methods: `MemoryRegistry.disconnect` and `reconnect` pull and plug the cable, `MemoryStore.expire` ends a
session. Finer ones are had by a subclass: every request goes through `_transport`, every event through `_deliver`.

`Transaction` (by which rules operations are checked and applied) and `Watches` (who is told of what) serve every registry
that keeps nodes itself.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from ejpy.clock import Clock
from ejpy.errors import (
    GuardFailed,
    GuardFailure,
    OutcomeUnknown,
    RegistryError,
    RegistryUnavailable,
    RegistryUnreachable,
    RequestTooLarge,
    SessionExpired,
)
from ejpy.registry.base import (
    Committed,
    Create,
    Delete,
    Node,
    Operation,
    Registry,
    SessionListener,
    SessionState,
    SetData,
    TreeListener,
    TreeWatch,
    ancestors,
    operation_bytes,
    parent_of,
)

logger = logging.getLogger("ejpy.registry.memory")

LEASE_MARGIN = 0.05
"""Part of the session time-out by which the local lease ends before the store could end the session."""

T = TypeVar("T")


def refuse_too_large(registry: Registry, operations: Sequence[Operation]) -> None:
    """Raise RequestTooLarge if `operations` are more than the registry takes in one transaction."""
    size = sum(map(operation_bytes, operations))
    if len(operations) > registry.max_operations or size > registry.max_bytes:
        raise RequestTooLarge(
            f"{len(operations)} operations of {size} bytes; at most {registry.max_operations} operations"
            f" and {registry.max_bytes} bytes go into one transaction: divide it"
        )


# ---- transactions -------------------------------------------------------------------------------------------------


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
        self._lookup = lookup
        self._revision = revision
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
            node = replace(record.node, data=operation.data, version=version, revision=self._revision, modified=self._now)
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
        node = Node(operation.data, 0, self._revision, self._revision, self._now, owner)
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


# ---- the store: what a cluster shares -----------------------------------------------------------------------------


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
        transaction = self._begin(session_id)
        versions = transaction.apply(operations)
        self._write_back(transaction)
        return Committed(self._revision, versions)

    def create_sequential(self, session_id: int, prefix: str, data: bytes, ephemeral: bool) -> str:
        transaction = self._begin(session_id)
        path = transaction.create_sequential(prefix, data, ephemeral=ephemeral)
        self._write_back(transaction)
        return path

    def subscribe(self, subscriber: object, on_changed: Callable[[frozenset[str]], None]) -> None:
        """Have `on_changed` called, within the transaction's turn, with what each transaction changed."""
        self._subscribers[subscriber] = on_changed

    def unsubscribe(self, subscriber: object) -> None:
        self._subscribers.pop(subscriber, None)

    # -- within --

    def _begin(self, session_id: int) -> Transaction:
        return Transaction(self._records.get, revision=self._revision + 1, now=self._clock.now(), session_id=session_id)

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
            session.timer = _call_later(remaining, self._look_at_deadline, session_id)
        else:
            self.expire(session_id)


def _call_later(seconds: float, callback: Callable[..., None], *arguments: object) -> asyncio.TimerHandle:
    # Never less than a millisecond: a remainder that is lost in rounding would make a virtual clock stand still.
    return asyncio.get_running_loop().call_later(max(seconds, 0.001), callback, *arguments)


# ---- watches of one connection ------------------------------------------------------------------------------------


class Watches:
    """The watches of one connection: who is told of which path.

    `deliver` has a callback called in a later turn of the loop. What changes until then is merged into one call.
    """

    def __init__(self, deliver: Callable[[Callable[[], None]], None]) -> None:
        self._deliver = deliver
        self._trees: dict[str, dict[_MergingTreeWatch, None]] = {}
        self._one_shots: dict[str, dict[OneShot, None]] = {}

    def add_tree(self, root: str, listener: TreeListener) -> TreeWatch:
        of_root = self._trees.setdefault(root, {})
        watch = _MergingTreeWatch(listener, self._deliver, of_root)
        of_root[watch] = None
        return watch

    def add_one_shot(self, path: str, listener: Callable[[], None]) -> OneShot:
        of_path = self._one_shots.setdefault(path, {})
        one_shot = OneShot(listener, of_path)
        of_path[one_shot] = None
        return one_shot

    def changed(self, paths: frozenset[str] | None) -> None:
        """Tell whom it concerns that the nodes at `paths` changed; None: anything may have changed."""
        if paths is None:
            self.resumed()
            self.interrupted()
            return
        told: dict[_MergingTreeWatch, set[str]] = {}
        for path in sorted(paths):
            for one_shot in self._one_shots.pop(path, {}):
                self._deliver(one_shot.call)
            for root in ["/", *ancestors(path), *([path] if path != "/" else [])]:
                for watch in self._trees.get(root, {}):
                    told.setdefault(watch, set()).add(path)
        for watch, changed in told.items():
            watch.tell(changed)

    def interrupted(self) -> None:
        """The connection broke: whoever waits for one node is told now, since the change may not be."""
        one_shots, self._one_shots = self._one_shots, {}
        for of_path in one_shots.values():
            for one_shot in of_path:
                self._deliver(one_shot.call)

    def resumed(self) -> None:
        """The connection is back: whoever watches a tree may have missed anything."""
        for of_root in self._trees.values():
            for watch in of_root:
                watch.tell(None)

    def close(self) -> None:
        """No listener is called afterwards."""
        for of_root in self._trees.values():
            for watch in list(of_root):
                watch.close()
        for of_path in self._one_shots.values():
            for one_shot in list(of_path):
                one_shot.withdraw()


class _MergingTreeWatch(TreeWatch):
    def __init__(
        self,
        listener: TreeListener,
        deliver: Callable[[Callable[[], None]], None],
        of_root: dict[_MergingTreeWatch, None],
    ) -> None:
        self._listener = listener
        self._deliver = deliver
        self._of_root = of_root
        self._gathered: set[str] | None = set()
        self._scheduled = False
        self._closed = False

    def tell(self, paths: set[str] | None) -> None:
        self._gathered = None if paths is None or self._gathered is None else self._gathered | paths
        if not self._scheduled:
            self._scheduled = True
            self._deliver(self._call)

    def close(self) -> None:
        self._closed = True
        self._of_root.pop(self, None)

    def _call(self) -> None:
        gathered, self._gathered, self._scheduled = self._gathered, set(), False
        if not self._closed:
            self._listener(None if gathered is None else frozenset(gathered))


class OneShot:
    """A listener that is called at most once."""

    def __init__(self, listener: Callable[[], None], of_path: dict[OneShot, None]) -> None:
        self._listener: Callable[[], None] | None = listener
        self._of_path = of_path

    def withdraw(self) -> None:
        self._listener = None
        self._of_path.pop(self, None)

    def call(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()


# ---- one worker's connection --------------------------------------------------------------------------------------


class MemoryRegistry(Registry):
    """One worker's connection to a `MemoryStore`, with a session of `session_timeout` seconds.

    `clock` is the worker's own: its `monotonic` dates the lease. It may differ from the store's, but must go as fast.
    """

    def __init__(self, store: MemoryStore, *, clock: Clock, session_timeout: float) -> None:
        self._store = store
        self._clock = clock
        self._session_timeout = session_timeout
        self._started = False
        self._plugged = True
        self._state = SessionState.LOST
        self._session_id: int | None = None
        self._session_ended = False
        self._lease_until = -math.inf
        self._listeners: list[SessionListener] = []
        self._in_flight: dict[asyncio.Task[Any], None] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._keep_timer: asyncio.TimerHandle | None = None
        self._lease_timer: asyncio.TimerHandle | None = None
        self._watches = Watches(lambda event: self._deliver(event))

    # -- hooks for faults --

    async def _transport(self, apply: Callable[[], T]) -> T:
        """Carry one request to the store and its reply back; `apply` is what the store does, and raises what it replies.

        A subclass loses a request by raising RegistryUnavailable, or by waiting for ever, without calling `apply`; it loses
        a reply by raising OutcomeUnknown after calling it; it delays by awaiting before or after. It is cancelled when the
        request's deadline passes or the connection breaks.
        """
        return apply()

    def _deliver(self, event: Callable[[], None]) -> None:
        """Have a watch event carried out in a later turn of the loop. A subclass may do so later still."""
        asyncio.get_running_loop().call_soon(event)

    def disconnect(self) -> None:
        """Pull the cable: SUSPENDED; what is under way gets no reply, what is asked is refused, until `reconnect`."""
        self._plugged = False
        self._suspend()

    def reconnect(self) -> None:
        """Plug the cable in again: CONNECTED soon, with the old session if it still lives, or else with a new one."""
        self._plugged = True
        if self._started:
            self._keep_later(0)

    # -- life and session --

    @property
    def address(self) -> str:
        return "memory://"

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int | None:
        return self._session_id

    @property
    def lease_until(self) -> float:
        return self._lease_until

    @property
    def session_timeout_seconds(self) -> float:
        return self._session_timeout

    def on_session(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def start(self, timeout: float) -> None:
        if self._started:
            return
        if not self._plugged:
            raise RegistryUnreachable(self.address, "disconnected")
        self._started = True
        try:
            await self._open_session(timeout)
        except RegistryError as error:
            self._started = False
            raise RegistryUnreachable(self.address, str(error)) from error
        except asyncio.CancelledError:
            self._started = False
            raise
        self._store.subscribe(self, self._on_changed)
        self._become_connected()

    async def stop(self, timeout: float) -> None:
        if not self._started:
            return
        self._started = False
        self._cancel_timers()
        session_id = self._session_id
        try:
            if self._state is SessionState.CONNECTED and session_id is not None:
                await self._exchange(lambda: self._store.close_session(session_id), timeout, writes=True)
        except RegistryError as error:
            logger.warning("session %s could not be closed and ends by its lease: %s", session_id, error)
        finally:
            self._free()

    def _free(self) -> None:
        self._break_requests()
        self._store.unsubscribe(self)
        self._watches.close()
        self._session_id = None
        self._lease_until = -math.inf
        self._become(SessionState.LOST)

    # -- reads --

    async def read(self, paths: Sequence[str], *, timeout: float | None = None) -> list[Node | None]:
        return await self._request(lambda _: [self._store.read(path) for path in paths], timeout, writes=False)

    async def children(self, paths: Sequence[str], *, timeout: float | None = None) -> list[list[str] | None]:
        return await self._request(lambda _: [self._store.children(path) for path in paths], timeout, writes=False)

    async def tree(self, root: str, *, timeout: float | None = None) -> dict[str, Node]:
        return await self._request(lambda _: self._store.tree(root), timeout, writes=False)

    async def sync(self, *, timeout: float | None = None) -> None:
        await self._request(lambda _: None, timeout, writes=False)

    # -- writes --

    async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
        operations = list(operations)
        refuse_too_large(self, operations)
        return await self._request(lambda session: self._store.commit(session, operations), timeout, writes=True)

    async def create_sequential(
        self, prefix: str, data: bytes = b"", *, ephemeral: bool = True, timeout: float | None = None
    ) -> str:
        refuse_too_large(self, [Create(prefix, data, ephemeral)])
        return await self._request(
            lambda session: self._store.create_sequential(session, prefix, data, ephemeral), timeout, writes=True
        )

    # -- watches --

    async def watch_tree(self, root: str, listener: TreeListener) -> TreeWatch:
        added: list[TreeWatch] = []
        try:
            await self._request(lambda _: added.append(self._watches.add_tree(root, listener)), None, writes=False)
        except BaseException:
            for watch in added:
                watch.close()
            raise
        return added[0]

    async def read_and_watch(self, path: str, listener: Callable[[], None], *, timeout: float | None = None) -> Node | None:
        added: list[OneShot] = []

        def apply(_: int) -> Node | None:
            added.append(self._watches.add_one_shot(path, listener))
            return self._store.read(path)

        try:
            return await self._request(apply, timeout, writes=False)
        except BaseException:
            for one_shot in added:
                one_shot.withdraw()
            raise

    def _on_changed(self, paths: frozenset[str]) -> None:
        if self._state is SessionState.CONNECTED:  # what is missed otherwise is made up for when it is CONNECTED again
            self._watches.changed(paths)

    # -- requests --

    async def _request(self, apply: Callable[[int], T], timeout: float | None, *, writes: bool) -> T:
        """Have the store do `apply` under the current session, whenever the request arrives there."""
        session_id = self._session_id
        if not self._started or self._state is not SessionState.CONNECTED or session_id is None:
            raise RegistryUnavailable(f"registry {self.address}: not connected (session {self._state.value})")

        def apply_in_session() -> T:
            self._store.touch(session_id)
            return apply(session_id)

        limit = self._session_timeout if timeout is None else timeout
        return await self._exchange(apply_in_session, limit, writes=writes)

    async def _exchange(self, apply: Callable[[], T], timeout: float, *, writes: bool) -> T:
        session_id, sent = self._session_id, self._clock.monotonic()
        left = False

        async def carry() -> T:
            nonlocal left
            left = True
            return await self._transport(apply)

        task = asyncio.get_running_loop().create_task(carry())
        self._in_flight[task] = None
        try:
            await asyncio.wait({task}, timeout=timeout)
            if not left:
                raise RegistryUnavailable(f"registry {self.address}: the connection broke before the request was sent")
            if not task.done() or task.cancelled():
                raise OutcomeUnknown(f"registry {self.address}: no reply within {timeout:g} s, or the connection broke")
            result = task.result()
        except GuardFailed:
            self._answered(session_id, sent)
            raise
        except SessionExpired:
            self._end_session(session_id)
            raise
        except OutcomeUnknown as error:
            if writes:
                raise
            raise RegistryUnavailable(str(error)) from error
        finally:
            self._in_flight.pop(task, None)
            task.cancel()
        self._answered(session_id, sent)
        return result

    def _break_requests(self) -> None:
        for task in list(self._in_flight):
            task.cancel()

    # -- keeping the session --

    async def _open_session(self, timeout: float) -> None:
        sent = self._clock.monotonic()

        def apply() -> int:
            opened = self._store.open_session(self._session_timeout, lambda: self._deliver(lambda: self._end_session(opened)))
            return opened

        self._session_id = await self._exchange(apply, timeout, writes=False)
        self._session_ended = False
        self._lease_until = -math.inf
        self._answered(self._session_id, sent)

    async def _keep(self) -> None:
        """Renew the lease; get a new session for one that has ended; try again soon if there is no reply."""
        timeout = self._session_timeout / 3
        try:
            if self._session_ended or self._session_id is None:
                await self._open_session(timeout)
            else:
                session_id = self._session_id
                await self._exchange(lambda: self._store.touch(session_id), timeout, writes=False)
        except SessionExpired:
            pass  # `_end_session` has asked for a new one already
        except RegistryUnavailable:
            self._suspend()
        else:
            if self._state is SessionState.CONNECTED:
                self._keep_later(self._session_timeout / 3)
            else:
                self._become_connected()

    def _keep_later(self, seconds: float) -> None:
        self._cancel_keeping()
        self._keep_timer = asyncio.get_running_loop().call_later(seconds, self._begin_keeping)

    def _begin_keeping(self) -> None:
        self._cancel_keeping()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    def _answered(self, session_id: int | None, sent: float) -> None:
        """A request that was sent at `sent` under `session_id` was answered: proof that the session lives."""
        if session_id is None or session_id != self._session_id or self._session_ended or not self._started:
            return
        self._lease_until = max(self._lease_until, sent + self._session_timeout * (1 - LEASE_MARGIN))
        if self._lease_timer is None:
            self._lease_timer = _call_later(self._lease_until - self._clock.monotonic(), self._look_at_lease)

    def _look_at_lease(self) -> None:
        self._lease_timer = None
        remaining = self._lease_until - self._clock.monotonic()
        if remaining > 0:
            self._lease_timer = _call_later(remaining, self._look_at_lease)
        else:
            self._suspend()
            self._become(SessionState.LOST)

    def _end_session(self, session_id: int | None) -> None:
        """The store says that the session has ended."""
        if not self._started or not self._plugged or session_id != self._session_id or self._session_ended:
            return
        self._session_ended = True
        self._lease_until = -math.inf
        self._suspend()
        self._become(SessionState.LOST)
        self._keep_later(0)

    def _suspend(self) -> None:
        """The connection is broken: nothing under way is answered, no event comes."""
        if not self._started:
            return
        self._cancel_keeping()
        self._break_requests()
        if self._state is SessionState.CONNECTED:
            self._become(SessionState.SUSPENDED)
            self._watches.interrupted()
        if self._plugged:
            self._keep_later(self._session_timeout / 6)

    def _cancel_keeping(self) -> None:
        if self._keep_timer is not None:
            self._keep_timer.cancel()
            self._keep_timer = None
        if self._keeping is not None and self._keeping is not asyncio.current_task():
            self._keeping.cancel()
            self._keeping = None

    def _become_connected(self) -> None:
        self._become(SessionState.CONNECTED)
        self._watches.resumed()
        self._keep_later(self._session_timeout / 3)

    def _become(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            for listener in self._listeners:
                asyncio.get_running_loop().call_soon(listener, state)

    def _cancel_timers(self) -> None:
        self._cancel_keeping()
        if self._lease_timer is not None:
            self._lease_timer.cancel()
            self._lease_timer = None
