"""The tree in a database: every call is one transaction, done here and now by the thread that calls.

Guards against

* a worker that was paused beyond its lease and goes on as if nothing had happened: a transaction that writes looks at its
  session's lease after it has the write lock, and is refused when the lease is over, whether or not anybody noticed yet;
* a dead worker's nodes standing for ever: whoever renews a lease removes the sessions whose lease is over;
* a reboot: a lease is an instant of the machine's monotonic clock, which begins anew then. A session of another boot is over;
  where the boot has no id, a lease that ends later than it could have been given is over;
* fencing tokens that go back after a backup was put back: the revision starts at, and catches up at every new session with,
  the wall clock in microseconds, while it grows by one with a transaction.

Any method may raise RegistryUnavailable (nothing was applied), those that write also OutcomeUnknown (the commit failed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sqlalchemy import Connection, bindparam, delete, insert, inspect, or_, select, update

from ejpy.clock import Clock
from ejpy.errors import RegistryUnavailable, SessionExpired
from ejpy.registry.base import Delete, Node
from ejpy.registry.sql.changes import ChangeReader, Changes, prune
from ejpy.registry.sql.connection import SqlConnection
from ejpy.registry.sql.nodes import Draft, insert_root, microseconds_of, read_children, read_records, read_tree
from ejpy.registry.sql.schema import SCHEMA_VERSION, meta, metadata, nodes, read_meta, sessions, write_meta
from ejpy.registry.sql.sqlite import SqliteFile
from ejpy.registry.transaction import Transaction

T = TypeVar("T")


class SqlStore:
    """One worker's connection and session. `deadline` arguments are instants of `clock.monotonic`: how long to wait for a
    lock that another process holds.

    `clock.monotonic` is shared by all processes that use the database (`SystemClock` on one machine), `boot_id` is the
    same in all of them.
    """

    def __init__(self, database: SqliteFile, *, clock: Clock, boot_id: str, session_timeout: float) -> None:
        self._connection = SqlConnection(database, clock)
        self._changes = ChangeReader(database)
        self._clock = clock
        self._boot_id = boot_id
        self._session_timeout = session_timeout
        self.session_id: int | None = None

    # -- connection --

    @property
    def is_open(self) -> bool:
        return self._connection.is_open

    def open(self, deadline: float, *, create: bool) -> None:
        """Connect; with `create` make what is missing. Raises RegistryUnavailable."""
        self._connection.open(deadline, create=create)
        try:
            self._prepare(deadline, create=create)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection. The session goes on until its lease is over."""
        self._connection.close()

    def _prepare(self, deadline: float, *, create: bool) -> None:
        with self._connection.transaction(deadline, write=create) as connection:
            tables = inspect(connection).get_table_names()
            if meta.name in tables:
                version = read_meta(connection, "schema_version")
                if version != SCHEMA_VERSION:
                    raise RegistryUnavailable(
                        f"its tables have version {version}, this ejpy knows version {SCHEMA_VERSION}; "
                        "use the same ejpy in all workers"
                    )
            elif create:
                self._make_tables(connection)
            else:
                raise RegistryUnavailable("the file was replaced by one without ejpy's tables; restart the workers to begin anew")
            if create:
                self._changes.begin_after(read_meta(connection, "revision"))
            else:
                self._changes.begin_anew()

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
        with self._changing(deadline) as connection:
            session_id = max(read_meta(connection, "revision") + 1, self._now_us())
            write_meta(connection, "revision", session_id)
            row = {"id": session_id, "boot_id": self._boot_id, "timeout": self._session_timeout}
            connection.execute(insert(sessions), [{**row, "deadline": self._clock.monotonic() + self._session_timeout}])
            self._reap(connection)
        self.session_id = session_id
        return session_id

    def renew(self, deadline: float) -> None:
        """Prolong the session's lease by its time-out from now on. Raises SessionExpired if it is over already.

        Removes the sessions that have ended, and the oldest changes.
        """
        with self._changing(deadline) as connection:
            self._reap(connection)
            renewed = connection.execute(
                update(sessions)
                .where(sessions.c.id == self.session_id)
                .values(deadline=self._clock.monotonic() + self._session_timeout)
            ).rowcount
            prune(connection)
        if not renewed:
            raise SessionExpired(f"session {self.session_id} has ended")

    def close_session(self, deadline: float) -> None:
        """End the session and remove its nodes."""
        session_id, self.session_id = self.session_id, None
        if session_id is not None:
            with self._changing(deadline) as connection:
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
            self._write_back(connection, draft)

    def _require_session(self, connection: Connection, session_id: int) -> None:
        lease = {"session_id": session_id, "boot_id": self._boot_id}
        deadline = connection.execute(_SELECT_LEASE, lease).scalar_one_or_none()
        if deadline is None or deadline <= self._clock.monotonic():
            raise SessionExpired(f"session {session_id} has ended")

    # -- reads --

    def read(self, paths: Sequence[str], deadline: float) -> list[Node | None]:
        with self._connection.transaction(deadline) as connection:
            records = read_records(connection, paths)
        return [records[path].node if path in records else None for path in paths]

    def children(self, paths: Sequence[str], deadline: float) -> list[list[str] | None]:
        with self._connection.transaction(deadline) as connection:
            names = read_children(connection, paths)
        return [names.get(path) for path in paths]

    def tree(self, root: str, deadline: float) -> dict[str, Node]:
        with self._connection.transaction(deadline) as connection:
            found = read_tree(connection, root)
        return found

    def touch(self, deadline: float) -> None:
        """Read something, so that it is known that one can."""
        with self._connection.transaction(deadline) as connection:
            read_meta(connection, "revision")

    # -- writes --

    def write(
        self,
        session_id: int,
        paths: Sequence[str],
        change: Callable[[Transaction], T],
        deadline: float,
        may_commit: Callable[[], bool] = lambda: True,
    ) -> T:
        """Do `change` in a transaction of the session, and return its result. Raises GuardFailed, SessionExpired.

        `paths` are those that it will look at, their parents aside: they are read at once, others one by one. `may_commit` is
        asked when everything else is done; if it says no, nothing is applied: RegistryUnavailable.
        """
        with self._connection.transaction(deadline, write=True) as connection:
            self._require_session(connection, session_id)
            draft = self._begin_draft(connection, paths, session_id)
            result = change(draft.transaction)
            self._write_back(connection, draft)
            if not may_commit():
                raise RegistryUnavailable(f"registry {self._connection.address}: the request was withdrawn")
        self._changes.committed(draft.transaction.revision, draft.transaction.changed)
        return result

    @contextmanager
    def _changing(self, deadline: float) -> Iterator[Connection]:
        """A transaction that may change nodes on its own account."""
        with self._connection.transaction(deadline, write=True) as connection:
            yield connection
        self._changes.committed_more()

    def _begin_draft(self, connection: Connection, paths: Sequence[str], session_id: int) -> Draft:
        revision = read_meta(connection, "revision") + 1
        return Draft(connection, paths, revision=revision, now=self._clock.now(), session_id=session_id)

    def _write_back(self, connection: Connection, draft: Draft) -> None:
        draft.write_back()
        write_meta(connection, "revision", draft.transaction.revision)

    # -- changes --

    def changes(self, deadline: float) -> Changes:
        """What changed since this was last asked. Costs next to nothing if nothing did."""
        with self._connection.transaction(deadline) as connection:
            found = self._changes.look(connection)
        return found

    def changes_and_node(self, path: str, deadline: float) -> tuple[Changes, Node | None]:
        """What changed since changes were last asked for, and the node as it is after these and before any later ones."""
        with self._connection.transaction(deadline) as connection:
            records = read_records(connection, [path])
            found = self._changes.read(connection)
        return found, records[path].node if path in records else None

    def _now_us(self) -> int:
        return microseconds_of(self._clock.now())


# Built once, since building a statement takes longer than executing it.
_SELECT_LEASE = select(sessions.c.deadline).where(
    sessions.c.id == bindparam("session_id"), sessions.c.boot_id == bindparam("boot_id")
)
