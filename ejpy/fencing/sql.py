"""Fencing in a database: a table of tokens beside the caller's tables, or a column of the caller's own.

`guard` needs one small table, `ejpy_fencing`, with one row for each thing that is guarded. It is called first in the caller's
transaction, and takes the row or refuses the writer:

    no row ──guard(t)──► t      stored ≤ t ──guard(t)──► t      stored > t ──guard(t)──► StaleAttempt

From then on the transaction holds the lock of the row until it ends, so that whoever comes meanwhile waits and then sees what
was committed: no writer slips in between the comparison and the commit. Guards against a paused attempt that wakes

* before its guard: its token is compared with the newest one that is committed, and refused;
* between guard and commit: the newer attempt waits for the row. It gets it when the paused transaction ends, or when the server
  ends that (PostgreSQL: `idle_in_transaction_session_timeout`; MySQL: `wait_timeout`; the commit of the paused one then fails).

How that follows, whatever the isolation level:

* PostgreSQL, MySQL, MariaDB: a statement that writes looks at the newest committed row, not at the transaction's snapshot,
  and waits for its lock. Where the snapshot is older than that row, PostgreSQL's REPEATABLE READ and SERIALIZABLE end the
  statement with a serialization error instead: nothing was written, repeat the transaction. MySQL and MariaDB may report a
  deadlock (1213) or a lock that was waited for too long (1205): likewise.
* MySQL and MariaDB read from the snapshot that the transaction's first SELECT made. So guard first, then read: what was read
  before may be older than what the guard has seen.
* SQLite: the lock is that of the whole file. Who waits longer than the connection's `timeout` gets "database is locked".
* AUTOCOMMIT has no transaction that could hold a lock, and is refused.

`update_fenced` needs no table: it adds the comparison to an UPDATE of rows that carry a token themselves.

An ORM session is guarded through its connection, `guard(session.connection(), …)`, an asynchronous one by
`await connection.run_sync(guard, …)`.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, Update, func, or_, select
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute

from ejpy.fencing.tokens import Writer, refuse, stored_token, token_of

RESOURCE_LENGTH = 255
"""Most characters of a resource's name."""

metadata = MetaData()
"""Has the table of tokens alone: `metadata.create_all(engine)` makes it where it is missing."""

# MySQL compares text without regard to case and accents unless told otherwise: two resources would share a row.
_RESOURCE = String(RESOURCE_LENGTH).with_variant(
    mysql.VARCHAR(RESOURCE_LENGTH, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb"
)

fencing_table = Table(
    "ejpy_fencing",
    metadata,
    Column("resource", _RESOURCE, primary_key=True),
    Column("token", BigInteger, nullable=False),
)
"""The table of tokens. For migrations of one's own: `fencing_table.to_metadata(Base.metadata)`."""

_columns = fencing_table.c


def guard(connection: Connection, resource: str, writer: Writer) -> None:
    """Let the transaction of `connection` write to `resource`, or refuse it. Call it first in the transaction.

    When it returns, no newer token is stored, and none will be before the transaction ends. If the transaction is rolled back, so
    is the guard.

    `resource` names what is written: 1 to 255 characters, no space at either end. It must be written by one item of one job at a
    time, for instance `orders/Beijing`.

    Raises StaleAttempt if a newer attempt was here: let it pass, so that the transaction is rolled back. UnreadableToken if
    what is stored is no token. ValueError for such a resource or token, in AUTOCOMMIT, and for a database that is not SQLite
    (3.24 or later), PostgreSQL, MySQL or MariaDB. SQLAlchemy's errors pass through.
    """
    token = token_of(writer)
    if not 1 <= len(resource) <= RESOURCE_LENGTH or resource != resource.strip():
        raise ValueError(f"{resource!r} cannot name a resource: 1 to {RESOURCE_LENGTH} characters, no space at either end")
    _refuse_autocommit(connection)
    if _took(connection, resource, token):
        return
    what = f"resource {resource!r} in table {fencing_table.name}"
    found = connection.execute(select(_columns.token).where(_columns.resource == resource).with_for_update()).scalar_one()
    stored = stored_token(found, what, "Write into that row the token of the newest attempt, or delete the row to begin anew")
    if stored > token:
        raise refuse(what, writer, stored)


def update_fenced(
    connection: Connection, statement: Update, column: Column[int] | InstrumentedAttribute[int], writer: Writer
) -> int:
    """Execute an UPDATE on rows that carry a token in `column`, and have it store the writer's there; returns how many rows.

    `statement` says what to update and where, without the token: `update(reports).where(reports.c.id == 7).values(body=…)`. Rows
    are inserted with the writer's token, or with 0. The rows stay locked until the transaction ends, as with `guard`. A result of
    0 means that there is no such row; so let the condition name rows by what never changes, or a row that a newer attempt has
    changed is not found rather than refused.

    Raises StaleAttempt if one of the rows carries a newer token, UnreadableToken if it carries none (NULL): let it pass, so that
    the transaction is rolled back, since other rows may have been written. ValueError for such a token, and in AUTOCOMMIT.
    """
    token = token_of(writer)
    _refuse_autocommit(connection)
    updated = connection.execute(statement.where(column <= token).values({column: token})).rowcount
    # Rows that were refused are as they were, so the statement's own condition finds them. A locking read, since MySQL would
    # otherwise look at the snapshot of the transaction.
    refused = select(column).where(or_(column > token, column.is_(None))).limit(1).with_for_update()
    if statement.whereclause is not None:
        refused = refused.where(statement.whereclause)
    row = connection.execute(refused).first()
    if row is not None:
        what = f"a row of {statement.table} that the update is for"
        remedy = f"Set {column.key} to 0 in rows that nobody has written yet, and make the column NOT NULL"
        raise refuse(what, writer, stored_token(row[0], what, remedy))
    return updated


def _took(connection: Connection, resource: str, token: int) -> bool:
    """Insert the row, or raise its token; in one statement, since two that come first would otherwise both find no row.

    False if it was not raised, or that cannot be told. The row is locked in any case.
    """
    row = {"resource": resource, "token": token}
    dialect = connection.dialect.name
    if dialect in ("postgresql", "sqlite"):
        insert = (postgresql.insert if dialect == "postgresql" else sqlite.insert)(fencing_table).values(row)
        raised = insert.on_conflict_do_update(
            index_elements=[_columns.resource], set_={"token": token}, where=_columns.token <= token
        )
        return connection.execute(raised).rowcount == 1
    if dialect in ("mysql", "mariadb"):
        # It has no condition here. GREATEST leaves a newer token as it is, and NULL as well.
        never_lower = mysql.insert(fencing_table).values(row).on_duplicate_key_update(token=func.greatest(_columns.token, token))
        connection.execute(never_lower)
        return False
    raise ValueError(f"guard() knows SQLite, PostgreSQL, MySQL and MariaDB, not {dialect}; use update_fenced() there")


def _refuse_autocommit(connection: Connection) -> None:
    """Without a transaction, what was compared could change before the caller writes."""
    # What create_engine(isolation_level=…) asked for is told nowhere else.
    level = connection.get_execution_options().get("isolation_level") or connection.dialect._on_connect_isolation_level
    if level == "AUTOCOMMIT":
        raise ValueError("a guard holds until the transaction ends, and AUTOCOMMIT has none; use another isolation level")
