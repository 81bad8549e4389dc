"""The SQL registry among real processes on one file: killed, stopped, racing, starting together, rebooted, out of disk."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ejpy.clock import SystemClock
from ejpy.registry.base import Create, SessionState
from ejpy.registry.sql import SqlRegistry
from tests.registry.contract import covers
from tests.support.loop import Signals, run

ROOT = Path(__file__).resolve().parents[2]

WORKER = """
import asyncio, json, os, resource, sys
from ejpy.clock import SystemClock
from ejpy.errors import GuardFailed, RegistryError
from ejpy.registry.base import Create, SetData
from ejpy.registry.sql import SqlRegistry

def say(*what):
    print(json.dumps(what), flush=True)

async def main(path, name, session_timeout, boot_id):
    registry = SqlRegistry(
        f"sqlite:///{path}", clock=SystemClock(), session_timeout=float(session_timeout), boot_id=boot_id or None
    )
    registry.on_session(lambda state: say("state", state.value, registry.session_id))
    await registry.start(20)
    await registry.commit([Create(f"/{name}", ephemeral=True)])
    say("ready", registry.session_id)
    loop = asyncio.get_running_loop()
    while command := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        if command[0] == "increment":
            for _ in range(int(command[1])):
                while True:
                    (node,) = await registry.read(["/counter"])
                    try:
                        done = await registry.commit([SetData("/counter", b"%d" % (int(node.data) + 1), node.version)])
                    except GuardFailed:
                        continue
                    say("won", done.versions[0], done.revision)
                    break
            say("done")
        elif command[0] == "fill":
            resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path + "-wal") + 5000, resource.RLIM_INFINITY))
            try:
                await registry.commit([SetData("/counter", bytes(400_000)), Create("/half")])
            except RegistryError as error:
                say("failed", type(error).__name__, str(error))
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        elif command[0] == "set":
            say("set", (await registry.commit([SetData("/counter", command[1].encode())])).versions[0])
        elif command[0] == "stop":
            await registry.stop(10)
            say("stopped")

