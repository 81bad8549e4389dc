"""The embedded registry: a SQLite file that several worker processes on one machine share. Nothing to install, no server.

    sqlite:///relative/path.db      sqlite:////absolute/path.db

The file is made if it is missing, its directory is not. It must lie on a local file system: SQLite's locks and shared memory
do not work across machines.

Sessions are leases on the machine's monotonic clock, which all its processes share and which no change of the wall clock
moves. A process that is killed is missed when its lease is over, by whoever renews its own lease next: at most 4/3 of the
session time-out after its last sign of life. A process that was stopped for longer finds its session over and gets a new one.

What makes the registry SUSPENDED: the lease could not be renewed, because another process keeps the file locked, the disk
fails, the file is gone. It tries again every sixth of the session time-out. A file that was deleted is not made again under
running workers (it may have been unmounted): they wait until a file is there again, and start from what it says.

A frozen process (SIGSTOP, debugger) that is caught in the middle of its write holds the lock: nobody can write until it goes
on or is killed. That is the price of having no server.

    registry     the contract of `ejpy.registry.base`, on the loop
    thread       the one thread that does all SQL: requests in order, renewing the lease, looking for changes
    store        the tree in the database: sessions, reads, transactions
    changes      what changed since a worker last looked
    nodes        nodes as rows
    schema       the tables
    connection   a connection's transactions, and what their failures mean
    sqlite       all that is SQLite's own: the file, its locks, its change counter, its errors
"""

from ejpy.registry.sql.registry import SqlRegistry, read_boot_id

__all__ = ["SqlRegistry", "read_boot_id"]
