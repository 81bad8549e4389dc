"""Java programs in tests: single source files run as they are, and talked to line by line.

    with Conversation([*java(JARS), str(PROGRAM), server.address], directory / "java.log") as program:
        program.say("contend a /path 0")
        assert program.hear(60) == "a held"

Whatever speaks the same way can take part: a program of the tests' own in Python, too.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

DEBIAN_JARS = Path("/usr/share/java")
_THRIFTY = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
"""What a short program takes on a small machine."""


def debian_classpath(package: str, names: Iterable[str]) -> str:
    """The classes of these jars (without `.jar`), which come with a Debian package.

    Fails the test, saying what to install, if one is missing.
    """
    jars = [DEBIAN_JARS / f"{name}.jar" for name in names]
    missing = [jar.name for jar in jars if not jar.exists()]
    if missing:
        pytest.fail(f"{', '.join(missing)} needed in {DEBIAN_JARS}: apt-get install {package}")
    return ":".join(map(str, jars))


def java(classpath: str, options: Iterable[str] = ()) -> list[str]:
    """The command that runs what follows, a source file or a class. Fails the test if there is no JDK."""
    command = shutil.which("java")
    if command is None or shutil.which("javac") is None:
        pytest.fail("a JDK is needed here: apt-get install default-jdk-headless")
    return [command, *_THRIFTY, *options, "-cp", classpath]


class Conversation:
    """A program that hears lines and says lines. Killed, if it still runs, at the end of the `with` block."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        said: queue.Queue[str | None] | None = None,
    ) -> None:
        """`log` takes what it writes to standard error. `said` takes the lines that it says, and None at their end; several
        programs may share one."""
        self._command = list(command)
        self._log = log
        self._env = {**os.environ, **(env or {})}
        self._said: queue.Queue[str | None] = queue.Queue() if said is None else said
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Conversation:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
            )
        self._reader = threading.Thread(target=self._listen, args=(self._process,), name=f"hears {self._log.stem}", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        process = self.process
        process.kill()
        process.wait()
        assert self._reader is not None
        self._reader.join()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it was killed with something unread
            process.stdin.close()

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def log(self) -> str:
        """What it has written to standard error."""
        return self._log.read_text(errors="replace")

    def say(self, line: str) -> None:
        """Have it hear a line."""
        stdin = self.process.stdin
        assert stdin is not None
        stdin.write(line + "\n")
        stdin.flush()

    def hear(self, deadline: float) -> str:
        """The next line that it says, waited for during at most `deadline` seconds."""
        return next_line(self._said, deadline, lambda: self.log)

    def end(self, deadline: float) -> int:
        """Let it hear that nothing more comes; its exit code."""
        stdin = self.process.stdin
        assert stdin is not None
        stdin.close()
        return self.process.wait(deadline)

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as output:
            for line in output:
                self._said.put(line.rstrip("\n"))
        self._said.put(None)


def next_line(said: queue.Queue[str | None], deadline: float, log: Callable[[], str]) -> str:
    """The next line that was said, waited for during at most `deadline` seconds. `log` is told if there is none."""
    try:
        line = said.get(timeout=deadline)
    except queue.Empty:
        raise AssertionError(f"nothing was said within {deadline:g} s; {log()}") from None
    assert line is not None, f"a program ended; {log()}"
    return line
