"""The tree in a database: every call is one transaction, done here and now by the thread that calls.

Guards against

* a worker that was paused beyond its lease and goes on as if nothing had happened: a transaction that writes looks at its
  session's lease after it has the write lock, and is refused when the lease is over, whether or not anybody noticed yet;
* a dead worker's nodes standing for ever: whoever renews a lease removes the sessions whose lease is over;
* a reboot: a lease is an instant of the machine's monotonic clock, which begins anew then. A session of another boot is over;
  where the boot has no id, a lease that ends later than it could have been given is over;
* fencing tokens that go back after a backup was put back: the revision starts at, and catches up at every new session with,
  the wall clock in microseconds, while it grows by one with a transaction.

Errors of the database come out as ejpy's: RegistryUnavailable (nothing was applied) or OutcomeUnknown (the commit failed).
Except when another process merely held the lock, the connection is closed then; `open` makes a new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sqlalchemy import Connection, bindparam, delete, insert, inspect, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from ejpy.clock import Clock
from ejpy.errors import OutcomeUnknown, RegistryUnavailable, SessionExpired
from ejpy.registry.base import Committed, Delete, Node, Operation
from ejpy.registry.sql_nodes import Draft, insert_root, microseconds_of, read_children, read_records, read_tree
from ejpy.registry.sql_schema import SCHEMA_VERSION, changes, meta, metadata, nodes, sessions
from ejpy.registry.sql_sqlite import SqliteFile

Changes = frozenset[str] | None
"""Paths that changed; None: anything may have."""

KEPT_CHANGES = 10_000
"""How many of the latest changes are kept for those who look late; who looks later than that is told None."""

_RETRY_SECONDS = 0.02


class SqlStore:
    """One worker's connection and session. `deadline` arguments are instants of `clock.monotonic`: how long to wait for a
    lock that another process holds.

    `clock.monotonic` is shared by all processes that use the database (`SystemClock` on one machine), `boot_id` is the
    same in all of them.
    """

    def __init__(self, database: SqliteFile, *, clock: Clock, boot_id: str, session_timeout: float) -> None:
        self._database = database
        self._clock = clock
        self._boot_id = boot_id
        self._session_timeout = session_timeout
        self._connection: Connection | None = None
        self._cause = "not connected"
        self._seen = 0
        """The revision up to which changes were taken."""
        self._counter: int | None = None
        """The database's change counter when changes were last looked at; None: look, whatever it says. It does not count
        what this connection commits."""
        self._taken: set[str] = set()
        """Changes that are known already, but were not asked for yet."""
        self.session_id: int | None = None

    # -- connection --

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def open(self, deadline: float, *, create: bool) -> None:
        """Connect; with `create` make what is missing. Raises RegistryUnavailable."""
        while True:
            try:
                self._connection = self._database.connect(create=create)
                break
            except (SQLAlchemyError, OSError) as error:
                if not self._database.is_locked(error) or self._clock.monotonic() + _RETRY_SECONDS > deadline:
                    raise RegistryUnavailable(self._database.explain(error)) from error
                # A new file is just being set up by another process. SQLite offers nothing to wait for there.
                time.sleep(_RETRY_SECONDS)
        try:
            self._prepare(deadline, create=create)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. The session goes on until its lease is over."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _prepare(self, deadline: float, *, create: bool) -> None:
        with self._transaction(deadline, write=create) as connection:
            tables = inspect(connection).get_table_names()
            if meta.name in tables:
                version = _get_meta(connection, "schema_version")
                if version != SCHEMA_VERSION:
                    raise RegistryUnavailable(
                        f"its tables have version {version}, this ejpy knows version {SCHEMA_VERSION}; "
                        "use the same ejpy in all workers"
                    )
            elif create:
                self._make_tables(connection)
            else:
                raise RegistryUnavailable("the file was replaced by one without ejpy's tables; restart the workers to begin anew")
            # After an interruption -1: nothing was seen, so whoever asks for changes is told that anything may have changed.
            self._seen = _get_meta(connection, "revision") if create else -1
            self._counter = None

    def _make_tables(self, connection: Connection) -> None:
        metadata.create_all(connection, checkfirst=False)
        now = self._now_us()
        connection.execute(
            insert(meta),
            [
                {"name": "schema_version", "value": SCHEMA_VERSION},
                {"name": "revision", "value": now},
                {"name": "pruned_through", "value": now},
            ],
        )
        insert_root(connection, now, self._clock.now())

    # -- session --

    def open_session(self, deadline: float) -> int:
        """Open a session and remove those that have ended. Returns its id, which is `session_id` from now on."""
        with self._transaction(deadline, write=True) as connection:
            session_id = max(_get_meta(connection, "revision") + 1, self._now_us())
            _set_meta(connection, "revision", session_id)
            row = {"id": session_id, "boot_id": self._boot_id, "timeout": self._session_timeout}
            connection.execute(insert(sessions), [{**row, "deadline": self._clock.monotonic() + self._session_timeout}])
            self._reap(connection)
        self.session_id = session_id
        return session_id

    def renew(self, deadline: float) -> None:
        """Prolong the session's lease by its time-out from now on. Raises SessionExpired if it is over already.

        Removes the sessions that have ended, and the oldest changes.
        """
        with self._transaction(deadline, write=True) as connection:
            self._reap(connection)
            renewed = connection.execute(
                update(sessions)
                .where(sessions.c.id == self.session_id)
                .values(deadline=self._clock.monotonic() + self._session_timeout)
            ).rowcount
            _prune(connection)
        if not renewed:
            raise SessionExpired(f"session {self.session_id} has ended")

    def close_session(self, deadline: float) -> None:
        """End the session and remove its nodes."""
        session_id, self.session_id = self.session_id, None
        if session_id is not None:
            with self._transaction(deadline, write=True) as connection:
                self._remove_sessions(connection, [session_id])

    def _reap(self, connection: Connection) -> None:
        now = self._clock.monotonic()
        over = [sessions.c.boot_id != self._boot_id, sessions.c.deadline <= now]
        if not self._boot_id:
            over.append(sessions.c.deadline > now + sessions.c.timeout)
        ended = connection.execute(select(sessions.c.id).where(or_(*over))).scalars().all()
        if ended:
            self._remove_sessions(connection, ended)

    def _remove_sessions(self, connection: Connection, session_ids: Sequence[int]) -> None:
        connection.execute(delete(sessions).where(sessions.c.id.in_(session_ids)))
        owned = connection.execute(select(nodes.c.path).where(nodes.c.session_id.in_(session_ids))).scalars().all()
        if owned:
            draft = self._begin_draft(connection, owned, session_ids[0])
            draft.transaction.apply([Delete(path) for path in owned])
            draft.write_back()
            _set_meta(connection, "revision", draft.revision)

    def _require_session(self, connection: Connection, session_id: int) -> None:
        lease = {"session_id": session_id, "boot_id": self._boot_id}
        deadline = connection.execute(_SELECT_LEASE, lease).scalar_one_or_none()
        if deadline is None or deadline <= self._clock.monotonic():
            raise SessionExpired(f"session {session_id} has ended")

    # -- reads --

    def read(self, paths: Sequence[str], deadline: float) -> list[Node | None]:
        with self._transaction(deadline) as connection:
            records = read_records(connection, paths)
        return [records[path].node if path in records else None for path in paths]

    def children(self, paths: Sequence[str], deadline: float) -> list[list[str] | None]:
        with self._transaction(deadline) as connection:
            names = read_children(connection, paths)
        return [names.get(path) for path in paths]

    def tree(self, root: str, deadline: float) -> dict[str, Node]:
        with self._transaction(deadline) as connection:
            found = read_tree(connection, root)
        return found

    def touch(self, deadline: float) -> None:
        """Read something, so that it is known that one can."""
        with self._transaction(deadline) as connection:
            _get_meta(connection, "revision")

    # -- writes --

    # `may_commit` is asked when everything else is done; if it says no, nothing is applied: RegistryUnavailable.

    def commit(
        self,
        session_id: int,
        operations: Sequence[Operation],
        deadline: float,
        may_commit: Callable[[], bool] = lambda: True,
    ) -> Committed:
        """Raises GuardFailed, SessionExpired."""
        paths = [operation.path for operation in operations]
        with self._writing(session_id, paths, deadline, may_commit) as draft:
            versions = draft.transaction.apply(operations)
        return Committed(draft.revision, versions)

    def create_sequential(
        self,
        session_id: int,
        prefix: str,
        data: bytes,
        ephemeral: bool,
        deadline: float,
        may_commit: Callable[[], bool] = lambda: True,
    ) -> str:
        """Raises GuardFailed, SessionExpired."""
        with self._writing(session_id, [prefix], deadline, may_commit) as draft:
            return draft.transaction.create_sequential(prefix, data, ephemeral=ephemeral)

    @contextmanager
    def _writing(self, session_id: int, paths: Sequence[str], deadline: float, may_commit: Callable[[], bool]) -> Iterator[Draft]:
        counter = self._counter
        with self._transaction(deadline, write=True) as connection:
            self._require_session(connection, session_id)
            draft = self._begin_draft(connection, paths, session_id)
            yield draft
            draft.write_back()
            _set_meta(connection, "revision", draft.revision)
            if not may_commit():
                raise RegistryUnavailable(f"registry {self._database.address}: the request was withdrawn")
        if draft.revision == self._seen + 1:  # nobody wrote in between: what changed is known without looking
            self._counter = counter
            self._seen = draft.revision
            self._taken |= draft.transaction.changed

    def _begin_draft(self, connection: Connection, paths: Sequence[str], session_id: int) -> Draft:
        revision = _get_meta(connection, "revision") + 1
        return Draft(connection, paths, revision=revision, now=self._clock.now(), session_id=session_id)

    # -- changes --

    def changes(self, deadline: float) -> Changes:
        """What changed since this was last asked. Costs next to nothing if nothing did."""
        with self._transaction(deadline) as connection:
            counter = self._database.change_counter(connection)
            if counter == self._counter:
                taken = frozenset(self._taken)
                self._taken.clear()
                return taken
            found = self._changes(connection)
        self._counter = counter
        return found

    def changes_and_node(self, path: str, deadline: float) -> tuple[Changes, Node | None]:
        """What changed since changes were last asked for, and the node as it is after these and before any later ones."""
        with self._transaction(deadline) as connection:
            records = read_records(connection, [path])
            found = self._changes(connection)
        return found, records[path].node if path in records else None

    def _changes(self, connection: Connection) -> Changes:
        revision = _get_meta(connection, "revision")
        pruned = _get_meta(connection, "pruned_through") > self._seen
        paths = connection.execute(_SELECT_CHANGES, {"seen": self._seen}).scalars().all()
        self._seen = revision
        found = self._taken | set(paths)
        self._taken = set()
        return None if pruned else frozenset(found)

    # -- transactions of the database --

    @contextmanager
    def _transaction(self, deadline: float, *, write: bool = False) -> Iterator[Connection]:
        connection = self._connection
        if connection is None:
            raise RegistryUnavailable(f"registry {self._database.address}: {self._cause}")
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
        self._counter = None

    def _unavailable(self, error: SQLAlchemyError | OSError) -> RegistryUnavailable:
        cause = self._database.explain(error)
        if not self._database.is_locked(error):
            self.close()
        self._cause = cause
        return RegistryUnavailable(f"registry {self._database.address}: {cause}")

    def _now_us(self) -> int:
        return microseconds_of(self._clock.now())


# ---- meta and changes ---------------------------------------------------------------------------------------------


def _get_meta(connection: Connection, name: str) -> int:
    return int(connection.execute(_SELECT_META, {"of_name": name}).scalar_one())


def _set_meta(connection: Connection, name: str, value: int) -> None:
    connection.execute(_UPDATE_META, {"of_name": name, "value": value})


def _prune(connection: Connection) -> None:
    """Forget all changes but the latest; whole revisions, so that what is left of one is all of it."""
    through = connection.execute(_SELECT_OLDEST_KEPT, {"kept": KEPT_CHANGES}).scalar_one_or_none()
    if through is not None:
        connection.execute(delete(changes).where(changes.c.revision <= through))
        _set_meta(connection, "pruned_through", through)


# ---- statements: built once, since building one takes longer than executing it ------------------------------------

_SELECT_META = select(meta.c.value).where(meta.c.name == bindparam("of_name"))
_UPDATE_META = update(meta).where(meta.c.name == bindparam("of_name")).values(value=bindparam("value"))

_SELECT_LEASE = select(sessions.c.deadline).where(
    sessions.c.id == bindparam("session_id"), sessions.c.boot_id == bindparam("boot_id")
)

_SELECT_CHANGES = select(changes.c.path).where(changes.c.revision > bindparam("seen")).distinct()
_SELECT_OLDEST_KEPT = select(changes.c.revision).order_by(changes.c.revision.desc()).limit(1).offset(bindparam("kept"))
