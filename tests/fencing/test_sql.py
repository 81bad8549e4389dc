"""Fencing in SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, Table, create_engine, func, select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from ejpy.errors import EjpyError, StaleAttempt, UnreadableToken
from ejpy.fencing.sql import fencing_table, guard, metadata, update_fenced
from ejpy.job import ShardContext
from tests.fencing import tables
from tests.fencing.old_owner import OLD, OldOwner
from tests.fencing.tables import RESOURCE, reports
from tests.support.waiting import PATIENCE_SECONDS, wait_until

SERVERS = ["postgresql", "mariadb"]
DATABASES = ["sqlite", *SERVERS]
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture(params=DATABASES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        engine = create_engine(f"sqlite:///{tmp_path}/test.db")
    else:
        engine = create_engine(request.getfixturevalue(f"{request.param}_url"))
    for known in (metadata, tables.metadata):
        known.drop_all(engine)
        known.create_all(engine)
    with engine.begin() as connection:
        connection.execute(reports.insert(), {"id": 1, "region": "north", "body": "none yet", "fencing_token": 0})
    yield engine
    engine.dispose()


def only(*databases: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("engine", databases, indirect=True)


def url(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)


def write(engine: Engine, token: int, body: str = "") -> None:
    with engine.begin() as connection:
        guard(connection, RESOURCE, token)
        connection.execute(update(reports).where(reports.c.id == 1).values(body=body or f"by {token}"))


def stored(engine: Engine) -> tuple[str, int]:
    """The body of the first report, and the token of the guarded resource."""
    with engine.begin() as connection:
        body = connection.execute(select(reports.c.body).where(reports.c.id == 1)).scalar_one()
        token = connection.execute(select(fencing_table.c.token).where(fencing_table.c.resource == RESOURCE)).scalar_one()
        return body, token


# ---- guard ------------------------------------------------------------------------------------------------------


def test_a_paused_old_owner_that_wakes_is_refused(engine: Engine) -> None:
    with OldOwner("guard_after_reading", url(engine), 41) as old:
        write(engine, 57, "by the new owner")
        assert old.wake() == "StaleAttempt"
    assert stored(engine) == ("by the new owner", 57)


@only(*SERVERS)
def test_nobody_writes_between_guard_and_commit(engine: Engine) -> None:
    with OldOwner("commit_after_guarding", url(engine), 41) as old, engine.begin() as connection:
        impatient = "SET LOCAL lock_timeout = '50ms'" if engine.name == "postgresql" else "SET innodb_lock_wait_timeout = 0"
        connection.execute(text(impatient))
        with pytest.raises(OperationalError):
            guard(connection, RESOURCE, 57)
        connection.rollback()
        assert old.wake() == "written"
    engine.dispose()
    assert stored(engine) == (OLD, 41)
    write(engine, 57)
    assert stored(engine) == ("by 57", 57)


@only("sqlite")
def test_nobody_writes_to_the_file_between_guard_and_commit(engine: Engine) -> None:
    impatient = create_engine(engine.url, connect_args={"timeout": 0})
    with OldOwner("commit_after_guarding", url(engine), 41) as old:
        with pytest.raises(OperationalError, match="locked"):
            write(impatient, 57)
        assert old.wake() == "written"
    write(impatient, 57)
    assert stored(engine) == ("by 57", 57)
    impatient.dispose()


@only("postgresql")
def test_a_server_that_ends_idle_transactions_frees_what_a_paused_owner_holds(engine: Engine) -> None:
    idle = engine.url.update_query_dict({"options": "-c idle_in_transaction_session_timeout=5000"})
    with OldOwner("commit_after_guarding", idle.render_as_string(hide_password=False), 41) as old:
        write(engine, 57)
        assert old.wake() in {"InternalError", "OperationalError"}
    assert stored(engine) == ("by 57", 57)


def test_the_first_one_makes_the_row_and_the_same_may_come_again(engine: Engine) -> None:
    for body in ("first", "again"):
        write(engine, 5, body)
        assert stored(engine) == (body, 5)


def test_a_newer_one_takes_over_and_an_older_one_is_refused(engine: Engine) -> None:
    write(engine, 5)
    write(engine, 7)
    for _ in range(2):
        with pytest.raises(StaleAttempt, match=r"'reports/Beijing' in table ejpy_fencing: token 6 is older than 7"):
            write(engine, 6)
        assert stored(engine) == ("by 7", 7)


def test_tokens_of_63_bits(engine: Engine) -> None:
    write(engine, 2**63 - 1)
    with pytest.raises(StaleAttempt):
        write(engine, 2**63 - 2)


def test_the_context_of_an_attempt_says_who_was_refused(engine: Engine) -> None:
    with engine.begin() as connection:
        guard(connection, RESOURCE, ShardContext.for_test(fencing_token=7))
    with engine.begin() as connection, pytest.raises(StaleAttempt, match=r"token 6 of test-job/2026-01-01T00:00:00\+00:00/3 "):
        guard(connection, RESOURCE, ShardContext.for_test(fencing_token=6, sharding_item=3))


def test_resources_are_told_apart_by_every_character(engine: Engine) -> None:
    with engine.begin() as connection:
        guard(connection, "Région", 9)
        for name in ("région", "Region", "region", "x" * 255):
            guard(connection, name, 1)


def test_a_guard_that_is_rolled_back_has_not_been(engine: Engine) -> None:
    write(engine, 5)
    with engine.connect() as connection:
        guard(connection, RESOURCE, 9)
        connection.rollback()
    write(engine, 6)
    assert stored(engine) == ("by 6", 6)


@only(*SERVERS)
@pytest.mark.parametrize("first", [True, False], ids=["no row yet", "a row"])
@pytest.mark.parametrize(("holds", "waits", "wins"), [(7, 5, 7), (5, 7, 7), (7, 7, 7)])
def test_who_comes_second_waits_for_the_first(engine: Engine, first: bool, holds: int, waits: int, wins: int) -> None:
    if not first:
        write(engine, 1)
    errors: list[BaseException] = []
    with engine.connect() as connection:
        guard(connection, RESOURCE, holds)
        second = threading.Thread(target=catch, args=(errors, partial(write, engine, waits)))
        second.start()
        wait_until(lambda: lock_waits(engine), PATIENCE_SECONDS, "the second one waits for the lock")
        connection.execute(update(reports).where(reports.c.id == 1).values(body=f"by {holds}"))
        connection.commit()
        second.join(PATIENCE_SECONDS)
    assert [type(error) for error in errors] == ([StaleAttempt] if waits < holds else [])
    assert stored(engine) == (f"by {wins}", wins)


def catch(errors: list[BaseException], what: Callable[[], None]) -> None:
    try:
        what()
    except (EjpyError, DBAPIError) as error:
        errors.append(error)


def lock_waits(engine: Engine) -> bool:
    """Whether somebody waits for a lock."""
    if engine.name == "postgresql":
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    else:  # innodb_trx is a copy that is not renewed while it is read often
        query = (
            "SELECT variable_value FROM information_schema.global_status WHERE variable_name = 'Innodb_row_lock_current_waits'"
        )
    with engine.connect() as connection:
        return int(connection.execute(text(query)).scalar_one()) > 0


def test_many_that_come_at_once_leave_the_newest(engine: Engine) -> None:
    tokens = list(range(1, 9))
    together = threading.Barrier(len(tokens))
    errors: list[BaseException] = []

    def come(token: int) -> None:
        with engine.connect():  # what takes time is done before
            pass
        together.wait(PATIENCE_SECONDS)
        again(lambda: write(engine, token))

    threads = [threading.Thread(target=catch, args=(errors, partial(come, token))) for token in tokens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert {type(error) for error in errors} <= {StaleAttempt}
    assert stored(engine) == ("by 8", 8)


def again(what: Callable[[], None]) -> None:
    """Repeat what a database gave up as a deadlock, as its manual asks for."""
    for _ in range(20):
        try:
            return what()
        except OperationalError:
            continue
    raise AssertionError("a deadlock, 20 times")


@only(*SERVERS)
@pytest.mark.parametrize("level", LEVELS)
def test_an_old_snapshot_does_not_let_an_older_one_in(engine: Engine, level: str) -> None:
    write(engine, 5)
    with engine.connect().execution_options(isolation_level=level) as connection:
        connection.execute(select(tables.other)).all()  # the snapshot is made here
        write(engine, 7)
        with pytest.raises((StaleAttempt, DBAPIError)) as caught:
            guard(connection, RESOURCE, 6)
        assert isinstance(caught.value, StaleAttempt) or "serialize" in str(caught.value)
    assert stored(engine) == ("by 7", 7)


@pytest.mark.parametrize("everywhere", [True, False])
def test_autocommit_is_refused(engine: Engine, everywhere: bool) -> None:
    options = {"isolation_level": "AUTOCOMMIT"}
    loose = create_engine(engine.url, isolation_level="AUTOCOMMIT") if everywhere else engine.execution_options(**options)
    with loose.connect() as connection:
        with pytest.raises(ValueError, match="AUTOCOMMIT"):
            guard(connection, RESOURCE, 5)
        with pytest.raises(ValueError, match="AUTOCOMMIT"):
            update_fenced(connection, update(reports).values(body="x"), reports.c.fencing_token, 5)
    loose.dispose()


@only("sqlite")
@pytest.mark.parametrize("token", [0, -1, 2**63, True, "5", None])
def test_what_is_no_token_is_refused(engine: Engine, token: object) -> None:
    with engine.begin() as connection, pytest.raises(ValueError, match="is no fencing token"):
        guard(connection, RESOURCE, token)  # type: ignore[arg-type]


@only("sqlite")
@pytest.mark.parametrize("resource", ["", " a", "a ", "x" * 256])
def test_what_cannot_name_a_resource_is_refused(engine: Engine, resource: str) -> None:
    with engine.begin() as connection, pytest.raises(ValueError, match="cannot name a resource"):
        guard(connection, resource, 5)


def test_a_row_of_tokens_without_a_token_lets_nobody_in(engine: Engine) -> None:
    careless_table(engine, None)
    with pytest.raises(UnreadableToken, match=r"'reports/Beijing' .* is None; nothing was written\. Write into that row"):
        write(engine, 5)
    assert rows(engine) == [("none yet", 0)]


@only("sqlite")
@pytest.mark.parametrize("garbage", ["abc", "", b"\xff", 7.5])
def test_garbage_in_sqlite_lets_nobody_in(engine: Engine, garbage: object) -> None:
    careless_table(engine, garbage)
    with pytest.raises(UnreadableToken, match="the stored fencing token is "):
        write(engine, 5)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT body FROM reports")).scalar_one() == "none yet"


def careless_table(engine: Engine, token: object) -> None:
    """A table of tokens as somebody else made it, with something in it."""
    metadata.drop_all(engine)
    careless = Table(
        fencing_table.name,
        MetaData(),
        Column("resource", fencing_table.c.resource.type, primary_key=True),
        Column("token", BigInteger, nullable=True),
    )
    careless.create(engine)
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO ejpy_fencing VALUES (:resource, :token)"), {"resource": RESOURCE, "token": token})


def test_another_database_is_refused_in_one_line() -> None:
    strange = create_engine("sqlite://")
    strange.dialect.name = "oracle"
    with strange.connect() as connection, pytest.raises(ValueError, match=r"not oracle; use update_fenced\(\) there"):
        guard(connection, RESOURCE, 5)
    strange.dispose()


# ---- update_fenced ----------------------------------------------------------------------------------------------


def update_one(connection: Connection, token: int, number: int = 1) -> int:
    statement = update(reports).where(reports.c.id == number).values(body=f"by {token}")
    return update_fenced(connection, statement, reports.c.fencing_token, token)


def rows(engine: Engine) -> list[tuple[str, int | None]]:
    with engine.begin() as connection:
        return [tuple(row) for row in connection.execute(select(reports.c.body, reports.c.fencing_token).order_by(reports.c.id))]


def test_a_paused_old_owners_update_is_refused(engine: Engine) -> None:
    with OldOwner("update_after_reading", url(engine), 41) as old:
        with engine.begin() as connection:
            assert update_one(connection, 57) == 1
        assert old.wake() == "StaleAttempt"
    assert rows(engine) == [("by 57", 57)]


def test_an_update_is_repeated_and_taken_over_but_not_taken_back(engine: Engine) -> None:
    for token in (5, 5, 7):
        with engine.begin() as connection:
            assert update_one(connection, token) == 1
        assert rows(engine) == [(f"by {token}", token)]
    with engine.begin() as connection, pytest.raises(StaleAttempt, match=r"a row of reports .*: token 6 is older than 7"):
        update_one(connection, 6)
    assert rows(engine) == [("by 7", 7)]


def test_no_such_row(engine: Engine) -> None:
    with engine.begin() as connection:
        assert update_one(connection, 5, number=99) == 0


def test_one_row_that_is_refused_refuses_all(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(reports.insert(), {"id": 2, "region": "north", "body": "newer", "fencing_token": 9})
        connection.execute(reports.insert(), {"id": 3, "region": "south", "body": "elsewhere", "fencing_token": 99})
    north = update(reports).where(reports.c.region == "north").values(body="by 7", region="done")
    with pytest.raises(StaleAttempt, match="older than 9"), engine.begin() as connection:
        update_fenced(connection, north, reports.c.fencing_token, 7)
    assert rows(engine) == [("none yet", 0), ("newer", 9), ("elsewhere", 99)]
    with engine.begin() as connection:
        assert update_fenced(connection, north, reports.c.fencing_token, 9) == 2


def test_an_update_of_a_whole_table(engine: Engine) -> None:
    with engine.begin() as connection:
        assert update_fenced(connection, update(reports).values(body="all"), reports.c.fencing_token, 7) == 1
        with pytest.raises(StaleAttempt):
            update_fenced(connection, update(reports).values(body="all"), reports.c.fencing_token, 6)


def test_a_row_without_a_token_is_not_written(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(update(reports).values(fencing_token=None))
    with engine.begin() as connection, pytest.raises(UnreadableToken, match="Set fencing_token to 0 in rows"):
        update_one(connection, 5)
    assert rows(engine) == [("none yet", None)]


@only(*SERVERS)
@pytest.mark.parametrize("level", LEVELS)
def test_an_old_snapshot_does_not_hide_a_newer_row(engine: Engine, level: str) -> None:
    with engine.connect().execution_options(isolation_level=level) as connection:
        connection.execute(select(tables.other)).all()
        with engine.begin() as meanwhile:
            update_one(meanwhile, 7)
        with pytest.raises((StaleAttempt, DBAPIError)) as caught:
            update_one(connection, 6)
        assert isinstance(caught.value, StaleAttempt) or "serialize" in str(caught.value)
    assert rows(engine) == [("by 7", 7)]


class Base(DeclarativeBase):
    pass


class Report(Base):
    __tablename__ = "reports"
    id: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str]
    fencing_token: Mapped[int]


def test_with_mapped_classes(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        guard(session.connection(), RESOURCE, 7)
        statement = update(Report).where(Report.id == 1).values(body="by 7")
        assert update_fenced(session.connection(), statement, Report.fencing_token, 7) == 1
    with Session(engine) as session, pytest.raises(StaleAttempt):
        update_fenced(session.connection(), statement, Report.fencing_token, 6)
    assert rows(engine) == [("by 7", 7)]


def test_the_table_in_metadata_of_ones_own(engine: Engine) -> None:
    metadata.drop_all(engine)
    own = MetaData()
    fencing_table.to_metadata(own)
    own.create_all(engine)
    write(engine, 5)
    with engine.begin() as connection:
        assert connection.execute(select(func.count()).select_from(fencing_table)).scalar_one() == 1
        with pytest.raises(IntegrityError):
            connection.execute(fencing_table.insert(), {"resource": RESOURCE, "token": 6})
