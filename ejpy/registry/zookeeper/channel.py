"""Requests under way: how many at a time, how long, and what it means when no reply comes.

A request is *waiting* (for room in the window), then *under way* (kazoo has it), then *over*. Its caller's deadline may
pass in each of them. A request that waits has certainly had no effect. One that is under way keeps its place in the window
until kazoo has done with it, whether its caller still waits or not: kazoo cannot take it back, and what it holds must stay
bounded. When the connection goes, everything is over: what waits is refused, and what was under way has no reply. Nothing is
kept for the next connection, so nothing crosses from one session into another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, SessionExpiredError

from ejpy.errors import OutcomeUnknown, RegistryError, RegistryUnavailable
from ejpy.registry.zookeeper.client import Client, Handover
from ejpy.registry.zookeeper.faults import from_exception
from ejpy.registry.zookeeper.requests import Request

WINDOW = 200
"""Most requests under way. kazoo's wake-up socket takes 278."""
WINDOW_OPERATIONS = 10_000
"""Most operations in the requests under way, so that a probe behind them is answered in time."""

T = TypeVar("T")


class Exchange(Generic[T]):
    """One request and its outcome. kazoo gets it both as the request and as the place for the result."""

    def __init__(
        self,
        channel: Channel,
        request: Request[T],
        path: str,
        write: bool,
        on_reply: Callable[[T], None] | None,
    ) -> None:
        self.future: asyncio.Future[T] = channel.loop.create_future()
        self.request = request
        self.path = path
        self.write = write
        self.on_reply = on_reply
        self.sent = False
        self.deadline: asyncio.TimerHandle | None = None
        self._channel = channel

    # -- for kazoo's thread --

    @property
    def type(self) -> int:
        return self.request.opcode

    def serialize(self) -> bytes:
        self.sent = True
        return self.request.payload

    def deserialize(self, buffer: bytes, offset: int) -> T:
        # kazoo has just set `last_zxid` from the header of this very reply, in this thread.
        return self.request.decode(buffer, offset, self._channel.client.last_zxid)

    def set(self, value: T) -> None:
        self._channel.handover.put(self._channel.answered, self, value)

    def set_exception(self, error: Exception) -> None:
        self._channel.handover.put(self._channel.failed, self, error)


class Channel:
    """The way to the server. All methods are called on the loop.

    `on_expiry` is called when the server answers that the session, whose id it gets, is over.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, client: Client, handover: Handover, on_expiry: Callable[[int], None]
    ) -> None:
        self.loop = loop
        self.client = client
        self.handover = handover
        self._on_expiry = on_expiry
        self._session_id: int | None = None
        self._waiting: deque[Exchange[Any]] = deque()
        self._under_way: dict[Exchange[Any], int] = {}
        self._operations = 0

    def open(self, session_id: int) -> None:
        """There is a connection under this session."""
        self._session_id = session_id

    def close(self) -> None:
        """There is no connection: nothing is answered any more."""
        self._session_id = None
        while self._waiting:
            self._refuse(self._waiting.popleft())
        for exchange in list(self._under_way):
            self.failed(exchange, ConnectionLoss())

    def submit(
        self,
        request: Request[T],
        timeout: float | None,
        *,
        path: str,
        write: bool = False,
        urgent: bool = False,
        on_reply: Callable[[T], None] | None = None,
    ) -> asyncio.Future[T]:
        """Have a request sent; the future gets its reply, or an error of ejpy, within `timeout` seconds.

        `timeout` None leaves it to the connection, whose end is the end of the request. `path` is for messages. `urgent`
        goes past the window. `on_reply` is called with the reply before anything that came over the wire after it is
        looked at, but only while the future waits for it.
        """
        exchange = Exchange(self, request, path, write, on_reply)
        if urgent:
            self._send(exchange)
        else:
            self._waiting.append(exchange)
            self._send_waiting()
        if timeout is not None and not exchange.future.done():
            exchange.deadline = self.loop.call_later(timeout, self._late, exchange)
        return exchange.future

    # -- outcomes, in the order of the wire --

    def answered(self, exchange: Exchange[T], value: T) -> None:
        if exchange not in self._under_way:
            return
        self._over(exchange)
        if exchange.deadline is not None:
            exchange.deadline.cancel()
        if not exchange.future.done():
            if exchange.on_reply is not None:
                exchange.on_reply(value)
            exchange.future.set_result(value)
        self._send_waiting()

    def failed(self, exchange: Exchange[Any], error: Exception) -> None:
        if exchange not in self._under_way:
            return
        session_id = self._over(exchange)
        if isinstance(error, SessionExpiredError) and not isinstance(error, ConnectionClosedError):
            self._on_expiry(session_id)
        self._fail(exchange, from_exception(error, path=exchange.path, write=exchange.write, sent=exchange.sent))
        self._send_waiting()

    # -- inside --

    def _send_waiting(self) -> None:
        while self._waiting and (not self._under_way or self._has_room(self._waiting[0])):
            exchange = self._waiting.popleft()
            if not exchange.future.done():
                self._send(exchange)

    def _has_room(self, exchange: Exchange[Any]) -> bool:
        operations = self._operations + exchange.request.weight
        return len(self._under_way) < WINDOW and operations <= WINDOW_OPERATIONS

    def _send(self, exchange: Exchange[Any]) -> None:
        if self._session_id is None or not self.client.send(exchange, self._session_id):
            self._refuse(exchange)
            return
        self._under_way[exchange] = self._session_id
        self._operations += exchange.request.weight

    def _over(self, exchange: Exchange[Any]) -> int:
        self._operations -= exchange.request.weight
        return self._under_way.pop(exchange)

    def _late(self, exchange: Exchange[Any]) -> None:
        if exchange not in self._under_way:
            error: RegistryError = RegistryUnavailable(f"{exchange.path}: there was no room to send the request in time")
        elif exchange.write:
            error = OutcomeUnknown(f"{exchange.path}: the request was sent, but not answered in time; read before repeating it")
        else:
            error = RegistryUnavailable(f"{exchange.path}: no answer in time")
        self._fail(exchange, error)

    def _refuse(self, exchange: Exchange[Any]) -> None:
        self._fail(exchange, RegistryUnavailable(f"{exchange.path}: there is no connection to ZooKeeper"))

    def _fail(self, exchange: Exchange[Any], error: RegistryError) -> None:
        if exchange.deadline is not None:
            exchange.deadline.cancel()
        if not exchange.future.done():
            exchange.future.set_exception(error)
