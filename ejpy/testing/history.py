"""What happened, as rows: the one language that simulation, chaos runs and production logs are told in, and the checker reads.

A row is a JSON object with `event` and `time`; what it shares with a line of the production log is named as there (`job`,
`item`, `scheduled_time`, `attempt`, `reason`, `token`, `outcome`). A history holds what its source can see: the log of a worker
has claims and ends, the simulation also each transaction of the registry. `at`, and every other time, is in seconds since 1970
by a clock that is right; `ahead` is how far the worker's own clock was ahead of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime, timezone
from enum import Enum
from typing import Any, ClassVar

from ejpy.terms import CatchUp, NotRun, Outcome, Reason


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at `at`."""

    at: float
    name: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Configured(Event):
    """From now on a job is configured so."""

    name = "configured"
    job: str
    cron: str | None
    time_zone: str | None
    items: int
    failover: bool
    misfire: bool
    catch_up: CatchUp
    misfire_grace: float
    claim_timeout: float
    strategy: str
    monitored: bool


@dataclass(frozen=True, slots=True)
class Switched(Event):
    """An operator disabled or enabled an item, or a server (`which` is its address)."""

    name = "switched"
    job: str
    item: int | None
    which: str | None
    enabled: bool


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    """A claim was granted. `decided`: when, by the claimer's clock; None if that is not known."""

    name = "claimed"
    job: str
    item: int
    scheduled_time: float
    attempt: int
    reason: Reason
    token: int
    instance: str
    decided: float | None = None
    unscheduled: bool = False
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Entered(Event):
    """A body was entered."""

    name = "entered"
    job: str
    item: int
    scheduled_time: float
    attempt: int
    reason: Reason
    token: int
    instance: str
    ahead: float = 0.0
    total: int | None = None
    checkpoint: Any = None
    session: int | None = None


@dataclass(frozen=True, slots=True)
class Left(Event):
    """A body ended."""

    name = "left"
    job: str
    item: int
    scheduled_time: float
    attempt: int
    token: int
    instance: str
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Recorded(Event):
    """An attempt is over; `recorded`: the ledger took its end."""

    name = "recorded"
    job: str
    item: int
    scheduled_time: float
    attempt: int
    token: int
    instance: str
    outcome: Outcome | None
    recorded: bool


@dataclass(frozen=True, slots=True)
class FiresNotRun(Event):
    """The due instants of (after, until] were recorded as not run."""

    name = "not_run"
    job: str
    item: int
    after: float
    until: float
    why: NotRun


@dataclass(frozen=True, slots=True)
class Saved(Event):
    """A body was told that its checkpoint is saved."""

    name = "saved"
    job: str
    item: int
    scheduled_time: float
    attempt: int
    token: int
    instance: str
    value: Any


# ---- what only the registry's side shows; the rows of one transaction carry its revision -------------------------------


@dataclass(frozen=True, slots=True)
class Written(Event):
    """A ledger entry was written. `by`: the instance whose session wrote it, None for anybody else."""

    name = "written"
    revision: int
    job: str
    item: int
    by: str | None
    token: int | None
    claims: bool
    scheduled_time: float | None
    attempt: int
    owner: str | None
    running: bool
    to_recover: bool
    accounted_until: float
    checkpoint: Any
    overdue: bool
    live: bool
    """The session of the writer was alive."""


@dataclass(frozen=True, slots=True)
class Assigned(Event):
    """An item is assigned to `instance`, or to nobody any more."""

    name = "assigned"
    revision: int
    job: str
    item: int
    instance: str | None
    by: str | None


@dataclass(frozen=True, slots=True)
class Present(Event):
    """An instance is registered, or not any more (`session` is None)."""

    name = "present"
    revision: int
    job: str
    instance: str
    session: int | None
    draining: bool


@dataclass(frozen=True, slots=True)
class Leads(Event):
    """Who leads a job; None: nobody."""

    name = "leads"
    revision: int
    job: str
    instance: str | None


@dataclass(frozen=True, slots=True)
class Marked(Event):
    """An item carries a `running` mark of `instance`, or none."""

    name = "marked"
    revision: int
    job: str
    item: int
    instance: str | None


# ---- of the history itself ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Faulted(Event):
    """Something was done to a worker, the network or the registry."""

    name = "fault"
    kind: str
    instance: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Quiet(Event):
    """No fault lasts any more."""

    name = "quiet"


@dataclass(frozen=True, slots=True)
class AtRest(Event):
    """All has had its time; from now on the workers are told to end."""

    name = "at_rest"


@dataclass(frozen=True, slots=True)
class Stopped(Event):
    """A worker that was told to end at `begun` has ended. `held`: how long it was frozen meanwhile."""

    name = "stopped"
    instance: str
    begun: float
    grace: float
    held: float = 0.0
    job: str = ""


@dataclass(frozen=True, slots=True)
class LeftOver(Event):
    """Something is still there that should not be."""

    name = "left_over"
    kind: str
    what: str
    job: str = ""


@dataclass(frozen=True, slots=True)
class Finished(Event):
    """The history ends."""

    name = "finished"


KINDS: dict[str, type[Event]] = {
    kind.name: kind
    for kind in (
        Configured, Switched, Claimed, Entered, Left, Recorded, FiresNotRun, Saved, Written, Assigned, Present, Leads, Marked,
        Faulted, Quiet, AtRest, Stopped, LeftOver, Finished,
    )
}  # fmt: skip
_TIMES = {"scheduled_time", "after", "until", "decided", "accounted_until", "begun"}
_ENUMS: dict[str, type[Enum]] = {"reason": Reason, "outcome": Outcome, "why": NotRun, "catch_up": CatchUp}
_FIELDS = {kind: tuple(each.name for each in fields(kind) if each.name != "at") for kind in KINDS.values()}


def to_row(event: Event) -> dict[str, Any]:
    """An event as a JSON object; what is unset is left out."""
    row: dict[str, Any] = {"event": event.name, "time": time_text(event.at)}
    for name in _FIELDS[type(event)]:
        value = getattr(event, name)
        if value is None:
            continue
        row[name] = time_text(value) if name in _TIMES else value.value if isinstance(value, Enum) else value
    return row


def from_row(row: dict[str, Any]) -> Event:
    """The event that a JSON object tells of. Raises ValueError for one that is none."""
    try:
        kind = KINDS[row["event"]]
        values: dict[str, Any] = {}
        for name in _FIELDS[kind]:
            value = row.get(name)
            if value is not None and name in _TIMES:
                value = seconds_of(value)
            elif value is not None and name in _ENUMS:
                value = _ENUMS[name](value)
            if value is not None or name in _NULLABLE[kind]:
                values[name] = value
        return kind(seconds_of(row["time"]), **values)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a row of a history ({type(error).__name__}: {error}): {row!r}") from error


_NULLABLE = {
    kind: {each.name for each in fields(kind) if "None" in str(each.type) or each.type == "Any"} for kind in KINDS.values()
}


def write_lines(history: Iterable[Event]) -> Iterator[str]:
    """A history as lines of JSON."""
    for event in history:
        yield json.dumps(to_row(event), ensure_ascii=False, separators=(",", ":"))


def read_lines(lines: Iterable[str]) -> list[Event]:
    """A history from lines of JSON. Raises ValueError."""
    return [from_row(json.loads(line)) for line in lines if line.strip()]


def time_text(seconds: float) -> str:
    """ISO 8601 in UTC, with microseconds."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


def seconds_of(text: str) -> float:
    """Seconds since 1970. Raises ValueError."""
    time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC")
    return time.timestamp()
