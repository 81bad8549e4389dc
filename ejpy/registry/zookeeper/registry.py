"""The registry's contract, told in ZooKeeper's requests. See the package's text for the parts."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, Sequence

from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ejpy.clock import Clock
from ejpy.config.zookeeper_hosts import format_hosts, parse_hosts
from ejpy.errors import RegistryError, RegistryUnavailable
from ejpy.registry.base import (
    Committed,
    Create,
    Node,
    Operation,
    Registry,
    SessionListener,
    SessionState,
    TreeListener,
    TreeWatch,
    check_path,
    refuse_too_large,
)
from ejpy.registry.session import SessionListeners
from ejpy.registry.zookeeper.faults import from_operation
from ejpy.registry.zookeeper.link import Link
from ejpy.registry.zookeeper.requests import (
    GET_CHILDREN,
    GET_DATA,
    Refused,
    as_names,
    as_node,
    create_sequential,
    read_many,
    sync,
    transaction,
)

log = logging.getLogger("ejpy.registry.zookeeper")

READ_PATHS = 500
"""Most paths of one request. Their replies are one message, which the server builds in memory."""
READ_BYTES = 256 * 1024
"""Most bytes of the paths of one request; the server takes requests of less than 1 MiB (jute.maxbuffer)."""


class ZooKeeperRegistry(Registry):
    """A registry in ZooKeeper 3.6 or later.

    Args:
        hosts: the servers, as "host:2181,other:2181"; IPv6 addresses in brackets.
        session_timeout: the session time-out to ask for, in seconds. The server grants between 2 and 20 of its ticks;
            `session_timeout_seconds` tells what it granted.
        clock: where leases take their time from; its `monotonic` is also called from another thread.
        credentials: user and password for ZooKeeper's digest scheme. Every node is made with an access list that allows
            everything to this user and nothing to others; without credentials, everything to everybody.

    Raises ConfigError if `hosts` cannot be understood.
    """

    def __init__(self, hosts: str, *, session_timeout: float, clock: Clock, credentials: tuple[str, str] | None = None) -> None:
        self._servers = parse_hosts(hosts)
        self._session_timeout = session_timeout
        self._clock = clock
        self._credentials = credentials
        self._acl: Sequence[ACL] = CREATOR_ALL_ACL if credentials else OPEN_ACL_UNSAFE
        self._listeners = SessionListeners()
        self._link: Link | None = None

    # -- life and session --

    @property
    def address(self) -> str:
        return format_hosts(self._servers)

    @property
    def state(self) -> SessionState:
        return self._link.guard.state if self._link else SessionState.LOST

    @property
    def failure(self) -> RegistryError | None:
        return self._link.failure if self._link else None

    @property
    def session_id(self) -> int | None:
        return self._link.guard.session_id if self._link else None

    @property
    def client_id(self) -> tuple[int, bytes] | None:
        """Id and password of the session while there is a connection. Whoever has both can end the session at once."""
        client_id: tuple[int, bytes] | None = self._link.client.client_id if self._link else None
        return client_id

    @property
    def lease_until(self) -> float:
        return self._link.guard.lease_until if self._link else -math.inf

    @property
    def session_timeout_seconds(self) -> float:
        """As granted by the server; before the first connection, as asked for."""
        return self._link.guard.session_timeout if self._link else self._session_timeout

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        return self._listeners.add(listener)

    async def start(self, timeout: float) -> None:
        """Connect and open a session.

        Raises RegistryUnreachable, naming each server and why it is of no use; AccessDenied if the credentials are refused;
        RegistryError if the server is too old. Nothing is left behind then, and `start` may be called again.
        """
        if self._link is not None:
            raise RuntimeError("the registry was started before; stop it first")
        link = Link(self._servers, self._session_timeout, self._clock, self._credentials, self._notify)
        self._link = link
        try:
            await link.open(timeout)
        except BaseException:
            self._link = None
            raise

    async def stop(self, timeout: float) -> None:
        """As promised by the contract. An orderly end is given a third of the session time-out, and `timeout` at most."""
        if self._link is not None:
            await self._link.close(timeout)
            self._link = None

    # -- reads --

    async def read(self, paths: Sequence[str], *, timeout: float | None = None) -> list[Node | None]:
        paths = list(map(check_path, paths))
        replies = await self._read(paths, (GET_DATA,), timeout)
        return [as_node(path, reply) for path, reply in zip(paths, replies, strict=True)]

    async def children(self, paths: Sequence[str], *, timeout: float | None = None) -> list[list[str] | None]:
        paths = list(map(check_path, paths))
        replies = await self._read(paths, (GET_CHILDREN,), timeout)
        return [as_names(path, reply) for path, reply in zip(paths, replies, strict=True)]

    async def tree(self, root: str, *, timeout: float | None = None) -> dict[str, Node]:
        link = self._started()
        deadline = link.loop.time() + link.timeout(timeout)
        found: dict[str, Node] = {}
        level = [check_path(root)]
        while level:
            replies = await self._read(level, (GET_DATA, GET_CHILDREN), max(0.0, deadline - link.loop.time()))
            below: list[str] = []
            for path, data, names in zip(level, replies[::2], replies[1::2], strict=True):
                node = as_node(path, data)
                if node is not None:
                    found[path] = node
                    prefix = "/" if path == "/" else f"{path}/"
                    below.extend(prefix + name for name in as_names(path, names) or ())
            level = below
        return found

    async def sync(self, *, timeout: float | None = None) -> None:
        await self._started().ask(sync(), timeout, path="/")

    # -- writes --

    async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
        for operation in operations:
            check_path(operation.path)
        refuse_too_large(operations, self.max_operations, self.max_bytes)
        about = operations[0].path if operations else "/"
        request = transaction(operations, self._acl)
        [reply] = await self._started().ask(request, timeout, path=about, write=True)
        if reply.culprit is not None:
            raise from_operation(reply.culprit, operations[reply.culprit].path, reply.code)
        return Committed(reply.revision, reply.versions)

    async def create_sequential(
        self, prefix: str, data: bytes = b"", *, ephemeral: bool = True, timeout: float | None = None
    ) -> str:
        check_path(f"{prefix}0")
        refuse_too_large([Create(prefix, data, ephemeral)], self.max_operations, self.max_bytes)
        request = create_sequential(prefix, data, ephemeral, self._acl)
        return await self._started().ask(request, timeout, path=prefix, write=True)

    # -- watches --

    async def watch_tree(self, root: str, listener: TreeListener) -> TreeWatch:
        check_path(root)
        link = self._started()
        link.require_session()
        return await link.watches.watch_tree(root, listener, link.timeout(None))

    async def read_and_watch(self, path: str, listener: Callable[[], None], *, timeout: float | None = None) -> Node | None:
        check_path(path)
        link = self._started()
        link.require_session()
        return await link.watches.read_and_watch(path, listener, link.timeout(timeout))

    # -- inside --

    def _started(self) -> Link:
        if self._link is None:
            raise RegistryUnavailable(f"the registry {self.address} is not started; the request was not sent")
        return self._link

    def _notify(self, state: SessionState) -> None:
        for tell in self._listeners:
            try:
                tell(state)
            except Exception:
                log.exception("a listener of the session failed at %s", state.value)

    async def _read(
        self, paths: Sequence[str], opcodes: Sequence[int], timeout: float | None
    ) -> list[Node | list[str] | Refused]:
        """The replies for every path and opcode, in this order; all requests go out at once."""
        link = self._started()
        link.require_session()
        seconds = link.timeout(timeout)
        requests = [
            link.channel.submit(read_many(chunk, opcodes), seconds, path=chunk[0]) for chunk in _chunks(paths, len(opcodes))
        ]
        return [reply for replies in await asyncio.gather(*requests) for reply in replies]


def _chunks(paths: Sequence[str], opcodes: int) -> Iterator[Sequence[str]]:
    """`paths` in parts that fit into one request each."""
    start, size = 0, 0
    for position, path in enumerate(paths):
        length = opcodes * (len(path.encode()) + 14)
        if position > start and (position - start == READ_PATHS or size + length > READ_BYTES):
            yield paths[start:position]
            start, size = position, 0
        size += length
    if start < len(paths):
        yield paths[start:]
