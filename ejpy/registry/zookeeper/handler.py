"""kazoo's sockets and threads, in a way that a scheduler can live with.

* `select` uses one poll object; kazoo's own builds and closes an epoll object each time, five times a request.
* A TCP connect is bounded so that one server that drops packets cannot use up the whole session time-out before the next
  one is tried (kazoo allows it the session time-out itself).
* The wake-up socket never blocks its caller. kazoo writes one byte into a socket pair for each request, and blocks when
  278 lie there unread, which freezes whoever calls. A full pair needs no further byte: fewer requests than that are
  ever under way (`channel.WINDOW`), so the bytes that are in there suffice to have all of them sent.
* No worker threads: nothing here uses kazoo's callback queues.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from kazoo.handlers.threading import SequentialThreadingHandler

THREAD_NAME = "ejpy-zookeeper"


class _HasFileno(Protocol):
    def fileno(self) -> int: ...


class WakeUpSocket:
    """The writing end of kazoo's socket pair: `send` drops the byte when the pair is full."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock

    def send(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self._socket.close()


class PollHandler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """The handler to give to a KazooClient. `connect_bound_seconds` bounds each TCP connect."""

    def __init__(self, connect_bound_seconds: float) -> None:
        super().__init__()
        self.connect_bound_seconds = connect_bound_seconds
        self._lock = threading.Lock()
        self._latest: socket.socket | None = None
        self._aborted = False

    # -- threads --

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def spawn(self, func: Callable[..., object], *args: object, **kwargs: object) -> threading.Thread:
        thread = threading.Thread(target=func, args=args, kwargs=kwargs, name=THREAD_NAME, daemon=True)
        thread.start()
        return thread

    # -- sockets --

    def select(
        self,
        readers: list[_HasFileno],
        writers: list[_HasFileno],
        _exceptional: list[_HasFileno],
        timeout: float | None = None,
    ) -> tuple[list[_HasFileno], list[_HasFileno], list[_HasFileno]]:
        poll = select.poll()
        by_descriptor: dict[int, _HasFileno] = {}
        for reader in readers:
            by_descriptor[reader.fileno()] = reader
            poll.register(reader, select.POLLIN)
        for writer in writers:
            by_descriptor[writer.fileno()] = writer
            poll.register(writer, select.POLLOUT)
        # An error or a hang-up is reported as readiness: the next recv or send tells which.
        ready = [by_descriptor[fd] for fd, _ in poll.poll(None if timeout is None else math.ceil(max(0.0, timeout) * 1000))]
        return [r for r in ready if r in readers], [w for w in ready if w in writers], []

    def create_socket_pair(self) -> tuple[socket.socket, WakeUpSocket]:
        reader, writer = socket.socketpair()
        return reader, WakeUpSocket(writer)

    def create_connection(self, address: tuple[str, int], timeout: float, **_unused: object) -> socket.socket:
        """Connect to a numeric address. Raises OSError, as kazoo expects."""
        family, kind, protocol, _, target = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            with self._lock:
                if self._aborted:
                    raise OSError(errno.ECONNABORTED, "stopping")
                self._latest = sock
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.connect_ex(target)
            if not self.select([], [sock], [], min(timeout, self.connect_bound_seconds))[1]:
                raise OSError(errno.ETIMEDOUT, "no answer to the TCP connect")
            if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(error, os.strerror(error))
        except BaseException:
            sock.close()
            raise
        return sock

    def cut(self) -> None:
        """Shut the newest connection down, whatever it is doing: whoever reads it sees it closed."""
        with self._lock:
            self._shut_latest()

    def abort(self) -> None:
        """As `cut`, and refuse every connect from now on."""
        with self._lock:
            self._aborted = True
            self._shut_latest()

    def _shut_latest(self) -> None:
        if self._latest is not None:
            try:
                self._latest.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it is closed already, which is what was wanted