asyncio.run(main(*sys.argv[1:]))
"""


class Worker:
    """A process with a registry and an ephemeral node `/<name>`; what it says comes as lists."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = Signals()
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.add(json.loads(line))

    async def until(self, *what: Any) -> None:
        await self.said.until(lambda all: any(said[: len(what)] == list(what) for said in all), timeout=45)

    def all(self, kind: str) -> list[list[Any]]:
        return [said[1:] for said in self.said.all if said[0] == kind]

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n".encode())

    async def end(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
        await self.process.wait()
        await self._reading


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


@contextlib.asynccontextmanager
async def worker(path: Path, name: str, session_timeout: float = 10.0, boot_id: str = "") -> AsyncIterator[Worker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        WORKER,
        str(path),
        name,
        str(session_timeout),
        boot_id,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
    )
    one = Worker(process)
    try:
        yield one
    finally:
        await one.end()


@contextlib.asynccontextmanager
async def observer(path: Path, session_timeout: float = 10.0, boot_id: str | None = None) -> AsyncIterator[SqlRegistry]:
    registry = SqlRegistry(f"sqlite:///{path}", clock=SystemClock(), session_timeout=session_timeout, boot_id=boot_id)
    await registry.start(20)
    try:
        yield registry
    finally:
        await registry.stop(10)


def lease_of(path: Path, session_id: int) -> float:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((deadline,),) = connection.execute("SELECT deadline FROM ejpy_sessions WHERE id = ?", [session_id]).fetchall()
    return float(deadline)


def test_a_killed_process_is_missed_when_its_lease_is_over_without_any_traffic(path: Path) -> None:
    async def story() -> None:
        async with observer(path, 2.0) as b, worker(path, "a", 2.0) as a:
            gone = Signals()
            await a.until("ready")
            await b.watch_tree("/a", gone.add)
            (node,) = await b.read(["/a"])
            assert node is not None
            assert node.session_id is not None
            assert [node.session_id] == a.all("ready")[0]
            a.process.kill()
            await a.process.wait()
            lease = lease_of(path, node.session_id)
            gone.all.clear()
            await gone.until(covers("/a"))
            assert SystemClock().monotonic() >= lease, "not before: it might only have been slow"
            assert await b.read(["/a"]) == [None]
            assert b.state is SessionState.CONNECTED

    run(story(), 60)


def test_a_process_stopped_beyond_its_lease_loses_its_session_and_gets_a_new_one(path: Path) -> None:
    async def story() -> None:
        async with observer(path, 2.0) as b, worker(path, "a", 2.0) as a:
            gone = Signals()
            await a.until("ready")
            (first,) = a.all("ready")[0]
            await b.watch_tree("/a", gone.add)
            a.process.send_signal(signal.SIGSTOP)
            gone.all.clear()
            await gone.until(covers("/a"))
            a.process.send_signal(signal.SIGCONT)
            await a.said.until(lambda all: len([said for said in all if said[:2] == ["state", "connected"]]) == 2)
            states = [state for state, _ in a.all("state")]
            assert states == ["connected", "suspended", "lost", "connected"]
            second = a.all("state")[-1][1]
            assert second > first
            assert await b.read(["/a"]) == [None]

    run(story(), 60)


def test_a_process_that_stops_properly_is_gone_at_once(path: Path) -> None:
    async def story() -> None:
        async with observer(path, 60.0) as b, worker(path, "a", 60.0) as a:
            gone = Signals()
            await a.until("ready")
            await b.watch_tree("/a", gone.add)
            a.tell("stop")
            await a.until("stopped")
            await gone.until(covers("/a"))

    run(story(), 60)


def test_racing_processes_lose_no_increment(path: Path) -> None:
    async def story() -> None:
        async with observer(path, 30.0) as b, worker(path, "x", 30.0) as x, worker(path, "y", 30.0) as y:
            await b.commit([Create("/counter", b"0")])
            for one in (x, y):
                await one.until("ready")
            for one in (x, y):
                one.tell("increment 100")
            for one in (x, y):
                await one.until("done")
            won = sorted([*x.all("won"), *y.all("won")])
            assert [version for version, _ in won] == list(range(1, 201))
            revisions = [revision for _, revision in won]
            assert revisions == sorted(set(revisions))
            (node,) = await b.read(["/counter"])
            assert node is not None
            assert (node.data, node.version, node.revision) == (b"200", 200, revisions[-1])

    run(story(), 60)


def test_processes_may_start_together_on_a_file_that_is_not_there_yet(path: Path) -> None:
    async def story() -> None:
        async with contextlib.AsyncExitStack() as stack:
            workers = [await stack.enter_async_context(worker(path, f"w{number}")) for number in range(4)]
            for one in workers:
                await one.until("ready")
            async with observer(path) as b:
                assert await b.children(["/"]) == [["w0", "w1", "w2", "w3"]]

    run(story(), 60)


def test_after_a_reboot_the_sessions_of_before_are_over(path: Path) -> None:
    async def story() -> None:
        async with worker(path, "a", 600.0, boot_id="boot 1") as a:
            await a.until("ready")
            a.process.kill()
            await a.process.wait()
        async with observer(path, 600.0, boot_id="boot 1") as b:
            assert await b.children(["/"]) == [["a"]], "its lease still runs"
        async with observer(path, 600.0, boot_id="boot 2") as b:
            assert await b.children(["/"]) == [[]]

    run(story(), 60)


def test_a_full_disk_fails_the_transaction_as_a_whole_and_no_other(path: Path) -> None:
    async def story() -> None:
        async with observer(path) as b:
            await b.commit([Create("/counter", b"0")])
            async with worker(path, "a") as a:
                await a.until("ready")
                a.tell("fill")
                await a.until("failed")
                ((kind, message),) = a.all("failed")
                assert kind in ("OutcomeUnknown", "RegistryUnavailable")
                assert "\n" not in message
                (node, half) = await b.read(["/counter", "/half"])
                assert node is not None
                applied = half is not None
                assert node.data == (bytes(400_000) if applied else b"0")
                assert not (applied and kind == "RegistryUnavailable")
                if "suspended" in [state for state, _ in a.all("state")]:
                    await a.said.until(lambda all: all[-1][:2] == ["state", "connected"])
                a.tell("set 1")
                await a.until("set", node.version + 1)

    run(story(), 60)


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="needs to give up root's rights")
def test_a_file_that_may_not_be_written_is_refused_in_one_line() -> None:
    script = """
import asyncio, os, sys
from ejpy.clock import SystemClock
from ejpy.errors import RegistryUnreachable
from ejpy.registry.sql import SqlRegistry

async def main(path):
    try:
        await SqlRegistry(f"sqlite:///{path}", clock=SystemClock(), session_timeout=5).start(5)
    except RegistryUnreachable as error:
        print(error)

SqlRegistry("sqlite:///x", clock=SystemClock(), session_timeout=5)  # imports what it needs while it may
os.setuid(65534)
asyncio.run(main(sys.argv[1]))
"""

    async def make(path: Path) -> None:
        async with observer(path):
            pass

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "registry.db")
        run(make(path))
        path.chmod(0o444)
        path.parent.chmod(0o755)
        command = [sys.executable, "-c", script, str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert f"{path} cannot be" in done.stdout
