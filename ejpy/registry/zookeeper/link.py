"""Everything that exists between `start` and `stop`: a client, its channel, the guard of its session, its watches.

At a new connection things happen in this order, all in one turn of the loop: the standing watches are asked for, a `sync`
is sent as the guard's first probe, and only then the registry's listeners hear CONNECTED. Since ZooKeeper answers one
connection's requests in order, whatever the listeners read sees what was committed before, and no change after it is lost.

Ending. kazoo's `stop` can wait for ever, so it runs in a thread of its own. An orderly end needs one answer from the server;
when it does not come for as long as the guard would wait for a probe, the connection is broken off, and the server will
end the session by itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from ejpy.clock import Clock
from ejpy.config.zookeeper_hosts import format_hosts
from ejpy.errors import AccessDenied, RegistryError, RegistryUnavailable, RegistryUnreachable
from ejpy.registry.base import Node, SessionState
from ejpy.registry.zookeeper.channel import Channel
from ejpy.registry.zookeeper.client import EXPIRED, REFUSED_CREDENTIALS, Client, Handover
from ejpy.registry.zookeeper.guard import PROBE_PATIENCE, SessionGuard
from ejpy.registry.zookeeper.handler import THREAD_NAME
from ejpy.registry.zookeeper.requests import GET_DATA, Refused, Request, read_many, sync
from ejpy.registry.zookeeper.watches import Watches

log = logging.getLogger("ejpy.registry.zookeeper")

BREAK_OFF_SECONDS = 1.0
"""How long a client whose connection was broken off may take to end. It takes a tenth of a second."""

T = TypeVar("T")


class Link:
    """One client from its start to its end. All methods are called on the loop that made it."""

    def __init__(
        self,
        servers: list[tuple[str, int]],
        session_timeout: float,
        clock: Clock,
        credentials: tuple[str, str] | None,
        notify: Callable[[SessionState], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._address = format_hosts(servers)
        self._handover = Handover(self.loop)
        self.client = Client(servers, session_timeout, clock, credentials, self._handover, self)
        self.channel = Channel(self.loop, self.client, self._handover, self._expired)

        def changed(state: SessionState) -> None:
            if state is SessionState.LOST:
                # A server that was restored from an older state refuses clients that have seen a newer one. With the session
                # nothing is left that rests on that; `sync` comes before the next one is used.
                self.client.last_zxid = 0
            notify(state)

        self.guard = SessionGuard(self.loop, clock, session_timeout, probe=self._probe, cut=self._cut, notify=changed)
        self.watches = Watches(self.loop, self.channel, self._cut)
        self._asked_timeout = session_timeout
        self._told_timeout = session_timeout
        self._opened: asyncio.Future[None] = self.loop.create_future()
        self._failure: RegistryError | None = None
        self._ending: asyncio.Task[None] | None = None

    # -- life --

    async def open(self, timeout: float) -> None:
        """Connect. Raises an error of the registry, and leaves nothing behind then."""
        try:
            self.client.start_async()
            await asyncio.wait([self._opened], timeout=timeout)
            if not self._opened.done():
                raise RegistryUnreachable(self._address, self._why_unreachable(timeout))
            self._opened.result()
        except BaseException:
            await self.close(BREAK_OFF_SECONDS)
            raise

    async def close(self, timeout: float) -> None:
        """End the session and everything else. Takes `timeout` and a second at most. Idempotent."""
        if self._ending is None:
            self._ending = self.loop.create_task(self._end(timeout))
        await asyncio.shield(self._ending)

    async def ask(self, request: Request[T], timeout: float | None, *, path: str, write: bool = False) -> T:
        """Send a request and get its reply."""
        self.require_session()
        return await self.channel.submit(request, self.timeout(timeout), path=path, write=write)

    def require_session(self) -> None:
        """Raise unless the session is CONNECTED."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # or it would grow with each call
        state = self.guard.state
        if state is not SessionState.CONNECTED:
            raise RegistryUnavailable(f"the ZooKeeper session at {self._address} is {state.value}; the request was not sent")

    def timeout(self, timeout: float | None) -> float:
        """The time-out of a request, in seconds."""
        return self.guard.session_timeout if timeout is None else timeout

    # -- what happens to the connection (ClientListener) --

    def connected(self, session_id: int, session_timeout: float, asked_at: float) -> None:
        if self._ending is not None:
            return
        self._compare_timeouts(session_timeout)
        self.channel.open(session_id)
        if not self._opened.done():
            self._ask_version()
        self.watches.connected()
        self.guard.established(session_id, session_timeout, asked_at)

    def disconnected(self) -> None:
        self.channel.close()
        self.guard.interrupted("the connection was lost")
        self.watches.interrupted()

    def ended(self, state: str) -> None:
        self.channel.close()
        if state == EXPIRED:
            self.guard.ended("the server has ended the session")
        elif self._ending is None:
            self._give_up(state)
        self.watches.interrupted()

    @property
    def failure(self) -> RegistryError | None:
        """Why it will not come back."""
        return self._failure

    def changed(self, kind: int, path: str) -> None:
        self.watches.changed(kind, path)

    # -- inside --

    def _probe(self, answered: Callable[[], None]) -> None:
        probe = self.channel.submit(sync(), None, path="/", urgent=True, on_reply=lambda _: answered())
        probe.add_done_callback(_note_failure)

    def _cut(self, why: str) -> None:
        log.warning("breaking the connection to ZooKeeper %s: %s", self._address, why)
        if self.guard.session_id is not None:
            self.client.cut(self.guard.session_id)

    def _expired(self, session_id: int) -> None:
        """A request was refused since its session is over: kazoo learns that only from a new connection."""
        if session_id == self.guard.session_id:
            self.guard.ended("the server has ended the session")
            self.client.cut(session_id)

    def _give_up(self, state: str) -> None:
        """kazoo's thread has ended, and will not come back."""
        if state == REFUSED_CREDENTIALS:
            self._failure = AccessDenied(
                f"ZooKeeper {self._address} refused the credentials (AuthFailed); check the digest user and password"
            )
        elif self._failure is None:
            self._failure = RegistryError(f"the connection to ZooKeeper {self._address} has ended; the log tells why")
        log.error("%s", self._failure)
        self.guard.ended(str(self._failure))
        if not self._opened.done():
            self._opened.set_exception(self._failure)

    def _ask_version(self) -> None:
        """Find out whether the server knows multiRead and addWatch, which came with the same version.

        It must be the first request of a connection: a server refuses what it does not know at once, without waiting for
        the replies to earlier requests, and kazoo takes replies in order only.
        """
        check = self.channel.submit(read_many(["/"], (GET_DATA,)), None, path="/", urgent=True)
        check.add_done_callback(self._version_known)

    def _version_known(self, check: asyncio.Future[list[Node | list[str] | Refused]]) -> None:
        error = check.exception()
        if self._opened.done() or self._ending is not None or isinstance(error, RegistryUnavailable):
            return  # the connection was lost before the answer: there will be another
        if error is None:
            self._opened.set_result(None)
        else:
            self._opened.set_exception(error)

    def _compare_timeouts(self, session_timeout: float) -> None:
        if session_timeout != self._told_timeout:
            log.warning(
                "ZooKeeper %s grants a session time-out of %g s instead of %g s; see the server's minSessionTimeout, "
                "maxSessionTimeout and tickTime",
                self._address,
                session_timeout,
                self._asked_timeout,
            )
        self._told_timeout = session_timeout

    def _why_unreachable(self, timeout: float) -> str:
        trouble = self.client.trouble
        if not trouble:
            return f"the connection broke off, and there was no other within {timeout:g} s"
        return "; ".join(f"{server}: {cause}" for server, cause in trouble.items())

    async def _end(self, timeout: float) -> None:
        patience = min(timeout, PROBE_PATIENCE * self.guard.session_timeout)
        if self.guard.state is not SessionState.CONNECTED:
            patience = 0.0
        self.guard.forget()
        self.channel.close()
        self.watches.forget()
        stopped = asyncio.Event()
        stopping = threading.Thread(target=self._stop_client, args=(stopped,), name=f"{THREAD_NAME}-stop", daemon=True)
        stopping.start()
        if not await _is_set(stopped, patience):
            self.client.abort()
            if not await _is_set(stopped, BREAK_OFF_SECONDS):
                log.warning("the connection to ZooKeeper %s did not end in time and is left to itself", self._address)
                return
        stopping.join()  # it said that it has nothing left to do

    def _stop_client(self, stopped: asyncio.Event) -> None:
        try:
            self.client.stop()
            self.client.close()
        except Exception:
            log.exception("the connection to ZooKeeper %s could not be closed", self._address)
        finally:
            self._handover.put(stopped.set)


async def _is_set(event: asyncio.Event, timeout: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), timeout)
    except asyncio.TimeoutError:
        return False
    return True


def _note_failure(probe: asyncio.Future[None]) -> None:
    if error := probe.exception():
        log.debug("a probe of the session failed: %s", error)
