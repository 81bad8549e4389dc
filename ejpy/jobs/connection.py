"""One TCP connection of an HTTP job: two time-outs, as in Java, and it can be closed from another thread.

`http.client` knows one time-out and makes its socket where nobody else can reach it. Here connecting has its own limit, for all
addresses of a name together; and a `Hold` keeps a second handle on the connection, under TLS as well. Looking up a name cannot
be interrupted, and has the system's own time limit.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading

from ejpy.clock import Clock


class Cut(OSError):
    """The connection was closed by `Hold.cut`."""


class Hold:
    """What another thread can end a connection by. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handle: socket.socket | None = None
        self._was_cut = False

    @property
    def was_cut(self) -> bool:
        return self._was_cut

    def keep(self, connection: socket.socket) -> None:
        """From now on `cut` ends this connection. Raises Cut if it came before."""
        self.close()
        with self._lock:
            if self._was_cut:
                raise Cut("told to stop")
            self._handle = connection.dup()

    def cut(self) -> None:
        """End the connection, and whoever waits on it; and all later ones."""
        with self._lock:
            self._was_cut = True
            if self._handle is not None:
                with contextlib.suppress(OSError):  # not connected yet, or not any more
                    self._handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection."""
        with self._lock:
            if self._handle is not None:
                self._handle.close()
                self._handle = None


def connect(
    scheme: str,
    host: str,
    port: int | None,
    *,
    hold: Hold,
    clock: Clock,
    connect_seconds: float,
    read_seconds: float,
) -> http.client.HTTPConnection:
    """A connection that is ready for a request; every later send, or wait for something to read, takes at most `read_seconds`.

    Raises TimeoutError if there is none within `connect_seconds`, Cut, and OSError (ssl.SSLError among them).
    """
    tls = scheme == "https"
    connection = http.client.HTTPSConnection(host, port) if tls else http.client.HTTPConnection(host, port)
    raw = _connected(host, connection.port, hold, clock, connect_seconds)
    try:
        raw.settimeout(read_seconds)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sock = ssl.create_default_context().wrap_socket(raw, server_hostname=host) if tls else raw
    except BaseException:
        raw.close()
        raise
    return connection


def _connected(host: str, port: int, hold: Hold, clock: Clock, seconds: float) -> socket.socket:
    deadline = clock.monotonic() + seconds
    failure: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left = deadline - clock.monotonic()
        if left <= 0:
            raise TimeoutError
        connection = socket.socket(family, kind, protocol)
        try:
            hold.keep(connection)
            connection.settimeout(left)
            connection.connect(address)
            if hold.was_cut:  # perhaps before there was something to end
                raise Cut("told to stop")
        except OSError as error:
            connection.close()
            if isinstance(error, Cut) or hold.was_cut:
                raise
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure or OSError(f"{host} has no address")
