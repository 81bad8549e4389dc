"""Where the worker's log goes: standard error, through a thread of its own.

A terminal that was stopped with Ctrl-S, a pager, a log shipper that hangs: whoever writes there waits, and the control loop must
never wait for a reader. So lines are handed over to a thread; if they are not taken, the newest are dropped and counted. The
thread writes to a descriptor of its own, which a job that closes `sys.stderr` does not touch.
"""

from __future__ import annotations

import io
import os
import queue
import threading

MOST_LINES = 10_000


class LogStream(io.TextIOBase):
    """What a logging handler writes to. Never blocks and never raises."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = os.dup(descriptor)
        self._lines: queue.Queue[str | None] = queue.Queue(MOST_LINES)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_all, name="ejpy log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self._dropped += 1
        return len(text)

    def end(self, timeout: float) -> None:
        """Wait at most `timeout` seconds until all is written."""
        try:
            self._lines.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _write_all(self) -> None:
        while (text := self._lines.get()) is not None:
            dropped, self._dropped = self._dropped, 0
            if dropped:
                text = f"({dropped} log lines were dropped: nobody read them)\n{text}"
            data = text.encode("utf-8", "replace")
            while data:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except OSError:  # the reader is gone; there is nowhere to say it
                    break
