"""The contract of a registry: where the workers of a cluster keep what they share.

A registry is a tree of nodes, as ZooKeeper's. A node has data, a version (0 when created, one more at each change of its
data) and revisions. The *revision* is one number for the whole registry that grows with every committed change and never
goes back while the registry's history lasts; a claim's revision becomes the fencing token.

Sessions. A started registry holds a session with a lease. Ephemeral nodes live as long as the session that made them.

    CONNECTED ──no answer──► SUSPENDED ──lease over──► LOST ──► CONNECTED (a new session, or the old one revived)

`lease_until` is the instant of the local monotonic clock up to which the session is certainly alive: the session time-out
counted from when the last *answered* request was *sent*, less a margin. Past it, others may already have seen this
worker's ephemeral nodes vanish, whatever the client library says. It moves with proof only.

What a caller may rely on:

* All methods are called on one asyncio loop, and all callbacks come on that loop. Nothing blocks it.
* Every call ends within its deadline: with a result, or with one of the errors below.
* `RegistryUnavailable`: certainly not applied. `OutcomeUnknown`: sent, no reply; applied or not. `SessionExpired`:
  certainly not applied. `GuardFailed`: a condition did not hold; nothing of the transaction was applied.
* An operation sent under one session is never applied under a later one.
* A transaction is applied as a whole or not at all.
* A watch callback is a hint to look again. It may come late, twice, or merged with others; none is lost while the
  registry is CONNECTED, and after an interruption a hint for "anything" (`None`) comes.

Paths are absolute, start with "/", have no trailing "/", no empty part. The root "/" always exists. A call with another
path raises ValueError and is not sent (`check_path`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from ejpy.errors import RegistryError, RequestTooLarge


@dataclass(frozen=True, slots=True)
class Node:
    """A node as it was read."""

    data: bytes
    version: int
    created_revision: int
    """Revision of the transaction that made the node (ZooKeeper: czxid)."""
    revision: int
    """Revision of the last change of its data (ZooKeeper: mzxid)."""
    modified: datetime
    """When its data was last changed, by the registry's clock; aware, UTC."""
    session_id: int | None
    """The session that an ephemeral node belongs to; None for a persistent node."""


# ---- operations of a transaction ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Create:
    """Make a node. Fails with NODE_EXISTS, with NO_NODE if the parent is missing, with EPHEMERAL_PARENT."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """Replace a node's data. Fails with NO_NODE, and with BAD_VERSION if `version` is given and is not the node's."""

    path: str
    data: bytes
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node. Fails with NO_NODE, BAD_VERSION as above, and NOT_EMPTY if it has children."""

    path: str
    version: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing. Fails with NO_NODE, and with BAD_VERSION as above."""

    path: str
    version: int | None = None


Operation = Create | SetData | Delete | Check


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction that was applied."""

    revision: int
    """Revision of the transaction; nodes that it created or changed carry it."""
    versions: tuple[int, ...]
    """For each operation the node's version after it (Create, SetData), or -1 (Delete, Check)."""


# ---- session and watches ------------------------------------------------------------------------------------------


class SessionState(str, Enum):
    CONNECTED = "connected"
    SUSPENDED = "suspended"
    """No connection at the moment; the session may still be alive."""
    LOST = "lost"
    """The session has ended, or its lease is over by the local clock. Not started and stopped count as lost, too."""


SessionListener = Callable[[SessionState], None]
TreeListener = Callable[["frozenset[str] | None"], None]
"""Called with the paths that were created, changed or deleted, or with None: anything may have changed, read it all."""


class TreeWatch(ABC):
    """A standing watch of a subtree."""

    @abstractmethod
    def close(self) -> None:
        """End the watch. No callback comes afterwards. Idempotent."""


