"""One connection to the database: transactions with a deadline, and what their failures mean.

Errors of the database come out as ejpy's: RegistryUnavailable (nothing was applied) or OutcomeUnknown (the commit failed).
Except when another process merely held the lock, the connection is closed then; `open` makes a new one.

Guards against going on with a file that was deleted or replaced: every transaction looks whether the file that is open is
still the one that the path names.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from ejpy.clock import Clock
from ejpy.errors import OutcomeUnknown, RegistryUnavailable
from ejpy.registry.sql.sqlite import SqliteFile

_RETRY_SECONDS = 0.02


class SqlConnection:
    """A connection that is made, lost and made again. `deadline` arguments are instants of `clock.monotonic`: how long to
    wait for a lock that another process holds."""

    def __init__(self, database: SqliteFile, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._connection: Connection | None = None
        self._cause = "not connected"

    @property
    def address(self) -> str:
        return self._database.address

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self, deadline: float, *, create: bool) -> None:
        """Connect; with `create` make the file if it is missing. Raises RegistryUnavailable."""
        while True:
            try:
                self._connection = self._database.connect(create=create)
                break
            except (SQLAlchemyError, OSError) as error:
                if not self._database.is_locked(error) or self._clock.monotonic() + _RETRY_SECONDS > deadline:
                    raise RegistryUnavailable(self._database.explain(error)) from error
                # A new file is just being set up by another process. SQLite offers nothing to wait for there.
                time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def transaction(self, deadline: float, *, write: bool = False) -> Iterator[Connection]:
        """A transaction of the block: committed at its end if it writes, rolled back if it raises or only reads."""
        connection = self._connection
        if connection is None:
            raise RegistryUnavailable(f"registry {self.address}: {self._cause}")
        try:
            remaining = deadline - self._clock.monotonic()
            transaction = self._database.begin(connection, write=write, wait_seconds=remaining)
            try:
                if not self._database.is_in_place():
                    raise FileNotFoundError
                yield connection
            except BaseException:
                transaction.rollback()
                raise
            if not write:
                transaction.rollback()
        except (SQLAlchemyError, FileNotFoundError) as error:
            raise self._unavailable(error) from error
        if not write:
            return
        try:
            transaction.commit()
        except SQLAlchemyError as error:
            unavailable = self._unavailable(error)
            self.close()
            raise OutcomeUnknown(f"{unavailable} (while committing)") from error

    def _unavailable(self, error: SQLAlchemyError | OSError) -> RegistryUnavailable:
        cause = self._database.explain(error)
        if not self._database.is_locked(error):
            self.close()
        self._cause = cause
        return RegistryUnavailable(f"registry {self.address}: {cause}")
