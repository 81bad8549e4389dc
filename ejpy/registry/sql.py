"""The embedded registry: a SQLite file that several worker processes on one machine share. Nothing to install, no server.

    sqlite:///relative/path.db      sqlite:////absolute/path.db

The file is made if it is missing, its directory is not. It must lie on a local file system: SQLite's locks and shared memory
do not work across machines.

Sessions are leases on the machine's monotonic clock, which all its processes share and which no change of the wall clock
moves. A process that is killed is missed when its lease is over, by whoever renews its own lease next: at most 4/3 of the
session time-out after its last sign of life. A process that was stopped for longer finds its session over and gets a new one.

What makes the registry SUSPENDED: the lease could not be renewed, because another process keeps the file locked, the disk
fails, the file is gone. It tries again every sixth of the session time-out. A file that was deleted is not made again under
running workers (it may have been unmounted): they wait until a file is there again, and start from what it says.

A frozen process (SIGSTOP, debugger) that is caught in the middle of its write holds the lock: nobody can write until it goes
on or is killed. That is the price of having no server.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ejpy.clock import Clock
from ejpy.errors import OutcomeUnknown, RegistryError, RegistryUnavailable, RegistryUnreachable
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
)
from ejpy.registry.memory import LEASE_MARGIN, OneShot, Watches, refuse_too_large
from ejpy.registry.sql_sqlite import SqliteFile
from ejpy.registry.sql_store import Changes, SqlStore
from ejpy.registry.sql_thread import Request, SqlThread

logger = logging.getLogger("ejpy.registry.sql")

T = TypeVar("T")


def read_boot_id() -> str:
    """An id that differs with every boot of this machine (Linux); "" where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class SqlRegistry(Registry):
    """One worker's connection to the database at `url`, with a session of `session_timeout` seconds.

    `clock.monotonic` must be the same in all processes that share the file, as `SystemClock`'s is on one machine. `boot_id`
    is `read_boot_id()` unless given. Raises ConfigError for a URL that is not `sqlite:///path`.
    """

    def __init__(self, url: str, *, clock: Clock, session_timeout: float, boot_id: str | None = None) -> None:
        self._database = SqliteFile(url)
        self._clock = clock
        self._session_timeout = session_timeout
        self._boot_id = read_boot_id() if boot_id is None else boot_id
        self._state = SessionState.LOST
        self._session_id: int | None = None
        self._lease_until = -math.inf
        self._lease_timer: asyncio.TimerHandle | None = None
        self._listeners: list[SessionListener] = []
        self._watches = Watches(_in_next_turn)
        self._pending: dict[asyncio.Future[Any], None] = {}
        self._thread: SqlThread | None = None
        self._thread_ended = asyncio.Event()
        self._cause = "not started"
        """Why there is no connection."""

    # -- life and session --

    @property
    def address(self) -> str:
        return self._database.address

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
        if self._thread is not None:
            return
        store = SqlStore(self._database, clock=self._clock, boot_id=self._boot_id, session_timeout=self._session_timeout)
        thread = SqlThread(
            store,
            clock=self._clock,
            session_timeout=self._session_timeout,
            loop=asyncio.get_running_loop(),
            events=self,
        )
        self._thread, self._thread_ended = thread, asyncio.Event()
        sent = self._clock.monotonic()

        def open_session(store: SqlStore, request: Request) -> int:
            store.open(request.deadline, create=True)
            return store.open_session(request.deadline)

        thread.start()
        try:
            session_id = await self._submit(open_session, timeout, writes=False)
        except BaseException as error:
            self._thread = None
            await self._end(thread, 1.0)
            if isinstance(error, RegistryError):
                raise RegistryUnreachable(self.address, self._without_address(str(error))) from error
            raise
        self.lease_renewed(session_id, sent)

    async def stop(self, timeout: float) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            await self._end(thread, timeout)
        finally:
            self._watches.close()
            if self._lease_timer is not None:
                self._lease_timer.cancel()
                self._lease_timer = None
            self._session_id = None
            self._lease_until = -math.inf
            self._become(SessionState.LOST)

    async def _end(self, thread: SqlThread, timeout: float) -> None:
        thread.stop(self._clock.monotonic() + 0.9 * timeout)
        ended = asyncio.ensure_future(self._thread_ended.wait())
        await asyncio.wait({ended}, timeout=timeout)
        if ended.done():
            thread.join()
        else:
            ended.cancel()
            logger.warning("registry %s did not answer within %g s, and is left behind", self.address, timeout)

    # -- reads --

    async def read(self, paths: Sequence[str], *, timeout: float | None = None) -> list[Node | None]:
        paths = list(paths)
        return await self._request(lambda store, request: store.read(paths, request.deadline), timeout, writes=False)

    async def children(self, paths: Sequence[str], *, timeout: float | None = None) -> list[list[str] | None]:
        paths = list(paths)
        return await self._request(lambda store, request: store.children(paths, request.deadline), timeout, writes=False)

    async def tree(self, root: str, *, timeout: float | None = None) -> dict[str, Node]:
        return await self._request(lambda store, request: store.tree(root, request.deadline), timeout, writes=False)

    async def sync(self, *, timeout: float | None = None) -> None:
        await self._request(lambda store, request: store.touch(request.deadline), timeout, writes=False)

    # -- writes --

    async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
        operations = list(operations)
        refuse_too_large(self, operations)
        session_id = self._session_id or 0
        return await self._request(
            lambda store, request: store.commit(session_id, operations, request.deadline, request.take), timeout, writes=True
        )

    async def create_sequential(
        self, prefix: str, data: bytes = b"", *, ephemeral: bool = True, timeout: float | None = None
    ) -> str:
        refuse_too_large(self, [Create(prefix, data, ephemeral)])
        session_id = self._session_id or 0
        return await self._request(
            lambda store, request: store.create_sequential(session_id, prefix, data, ephemeral, request.deadline, request.take),
            timeout,
            writes=True,
        )

    # -- watches --

    # What changed before a watch is made is told first, to those who watched before; the new watch is for what follows.

    async def watch_tree(self, root: str, listener: TreeListener) -> TreeWatch:
        added: list[TreeWatch] = []

        def watch(changes: Changes, wanted: bool) -> None:
            self.changed(changes)
            if wanted:
                added.append(self._watches.add_tree(root, listener))

        try:
            await self._request(lambda store, request: store.changes(request.deadline), None, writes=False, on_reply=watch)
        except BaseException:
            for tree_watch in added:
                tree_watch.close()
            raise
        return added[0]

    async def read_and_watch(self, path: str, listener: Callable[[], None], *, timeout: float | None = None) -> Node | None:
        added: list[OneShot] = []

        def watch(reply: tuple[Changes, Node | None], wanted: bool) -> None:
            self.changed(reply[0])
            if wanted:
                added.append(self._watches.add_one_shot(path, listener))

        try:
            _, node = await self._request(
                lambda store, request: store.changes_and_node(path, request.deadline), timeout, writes=False, on_reply=watch
            )
        except BaseException:
            for one_shot in added:
                one_shot.withdraw()
            raise
        return node

    # -- requests --

    def _require_connection(self) -> None:
        if self._thread is None or self._state is not SessionState.CONNECTED:
            raise RegistryUnavailable(f"registry {self.address}: not connected ({self._cause})")

    async def _request(
        self,
        work: Callable[[SqlStore, Request], T],
        timeout: float | None,
        *,
        writes: bool,
        on_reply: Callable[[T, bool], None] | None = None,
    ) -> T:
        self._require_connection()
        return await self._submit(work, self._session_timeout if timeout is None else timeout, writes=writes, on_reply=on_reply)

    async def _submit(
        self,
        work: Callable[[SqlStore, Request], T],
        timeout: float,
        *,
        writes: bool,
        on_reply: Callable[[T, bool], None] | None = None,
    ) -> T:
        """Have the thread do `work`. `on_reply` is called with its result before anything that happens later is told, and
        with whether the caller still waits for it."""
        assert self._thread is not None
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T, failure: Exception | None) -> None:
            if failure is None and on_reply is not None:
                on_reply(result, not future.done())
            if future.done():
                return
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)

        # The thread stops waiting for locks before the caller stops waiting for it, so that the caller learns the cause.
        request = Request(work, deadline=self._clock.monotonic() + 0.9 * timeout, on_done=done)
        self._thread.submit(request)
        try:
            await asyncio.wait({future}, timeout=timeout)
            if future.done():
                return future.result()
            withdrawn = request.take()
            text = f"registry {self.address}: no answer within {timeout:g} s"
            raise OutcomeUnknown(text) if writes and not withdrawn else RegistryUnavailable(text)
        finally:
            request.take()
            if not future.cancel():
                future.exception()  # it is seen, even if the caller was cancelled at this moment

    # -- what the thread tells --

    def lease_renewed(self, session_id: int, sent: float) -> None:
        if self._thread is None:
            return
        if session_id != self._session_id:
            self._session_id = session_id
            self._lease_until = -math.inf
        self._lease_until = max(self._lease_until, sent + self._session_timeout * (1 - LEASE_MARGIN))
        if self._lease_timer is None:
            self._look_at_lease_in(self._lease_until - self._clock.monotonic())
        if self._state is not SessionState.CONNECTED:
            self._become(SessionState.CONNECTED)
            self._watches.resumed()

    def lease_not_renewed(self, cause: str) -> None:
        if self._thread is not None:
            self._cause = self._without_address(cause)
            self._suspend()

    def session_ended(self, session_id: int) -> None:
        if self._thread is not None and session_id == self._session_id:
            self._lose("the session ended")

    def changed(self, paths: Changes) -> None:
        if self._thread is not None and paths != frozenset():
            self._watches.changed(paths)

    def thread_ended(self) -> None:
        self._thread_ended.set()
        if self._thread is not None:
            self._lose("the thread that served it has died")

    # -- session --

    def _look_at_lease_in(self, seconds: float) -> None:
        self._lease_timer = asyncio.get_running_loop().call_later(max(seconds, 0.001), self._look_at_lease)

    def _look_at_lease(self) -> None:
        self._lease_timer = None
        remaining = self._lease_until - self._clock.monotonic()
        if remaining > 0:
            self._look_at_lease_in(remaining)
        else:
            self._suspend()
            self._become(SessionState.LOST)

    def _lose(self, cause: str) -> None:
        self._cause = cause
        self._lease_until = -math.inf
        self._suspend()
        self._become(SessionState.LOST)

    def _suspend(self) -> None:
        if self._state is SessionState.CONNECTED:
            logger.warning("registry %s: connection interrupted: %s", self.address, self._cause)
            self._become(SessionState.SUSPENDED)
            self._watches.interrupted()

    def _without_address(self, text: str) -> str:
        return text.removeprefix(f"registry {self.address}: ")

    def _become(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            for listener in self._listeners:
                asyncio.get_running_loop().call_soon(listener, state)


def _in_next_turn(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)
