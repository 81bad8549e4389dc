"""What the registries have in common that keep the tree themselves and whose sessions are leases: in memory, in a database.

Whatever a caller asks for enters here: paths and sizes are checked, a write becomes a change of a `Transaction`, a watch is
armed by the request that asks for it. How a request gets to the store and back, and how the lease is renewed, is the
subclass's.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from ejpy.clock import Clock
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
from ejpy.registry.session import LeasedSession
from ejpy.registry.transaction import Transaction
from ejpy.registry.watches import Watches

T = TypeVar("T")


class LeasedRegistry(Registry):
    """A registry with a session of `session_timeout` seconds, whose lease `clock.monotonic` dates."""

    def __init__(self, *, clock: Clock, session_timeout: float) -> None:
        self._clock = clock
        self._session = LeasedSession(clock, session_timeout, interrupt=self._suspend)
        self._watches = Watches(self._deliver)

    # -- for the subclass to define --

    @abstractmethod
    async def _write(self, paths: Sequence[str], change: Callable[[Transaction], T], timeout: float | None) -> T:
        """Do `change` in a transaction of the store, under the present session, and return its result.

        `paths` are those that it will look at, their parents aside. Raises what `Registry.commit` raises.
        """

    @abstractmethod
    async def _read_and_arm(self, path: str, arm: Callable[[], None], timeout: float | None) -> Node | None:
        """Read a node, and call `arm` at a moment from which on no change is missed that the reply does not show."""

    @abstractmethod
    def _suspend(self) -> None:
        """The connection is broken, or the session is over: let go of what is under way, and `_break_off`."""

    def _deliver(self, event: Callable[[], None]) -> None:
        """Have a watch event carried out in a later turn of the loop."""
        asyncio.get_running_loop().call_soon(event)

    # -- session --

    @property
    def state(self) -> SessionState:
        return self._session.state

    @property
    def session_id(self) -> int | None:
        return self._session.id

    @property
    def lease_until(self) -> float:
        return self._session.lease_until

    @property
    def session_timeout_seconds(self) -> float:
        return self._session.timeout

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        return self._session.listeners.add(listener)

    # -- writes --

    async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
        operations = list(operations)
        paths = [check_path(operation.path) for operation in operations]
        refuse_too_large(operations, self.max_operations, self.max_bytes)

        def change(transaction: Transaction) -> Committed:
            return Committed(transaction.revision, transaction.apply(operations))

        return await self._write(paths, change, timeout)

    async def create_sequential(
        self, prefix: str, data: bytes = b"", *, ephemeral: bool = True, timeout: float | None = None
    ) -> str:
        check_path(f"{prefix}0")
        refuse_too_large([Create(prefix, data, ephemeral)], self.max_operations, self.max_bytes)

        def change(transaction: Transaction) -> str:
            return transaction.create_sequential(prefix, data, ephemeral=ephemeral)

        return await self._write([prefix], change, timeout)

    # -- watches --

    async def watch_tree(self, root: str, listener: TreeListener) -> TreeWatch:
        watch = self._watches.tree(check_path(root), listener)
        try:
            await self._read_and_arm(root, watch.arm, None)
        except BaseException:
            watch.close()
            raise
        return watch

    async def read_and_watch(self, path: str, listener: Callable[[], None], *, timeout: float | None = None) -> Node | None:
        watch = self._watches.one_shot(check_path(path), listener)
        try:
            return await self._read_and_arm(path, watch.arm, timeout)
        except BaseException:
            watch.close()
            raise

    # -- inside --

    def _break_off(self) -> None:
        """Tell that the connection is broken, if it was not."""
        if self._session.state is SessionState.CONNECTED:
            self._session.become(SessionState.SUSPENDED)
            self._watches.interrupted()

    def _go_on(self) -> None:
        """Tell that there is a connection again."""
        self._session.become(SessionState.CONNECTED)
        self._watches.resumed()
