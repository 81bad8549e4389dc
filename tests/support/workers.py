"""Real worker processes for tests: start `ejpy worker`, follow its log, stop it in every way there is.

    with WorkerProcess(config, "zookeeper://127.0.0.1:2181/test", directory, name="a") as worker:
        worker.wait_ready(20)
        ...
        worker.sigterm()
        assert worker.wait_exit(15) == 0

What a worker writes (standard output and error, mixed as it comes) is read by a thread, kept in `<directory>/<name>.log`
for people, and signals whoever waits for a line. Each worker leads a process group of its own: pausing stops the whole
group, as the freeze of a machine would, and leaving the `with` block kills whatever is left of it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.command import EJPY, ROOT, environment
from tests.support.waiting import PATIENCE_SECONDS, wait_until

__all__ = ["ROOT", "WorkerProcess", "faults", "said"]

READY = re.compile(r"\bready: \d+ job")


class WorkerProcess:
    """One `ejpy worker` process. The methods may be called in any order that makes sense for a process."""

    ejpy: Sequence[str] = (EJPY,)
    """How the command `ejpy` is run."""

    def __init__(
        self,
        config_path: str | Path,
        registry_url: str,
        cwd: Path,
        env: Mapping[str, str] | None = None,
        name: str = "worker",
        options: Sequence[str] = (),
    ) -> None:
        """`cwd` also takes the log. `env` is added to this process's environment, which gives none of its own EJPY_…
        variables; the tests' own job classes can be imported. `options` are further options of `ejpy worker`."""
        self.name = name
        self.log_path = cwd / f"{name}.log"
        self._command = [
            *self.ejpy,
            "worker",
            *("--config", str(config_path)),
            *("--registry", registry_url),
            *options,
        ]
        self._cwd = cwd
        self._environment = environment(PYTHONUNBUFFERED="1", **(env or {}))
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._log = b""
        self._log_ended = False
        self._changed = threading.Condition()

    # -- start and end --

    def start(self) -> WorkerProcess:
        """Start the process; once."""
        assert self._process is None, f"{self.name} was started before"
        self._process = subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._follow, args=(self._process,), name=f"log of {self.name}", daemon=True)
        self._reader.start()
        return self

    def close(self) -> None:
        """Kill what is left of the process and its children."""
        if self._process is None or self._reader is None:
            return
        self._signal_group(signal.SIGKILL)
        self._process.wait()
        self._reader.join()

    def __enter__(self) -> WorkerProcess:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    # -- what a test does to it --

    def sigterm(self) -> None:
        """Ask it to stop, as an init system does: the worker alone, not its children."""
        self._running().send_signal(signal.SIGTERM)

    def kill9(self) -> None:
        """Kill the worker alone, as the kernel does when memory runs out; its children are left to notice."""
        self._running().send_signal(signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the worker and its children (SIGSTOP)."""
        self._running()
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on (SIGCONT)."""
        self._running()
        self._signal_group(signal.SIGCONT)

    # -- what a test learns from it --

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """All that it has written so far."""
        with self._changed:
            return self._log.decode(errors="replace")

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has logged so far, if it runs with `--log-format json`; other lines are left out."""
        return [json.loads(line) for line in self.log.split("\n")[:-1] if line.startswith("{")]

    @property
    def id(self) -> str:
        """Its instance id, waited for if it has not begun to run; with `--log-format json`."""
        instance: str = wait_until(
            lambda: next((event["instance"] for event in self.events if "instance" in event), None),
            PATIENCE_SECONDS,
            f"{self.name} names its instance id",
        )
        return instance

    def wait_ready(self, deadline: float) -> None:
        """Wait at most `deadline` seconds until it says that it is ready."""
        self.wait_for_log(READY, deadline)

    def wait_for_log(self, pattern: str | re.Pattern[str], deadline: float) -> re.Match[str]:
        """The first match of `pattern` in the log, waited for during at most `deadline` seconds.

        Raises AssertionError, with the log, when the time is over, or the process has ended without it.
        """
        wanted = re.compile(pattern)
        with self._changed:
            self._changed.wait_for(lambda: self._log_ended or wanted.search(self.log), deadline)
            match = wanted.search(self.log)
            assert match, (
                f"{self.name} {'ended' if self._log_ended else f'ran for {deadline:g} s'} without writing"
                f" {wanted.pattern!r}; it wrote:\n{self.log}"
            )
            return match

    def wait_exit(self, deadline: float) -> int:
        """Its exit code (negative: the signal that killed it), waited for during at most `deadline` seconds."""
        process = self._running()
        try:
            return process.wait(deadline)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended within {deadline:g} s; it wrote:\n{self.log}") from None

    # -- inside --

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._running().pid, number)
        except ProcessLookupError:  # nobody is left of the group
            return

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as output, self.log_path.open("ab", buffering=0) as file:
            while chunk := os.read(output.fileno(), 65536):
                file.write(chunk)
                with self._changed:
                    self._log += chunk
                    self._changed.notify_all()
        with self._changed:
            self._log_ended = True
            self._changed.notify_all()


def faults(worker: WorkerProcess) -> list[str]:
    """What a worker wrote that has to do with a stack trace."""
    return [line for line in worker.log.split("\n") if '"exception"' in line or "Traceback" in line]


def said(worker: WorkerProcess, logger: str, **fields: Any) -> list[dict[str, Any]]:
    """What a worker has logged there with these fields, if it runs with `--log-format json`."""
    return [
        event
        for event in worker.events
        if event["logger"] == logger and all(event.get(name) == value for name, value in fields.items())
    ]
