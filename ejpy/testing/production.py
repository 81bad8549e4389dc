"""Reads the log of real workers as a history.

`ejpy worker --log-format json` writes a line for each attempt that starts and ends, and for fires that are not run
(`ejpy.history`). Lines of several workers may be given one after the other; each names its instance. What else stands in
a log is passed over. Clocks of machines differ, so their rows are in the right order only within `Limits.skew`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ejpy.terms import NotRun, Outcome, Reason
from ejpy.testing import history
from ejpy.testing.history import Event, seconds_of

_LOGGER = "ejpy.history"
_NOT_RUN = re.compile(r"not run \((?P<why>\w+)\): (?:all from (?P<first>.+) to )?(?P<until>.+)")
_NOT_ENTERED = "not entered"
JUST_BEFORE = 1e-6


def from_log(lines: Iterable[str], instance: str) -> list[Event]:
    """The rows of one worker's log in JSON. A line that is no JSON is passed over: a crash may leave half of one."""
    rows: list[Event] = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and record.get("logger") == _LOGGER:
            rows += _rows(record, instance)
    withdrawn = {row.token for row in rows if isinstance(row, history.Recorded) and row.outcome is None}
    return [row for row in rows if not (isinstance(row, history.Entered) and row.token in withdrawn)]


def merged(*logs: Iterable[Event]) -> list[Event]:
    """The rows of several workers in the order of time."""
    return sorted((row for log in logs for row in log), key=lambda row: row.at)


def _rows(record: Mapping[str, Any], instance: str) -> Iterator[Event]:
    at, message = seconds_of(record["time"]), str(record["message"])
    if found := _NOT_RUN.fullmatch(message):
        until = seconds_of(found["until"])
        first = seconds_of(found["first"]) if found["first"] else until
        yield history.FiresNotRun(at, record["job"], record["item"], first - JUST_BEFORE, until, NotRun(found["why"]))
        return
    if "token" not in record:
        return
    job, item, fire = record["job"], record["item"], seconds_of(record["scheduled_time"])
    attempt, token, reason = record["attempt"], record["token"], Reason(record["reason"])
    if message == "started":
        yield history.Claimed(at, job, item, fire, attempt, reason, token, instance)
        yield history.Entered(at, job, item, fire, attempt, reason, token, instance)
    elif "outcome" in record:
        outcome = None if record["outcome"] == _NOT_ENTERED else Outcome(record["outcome"])
        if outcome is not None:
            yield history.Left(at, job, item, fire, attempt, token, instance, outcome)
        counts = "does not count" not in message
        yield history.Recorded(at, job, item, fire, attempt, token, instance, outcome, counts)
