"""One TCP connection of an HTTP job: two time-outs, as in Java, and it can be closed from another thread.

`http.client` knows one time-out and makes its socket where nobody else can reach it. Here connecting has its own limit, for all
addresses of a name together; and a `Hold` keeps a second handle on the connection. Looking up a name cannot be interrupted, and
has the system's own time limit.
"""

from __future__ import annotations

import http.client
import socket
import ssl

from ejpy.clock import Clock
from ejpy.hold import Cut, Hold


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
