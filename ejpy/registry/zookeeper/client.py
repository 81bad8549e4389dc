"""kazoo's client and connection with the hooks that ejpy needs. Written against kazoo 2.11, which setup.cfg pins.

What is changed, and what failure each change guards against:

* *One lock around state changes and sending.* A request is given to kazoo only while there is a connection, and under the
  session it was made for. kazoo alone queues requests while it has no connection, and could take one that was decided
  under one session into the next (between its check of the state and its append to the queue).
* *The negotiated session time-out* and the moment when the session was asked for are kept; kazoo uses and forgets them.
* *Watch events* go to the loop unseen by kazoo, which knows one-shot watches only.
* *A reply that was not to be expected* (out of order, an unknown error code) breaks the connection, and another is made;
  kazoo's thread would die of it.
* *Why a server could not be reached* is kept per address; kazoo only says "connection time-out".
* *kazoo's log* is cut below ERROR. Its debug lines hold credentials and the data of nodes; what its other lines tell is
  logged in `outage` and `link` with the address and the cause.

Everything for the loop goes through a `Handover`: in the order of the wire, with one wake-up for many.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, ZookeeperError
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect, Watch
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from ejpy.clock import Clock
from ejpy.config.zookeeper_hosts import format_hosts
from ejpy.registry.zookeeper.handler import PollHandler
from ejpy.registry.zookeeper.outage import Outage

log = logging.getLogger("ejpy.registry.zookeeper")
kazoo_log = logging.getLogger("ejpy.registry.zookeeper.kazoo")


def _errors_only(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


kazoo_log.addFilter(_errors_only)


class Handover:
    """Carries calls from kazoo's thread to the loop, in order. Safe from any thread; nothing is carried to a closed loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

    def put(self, call: Callable[..., None], *arguments: Any) -> None:
        with self._lock:
            self._calls.append((call, arguments))
            if len(self._calls) > 1:
                return  # a wake-up is on its way
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            log.debug("the loop is closed; what came after it has nobody to go to")

    def _deliver(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, []
        for call, arguments in calls:
            try:
                call(*arguments)
            except Exception:
                log.exception("a call from the ZooKeeper connection failed")


class ClientListener(Protocol):
    """Who is told what happens to the connection. All methods are called on the loop."""

    def connected(self, session_id: int, session_timeout: float, asked_at: float) -> None:
        """There is a connection under this session. `asked_at`: `Clock.monotonic` when the session was asked for."""

    def disconnected(self) -> None:
        """The connection is gone; the session may live."""

    def ended(self, state: str) -> None:
        """The session is over; `state` is kazoo's KeeperState: expired, refused credentials, or closed."""

    def changed(self, kind: int, path: str) -> None:
        """A watch event; `kind` is ZooKeeper's number of it."""


class Outgoing(Protocol):
    """What kazoo takes as a request and as the place for its result."""

    def set(self, value: Any) -> None: ...

    def set_exception(self, error: Exception) -> None: ...


class Client(KazooClient):  # type: ignore[misc]  # kazoo has no types
    """One connection to ZooKeeper, and one session after another. Start with `start_async`, end with `stop` and `close`."""

    def __init__(
        self,
        servers: list[tuple[str, int]],
        session_timeout: float,
        clock: Clock,
        credentials: tuple[str, str] | None,
        handover: Handover,
        listener: ClientListener,
    ) -> None:
        handler = PollHandler(session_timeout / (len(servers) + 1))
        super().__init__(
            hosts=format_hosts(servers),
            timeout=session_timeout,
            handler=handler,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=1),
            command_retry=KazooRetry(max_tries=1),
            auth_data=[("digest", ":".join(credentials))] if credentials else None,
            default_acl=CREATOR_ALL_ACL if credentials else OPEN_ACL_UNSAFE,
            logger=kazoo_log,
        )
        self._connection = Connection(self, self._conn_retry.copy(), kazoo_log, clock, handover, listener)
        self._state_lock = threading.Lock()
        self._handover = handover
        self._listener = listener
        self.add_listener(self._on_state)

    @property
    def trouble(self) -> dict[str, str]:
        """For each address that was tried since the last success: why it is of no use."""
        return dict(self._connection.trouble)

    def send(self, outgoing: Outgoing, session_id: int) -> bool:
        """Give a request to kazoo; False, and nothing happens, without a connection under this session.

        It will be sent under this session, or fail.
        """
        with self._state_lock:
            if not self.connected or self._session_id != session_id:
                return False
            self._call(outgoing, outgoing)
            return True

    def cut(self, session_id: int) -> None:
        """Break the connection, if there is one under this session, so that kazoo makes another."""
        with self._state_lock:
            if self.connected and self._session_id == session_id:
                self.handler.cut()

    def abort(self) -> None:
        """Break the connection, whatever state it is in, and make no other."""
        self.handler.abort()

    def _session_callback(self, state: str) -> None:
        with self._state_lock:
            super()._session_callback(state)

    def _on_state(self, state: str) -> None:
        """kazoo's listener, in kazoo's thread: it hands over and does nothing else."""
        if state == KazooState.CONNECTED:
            arguments = (self._session_id, self._connection.session_timeout, self._connection.asked_at)
            self._handover.put(self._listener.connected, *arguments)
        elif state == KazooState.SUSPENDED:
            self._handover.put(self._listener.disconnected)
        else:
            self._handover.put(self._listener.ended, self._state)


