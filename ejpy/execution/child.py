"""The worker's side of one child process: starting it, talking to it, ending and reaping it.

    starting ──► alive ──connection ends──► gone

Each child has a thread in the worker that starts it (the kernel ties the child's life to the thread that did), reads what it
says, and reaps it, so that no zombie stays, whether the child was busy or idle. Log records are handled in that thread: a
handler that blocks must not block the control loop. Everything else is passed on to the control loop, which alone sends.

When the connection ends, the child has exited or is about to; its process group is killed before it is reaped, while its
number cannot belong to anybody else. That also ends what its bodies started and left behind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence

from ejpy.cancellation import call_in_loop
from ejpy.execution.wire import Message, encode, received
from ejpy.logs import fields

log = logging.getLogger("ejpy.execution")

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[2]); from ejpy.execution.child_main import main; main(sys.argv[1])"


class ChildProcess:
    """A child that was started. Methods are called on the control loop; so are `on_message` and `on_gone`, the latter once."""

    def __init__(
        self,
        *,
        name: str,
        loop: asyncio.AbstractEventLoop,
        python: str,
        search_path: Sequence[str],
        on_message: Callable[[ChildProcess, Message], None],
        on_gone: Callable[[ChildProcess, str], None],
    ) -> None:
        self._loop = loop
        self._python = python
        self._search_path = list(search_path)
        self._on_message = on_message
        self._on_gone = on_gone
        self._connection, self._theirs = socket.socketpair()
        self._outbox = bytearray()
        self._closed = False
        self._lock = threading.Lock()
        """Held while the child is started, signalled or reaped: no signal to a number that is no longer its own."""
        self._popen: subprocess.Popen[bytes] | None = None
        self._doomed = False
        self._thread = threading.Thread(target=self._host, name=name, daemon=True)
        self._thread.start()

    # -- the control loop --

    def send(self, message: Message) -> None:
        """Send without blocking; what the child does not take at once goes out as it reads. Nothing if it is gone."""
        if not self._closed:
            self._outbox += encode(message)
            self._flush()

    def _flush(self) -> None:
        try:
            sent = self._connection.send(self._outbox, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:  # it is dying; `on_gone` will come
            sent = len(self._outbox)
        del self._outbox[:sent]
        if self._outbox:
            self._loop.add_writer(self._connection, self._flush)
        else:
            self._loop.remove_writer(self._connection)

    def signal(self, number: signal.Signals) -> None:
        """Signal the child and what its bodies have started. Nothing if it is gone."""
        with self._lock:
            if self._popen is None:
                self._doomed = self._doomed or number is signal.SIGKILL
            elif self._popen.returncode is None:
                os.killpg(self._popen.pid, number)

    def join(self, seconds: float) -> None:
        """Wait for the end of the child's thread, which has little to do after `on_gone`."""
        self._thread.join(seconds)

    def _gone(self, how: str) -> None:
        self._closed = True
        self._loop.remove_writer(self._connection)
        self._connection.close()
        self._on_gone(self, how)

    # -- the child's own thread --

    def _host(self) -> None:
        lifeline_read, lifeline_write = os.pipe()
        try:
            try:
                self._start(lifeline_read)
            except OSError as error:
                how = f"could not be started: {error}"
            else:
                self._listen()
                how = self._reap()
            finally:
                self._theirs.close()
                os.close(lifeline_read)
            if not call_in_loop(self._loop, lambda: self._gone(how)):
                self._connection.close()
        finally:
            os.close(lifeline_write)

    def _start(self, lifeline: int) -> None:
        root = logging.getLogger()
        levels = {"root": root.level}
        levels |= {
            name: logger.level
            for name, logger in list(root.manager.loggerDict.items())
            if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET
        }
        arguments = {"connection": self._theirs.fileno(), "lifeline": lifeline, "parent": os.getpid(), "levels": levels}
        with self._lock:
            self._popen = subprocess.Popen(
                [self._python, "-c", _BOOT, json.dumps(arguments), json.dumps(self._search_path)],
                stdin=subprocess.DEVNULL,
                pass_fds=(self._theirs.fileno(), lifeline),
                start_new_session=True,  # a process group of its own, out of reach of the terminal's Ctrl-C
            )
            if self._doomed:
                os.killpg(self._popen.pid, signal.SIGKILL)
        self._theirs.close()

    def _listen(self) -> None:
        try:
            for message in received(self._connection):
                if message["type"] == "log":
                    _log_for_child(message)
                else:
                    self._pass_on(message)
        except (ValueError, KeyError) as error:
            # A body was interrupted in the middle of a message, or wrote to a descriptor that is not its own.
            log.error("a child process said what cannot be understood, and is ended: %s", error)

    def _pass_on(self, message: Message) -> None:
        call_in_loop(self._loop, lambda: self._on_message(self, message))

    def _reap(self) -> str:
        popen = self._popen
        assert popen is not None
        with self._lock:
            os.killpg(popen.pid, signal.SIGKILL)
        os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            code = popen.wait()
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}"


def _log_for_child(message: Message) -> None:
    """Log a child's record as if it had been logged here, by the levels, filters and handlers of this process."""
    record = logging.makeLogRecord({**message["record"], **fields(**message["fields"])})
    logger = logging.getLogger(record.name)
    try:
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)
    except Exception:  # noqa: BLE001 - a handler of the application's; this thread must go on
        logging.Handler().handleError(record)
