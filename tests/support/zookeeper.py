"""Real ZooKeeper servers for tests: started, stopped, frozen and killed at will; and sessions ended on demand.

Two kinds of installation are known: Debian's package `zookeeper` (jars below /usr/share/java), and an unpacked release,
which the environment variable ZOOKEEPER_HOME points to. `java` must be on the path.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType

from ejpy.clock import SystemClock
from ejpy.registry.base import SessionState
from ejpy.registry.zookeeper import ZooKeeperRegistry
from tests.support.loop import eventually

START_SECONDS = 30.0
STOP_SECONDS = 15.0
PORTS = range(20_000, 30_000)
"""Below the ports that the system hands to outgoing connections: a client that keeps trying a stopped server could
otherwise be handed the server's own port, and be connected to itself."""

DEBIAN_JARS = ("/usr/share/java/zookeeper.jar", "/usr/share/java/slf4j-simple.jar")


class ServerFailed(Exception):
    """The server did not do what was asked in time; the message has the end of its log."""


def classpath() -> str | None:
    """Where the server's classes are; None if ZooKeeper or Java is not installed."""
    if shutil.which("java") is None:
        return None
    if home := os.environ.get("ZOOKEEPER_HOME"):
        return f"{home}/lib/*:{home}/*"
    return ":".join(DEBIAN_JARS) if Path(DEBIAN_JARS[0]).exists() else None


