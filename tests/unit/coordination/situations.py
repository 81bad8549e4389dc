"""Schedules, entries and situations in few words, for the tests of what is decided about one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from ejpy.coordination.changes import Changes, InForce
from ejpy.coordination.claims import Policy, Schedule, Situation
from ejpy.coordination.ledger import Basis, Entry
from ejpy.terms import CatchUp, Outcome, Reason

ME = "10.0.0.1@-@11.aa"
OTHER = "10.0.0.2@-@22.bb"
GONE = "10.0.0.3@-@33.cc"
"""An instance that is not live."""

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def at(text: str) -> datetime:
    """`10:05`, `10:05:30` or `10:05:30.250` of one day, UTC."""
    return datetime.fromisoformat(f"2026-03-02T{text}").replace(tzinfo=timezone.utc)


class Instants:
    """A schedule of the instants that are listed, ascending."""

    def __init__(self, *texts: str) -> None:
        self.all = [at(text) for text in texts]

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        return max((i for i in self.all if after < i <= until), default=None)

    def next_after(self, instant: datetime) -> datetime | None:
        return min((i for i in self.all if i > instant), default=None)


@dataclass(frozen=True)
class Every:
    """A schedule with an instant at each `offset` + n × `period` seconds since 1970, for ever."""

    period: int
    offset: int = 0

    def latest(self, after: datetime, until: datetime) -> datetime | None:
        last = self._instant((until - EPOCH - self.offset * SECOND) // (self.period * SECOND))
        return last if last > after else None

    def next_after(self, instant: datetime) -> datetime:
        return self._instant((instant - EPOCH - self.offset * SECOND) // (self.period * SECOND) + 1)

    def _instant(self, number: int) -> datetime:
        return EPOCH + (self.offset + number * self.period) * SECOND


BASIS = Basis("a", "UTC", 5)
CHANGED = Basis("b", "UTC", 5)
POLICY = Policy(
    failover=False,
    failover_max_duration=None,
    misfire=True,
    catch_up=CatchUp.LATEST,
    misfire_grace=HOUR,
    claim_timeout=30 * SECOND,
    monitored=True,
)


def policy(**changes: Any) -> Policy:
    return replace(POLICY, **changes)


def situation(
    now: str,
    schedules: Schedule | Mapping[Basis, Schedule],
    *,
    policy: Policy = POLICY,
    basis: Basis = BASIS,
    changed_at: str = "00:00",
    changes: Changes | None = None,
    gone_since: Mapping[str, datetime] | None = None,
) -> Situation:
    """`ME` looks at `now`; `ME` and `OTHER` are live. One schedule is that of `BASIS`. `basis` is in force since `changed_at`,
    unless `changes` tell more."""
    by_basis = schedules if isinstance(schedules, Mapping) else {BASIS: schedules}
    return Situation(
        now=at(now),
        me=ME,
        live={ME, OTHER},
        policy=policy,
        changes=changes or (InForce(basis, at(changed_at)),),
        schedule_of=by_basis.get,
        gone_since=gone_since or {},
    )


def idle(accounted_until: str, **fields: Any) -> Entry:
    """An entry of an item that does not run; without further fields it never has."""
    known: dict[str, Any] = {"accounted_until": at(accounted_until), "basis": BASIS}
    return Entry(**known | fields)


def ran(fire: str, claimed: str, ended: str, **fields: Any) -> Entry:
    """An entry whose last attempt ended well; it accounts for what it ran."""
    known: dict[str, Any] = {
        "accounted_until": at(fire),
        "basis": BASIS,
        "fire": at(fire),
        "attempt": 1,
        "reason": Reason.SCHEDULED,
        "owner": ME,
        "token": 7,
        "claimed": at(claimed),
        "ended": at(ended),
        "outcome": Outcome.SUCCEEDED,
    }
    return Entry(**known | fields)


def running(fire: str, owner: str, **fields: Any) -> Entry:
    """An entry whose attempt was claimed one second after its time, and runs."""
    known: dict[str, Any] = {
        "accounted_until": at(fire),
        "basis": BASIS,
        "fire": at(fire),
        "attempt": 1,
        "reason": Reason.SCHEDULED,
        "owner": owner,
        "running": True,
        "token": 7,
        "claimed": at(fire) + SECOND,
        "checkpoint": {"row": 17},
    }
    return Entry(**known | fields)
