"""The tables of a registry in a database. Every name begins with `ejpy_`, so that they can live beside others.

    ejpy_nodes      the tree: one row a node, with the counts that guards need
    ejpy_sessions   who is alive: one row a session, with the instant at which its lease ends
    ejpy_changes    what watches are told: the paths that each revision changed; old ones are pruned
    ejpy_meta       a few numbers: schema version, revision, and up to which revision changes were pruned

A row of a session that has ended may still stand here until somebody removes it; whether a session lives is decided by its
lease, not by its row.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    bindparam,
    select,
    update,
)

SCHEMA_VERSION = 1

metadata = MetaData()

# Paths are compared byte by byte (SQLite's default); a database that does not by itself needs a binary collation here.
nodes = Table(
    "ejpy_nodes",
    metadata,
    Column("path", String, primary_key=True),
    Column("parent", String, nullable=True, index=True),
    Column("data", LargeBinary, nullable=False),
    Column("version", Integer, nullable=False),
    Column("created_revision", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("modified_us", BigInteger, nullable=False),  # microseconds since 1970, UTC
    Column("session_id", BigInteger, nullable=True, index=True),
    Column("child_count", Integer, nullable=False),
    Column("children_created", Integer, nullable=False),
)

sessions = Table(
    "ejpy_sessions",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),  # the revision at which it was opened: never reused
    Column("boot_id", String, nullable=False),  # the boot of the machine whose monotonic clock `deadline` is of
    Column("deadline", Float, nullable=False),  # seconds of that clock
    Column("timeout", Float, nullable=False),
)

changes = Table(
    "ejpy_changes",
    metadata,
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("path", String, primary_key=True),
)

meta = Table(
    "ejpy_meta",
    metadata,
    Column("name", String, primary_key=True),
    Column("value", BigInteger, nullable=False),
)


def read_meta(connection: Connection, name: str) -> int:
    return int(connection.execute(_SELECT_META, {"of_name": name}).scalar_one())


def write_meta(connection: Connection, name: str, value: int) -> None:
    connection.execute(_UPDATE_META, {"of_name": name, "value": value})


# Built once, since building a statement takes longer than executing it.
_SELECT_META = select(meta.c.value).where(meta.c.name == bindparam("of_name"))
_UPDATE_META = update(meta).where(meta.c.name == bindparam("of_name")).values(value=bindparam("value"))