class ZooKeeperServer:
    """A standalone server with its own port and data directory. Use it as a context manager.

    `properties` are lines of zoo.cfg; `java_properties` system properties of the server, which may be changed for its next start.
    """

    def __init__(
        self,
        *,
        tick_time: int = 500,
        properties: Mapping[str, object] | None = None,
        java_properties: Mapping[str, str] | None = None,
    ) -> None:
        self.tick_time = tick_time
        self.port = _free_port()
        self._properties = dict(properties or {})
        self.java_properties = dict(java_properties or {})
        self._directory = Path(tempfile.mkdtemp(prefix="ejpy-zookeeper-"))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        return self._directory / "server.log"

    def __enter__(self) -> ZooKeeperServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- life --

    def start(self) -> None:
        """Start, with the data that is there, and wait until it serves."""
        assert self._process is None, "the server is running"
        jars = classpath()
        assert jars is not None, "neither the Debian package `zookeeper` nor ZOOKEEPER_HOME was found"
        configuration = self._directory / "zoo.cfg"
        configuration.write_text("".join(f"{key}={value}\n" for key, value in self._configuration().items()))
        command = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"]
        command += [f"-D{key}={value}" for key, value in self.java_properties.items()]
        command += ["-cp", jars, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(configuration)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._wait_until(self._serves, START_SECONDS, "serve")

    def stop(self) -> None:
        """End it in an orderly way; the data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once; the data stays."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kill it and start it again with the same data and port."""
        self.kill()
        self.start()

    def freeze(self) -> None:
        """Let it do nothing any more, with its connections open."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on after `freeze`."""
        self._running().send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its data. Idempotent."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    # -- looking into it --

    def four_letter(self, word: str) -> dict[str, str]:
        """The answer to a four-letter word ("mntr", "conf" …) as key and value; lines without a value have "" for one."""
        return _pairs(four_letter_word(self.address, word))

    # -- inside --

    def _configuration(self) -> dict[str, object]:
        return {
            "tickTime": self.tick_time,
            "dataDir": self._directory / "data",
            "clientPort": self.port,
            "clientPortAddress": "127.0.0.1",
            "maxClientCnxns": 0,
            "snapCount": 100_000,
            "forceSync": "no",
            "4lw.commands.whitelist": "*",
            "admin.enableServer": "false",
            **self._properties,
        }

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    def _serves(self) -> bool:
        try:
            # A connection that comes while the server is starting may never be answered: try another one soon.
            return "zk_version" in _pairs(four_letter_word(self.address, "mntr", timeout=0.25))
        except OSError:
            return False

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._running(), None
        process.send_signal(how)
        process.send_signal(signal.SIGCONT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerFailed(f"the server did not end within {STOP_SECONDS} s; {self._log_end()}") from None

    def _wait_until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            code = self._running().poll()
            if code is not None:
                self._process = None
                raise ServerFailed(f"the server ended with code {code} before it could {what}; {self._log_end()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"the server did not {what} within {seconds} s; {self._log_end()}")
            time.sleep(0.02)

    def _log_end(self) -> str:
        return "its log ends: " + self.log_path.read_text(errors="replace")[-2000:]


@asynccontextmanager
async def connected(
    address: str, *, session_timeout: float = 6.0, credentials: tuple[str, str] | None = None
) -> AsyncIterator[ZooKeeperRegistry]:
    """A started registry, stopped afterwards."""
    registry = ZooKeeperRegistry(address, session_timeout=session_timeout, clock=SystemClock(), credentials=credentials)
    await registry.start(20)
    try:
        yield registry
    finally:
        await registry.stop(10)


async def expire(registry: ZooKeeperRegistry, address: str) -> None:
    """End the registry's session while it lives, and return when it is CONNECTED under a new one.

    It may win the session back for a moment, and be CONNECTED under the old id, before the session is over for good.
    """
    client_id = registry.client_id
    assert client_id is not None, "the registry has no connection"
    await asyncio.to_thread(expire_session, address, client_id)
    await eventually(lambda: registry.session_id != client_id[0] and registry.state is SessionState.CONNECTED, 20)


def leftovers() -> tuple[list[str], int]:
    """The names of the connection threads that run in this process, and how many descriptors are open."""
    threads = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("ejpy-zookeeper"))
    return threads, len(os.listdir("/proc/self/fd"))


def four_letter_word(address: str, word: str, timeout: float = 5.0) -> str:
    """What the server at `address` answers to a four-letter word. Raises OSError."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout) as connection:
        connection.sendall(word.encode())
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def expire_session(address: str, client_id: tuple[int, bytes]) -> None:
    """End a session while its owner lives: take it over with its id and password, and close it.

    When this returns, the server has ended the session; its ephemeral nodes are gone.
    """
    assert _close_session(address, client_id), f"the session {client_id[0]:#x} was over already"
    # The server may break the connection before its answer got out, also because the owner took the session back: whether
    # the session is over is known for certain only when it is not given out any more.
    for _ in range(100):
        if not _close_session(address, client_id):
            return
    raise ServerFailed(f"the session {client_id[0]:#x} could not be ended")


def _close_session(address: str, client_id: tuple[int, bytes]) -> bool:
    """Take a session over and close it; False if it was over."""
    session_id, password = client_id
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=5.0) as connection:
        _send(connection, struct.pack("!iqiqi", 0, 0, 10_000, session_id, len(password)) + password + b"\0")
        answer = _receive(connection)
        if answer is None:
            return True
        _, granted = struct.unpack_from("!ii", answer)
        if granted > 0:
            _send(connection, struct.pack("!ii", 1, -11))
            _receive(connection)
        return bool(granted > 0)


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(struct.pack("!i", len(message)) + message)


def _receive(connection: socket.socket) -> bytes | None:
    """One message; None if the server broke the connection instead."""
    length = _receive_exactly(connection, 4)
    return _receive_exactly(connection, struct.unpack("!i", length)[0]) if length is not None else None


def _receive_exactly(connection: socket.socket, length: int) -> bytes | None:
    data = b""
    while len(data) < length:
        try:
            part = connection.recv(length - len(data))
        except ConnectionError:
            return None
        if not part:
            return None
        data += part
    return data


def _pairs(text: str) -> dict[str, str]:
    pairs = {}
    for line in text.splitlines():
        key, _, value = line.replace("=", "\t", 1).partition("\t")
        pairs[key.strip()] = value.strip()
    return pairs


def _free_port() -> int:
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
