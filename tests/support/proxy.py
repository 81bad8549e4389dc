"""A TCP proxy between a client and a server, with faults at will. It runs a loop of its own in a thread.

    working   forwards; `delay` may slow it down, `alter` may change what is sent
    holed     accepts connections and swallows what is sent, in one direction or both; nobody is told
    refusing  nothing listens, and existing connections are broken

What was swallowed is gone: `restore` breaks the connections that lost something, so that a client begins anew.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")
PATIENCE_SECONDS = 10.0


class Proxy:
    """Forwards `address` to `target`. Use it as a context manager. All methods may be called from any thread, and have
    taken effect when they return."""

    def __init__(self, target: str) -> None:
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = _listening_socket(0)
        self._port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._pairs: set[_Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.swallow_to_server = False
        self.swallow_to_client = False
        self.delay_seconds = 0.0
        self.alter_to_server: Callable[[bytes], bytes] = bytes
        self.alter_to_client: Callable[[bytes], bytes] = bytes
        self.accepted = 0
        """How many connections were accepted so far."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-proxy", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        self._run(self._listen)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._run(self._refuse)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_SECONDS)
        self._loop.close()

    # -- faults --

    def cut(self) -> None:
        """Break all connections with a reset."""
        self._run(self._cut)

    def black_hole(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Swallow what is sent in these directions, on present and on new connections."""

        async def swallow() -> None:
            self.swallow_to_server, self.swallow_to_client = to_server, to_client

        self._run(swallow)

    def delay(self, seconds: float) -> None:
        """Forward everything so much later, in both directions."""

        async def slow_down() -> None:
            self.delay_seconds = seconds

        self._run(slow_down)

    def refuse(self) -> None:
        """Break all connections and let new ones be refused."""
        self._run(self._refuse)

    def alter(self, *, to_server: Callable[[bytes], bytes] = bytes, to_client: Callable[[bytes], bytes] = bytes) -> None:
        """Change what is sent in each direction, piece by piece as it arrives."""

        async def change() -> None:
            self.alter_to_server, self.alter_to_client = to_server, to_client

        self._run(change)

    def restore(self) -> None:
        """Forward again, as at the beginning. Connections that lost something are broken."""
        self._run(self._restore)

    # -- in the loop --

    async def _listen(self) -> None:
        self._server = await self._loop.create_server(self._accept, sock=self._listener)

    def _accept(self) -> asyncio.Protocol:
        self.accepted += 1
        pair = _Pair(self)
        self._pairs.add(pair)
        return pair.client

    def connect(self, pair: _Pair) -> None:
        task = self._loop.create_task(self._connect(pair))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, pair: _Pair) -> None:
        try:
            await self._loop.create_connection(lambda: pair.server, *self._target)
        except OSError:
            pair.break_off()

    def gone(self, pair: _Pair) -> None:
        self._pairs.discard(pair)

    async def _cut(self) -> None:
        for pair in list(self._pairs):
            pair.break_off()

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()
        await asyncio.gather(*self._tasks)

    async def _restore(self) -> None:
        self.swallow_to_server = self.swallow_to_client = False
        self.delay_seconds = 0.0
        self.alter_to_server = self.alter_to_client = bytes
        for pair in list(self._pairs):
            if pair.lost_something:
                pair.break_off()
        if self._server is None:
            self._listener = _listening_socket(self._port)
            await self._listen()

    def _run(self, step: Callable[[], object]) -> None:
        coroutine = step()
        assert asyncio.iscoroutine(coroutine)
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_SECONDS)


class _Pair:
    """One forwarded connection: its two ends."""

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.lost_something = False
        self.client = _End(self, to_server=True)
        self.server = _End(self, to_server=False)
        self.client.other, self.server.other = self.server, self.client

    def break_off(self) -> None:
        self.client.reset()
        self.server.reset()
        self.proxy.gone(self)


class _End(asyncio.Protocol):
    """One end: what arrives here goes to the other end."""

    other: _End

    def __init__(self, pair: _Pair, *, to_server: bool) -> None:
        self._pair = pair
        self._to_server = to_server
        self._transport: asyncio.Transport | None = None
        self._early: list[bytes] = []
        self._over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._over:
            self.reset()
            return
        if self._to_server:
            self._pair.proxy.connect(self._pair)
        for data in self._early:
            transport.write(data)
        self._early.clear()

    def data_received(self, data: bytes) -> None:
        proxy = self._pair.proxy
        if proxy.swallow_to_server if self._to_server else proxy.swallow_to_client:
            self._pair.lost_something = True
            return
        data = proxy.alter_to_server(data) if self._to_server else proxy.alter_to_client(data)
        if proxy.delay_seconds:
            asyncio.get_running_loop().call_later(proxy.delay_seconds, self.other.deliver, data)
        else:
            self.other.deliver(data)

    def deliver(self, data: bytes) -> None:
        if self._over:
            return
        if self._transport is None:
            self._early.append(data)
        else:
            self._transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        proxy = self._pair.proxy
        hole = proxy.swallow_to_server if self._to_server else proxy.swallow_to_client
        self._transport, self._over = None, True
        if hole and not self.other._over:
            self._pair.lost_something = True  # in a black hole the end of a connection is not seen either
            return
        self._pair.break_off()

    def reset(self) -> None:
        self._over = True
        if self._transport is not None:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()


def _listening_socket(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener
