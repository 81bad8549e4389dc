"""The tree in a database, without thread or loop, under a clock that stands still: leases, reboots, changes, durability."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from sqlalchemy import Engine, event

from ejpy.errors import ConfigError, GuardFailed, RegistryUnavailable, SessionExpired
from ejpy.registry.base import Create, Delete, SetData
from ejpy.registry.sql.changes import KEPT_CHANGES
from ejpy.registry.sql.sqlite import SqliteFile
from ejpy.registry.sql.store import SqlStore
from ejpy.registry.transaction import Transaction

TIMEOUT = 6.0


class ManualClock:
    """A machine's clocks, moved by hand."""

    def __init__(self) -> None:
        self.wall = datetime(2026, 1, 1, tzinfo=timezone.utc)
        self.uptime = 1_000_000.0

    def now(self) -> datetime:
        return self.wall

    def monotonic(self) -> float:
        return self.uptime


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "registry.db"


OpenStore = Callable[..., SqlStore]


@pytest.fixture
def open_store(path: Path, clock: ManualClock, request: pytest.FixtureRequest) -> OpenStore:
    """Open one more store on the same file, with a session."""

    def open_one(boot_id: str = "boot") -> SqlStore:
        store = SqlStore(SqliteFile(f"sqlite:///{path}"), clock=clock, boot_id=boot_id, session_timeout=TIMEOUT)
        request.addfinalizer(store.close)
        store.open(clock.monotonic(), create=True)
        store.open_session(clock.monotonic())
        return store

    return open_one


def commit(store: SqlStore, *operations: Create | SetData | Delete) -> int:
    def change(transaction: Transaction) -> int:
        transaction.apply(operations)
        return transaction.revision

    assert store.session_id is not None
    return store.write(store.session_id, [operation.path for operation in operations], change, 0.0)


def changes(store: SqlStore) -> set[str] | None:
    found = store.changes(0.0)
    return None if found is None else set(found)


# ---- leases -------------------------------------------------------------------------------------------------------


def test_a_session_whose_lease_is_over_writes_nothing_even_if_nobody_noticed(open_store: OpenStore, clock: ManualClock) -> None:
    paused, other = open_store(), open_store()
    commit(paused, Create("/e", ephemeral=True))
    clock.uptime += TIMEOUT
    with pytest.raises(SessionExpired):
        commit(paused, Create("/n"))
    assert other.children(["/"], 0.0) == [["e"]], "nobody has noticed yet"


def test_whoever_renews_removes_what_the_dead_left(open_store: OpenStore, clock: ManualClock) -> None:
    dead, dead_too, living = open_store(), open_store(), open_store()
    commit(living, Create("/a"), Create("/l", ephemeral=True))
    commit(dead, Create("/a/d1", ephemeral=True), Create("/a/stays"))
    commit(dead_too, Create("/a/d2", ephemeral=True))
    clock.uptime += TIMEOUT / 2
    living.renew(0.0)
    assert living.children(["/a"], 0.0) == [["d1", "d2", "stays"]]
    changes(living)
    clock.uptime += TIMEOUT / 2
    living.renew(0.0)
    assert living.children(["/", "/a"], 0.0) == [["a", "l"], ["stays"]]
    assert changes(living) == {"/a/d1", "/a/d2"}, "and its own watches are told"
    commit(living, Delete("/a/stays"), Delete("/a"))


def test_a_lease_that_is_over_cannot_be_renewed(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store()
    commit(store, Create("/e", ephemeral=True))
    clock.uptime += TIMEOUT - 0.001
    store.renew(0.0)
    clock.uptime += TIMEOUT
    with pytest.raises(SessionExpired):
        store.renew(0.0)
    assert store.children(["/"], 0.0) == [[]]
    old = store.session_id
    assert store.open_session(0.0) != old
    commit(store, Create("/e", ephemeral=True))


def test_the_wall_clock_has_no_part_in_leases(open_store: OpenStore, clock: ManualClock) -> None:
    a, b = open_store(), open_store()
    for jump in (timedelta(days=400), timedelta(days=-800)):
        clock.wall += jump
        b.renew(0.0)
        commit(a, Create(f"/n{jump.days}"))


# ---- reboots ------------------------------------------------------------------------------------------------------


def test_sessions_of_another_boot_are_over(open_store: OpenStore, clock: ManualClock) -> None:
    before = open_store("boot 1")
    commit(before, Create("/e", ephemeral=True), Create("/persistent"))
    clock.uptime += 1  # well within the lease, if it were the same boot
    after = open_store("boot 2")
    assert after.children(["/"], 0.0) == [["persistent"]]
    with pytest.raises(SessionExpired):
        commit(before, Create("/n"))


def test_without_boot_id_a_lease_longer_than_can_be_is_over(open_store: OpenStore, clock: ManualClock) -> None:
    before = open_store("")
    commit(before, Create("/e", ephemeral=True))
    clock.uptime = 30.0
    after = open_store("")
    assert after.children(["/"], 0.0) == [[]]


def test_without_boot_id_a_lease_that_could_be_is_over_in_its_time(open_store: OpenStore, clock: ManualClock) -> None:
    clock.uptime = 30.0
    before = open_store("")
    commit(before, Create("/e", ephemeral=True))
    clock.uptime = 31.0
    after = open_store("")
    assert after.children(["/"], 0.0) == [["e"]]
    clock.uptime = 30.0 + TIMEOUT
    after.renew(0.0)
    assert after.children(["/"], 0.0) == [[]]


# ---- revisions ----------------------------------------------------------------------------------------------------


def test_the_revision_grows_by_one_and_catches_up_with_the_wall_clock(open_store: OpenStore, clock: ManualClock) -> None:
    store = open_store()
    first = commit(store, Create("/n"))
    assert [commit(store, SetData("/n", b"")) for _ in range(3)] == [first + 1, first + 2, first + 3]
    clock.wall += timedelta(seconds=1)
    second = commit(open_store(), SetData("/n", b""))
    assert second >= clock.wall.timestamp() * 1_000_000 > first
    clock.wall -= timedelta(days=1)
    assert commit(open_store(), SetData("/n", b"")) > second, "nor does it go back with the wall clock"


def test_a_backup_put_back_gives_no_token_twice(open_store: OpenStore, clock: ManualClock, path: Path) -> None:
    store = open_store()
    commit(store, Create("/n"))
    store.close()
    shutil.copy(path, path.with_suffix(".backup"))
    clock.wall += timedelta(seconds=1)
    store = open_store()
    latest = [commit(store, SetData("/n", b"")) for _ in range(20)][-1]
    store.close()
    shutil.copy(path.with_suffix(".backup"), path)
    clock.wall += timedelta(seconds=1)
    assert commit(open_store(), SetData("/n", b"")) > latest


# ---- changes ------------------------------------------------------------------------------------------------------


def test_changes_are_those_since_they_were_last_asked_for_own_and_foreign(open_store: OpenStore) -> None:
    a, b = open_store(), open_store()
    changes(a)
    commit(a, Create("/a"))
    commit(b, Create("/b"), Create("/b/x"))
    commit(a, SetData("/b", b""), Delete("/b/x"))
    assert changes(a) == {"/a", "/b", "/b/x"}
    assert changes(a) == set()
    commit(a, SetData("/a", b""))
    assert changes(a) == {"/a"}
    commit(b, SetData("/b", b""))
    assert changes(a) == {"/b"}
    assert changes(b) == {"/a", "/b", "/b/x"}
    a.renew(0.0)
    b.renew(0.0)
    assert changes(a) == changes(b) == set()


def test_a_refused_transaction_changes_nothing(open_store: OpenStore) -> None:
    a, b = open_store(), open_store()
    changes(b)
    with pytest.raises(GuardFailed):
        commit(a, Create("/a"), Create("/a"))
    assert changes(a) == changes(b) == set()


def test_a_request_that_is_withdrawn_before_the_commit_has_no_effect(open_store: OpenStore) -> None:
    store, other = open_store(), open_store()
    changes(store)
    assert store.session_id is not None
    with pytest.raises(RegistryUnavailable, match="withdrawn"):
        store.write(store.session_id, ["/n"], lambda transaction: transaction.apply([Create("/n")]), 0.0, lambda: False)
    assert other.children(["/"], 0.0) == [[]]
    assert changes(store) == set()


def test_a_node_and_the_changes_before_it_are_read_together(open_store: OpenStore) -> None:
    a, b = open_store(), open_store()
    changes(b)
    commit(a, Create("/n", b"1"))
    found, node = b.changes_and_node("/n", 0.0)
    assert found == frozenset({"/n"})
    assert node is not None
    assert node.data == b"1"
    assert changes(b) == set()


def test_whoever_looks_too_late_is_told_that_anything_may_have_changed(open_store: OpenStore) -> None:
    a, late = open_store(), open_store()
    changes(late)
    paths = [f"/{number}" for number in range(1000)]
    commit(a, *(Create(path) for path in paths))
    for _ in range(KEPT_CHANGES // 1000):
        commit(a, *(SetData(path, b"") for path in paths))
    a.renew(0.0)
    assert changes(late) is None
    assert changes(late) == set()
    in_time = open_store()
    commit(a, SetData("/1", b""))
    a.renew(0.0)
    assert changes(in_time) == changes(late) == {"/1"}


def test_whoever_had_to_connect_again_is_told_that_anything_may_have_changed(open_store: OpenStore, path: Path) -> None:
    a, b = open_store(), open_store()
    changes(b)
    path.rename(path.with_suffix(".away"))
    with pytest.raises(RegistryUnavailable):
        changes(b)
    path.with_suffix(".away").rename(path)
    commit(a, Create("/n"))
    b.open(0.0, create=False)
    assert changes(b) is None
    assert changes(b) == set()


# ---- cost and durability ------------------------------------------------------------------------------------------


def test_statements_do_not_grow_with_operations(open_store: OpenStore) -> None:
    store = open_store()
    commit(store, *(Create(f"/{number}") for number in range(100)))

    def statements(count: int) -> int:
        seen: list[str] = []

        def note(*arguments: object) -> None:
            seen.append(str(arguments[2]))

        event.listen(Engine, "before_cursor_execute", note)
        try:
            commit(store, *(SetData(f"/{number}", b"x" * 100) for number in range(count)))
        finally:
            event.remove(Engine, "before_cursor_execute", note)
        return len(seen)

    assert statements(1) == statements(100)


def test_what_was_committed_survives_a_power_cut(path: Path) -> None:
    """It cannot be cut here; SQLite's own promise holds with these settings."""
    file = SqliteFile(f"sqlite:///{path}")
    connection = file.connect(create=True)
    try:
        file.begin(connection, write=False, wait_seconds=0)
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2  # FULL
    finally:
        connection.close()


def test_tables_of_another_version_are_refused(open_store: OpenStore, path: Path) -> None:
    open_store().close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE ejpy_meta SET value = 2 WHERE name = 'schema_version'")
    connection.close()
    with pytest.raises(RegistryUnavailable, match="version 2, this ejpy knows version 1"):
        open_store()


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:///x.db?mode=ro", "names no file"),
        ("postgresql://host/db", "postgresql databases are not supported"),
        ("registry.db", "is not a URL"),
    ],
)
def test_other_urls_are_refused_in_one_line(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as raised:
        SqliteFile(url)
    assert len(raised.value.problems) == 1
    assert "sqlite:///path" in str(raised.value)
