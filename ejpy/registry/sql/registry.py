"""The registry's contract, told in requests to the thread that does the SQL. See the package's text for the parts.

All here is on the loop. A request is answered in its turn, or its caller stops waiting at its deadline; then it is withdrawn
if it is not being committed at that moment. What the thread finds out (the lease renewed or not, the session over, nodes
changed) comes in the order in which it happened, so the reply to a request comes after the changes before it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from ejpy.clock import Clock
from ejpy.errors import OutcomeUnknown, RegistryError, RegistryUnavailable, RegistryUnreachable
from ejpy.registry.base import Node, SessionState, check_path
from ejpy.registry.leased import LeasedRegistry
from ejpy.registry.sql.changes import Changes
from ejpy.registry.sql.sqlite import SqliteFile
from ejpy.registry.sql.store import SqlStore
from ejpy.registry.sql.thread import Request, SqlThread
from ejpy.registry.transaction import Transaction

logger = logging.getLogger("ejpy.registry.sql")

T = TypeVar("T")


def read_boot_id() -> str:
    """An id that differs with every boot of this machine (Linux); "" where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class SqlRegistry(LeasedRegistry):
    """One worker's connection to the database at `url`, with a session of `session_timeout` seconds.

    `clock.monotonic` must be the same in all processes that share the file, as `SystemClock`'s is on one machine. `boot_id`
    is `read_boot_id()` unless given. Raises ConfigError for a URL that is not `sqlite:///path`.
    """

    def __init__(self, url: str, *, clock: Clock, session_timeout: float, boot_id: str | None = None) -> None:
        super().__init__(clock=clock, session_timeout=session_timeout)
        self._database = SqliteFile(url)
        self._boot_id = read_boot_id() if boot_id is None else boot_id
        self._thread: SqlThread | None = None
        self._thread_ended = asyncio.Event()
        self._cause = "not started"
        """Why there is no connection."""

    # -- life and session --

    @property
    def address(self) -> str:
        return self._database.address

    async def start(self, timeout: float) -> None:
        if self._thread is not None:
            return
        store = SqlStore(self._database, clock=self._clock, boot_id=self._boot_id, session_timeout=self._session.timeout)
        thread = SqlThread(
            store,
            clock=self._clock,
            session_timeout=self._session.timeout,
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
            self._session.close()

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
        paths = list(map(check_path, paths))
        return await self._request(lambda store, request: store.read(paths, request.deadline), timeout, writes=False)

    async def children(self, paths: Sequence[str], *, timeout: float | None = None) -> list[list[str] | None]:
        paths = list(map(check_path, paths))
        return await self._request(lambda store, request: store.children(paths, request.deadline), timeout, writes=False)

    async def tree(self, root: str, *, timeout: float | None = None) -> dict[str, Node]:
        check_path(root)
        return await self._request(lambda store, request: store.tree(root, request.deadline), timeout, writes=False)

    async def sync(self, *, timeout: float | None = None) -> None:
        await self._request(lambda store, request: store.touch(request.deadline), timeout, writes=False)

    # -- writes and watches --

    async def _write(self, paths: Sequence[str], change: Callable[[Transaction], T], timeout: float | None) -> T:
        session_id = self._session.id or 0
        return await self._request(
            lambda store, request: store.write(session_id, paths, change, request.deadline, request.take), timeout, writes=True
        )

    async def _read_and_arm(self, path: str, arm: Callable[[], None], timeout: float | None) -> Node | None:
        def on_reply(reply: tuple[Changes, Node | None]) -> None:
            # What changed before is told first, to those who watched before; the new watch is for what follows.
            self.changed(reply[0])
            arm()

        _, node = await self._request(
            lambda store, request: store.changes_and_node(path, request.deadline), timeout, writes=False, on_reply=on_reply
        )
        return node

    # -- requests --

    async def _request(
        self,
        work: Callable[[SqlStore, Request], T],
        timeout: float | None,
        *,
        writes: bool,
        on_reply: Callable[[T], None] | None = None,
    ) -> T:
        if self._thread is None or self._session.state is not SessionState.CONNECTED:
            raise RegistryUnavailable(f"registry {self.address}: not connected ({self._cause})")
        return await self._submit(work, self._session.timeout if timeout is None else timeout, writes=writes, on_reply=on_reply)

    async def _submit(
        self,
        work: Callable[[SqlStore, Request], T],
        timeout: float,
        *,
        writes: bool,
        on_reply: Callable[[T], None] | None = None,
    ) -> T:
        """Have the thread do `work`. `on_reply` is called with its result before anything that happens later is told, also if
        the caller waits no longer."""
        assert self._thread is not None
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T, failure: Exception | None) -> None:
            if failure is None and on_reply is not None:
                on_reply(result)
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
        if session_id != self._session.id:
            self._session.opened(session_id)
        self._session.renewed(sent)
        if self._session.state is not SessionState.CONNECTED:
            self._go_on()

    def lease_not_renewed(self, cause: str) -> None:
        if self._thread is not None:
            self._cause = self._without_address(cause)
            self._suspend()

    def session_ended(self, session_id: int) -> None:
        if self._thread is not None and session_id == self._session.id:
            self._cause = "the session ended"
            self._session.ended()

    def changed(self, paths: Changes) -> None:
        if self._thread is not None and paths != frozenset():
            self._watches.changed(paths)

    def thread_ended(self) -> None:
        self._thread_ended.set()
        if self._thread is not None:
            self._cause = "the thread that served it has died"
            self._session.ended()

    def _suspend(self) -> None:
        if self._session.state is SessionState.CONNECTED:
            logger.warning("registry %s: connection interrupted: %s", self.address, self._cause)
        self._break_off()

    def _without_address(self, text: str) -> str:
        return text.removeprefix(f"registry {self.address}: ")
