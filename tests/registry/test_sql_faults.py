"""The SQL registry when its file is locked, missing, damaged, deleted or replaced, and when its loop is closed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ejpy.clock import SystemClock
from ejpy.errors import RegistryError, RegistryUnavailable, RegistryUnreachable
from ejpy.registry.base import Create, SessionState, SetData
from ejpy.registry.sql import SqlRegistry
from tests.registry.contract import covers
from tests.support.loop import Signals, eventually, run

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


def registry_at(path: Path, session_timeout: float = 10.0) -> tuple[SqlRegistry, Signals]:
    registry, states = SqlRegistry(f"sqlite:///{path}", clock=SystemClock(), session_timeout=session_timeout), Signals()
    registry.on_session(states.add)
    return registry, states


@contextlib.asynccontextmanager
async def started(path: Path, session_timeout: float = 10.0) -> AsyncIterator[tuple[SqlRegistry, Signals]]:
    registry, states = registry_at(path, session_timeout)
    await registry.start(10)
    try:
        yield registry, states
    finally:
        await registry.stop(10)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process's write in progress, as far as SQLite can tell."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def lease_in(path: Path) -> float:
    """When the only session of the file ends."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((deadline,),) = connection.execute("SELECT deadline FROM ejpy_sessions").fetchall()
    return float(deadline)


def sql_threads() -> int:
    return sum(thread.name == "ejpy-sql" for thread in threading.enumerate())


def descriptors() -> set[str]:
    return {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")}


# ---- start --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ("missing/registry.db", "the directory .*/missing does not exist"),
        ("file/registry.db", ".*/file is not a directory"),
        ("directory", "it is a directory"),
        ("garbage", "is damaged or not ejpy's: file is not a database"),
        ("other.db", "is damaged or not ejpy's: No row was found"),
    ],
)
def test_a_start_that_cannot_succeed_fails_in_one_line_and_leaves_nothing(tmp_path: Path, place: str, cause: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "directory").mkdir()
    (tmp_path / "garbage").write_bytes(b"no database at all, but long enough to look like one" * 100)
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE ejpy_meta (name, value)")

    async def story() -> None:
        registry, states = registry_at(tmp_path / place)
        with pytest.raises(RegistryUnreachable, match=cause) as raised:
            await registry.start(5)
        assert "\n" not in str(raised.value)
        assert str(raised.value).count("sqlite:///") == 1
        assert registry.state is LOST
        assert states.all == []
        await registry.stop(1)

    run(story())
    assert sql_threads() == 0
    gc.collect()
    assert not any(str(tmp_path) in name for name in descriptors())


def test_a_start_on_a_locked_file_ends_at_its_deadline(path: Path) -> None:
    async def story() -> None:
        async with started(path):
            pass
        registry, _ = registry_at(path)
        with locked(path), pytest.raises(RegistryUnreachable, match="locked"):
            await asyncio.wait_for(registry.start(0.5), 5)
        assert sql_threads() == 0
        await registry.start(5)
        assert registry.state is CONNECTED
        await registry.stop(5)

    run(story())


def test_a_relative_path_is_the_same_file_wherever_the_process_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.chdir(tmp_path)
        registry, _ = registry_at(Path("registry.db"))
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        await registry.start(10)
        await registry.stop(10)
        assert (tmp_path / "registry.db").exists()

    run(story())


# ---- a locked file ------------------------------------------------------------------------------------------------


def test_a_write_to_a_locked_file_is_refused_in_time_and_reads_go_on(path: Path) -> None:
    async def story() -> None:
        async with started(path) as (a, _):
            await a.commit([Create("/n", b"before")])
            with locked(path):
                first = asyncio.ensure_future(a.commit([SetData("/n", b"after")], timeout=1.0))
                queued = asyncio.ensure_future(a.commit([SetData("/n", b"after")], timeout=0.3))
                with pytest.raises(RegistryUnavailable, match="no answer within"):
                    await asyncio.wait_for(queued, 5)
                with pytest.raises(RegistryUnavailable, match="locked"):
                    await asyncio.wait_for(first, 5)
                (node,) = await a.read(["/n"], timeout=5)
                assert node is not None
                assert node.data == b"before"
            done = await a.commit([SetData("/n", b"after")])
            assert done.versions == (1,), "what was refused was not applied later either"

    run(story())


def test_a_write_waits_for_a_short_lock(path: Path) -> None:
    async def story() -> None:
        async with started(path) as (a, _):
            with locked(path):
                write = asyncio.ensure_future(a.commit([Create("/n")], timeout=8))
                await asyncio.wait({write}, timeout=0.2)
                assert not write.done()
            assert (await write).versions == (0,)

    run(story())


def test_a_long_lock_suspends_then_loses_and_a_new_session_follows(path: Path) -> None:
    async def story() -> None:
        async with started(path, session_timeout=1.0) as (a, states):
            first = a.session_id
            told = Signals()
            await a.watch_tree("/", told.add)
            await a.commit([Create("/e", ephemeral=True)])
            await a.read_and_watch("/e", lambda: told.add("/e may have changed"))
            with locked(path):
                await states.until(lambda all: SUSPENDED in all)
                await told.until(lambda all: "/e may have changed" in all)
                with pytest.raises(RegistryUnavailable, match="locked"):
                    await a.read(["/e"])
                await states.until(lambda all: LOST in all)
                clock, lease = SystemClock(), lease_in(path)
                assert a.lease_until <= clock.monotonic()
                assert a.lease_until < lease, "it gives up before others may"
                await eventually(lambda: clock.monotonic() > lease)
                told.all.clear()
            await states.until(lambda all: all == [CONNECTED, SUSPENDED, LOST, CONNECTED])
            assert a.session_id != first
            await told.until(lambda all: None in all)
            assert await a.read(["/e"]) == [None]

    run(story())


