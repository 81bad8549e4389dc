"""The same expressions, asked of ejpy and of Quartz 2.3.2: they are accepted or refused alike, and fire alike.

In zones without daylight saving nothing may differ. In the others a difference may only begin at a change of the clocks
(what is right there is tested in tests/unit/schedule/test_daylight_saving.py).
`EJPY_QUARTZ_EXPRESSIONS` sets how many random expressions of each kind are tried, `EJPY_QUARTZ_SEED` which.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from random import Random

import pytest

from ejpy.errors import CronError
from ejpy.schedule.cron import CronSchedule, parse
from ejpy.schedule.zones import segment_at, time_zone
from tests.interop.quartz.expressions import nearly_valid, valid
from tests.interop.quartz.quartz import Answer, Query, ask_quartz

EXPRESSIONS = int(os.environ.get("EJPY_QUARTZ_EXPRESSIONS", "1500"))
SEED = int(os.environ.get("EJPY_QUARTZ_SEED", "20261130"))

FIRES = 4
EARLIEST, LATEST = 1_577_836_800, 2_208_988_800  # 2020 and 2040
PARSED = datetime(1971, 1, 1, tzinfo=timezone.utc)
HORIZON = 3_187_296_000
"""2071-01-01. Both look 100 years ahead, ejpy from PARSED, Quartz from today: what Quartz finds later is not compared."""

STEADY_ZONES = ("UTC", "GMT+08:00", "GMT-3:30", "Asia/Shanghai", "Asia/Kolkata")
CHANGING_ZONES = ("America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Australia/Sydney", "Pacific/Chatham")

CLOSE_TO_A_CHANGE_SECONDS = 3600 + 1


def queries(kind: Callable[[Random], str], zones: tuple[str, ...], count: int) -> Iterator[Query]:
    random = Random(f"{SEED} {kind.__name__} {zones}")
    for _ in range(count):
        zone, start = random.choice(zones), random.randint(EARLIEST, LATEST)
        if random.random() < 0.5:  # shortly before the clocks are changed, or before the year ends
            start = segment_at(time_zone(zone), start).end - random.randint(0, 2 * 86_400)
        yield Query(zone, start, FIRES, kind(random))


def ask_ejpy(query: Query) -> Answer:
    try:
        schedule = parse(query.expression, query.zone, now=PARSED)
    except CronError:
        return Answer("REFUSED")
    fires = instants(schedule, query.start)
    return Answer("FIRES", fires, len(fires) < FIRES)


def instants(schedule: CronSchedule, start: int) -> tuple[int, ...]:
    fires: list[int] = []
    fire = schedule.next_after(datetime.fromtimestamp(start, timezone.utc))
    while fire is not None and len(fires) < FIRES and fire.timestamp() < HORIZON:
        fires.append(int(fire.timestamp()))
        fire = schedule.next_after(fire)
    return tuple(fires)


def comparable(answer: Answer) -> Answer:
    """Quartz's answer without what is beyond the horizon; what never fires counts as refused."""
    fires = tuple(fire for fire in answer.fires if fire < HORIZON)
    if answer.verdict == "FIRES":
        return Answer("FIRES", fires, len(fires) < FIRES)
    return Answer("REFUSED") if answer.verdict == "FAILED" else answer


def same(quartz: Answer, ejpy: Answer) -> bool:
    never_fires = quartz.verdict == "FIRES" and not quartz.fires
    return quartz == ejpy or (ejpy.verdict == "REFUSED" and never_fires)


def quartz_contradicts_itself(query: Query, quartz: Answer, ejpy: Answer) -> bool:
    """29W and 30W in a February without that day: Quartz's answer depends on where it is asked from (docs/cron.md)."""
    return bool(re.search(r"\b(29|30)W", query.expression.upper())) and any(
        datetime.fromtimestamp(fire, timezone.utc).strftime("%m-%d") in ("02-28", "02-29")
        for fire in set(quartz.fires) ^ set(ejpy.fires)
    )


def report(differences: list[tuple[Query, Answer, Answer]]) -> str:
    return "\n".join(f"{query}\n  Quartz {quartz}\n  ejpy   {ejpy}" for query, quartz, ejpy in differences[:20])


@pytest.mark.parametrize("kind", [valid, nearly_valid])
def test_where_clocks_are_not_changed_nothing_differs(kind: Callable[[Random], str]) -> None:
    asked = list(queries(kind, STEADY_ZONES, EXPRESSIONS))
    compared = [(q, comparable(a), ask_ejpy(q)) for q, a in zip(asked, ask_quartz(asked), strict=True)]
    differences = [c for c in compared if not same(c[1], c[2]) and not quartz_contradicts_itself(*c)]
    assert not differences, f"{len(differences)} of {len(compared)} differ\n{report(differences)}"
    firing = sum(bool(quartz.fires) for _, quartz, _ in compared)
    assert firing > len(compared) // 4, "too few of the expressions fire for the comparison to mean much"
    if kind is nearly_valid:
        assert sum(quartz.verdict == "REFUSED" for _, quartz, _ in compared) > len(compared) // 10


def test_elsewhere_a_difference_begins_at_a_change_of_the_clocks() -> None:
    asked = list(queries(valid, CHANGING_ZONES, EXPRESSIONS))
    differing = 0
    unexplained = []
    for query, quartz, ejpy in zip(asked, map(comparable, ask_quartz(asked)), map(ask_ejpy, asked), strict=True):
        if same(quartz, ejpy) or quartz_contradicts_itself(query, quartz, ejpy):
            continue
        differing += 1
        if not any(changes_near(query.zone, first) for first in first_differences(quartz.fires, ejpy.fires)):
            unexplained.append((query, quartz, ejpy))
    assert not unexplained, f"{len(unexplained)} of {len(asked)} differ away from a change\n{report(unexplained)}"
    assert 0 < differing < len(asked) // 4


def test_what_quartz_parses_and_cannot_compute_is_refused_or_completed() -> None:
    """docs/cron.md lists these: the only ones that are not as in Quartz, daylight saving aside."""
    start = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp())
    verdicts = {
        "L 30 * * * ?": ("FAILED", "REFUSED"),
        "0 L * * * ?": ("FAILED", "REFUSED"),
        "0 0 0 ? * ,": ("FAILED", "REFUSED"),
        "0 99-70 * * * ?": ("FIRES", "REFUSED"),
        "0 0 0 ? * 9#1,3": ("FIRES", "REFUSED"),
        "0 0 0 1 1 ? 2030 x": ("FIRES", "REFUSED"),
        "0 0 0 L-30W * ?": ("HANGS", "FIRES"),
        "0 0 0 0W * ?": ("HANGS", "REFUSED"),
    }
    asked = [Query("UTC", start, FIRES, expression) for expression in verdicts]
    found = {
        query.expression: (quartz.verdict, ask_ejpy(query).verdict)
        for query, quartz in zip(asked, ask_quartz(asked, patience_seconds=2), strict=True)
    }
    assert found == verdicts


def first_differences(one: tuple[int, ...], other: tuple[int, ...]) -> list[int]:
    """The earliest fire that only one of them has."""
    return sorted(set(one) ^ set(other))[:1]


def changes_near(zone_name: str, instant: int) -> bool:
    zone = time_zone(zone_name)
    return (
        segment_at(zone, instant - CLOSE_TO_A_CHANGE_SECONDS).offset
        != segment_at(zone, instant + CLOSE_TO_A_CHANGE_SECONDS).offset
    )
