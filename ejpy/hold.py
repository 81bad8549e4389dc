"""A connection that another thread can end: on a word from elsewhere, or at the end of the time that the whole of it may take.

A socket's time-out is one for each part that is sent or received. Whoever drips a byte a second never runs into it, and keeps
the thread that reads for hours. So a `Hold` keeps a second handle on the connection, under TLS as well, and shuts it down from
outside: the reader sees an end, and asks `was_cut` for the reason.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator


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
            # Not `connection.dup()`, which a socket under TLS refuses.
            self._handle = socket.socket(fileno=os.dup(connection.fileno()))

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


@contextlib.contextmanager
def cut_after(seconds: float) -> Iterator[Hold]:
    """A hold that is cut after `seconds`, unless the context is left before."""
    hold = Hold()
    timer = threading.Timer(seconds, hold.cut)
    timer.daemon = True
    timer.start()
    try:
        yield hold
    finally:
        timer.cancel()
        hold.close()
