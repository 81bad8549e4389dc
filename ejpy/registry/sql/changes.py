"""What changed since a worker last looked.

Every transaction writes the paths that it changed, with its revision, into the log of changes (`ejpy_changes`), which keeps
the latest `KEPT_CHANGES`. A worker remembers up to which revision it has seen them. Reading the log is spared as long as the
database's own counter says that nobody else has committed; what a worker commits itself it knows without looking.

Guards against a change that is missed: whoever looks so late that the log does not reach back to what it has seen, or had to
connect anew, is told that anything may have changed.
"""

from __future__ import annotations

from collections.abc import Set

from sqlalchemy import Connection, bindparam, delete, select

from ejpy.registry.sql.schema import changes, read_meta, write_meta
from ejpy.registry.sql.sqlite import SqliteFile

Changes = frozenset[str] | None
"""Paths that changed; None: anything may have."""

KEPT_CHANGES = 10_000
"""How many of the latest changes are kept for those who look late; who looks later than that is told None."""


class ChangeReader:
    """How far one worker has read."""

    def __init__(self, database: SqliteFile) -> None:
        self._database = database
        self._seen = 0
        """The revision up to which changes were taken."""
        self._counter: int | None = None
        """The database's change counter when changes were last looked at; None: look, whatever it says. It does not count
        what this connection commits."""
        self._taken: set[str] = set()
        """Changes that are known already, but were not asked for yet."""

    def begin_after(self, revision: int) -> None:
        """On a new connection: what came up to `revision` is of no interest."""
        self._seen = revision
        self._counter = None

    def begin_anew(self) -> None:
        """On a new connection after an interruption: nothing is certain, so anything may have changed."""
        self.begin_after(-1)

    def committed(self, revision: int, paths: Set[str]) -> None:
        """The worker has committed `revision`, which changed `paths`."""
        if revision == self._seen + 1:  # nobody wrote in between: what changed is known without looking
            self._seen = revision
            self._taken |= paths
        else:
            self._counter = None

    def committed_more(self) -> None:
        """The worker has committed something that may have changed nodes."""
        self._counter = None

    def look(self, connection: Connection) -> Changes:
        """What changed since this was last asked. Costs next to nothing if nothing did."""
        counter = self._database.change_counter(connection)
        if counter == self._counter:
            taken, self._taken = frozenset(self._taken), set()
            return taken
        found = self.read(connection)
        self._counter = counter
        return found

    def read(self, connection: Connection) -> Changes:
        """The same, as of what the transaction of `connection` sees."""
        revision = read_meta(connection, "revision")
        pruned = read_meta(connection, "pruned_through") > self._seen
        paths = connection.execute(_SELECT_CHANGES, {"seen": self._seen}).scalars().all()
        self._seen = revision
        found, self._taken = frozenset(self._taken.union(paths)), set()
        return None if pruned else found


def prune(connection: Connection) -> None:
    """Forget all changes but the latest; whole revisions, so that what is left of one is all of it."""
    through = connection.execute(_SELECT_OLDEST_KEPT, {"kept": KEPT_CHANGES}).scalar_one_or_none()
    if through is not None:
        connection.execute(delete(changes).where(changes.c.revision <= through))
        write_meta(connection, "pruned_through", through)


_SELECT_CHANGES = select(changes.c.path).where(changes.c.revision > bindparam("seen")).distinct()
_SELECT_OLDEST_KEPT = select(changes.c.revision).order_by(changes.c.revision.desc()).limit(1).offset(bindparam("kept"))