class Connection(ConnectionHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's connection thread. All methods but the constructor run in it."""

    def __init__(
        self,
        client: Client,
        retry: KazooRetry,
        logger: logging.Logger,
        clock: Clock,
        handover: Handover,
        listener: ClientListener,
    ) -> None:
        super().__init__(client, retry, logger=logger)
        self._clock = clock
        self._handover = handover
        self._listener = listener
        self.session_timeout = 0.0
        self.asked_at = 0.0
        self.trouble: dict[str, str] = {}
        self._server = ""
        self._outage = Outage()

    def _expand_client_hosts(self) -> list[tuple[str, str, int]]:
        found: list[tuple[str, str, int]] = super()._expand_client_hosts()
        for host, port in self.client.hosts:
            if host not in {name for name, _, _ in found}:
                self._failed(format_hosts([(host, port)]), "the host name cannot be resolved")
        return found

    def _connect(self, host: str, address: str, port: int) -> tuple[float, float]:
        self._server = format_hosts([(host, port)])
        self.trouble[self._server] = "it does not answer the TCP connect"
        try:
            timeouts: tuple[float, float] = super()._connect(host, address, port)
        except self.handler.timeout_exception:
            self._failed(self._server, self.trouble[self._server])
            raise
        except ConnectionDropped as error:
            self._failed(self._server, str(error))
            raise
        self.trouble.clear()
        self._outage.over()
        return timeouts

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        self.trouble[self._server] = "it accepts connections, but does not answer as a ZooKeeper server"
        asked_at = self._clock.monotonic()
        reply, zxid = super()._invoke(min(timeout, self.handler.connect_bound_seconds), request, xid)
        if reply.time_out > 0:
            self.asked_at = asked_at
            self.session_timeout = reply.time_out / 1000
            self.handler.connect_bound_seconds = self.session_timeout / (len(self.client.hosts) + 1)
        return reply, zxid

    def _read_socket(self, read_timeout: float) -> Any:
        try:
            return super()._read_socket(read_timeout)
        except (ConnectionDropped, ZookeeperError, self.handler.timeout_exception):
            raise
        except Exception as error:
            # kazoo's thread would end for good. What it is about can only be a reply that was not to be expected.
            log.exception("ZooKeeper server %s: a message that cannot be understood", self._server)
            raise ConnectionDropped("a message that cannot be understood") from error

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        self._handover.put(self._listener.changed, event.type, event.path)

    def _failed(self, server: str, cause: str) -> None:
        self.trouble[server] = cause
        self._outage.failed(server, cause, self._clock.monotonic())


REFUSED_CREDENTIALS = KeeperState.AUTH_FAILED
EXPIRED = KeeperState.EXPIRED_SESSION
CLOSED = KeeperState.CLOSED
