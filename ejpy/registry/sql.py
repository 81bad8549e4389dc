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
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ejpy.clock import Clock
from ejpy.errors import OutcomeUnknown, RegistryError, RegistryUnavailable, RegistryUnreachable, RequestTooLarge
from ejpy.registry.base import (
    Committed,
    Create,
    Node,
    Operation,
    Registry,
    SessionListener,
    SessionState,
    TreeListener,
    TreeWatch,
    operation_bytes,
)
from ejpy.registry.memory import LEASE_MARGIN, OneShot, Watches
from ejpy.registry.sql_sqlite import SqliteFile
from ejpy.registry.sql_store import Changes, SqlStore
from ejpy.registry.sql_thread import Request, SqlThread

logger = logging.getLogger("ejpy.registry.sql")

T = TypeVar("T")


def read_boot_id() -> str:
    """An id that differs with every boot of this machine (Linux); "" where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


class SqlRegistry(Registry):
    """One worker's connection to the database at `url`, with a session of `session_timeout` seconds.

    `clock.monotonic` must be the same in all processes that share the file, as `SystemClock`'s is on one machine. `boot_id`
    is `read_boot_id()` unless given. Raises ConfigError for a URL that is not `sqlite:///path`.
    """

    def __init__(self, url: str, *, clock: Clock, session_timeout: float, boot_id: str | None = None) -> None:
        self._database = SqliteFile(url)
        self._clock = clock
        self._session_timeout = session_timeout
        self._boot_id = read_boot_id() if boot_id is None else boot_id
        self._state = SessionState.LOST
        self._session_id: int | None = None
        self._lease_until = -math.inf
        self._lease_timer: asyncio.TimerHandle | None = None
        self._listeners: list[SessionListener] = []
        self._watches = Watches(lambda event: asyncio.get_running_loop().call_soon(event))
        self._pending: dict[asyncio.Future[Any], None] = {}
        self._thread: SqlThread | None = None
        self._thread_ended: asyncio.Event = asyncio.Event()

    # -- life and session --

    @property
    def address(self) -> str:
        return self._database.address

    @property
    def state(self) -> SessionState:
        return self._state

    @property
    def session_id(self) -> int | None:
        return self._session_id

    @property
    def lease_until(self) -> float:
        return self._lease_until

    @property
    def session_timeout_seconds(self) -> float:
        return self._session_timeout

    def on_session(self, listener: SessionListener) -> None:
        self._listeners.append(listener)

    async def start(self, timeout: float) -> None:
        if self._thread is not None:
            return
        raise NotImplementedError
