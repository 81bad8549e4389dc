"""A ledger entry as the JSON document that stands in its node.

What is unset is left out, so that most documents are short; whatever else stands in a node is refused as a whole. A document of a
later ejpy is told apart from rubbish: it must not be overwritten.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from ejpy.coordination.ledger import Asked, Basis, Entry, NotRunRange, new_entry
from ejpy.errors import BrokenEntry, NewerEntry
from ejpy.registry.base import Node
from ejpy.terms import NotRun, Outcome, Reason

_VERSION = 1


def encode(entry: Entry) -> bytes:
    """The entry as a JSON document; what is unset is left out."""
    fields = {
        "v": _VERSION,
        "accounted_until": _text(entry.accounted_until),
        "cron": entry.basis.cron,
        "time_zone": entry.basis.time_zone,
        "sharding_total_count": entry.basis.sharding_total_count,
        "suspended": entry.suspended or None,
        "fire": _text(entry.fire),
        "attempt": entry.attempt or None,
        "reason": entry.reason and entry.reason.value,
        "owner": entry.owner,
        "running": entry.running or None,
        "token": entry.token,
        "claimed": _text(entry.claimed),
        "ended": _text(entry.ended),
        "outcome": entry.outcome and entry.outcome.value,
        "checkpoint": entry.checkpoint,
        "to_recover": entry.to_recover or None,
        "overdue": entry.overdue or None,
        "hand_over": entry.hand_over or None,
        "asked": entry.asked and [_text(entry.asked.instant), entry.asked.reason.value],
        "asked_revision": entry.asked_revision,
        "unscheduled": entry.unscheduled or None,
        "usual_seconds": entry.usual_seconds,
        "usual_runs": entry.usual_runs or None,
        "not_run": [[_text(r.after), _text(r.until), r.why.value] for r in entry.not_run] or None,
    }
    return json.dumps({k: v for k, v in fields.items() if v is not None}, separators=(",", ":"), ensure_ascii=False).encode()


def decode(data: bytes, revision: int, path: str, *, count: int | None = None) -> Entry:
    """The entry in `data`, read from the node at `path` with that revision. `count` is the item count of an entry that does
    not tell. Raises BrokenEntry, NewerEntry."""
    try:
        fields = json.loads(data)
        json.dumps(fields, ensure_ascii=False).encode()  # what cannot be written again must not be taken in
        if isinstance(fields["v"], int) and fields["v"] > _VERSION:
            raise NewerEntry(f"{path}: of a later ejpy (format {fields['v']}); the item is left alone: upgrade this worker")
        if fields["v"] != _VERSION:
            raise ValueError(f"its format is {fields['v']!r}, this ejpy knows {_VERSION}")
        running = bool(fields.get("running"))
        token = fields.get("token")
        attempt = int(fields.get("attempt", 0))
        return Entry(
            accounted_until=_time(fields["accounted_until"]),
            basis=Basis(
                _str(fields["cron"]), _maybe_str(fields.get("time_zone")), _maybe_count(fields.get("sharding_total_count", count))
            ),
            suspended=bool(fields.get("suspended")),
            not_run=tuple(NotRunRange(_time(a), _time(u), NotRun(w)) for a, u, w in fields.get("not_run", ())),
            fire=_maybe_time(fields.get("fire")),
            attempt=attempt,
            reason=Reason(fields["reason"]) if "reason" in fields else None,
            owner=_maybe_str(fields.get("owner")),
            running=running,
            token=int(token) if token is not None else (revision if attempt else None),
            claimed=_maybe_time(fields.get("claimed")),
            ended=_maybe_time(fields.get("ended")),
            outcome=Outcome(fields["outcome"]) if "outcome" in fields else None,
            checkpoint=fields.get("checkpoint"),
            to_recover=bool(fields.get("to_recover")),
            overdue=bool(fields.get("overdue")),
            hand_over=bool(fields.get("hand_over")),
            asked=_maybe_asked(fields.get("asked")),
            asked_revision=_maybe_int(fields.get("asked_revision")),
            unscheduled=bool(fields.get("unscheduled")),
            usual_seconds=_maybe_seconds(fields.get("usual_seconds")),
            usual_runs=int(fields.get("usual_runs", 0)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BrokenEntry(f"{path}: not a ledger entry ({type(error).__name__}: {error})") from error


@dataclass(frozen=True, slots=True)
class Reading:
    """What was found in a ledger node."""

    entry: Entry | None
    """None: it is of a later ejpy, and must be left alone."""
    problem: str | None = None
    """Why it is not what stands there, in one line."""


def read_entry(node: Node, path: str, basis: Basis, now: datetime) -> Reading:
    """The entry in a node. An item whose entry is broken begins anew, and is due under `basis` from `now` on."""
    try:
        return Reading(decode(node.data, node.revision, path, count=basis.sharding_total_count))
    except NewerEntry as error:
        return Reading(None, str(error))
    except BrokenEntry as error:
        return Reading(new_entry(basis, now), f"{error}; the item starts anew at its next fire")


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    if time.tzinfo is None:
        raise ValueError(f"{text!r} has no offset from UTC")
    if not 2000 <= time.year < 2200:
        raise ValueError(f"{text!r} is not a time of this age")
    return time.astimezone(timezone.utc)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"a text was expected, not {type(value).__name__}")
    return value


def _maybe_str(value: Any) -> str | None:
    return None if value is None else _str(value)


def _maybe_int(value: Any) -> int | None:
    return None if value is None else int(value)


def _maybe_seconds(value: Any) -> float | None:
    seconds = None if value is None else float(value)
    if seconds is not None and not 0 <= seconds < 1e9:
        raise ValueError(f"{value!r} is no duration in seconds")
    return seconds


def _maybe_count(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(f"{value!r} is no item count")
    return value


def _maybe_asked(value: Any) -> Asked | None:
    if value is None:
        return None
    instant, reason = value
    return Asked(_time(instant), Reason(reason))


def _maybe_time(text: str | None) -> datetime | None:
    return None if text is None else _time(text)
