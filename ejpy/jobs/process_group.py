"""A command in a process group of its own: it is run to its end, or ended with all that it started.

    running ──exits──► over: its children may live on, their output is not waited for
       │
       │ told to stop: SIGTERM to the group
       ▼
    stopping ──all have ended, or the grace is over──► SIGKILL to the group ──► over

The calling thread waits for four things at once, none of which it looks at in turns: output, the exit (a thread that waits for
it says so), being told to stop (a callback does), and the end of the grace.

Guarded against: children that hold the pipe for output (only the command's exit counts); a process number that belongs to
somebody else by now (the command is not reaped before the group was signalled for the last time); somebody else in this
process who reaps all children (the exit code is then unknown, not 0); a dying worker (`lifeline`).
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import logging
import os
import selectors
import signal
import socket
import subprocess
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO

from ejpy.clock import Clock
from ejpy.jobs.lifeline import Lifeline

UNKILLABLE_SECONDS = 5.0
"""A process that is still there so long after SIGKILL hangs in the kernel (a dead network disk, usually)."""
_CHUNK = 64 * 1024


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended."""

    code: int | None
    """As in `subprocess`: negative for a signal. None if somebody else in this process took it."""
    stopped: bool
    """It was told to stop before it ended."""


class Unkillable(Exception):
    """The command is still there after SIGKILL, or may not be signalled."""


class ProcessGroup:
    """A command that was started. A context manager: at its end nothing of it runs, unless the command exited by itself."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        environment: Mapping[str, str],
        clock: Clock,
        grace_seconds: float,
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        """Start it; `grace_seconds` lie between SIGTERM and SIGKILL. Raises OSError or ValueError if it cannot be started."""
        self._clock = clock
        self._grace_seconds = grace_seconds
        self._log = log
        self._told = False
        self._exited = threading.Event()
        self._code: int | None = None
        self._left_alone = False
        """It exited by itself: whoever is left in the group is none of our business."""
        self._may_reap = threading.Event()
        self._alarm = _Alarm()
        self._lifeline = Lifeline()
        try:
            self._popen = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environment,
                pass_fds=(self._lifeline.inherited,),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            self._close()
            raise
        assert self._popen.stdout is not None
        self._output: IO[bytes] = self._popen.stdout
        self._waiter = threading.Thread(target=self._wait_for_exit, name=f"ejpy-script-{self._popen.pid}", daemon=True)

    def __enter__(self) -> ProcessGroup:
        try:
            self._lifeline.tie(self._popen.pid)
            os.set_blocking(self._output.fileno(), False)
            self._waiter.start()
        except BaseException:
            self._signal(signal.SIGKILL)
            self._popen.wait()
            self._output.close()
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Raises Unkillable if it could not be ended."""
        try:
            if self._left_alone:
                self._lifeline.untie()
            else:
                self._signal(signal.SIGKILL)
            self._may_reap.set()
            self._waiter.join(UNKILLABLE_SECONDS)
        finally:
            self._output.close()
            self._close()
        if self._waiter.is_alive():
            raise Unkillable(f"process {self._popen.pid} is still there {UNKILLABLE_SECONDS:g} s after SIGKILL")

    def tell(self) -> None:
        """Tell the group to stop; from any thread, at any time, without blocking."""
        self._told = True
        self._alarm.ring()

    def run(self, on_output: Callable[[bytes], None]) -> Exit:
        """Wait for the end, and pass on what is written meanwhile. To be called once."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._alarm, selectors.EVENT_READ)
            if not self._run_to_exit(selector, on_output):
                self._stop(selector, on_output)
                self._signal(signal.SIGKILL)
                self._exited.wait(UNKILLABLE_SECONDS)
                return Exit(self._code, stopped=True)
        self._left_alone = True
        self._read(on_output, self._unread())
        return Exit(self._code, stopped=False)

    def _run_to_exit(self, selector: selectors.BaseSelector, on_output: Callable[[bytes], None]) -> bool:
        """True when it has exited, False when it shall stop before that."""
        while not self._exited.is_set():
            if self._told and not self._is_zombie():
                return False
            for key, _ in selector.select():
                if key.fileobj is self._alarm:
                    self._alarm.clear()
                elif not self._read(on_output):
                    selector.unregister(key.fileobj)
        return True

    def _stop(self, selector: selectors.BaseSelector, on_output: Callable[[bytes], None]) -> None:
        """SIGTERM, and the grace: until all that is known of the group has ended, at most."""
        self._lifeline.listen()
        selector.register(self._lifeline.ours, selectors.EVENT_READ)
        self._signal(signal.SIGTERM)
        kill_at = self._clock.monotonic() + self._grace_seconds
        # Left are the alarm, which says that the command itself has exited, and whoever holds its output or lifeline.
        while not self._exited.is_set() or len(selector.get_map()) > 1:
            left = kill_at - self._clock.monotonic()
            if left <= 0:
                self._log.warning("killed: the script did not end within %g s of SIGTERM", self._grace_seconds)
                return
            for key, _ in selector.select(left):
                if key.fileobj is self._alarm:
                    self._alarm.clear()
                elif key.fileobj is self._lifeline.ours:
                    if self._lifeline.ended():
                        selector.unregister(key.fileobj)
                elif not self._read(on_output):
                    selector.unregister(key.fileobj)

    def _read(self, on_output: Callable[[bytes], None], limit: int = _CHUNK) -> bool:
        """Pass on what is there, at most `limit` bytes; False if nothing will come any more."""
        try:
            data = os.read(self._output.fileno(), limit)
        except BlockingIOError:
            return True
        if data:
            on_output(data)
        return bool(data)

    def _unread(self) -> int:
        """How many bytes are in the pipe: what was written before the exit is among them, and that is bounded."""
        number = array.array("i", [0])
        fcntl.ioctl(self._output.fileno(), termios.FIONREAD, number)
        return number[0]

    def _is_zombie(self) -> bool:
        """Whether it has exited, even if the thread that waits for that was not awake yet."""
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        return True

    def _signal(self, number: signal.Signals) -> None:
        if self._exited.is_set() and self._code is None:
            return  # it was reaped by somebody else, and its number may be another's
        try:
            os.killpg(self._popen.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError as error:
            self._log.warning("the script may not be sent %s: %s", number.name, error)

    def _close(self) -> None:
        self._alarm.close()
        self._lifeline.close()

    def _wait_for_exit(self) -> None:
        """In a thread of its own. The command stays a zombie, and its number its own, until it may be reaped."""
        with contextlib.suppress(ChildProcessError):  # somebody else has reaped it
            result = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
            assert result is not None
            self._code = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        self._exited.set()
        self._alarm.ring()
        self._may_reap.wait()
        self._popen.wait()


class _Alarm:
    """Wakes a selector from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._heard, self._rung = socket.socketpair()
        self._heard.setblocking(False)
        self._rung.setblocking(False)

    def fileno(self) -> int:
        return self._heard.fileno()

    def ring(self) -> None:
        """Nothing after `close`: whoever rings may not know of it."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # it is ringing already
                    self._rung.send(b"!")

    def clear(self) -> None:
        self._heard.recv(4096)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._heard.close()
            self._rung.close()
