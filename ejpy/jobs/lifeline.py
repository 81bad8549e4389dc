"""A line between a worker and the process group of a script: each side notices when the other one is gone.

The script inherits one end of a pair of connected sockets, and so do the processes that it starts.

* *The worker died*, by `kill -9` perhaps: its end is closed, and Linux kills the script's process group. Its item may be
  running elsewhere by then. (Other systems do nothing. Not reached are a process that left the group and a set-uid
  program; nor is any while a process that the worker forked without exec holds a copy of its end; nor one that has not been
  tied yet, in the first moment after its start.)
* *All of the script's processes are gone*: their copies are closed, and the worker's end reads as ended. That is how a worker
  that told a group to stop knows that there is nobody left to wait for; a process that closed what it inherited is not seen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import sys

_LINUX = sys.platform == "linux"


class Lifeline:
    """Both ends. To be released or cut in the end."""

    def __init__(self) -> None:
        self.ours, self._theirs = socket.socketpair()
        self.ours.setblocking(False)

    @property
    def inherited(self) -> int:
        """The descriptor for the script to inherit."""
        return self._theirs.fileno()

    def tie(self, group: int) -> None:
        """From now on the kernel kills this process group when our end is closed. Nothing if it is gone already."""
        if _LINUX:
            with contextlib.suppress(ProcessLookupError):
                fcntl.fcntl(self._theirs, fcntl.F_SETOWN, -group)
            fcntl.fcntl(self._theirs, fcntl.F_SETSIG, signal.SIGKILL)
            self._set_signalling(True)

    def listen(self) -> None:
        """Let `ours` become readable at the end of all processes that hold the other end. There is no `untie` after it."""
        self._theirs.close()

    def ended(self) -> bool:
        """When `ours` is readable: whether that was the end, or something that was written, which is passed over."""
        try:
            return not self.ours.recv(4096)
        except BlockingIOError:
            return False

    def untie(self) -> None:
        """Whoever is left in the group may live on."""
        if _LINUX:
            self._set_signalling(False)

    def close(self) -> None:
        """Close both ends, which kills the group if it is tied."""
        self._theirs.close()
        self.ours.close()

    def _set_signalling(self, wanted: bool) -> None:
        flags = fcntl.fcntl(self._theirs, fcntl.F_GETFL)
        fcntl.fcntl(self._theirs, fcntl.F_SETFL, flags | os.O_ASYNC if wanted else flags & ~os.O_ASYNC)
