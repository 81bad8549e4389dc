"""What is particular to SQLite: the file, its locks, its change counter, and what its errors mean.

Another database gets a module like this one, with the same methods; the rest of the SQL registry has no dialect.

* Write-ahead log: readers never wait for the writer. `BEGIN IMMEDIATE` for every transaction that writes: the lock is taken
  at once, with a time limit, and nothing can fail later because somebody else wrote in between.
* `synchronous=FULL`: a committed transaction survives a power cut. With NORMAL the last claims could be forgotten, and the
  same fire be claimed again with nobody knowing of the first time.
* The file is told from its name. If it is deleted or replaced, SQLite itself would go on with the deleted one, and workers
  that start later would share another registry than those before: so every transaction looks at which file the name means.
"""

from __future__ import annotations

import os
from pathlib import Path

import sqlalchemy
from sqlalchemy import Connection, RootTransaction, event, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from ejpy.errors import ConfigError, RegistryUnavailable

_BEGIN = "ejpy_begin"


class SqliteFile:
    """One SQLite file, named by a URL `sqlite:///relative/path` or `sqlite:////absolute/path`.

    Raises ConfigError for any other URL. All other methods belong to the one thread that uses the connection.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except ArgumentError as error:
            raise ConfigError([f"registry: {url!r} is not a URL; write sqlite:///path/to/file.db"]) from error
        if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
            raise ConfigError([f"registry: {parsed.drivername} databases are not supported; write sqlite:///path/to/file.db"])
        if not parsed.database or parsed.database == ":memory:" or parsed.query:
            raise ConfigError([f"registry: {url!r} names no file; write sqlite:///path/to/file.db"])
        self.path = Path(parsed.database).absolute()
        self.address = f"sqlite:///{self.path}"
        self._identity: tuple[int, int] | None = None
        self._engine = sqlalchemy.create_engine(
            parsed.set(database=str(self.path)), poolclass=NullPool, connect_args={"timeout": 0}
        )
        event.listen(self._engine, "connect", _configure)
        event.listen(self._engine, "begin", _begin)

    def connect(self, *, create: bool) -> Connection:
        """A connection; the file is made if `create`. Raises SQLAlchemyError, OSError, RegistryUnavailable."""
        if not create:
            self.path.stat()
        connection = self._engine.connect()
        try:
            self._identity = self._look()
        except BaseException:
            connection.close()
            raise
        return connection

    def begin(self, connection: Connection, *, write: bool, wait_seconds: float) -> RootTransaction:
        """Begin a transaction, waiting at most so long for another process's lock. Raises SQLAlchemyError."""
        milliseconds = max(0, int(wait_seconds * 1000))
        connection.info[_BEGIN] = [f"PRAGMA busy_timeout = {milliseconds}", "BEGIN IMMEDIATE" if write else "BEGIN"]
        return connection.begin()

    def is_in_place(self) -> bool:
        """Whether the file that is open is still the one that the path names."""
        try:
            return self._look() == self._identity
        except FileNotFoundError:
            return False

    def change_counter(self, connection: Connection) -> int:
        """A number that differs whenever another connection has committed since it was last asked for."""
        return int(connection.exec_driver_sql("PRAGMA data_version").scalar_one())

    def is_locked(self, error: SQLAlchemyError | OSError) -> bool:
        """Whether the error says no more than that another process was at work; the connection is as good as before."""
        return "locked" in _text(error)

    def explain(self, error: SQLAlchemyError | OSError) -> str:
        """The cause in one line, for people."""
        if isinstance(error, FileNotFoundError):
            return f"the file {self.path} does not exist any more; put it back, or restart the workers to begin anew"
        if isinstance(error, OSError):
            return f"{self.path}: {error.strerror}"
        text = _text(error)
        if "locked" in text:
            return "another process keeps the database locked"
        if "readonly" in text:
            return f"{self.path} cannot be written by this user"
        if "unable to open" in text:
            return f"{self.path} cannot be opened: {self._why_not_opened()}"
        return f"{self.path} is damaged or not ejpy's: {text}"

    def _why_not_opened(self) -> str:
        directory = self.path.parent
        if not directory.exists():
            return f"the directory {directory} does not exist"
        if not directory.is_dir():
            return f"{directory} is not a directory"
        if self.path.is_dir():
            return "it is a directory"
        return "no permission to read and write it and to make files beside it"

    def _look(self) -> tuple[int, int]:
        status = os.stat(self.path)
        return status.st_dev, status.st_ino


def _configure(connection: sqlalchemy.engine.interfaces.DBAPIConnection, _: object) -> None:
    # None: the sqlite3 module begins no transactions of its own; `_begin` does.
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        # In an open database this needs no lock. To turn it on in a new one it needs all, and does not wait for them:
        # the caller tries again.
        cursor.execute("PRAGMA journal_mode = WAL")
        (mode,) = cursor.fetchone() or ("",)
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA fullfsync = ON")  # macOS: there, a plain fsync does not reach the disk
    finally:
        cursor.close()
    if mode != "wal":
        raise RegistryUnavailable(f"the file system has no shared memory for a write-ahead log (journal mode {mode!r})")


def _begin(connection: Connection) -> None:
    for statement in connection.info[_BEGIN]:
        connection.exec_driver_sql(statement)


def _text(error: SQLAlchemyError | OSError) -> str:
    """SQLite's own words, in one line."""
    return " ".join(str(getattr(error, "orig", error)).split())