def test_stop_returns_in_time_when_the_file_is_locked(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with started(path, session_timeout=1.0) as (b, _):
            async with started(path, session_timeout=3.0) as (a, _):  # no renewal is waiting for the lock when it stops
                gone = Signals()
                await a.commit([Create("/e", ephemeral=True)])
                await b.watch_tree("/", gone.add)
                with locked(path):
                    await asyncio.wait_for(a.stop(1), 5)
                    assert (a.state, a.session_id) == (LOST, None)
            await gone.until(covers("/e"))
            await eventually(lambda: sql_threads() == 1)

    with caplog.at_level(logging.WARNING, "ejpy.registry"):
        run(story())
    assert "ends by its lease" in caplog.text
    assert sql_threads() == 0


# ---- a file that goes away ----------------------------------------------------------------------------------------


def test_a_file_that_is_moved_away_is_noticed_and_its_return_too(path: Path) -> None:
    async def story() -> None:
        async with started(path) as (a, states):
            await a.commit([Create("/n"), Create("/e", ephemeral=True)])
            first, directory = a.session_id, path.parent
            os.rename(path, f"{path}.away")
            await states.until(lambda all: all[-1] is SUSPENDED)
            with pytest.raises(RegistryUnavailable, match=r"does not exist any more; put it back"):
                await a.commit([SetData("/n", b"1")])
            assert path.name not in os.listdir(directory), "a worker makes no new file in its place"
            os.rename(f"{path}.away", path)
            await states.until(lambda all: all == [CONNECTED, SUSPENDED, CONNECTED])
            assert a.session_id == first
            assert (await a.commit([SetData("/n", b"1")])).versions == (1,)
            assert await a.children(["/"]) == [["e", "n"]]

    run(story())


def test_no_write_goes_to_a_file_that_was_deleted(path: Path) -> None:
    """Not even within the time until the loss is noticed: others may already write to a new file of that name."""

    async def story() -> None:
        async with started(path) as (a, _):
            await a.commit([Create("/n")])
            os.unlink(path)
            with pytest.raises(RegistryUnavailable):
                await a.commit([SetData("/n", b"1")])

    run(story())


def test_workers_of_a_deleted_file_join_those_of_the_new_one(path: Path) -> None:
    async def story() -> None:
        async with started(path) as (a, states):
            told = Signals()
            await a.watch_tree("/", told.add)
            token = (await a.commit([Create("/old")])).revision
            first = a.session_id
            os.unlink(path)
            await states.until(lambda all: all[-1] is SUSPENDED)
            told.all.clear()
            async with started(path) as (b, _):
                await b.commit([Create("/new")])
                await states.until(lambda all: all == [CONNECTED, SUSPENDED, LOST, CONNECTED])
                await told.until(lambda all: None in all)
                assert a.session_id != first
                assert await a.children(["/"]) == [["new"]]
                assert (await a.commit([SetData("/new", b"1")])).revision > token, "no token is given twice"

    run(story())


def test_a_file_without_our_tables_in_its_place_is_not_used(path: Path) -> None:
    async def story() -> None:
        async with started(path) as (a, states):
            await a.commit([Create("/n")])
            os.unlink(path)
            await states.until(lambda all: all[-1] is SUSPENDED)
            with contextlib.closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE something_else (x)")

            async def refusal() -> str:
                try:
                    await a.read(["/n"])
                except RegistryError as error:
                    return str(error)
                return "answered"

            while "without ejpy's tables" not in (last := await refusal()):
                assert "does not exist any more" in last
                await asyncio.sleep(0.02)
            assert states.all == [CONNECTED, SUSPENDED]

    run(story())


# ---- the loop -----------------------------------------------------------------------------------------------------


def test_a_closed_loop_ends_the_thread_and_the_session(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def never_stopped() -> None:
        registry, _ = registry_at(path, session_timeout=1.0)
        await registry.start(10)
        await registry.commit([Create("/e", ephemeral=True)])

    async def afterwards() -> None:
        await eventually(lambda: sql_threads() == 0)
        async with started(path) as (b, _):
            assert await b.children(["/"]) == [[]]

    with caplog.at_level(logging.WARNING, "ejpy.registry"):
        run(never_stopped())
        run(afterwards())
    assert "loop was closed before the registry was stopped" in caplog.text


def test_the_loop_is_never_blocked(path: Path) -> None:
    """While every call waits for a lock, the loop goes on turning."""

    async def story() -> None:
        async with started(path) as (a, _):
            with locked(path):
                writes = [asyncio.ensure_future(a.commit([Create(f"/{number}")], timeout=0.5)) for number in range(5)]
                turns = 0
                while not all(write.done() for write in writes):
                    await asyncio.sleep(0)
                    turns += 1
                assert turns > 100
                for write in writes:
                    with pytest.raises(RegistryUnavailable):
                        await write

    run(story())