class Registry(ABC):
    """One connection to the shared tree. See the module's text for what every method promises.

    `timeout` arguments are seconds; None means the registry's own request time-out, which is never longer than the
    session time-out. Any method may raise RegistryUnavailable, SessionExpired, AccessDenied; those that write also
    OutcomeUnknown. (A read without reply raises RegistryUnavailable: it had no effect to be unsure of.)
    """

    max_operations: int = 1000
    """Most operations of one transaction."""
    max_bytes: int = 512 * 1024
    """Most bytes of one transaction: sum of `operation_bytes`."""

    # -- life and session --

    @property
    @abstractmethod
    def address(self) -> str:
        """Where the registry is, for messages; without credentials."""

    @property
    @abstractmethod
    def state(self) -> SessionState: ...

    @property
    @abstractmethod
    def session_id(self) -> int | None:
        """Id of the current session; None before the first and after `stop`."""

    @property
    @abstractmethod
    def lease_until(self) -> float:
        """Instant of `Clock.monotonic` up to which the session is certainly alive; -inf without one."""

    @property
    @abstractmethod
    def session_timeout_seconds(self) -> float:
        """The session time-out in force (ZooKeeper: as negotiated)."""

    @property
    def failure(self) -> RegistryError | None:
        """Why it is LOST for good and only a new start of the process can help; None while it may come back by itself."""
        return None

    @abstractmethod
    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        """Have `listener` called on the loop at every change of `state`.

        Returns a function that ends that: no call comes afterwards. It may be called more than once.
        """

    @abstractmethod
    async def start(self, timeout: float) -> None:
        """Connect and open a session. Raises RegistryUnreachable if that fails within `timeout` seconds, and leaves no
        thread or descriptor behind then."""

    @abstractmethod
    async def stop(self, timeout: float) -> None:
        """Close the session, which removes its ephemeral nodes, and free everything. Returns within `timeout` seconds
        plus a little, whatever the server does. Idempotent; never raises."""

    # -- reads: one round trip each, whatever the number of paths --

    @abstractmethod
    async def read(self, paths: Sequence[str], *, timeout: float | None = None) -> list[Node | None]:
        """The nodes at `paths`, in this order; None where there is no node."""

    @abstractmethod
    async def children(self, paths: Sequence[str], *, timeout: float | None = None) -> list[list[str] | None]:
        """The names of the children of each path, sorted; None where there is no node."""

    @abstractmethod
    async def tree(self, root: str, *, timeout: float | None = None) -> dict[str, Node]:
        """The whole subtree by path, `root` included; empty if `root` does not exist. One round trip a level."""

    @abstractmethod
    async def sync(self, *, timeout: float | None = None) -> None:
        """Later reads of this connection see at least what was committed anywhere before this call."""

    # -- writes --

    @abstractmethod
    async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
        """Apply all operations as one transaction.

        Raises GuardFailed (with the first operation that failed), RequestTooLarge.
        """

    @abstractmethod
    async def create_sequential(
        self, prefix: str, data: bytes = b"", *, ephemeral: bool = True, timeout: float | None = None
    ) -> str:
        """Make a node at `prefix` + ten digits that grow with each such call under the same parent; returns its path.

        The parent must exist (GuardFailed NO_NODE otherwise). `prefix` may end in "/". Raises RequestTooLarge.
        """

    # -- watches --

    @abstractmethod
    async def watch_tree(self, root: str, listener: TreeListener) -> TreeWatch:
        """Watch `root` and everything below it, now and later, also while `root` does not exist."""

    @abstractmethod
    async def read_and_watch(self, path: str, listener: Callable[[], None], *, timeout: float | None = None) -> Node | None:
        """Read one node, and have `listener` called once when it is next created, changed or deleted, or when the
        connection that would tell was interrupted."""


def operation_bytes(operation: Operation) -> int:
    """An upper estimate of what an operation takes in a request, in bytes."""
    data = operation.data if isinstance(operation, (Create, SetData)) else b""
    return 64 + len(operation.path.encode()) + len(data)


def refuse_too_large(operations: Sequence[Operation], max_operations: int, max_bytes: int) -> None:
    """Raise RequestTooLarge if `operations` are more than a registry with these limits takes in one transaction."""
    size = sum(map(operation_bytes, operations))
    if len(operations) > max_operations or size > max_bytes:
        raise RequestTooLarge(
            f"{len(operations)} operations of {size} bytes ({operations[0].path} …); at most {max_operations} operations"
            f" and {max_bytes} bytes go into one transaction: divide it"
        )


def check_path(path: str) -> str:
    """`path`, if it is as the module's text promises. Raises ValueError otherwise."""
    if path != "/" and (not path.startswith("/") or path.endswith("/") or "//" in path):
        raise ValueError(f'{path!r} is no path of a registry: it must start with "/", not end in it, and have no empty part')
    return path


def parent_of(path: str) -> str:
    """The parent's path; "/" for a node directly below the root."""
    return path.rpartition("/")[0] or "/"


def ancestors(path: str) -> list[str]:
    """All proper ancestors of `path` below the root, the highest first: "/a/b/c" → ["/a", "/a/b"]."""
    parts = path.split("/")[1:-1]
    return ["/" + "/".join(parts[: i + 1]) for i in range(len(parts))]


def in_transactions(groups: Iterable[Sequence[Operation]], *, max_operations: int, max_bytes: int) -> list[list[Operation]]:
    """Put groups of operations that belong together into as few transactions as the limits allow, in their order.

    A group that is over the limits by itself gets a transaction of its own.
    """
    transactions: list[list[Operation]] = []
    size = 0
    for group in groups:
        group_size = sum(operation_bytes(operation) for operation in group)
        full = not transactions or len(transactions[-1]) + len(group) > max_operations or size + group_size > max_bytes
        if full:
            transactions.append([])
            size = 0
        transactions[-1] += group
        size += group_size
    return transactions
