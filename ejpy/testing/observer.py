"""Sees each transaction of the store, and tells what it meant as rows of a history.

It stands beside the server: what it tells is what was committed, in the order in which it was, whatever the workers know of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ejpy.clock import Clock
from ejpy.config.document import from_document
from ejpy.config.model import JobConfig
from ejpy.coordination.ledger import Entry
from ejpy.coordination.ledger_document import decode
from ejpy.coordination.view import DISABLED, DRAINING_LABEL
from ejpy.errors import RegistryError
from ejpy.registry.base import Node
from ejpy.registry.memory import MemoryStore
from ejpy.registry.transaction import Transaction
from ejpy.testing import history
from ejpy.testing.history import Event

Tell = Callable[[Event], None]


class ObservedStore(MemoryStore):
    """A store that tells `tell` what is done with the jobs of `namespace`."""

    def __init__(self, clock: Clock, namespace: str, tell: Tell) -> None:
        super().__init__(clock)
        self._namespace = namespace
        self._tell = tell
        self._instances: dict[int, str] = {}
        """Sessions, and the instance that was registered under each."""
        self._entries: dict[str, Entry] = {}

    def sessions(self) -> list[int]:
        """Those that are open."""
        return list(self._sessions)

    def subscribers(self) -> int:
        """How many connections are told of changes."""
        return len(self._subscribers)

    def stay_away(self, seconds: float) -> None:
        """The server is down for so long: no session ends meanwhile, and each has all its time-out afterwards."""
        for session in self._sessions.values():
            session.deadline = self._clock.monotonic() + seconds + session.timeout

    def _write_back(self, transaction: Transaction) -> None:
        before = {path: self.read(path) for path in transaction.changed}
        told = [
            (path, place, before[path], record.node if record is not None else None)
            for path, record in transaction.draft.items()
            if path in transaction.changed and (place := self._place_of(path)) is not None
        ]
        at = self._clock.now().timestamp()
        session = transaction._session_id
        for path, place, old, new in told:
            self._tell_one(at, transaction.revision, session, place, path, old, new)
        super()._write_back(transaction)

    @lru_cache(maxsize=4096)  # noqa: B019 - a store lives as long as its history
    def _place_of(self, path: str) -> tuple[str, str, str] | None:
        """Job, kind and name of a node that is told of."""
        parts = path.split("/")
        if len(parts) < 4:
            return None
        if parts[1] == self._namespace[1:] + ".ledger":
            return (parts[2], "ledger", parts[3]) if len(parts) == 4 else None
        job, rest = parts[2], parts[3:]
        if rest == ["config"]:
            return job, "config", ""
        if rest == ["leader", "election", "instance"]:
            return job, "leader", ""
        if len(rest) == 2 and rest[0] in ("instances", "servers"):
            return job, rest[0], rest[1]
        if len(rest) == 3 and rest[0] == "sharding" and rest[2] in ("instance", "running", "disabled"):
            return job, rest[2], rest[1]
        return None

    def _tell_one(
        self,
        at: float,
        revision: int,
        session: int,
        place: tuple[str, str, str],
        path: str,
        old: Node | None,
        new: Node | None,
    ) -> None:
        job, kind, which = place
        if kind == "ledger":
            self._tell_ledger(at, revision, session, job, int(which), path, new)
        elif kind == "instance":
            whose = new.data.decode() if new is not None else None
            self._tell(history.Assigned(at, revision, job, int(which), whose, self._instances.get(session)))
        elif kind == "instances":
            if new is not None and new.session_id is not None:
                self._instances[new.session_id] = which
            draining = new is not None and f"labels: {DRAINING_LABEL}".encode() in new.data
            self._tell(history.Present(at, revision, job, which, new.session_id if new else None, draining))
        elif kind == "leader":
            self._tell(history.Leads(at, revision, job, new.data.decode() if new else None))
        elif kind == "running":
            self._tell(history.Marked(at, revision, job, int(which), new.data.decode() if new else None))
        elif kind == "disabled":
            self._tell(history.Switched(at, job, int(which), None, new is None))
        elif kind == "servers":
            was, is_ = old is not None and old.data == DISABLED, new is not None and new.data == DISABLED
            if was != is_:
                self._tell(history.Switched(at, job, None, which, not is_))
        elif kind == "config" and new is not None:
            self._tell(configured(at, from_document(new.data, job, "m:J", None)))

    def _tell_ledger(self, at: float, revision: int, session: int, job: str, item: int, path: str, new: Node | None) -> None:
        before = self._entries.pop(path, None)
        if new is None:
            return
        try:
            entry = decode(new.data, revision, path)
        except RegistryError:  # not an entry
            return
        self._entries[path] = entry
        fire = entry.fire.timestamp() if entry.fire is not None else None
        claims = entry.attempt > 0 and b'"token"' not in new.data
        by = self._instances.get(session)
        self._tell(
            history.Written(
                at,
                revision,
                job,
                item,
                by,
                entry.token,
                claims,
                fire,
                entry.attempt,
                entry.owner,
                entry.running,
                entry.to_recover,
                entry.accounted_until.timestamp(),
                entry.checkpoint,
                entry.overdue,
                session in self._sessions or session < 1,
            )
        )
        for new_range in entry.not_run:
            known = before.not_run if before is not None else ()
            if new_range not in known:
                after = next((r.until for r in known if r.after == new_range.after and r.why is new_range.why), new_range.after)
                until = new_range.until.timestamp()
                self._tell(history.FiresNotRun(at, job, item, after.timestamp(), until, new_range.why))
        if claims and fire is not None and entry.reason is not None and entry.owner is not None:
            decided = entry.claimed.timestamp() if entry.claimed is not None else None
            self._tell(
                history.Claimed(
                    at, job, item, fire, entry.attempt, entry.reason, revision, entry.owner, decided, entry.unscheduled,
                    entry.basis.sharding_total_count,
                )
            )  # fmt: skip


def configured(at: float, config: JobConfig) -> history.Configured:
    """The row of a configuration that counts from `at` on."""
    return history.Configured(
        at,
        config.job_name,
        config.cron,
        config.time_zone,
        config.sharding_total_count,
        config.failover,
        config.misfire,
        config.catch_up,
        config.misfire_grace.total_seconds(),
        config.claim_timeout.total_seconds(),
        str(getattr(config.job_sharding_strategy_type, "value", config.job_sharding_strategy_type)),
        config.monitor_execution,
    )
