"""E12: a policy's name and what it did disagreed. README's table of what happens × settings is played, row by row, with every
combination of failover, misfire and catch_up, and what it names is what occurs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import product
from pathlib import Path

import pytest

from ejpy.terms import CatchUp, NotRun, Outcome, Reason
from tests.unit.coordination.history import History
from tests.unit.coordination.situations import MINUTE, SECOND, Every, at, policy

README = Path(__file__).parents[3] / "README.md"
INTRODUCTION = "How many executions, and with which `shard_ctx.reason`:"

Runs = list[tuple[float, int, Reason]]
"""Minute of the fire after 10:00, attempt, reason."""
NotRuns = dict[float, NotRun]

SCHEDULED, TRIGGER = Reason.SCHEDULED, Reason.TRIGGER
CATCH_UP, MISFIRE, OWNER_LOST = Reason.CATCH_UP, Reason.MISFIRE, Reason.OWNER_LOST
FIRST: Runs = [(1, 1, SCHEDULED)]
"""The fire of 10:01, with which every story begins."""


@dataclass(frozen=True)
class Settings:
    failover: bool
    misfire: bool
    catch_up: CatchUp

    def __str__(self) -> str:
        words = [word for word in ("failover", "misfire") if getattr(self, word)]
        return "-".join([*words, self.catch_up.value])

    def missed(self, *minutes: int) -> tuple[Runs, NotRuns]:
        """What becomes of instants that nobody could run in time."""
        run = {CatchUp.LATEST: minutes[-1:], CatchUp.ALL: minutes, CatchUp.NONE: ()}[self.catch_up]
        return [(minute, 1, CATCH_UP) for minute in run], {minute: NotRun.MISSED for minute in minutes if minute not in run}

    def lost(self, minute: int) -> tuple[Runs, NotRuns]:
        """What becomes of an attempt that was begun, and did not end."""
        return ([(minute, 2, OWNER_LOST)], {}) if self.failover else ([], {minute: NotRun.INTERRUPTED})


class Asked(History):
    """Somebody may ask for a run now; as a worker takes note of a trigger."""

    def is_asked_for(self) -> None:
        before = self.entry.asked
        self._write(self.entry.ask(self.now, TRIGGER, revision=round(self.now.timestamp() * 1000)))
        after = self.entry.asked
        assert after is not None
        if before is None:
            self.due.append(after.instant)
        else:  # one that waits and one more are one
            self.due[self.due.index(before.instant)] = after.instant
        self._look()


class Failing(History):
    """Its bodies raise."""

    def _body_ends(self) -> None:
        self._ends_at = None
        self._write(self.entry.end(Outcome.FAILED, self.entry.token or 0, self.now))


@dataclass(frozen=True)
class Story:
    happens: Callable[[History], None]
    """From 10:00 on, with a fire every minute, and an owner that lives."""
    expected: Callable[[Settings], tuple[Runs, NotRuns]]
    """After the first fire."""
    kind: type[History] = History


def until(history: History, time: str) -> None:
    history.passes(at(time) - history.now)


def runs_at_10_01_05(history: History) -> None:
    history.body = 10 * SECOND
    until(history, "10:01:05")
    history.body = timedelta(0)


def goes_on(history: History) -> None:
    until(history, "10:02:30")


def dies_before_a_claim(history: History) -> None:
    until(history, "10:01:30")
    history.owner_dies()
    until(history, "10:04:30")
    history.leader_moves_it()


def dies_in_mid_run(history: History) -> None:
    runs_at_10_01_05(history)
    history.owner_dies()
    until(history, "10:01:30")
    history.leader_moves_it()


def is_cut_off_in_mid_run(history: History) -> None:
    runs_at_10_01_05(history)
    history.owner_loses_its_session()


def is_cut_off_before_a_claim(history: History) -> None:
    until(history, "10:01:30")
    history.owner_pauses()
    until(history, "10:04:45")
    history.owner_goes_on()


def is_redeployed(history: History) -> None:
    runs_at_10_01_05(history)
    history.leader_moves_it()  # asks for it
    until(history, "10:01:10")
    history.leader_moves_it()
    goes_on(history)
    assert [claim.owner for claim in history.claims] == ["owner-1", "owner-2"]


def runs_longer_than_the_period(history: History) -> None:
    history.body = 150 * SECOND
    until(history, "10:01:05")
    history.body = timedelta(0)
    until(history, "10:04:30")


def everybody_is_down(history: History) -> None:
    until(history, "10:01:30")
    history.owner_dies()
    until(history, "10:11:30")
    history.leader_moves_it()


def is_triggered(history: History) -> None:
    """While it is idle; and three times while it runs, which is one run when that ends."""
    assert isinstance(history, Asked)
    until(history, "10:01:30")
    history.is_asked_for()
    history.body = 10 * SECOND
    until(history, "10:02:05")
    history.body = timedelta(0)
    for second in ("06", "07", "08"):
        until(history, f"10:02:{second}")
        history.is_asked_for()
    goes_on(history)


def is_triggered_while_disabled(history: History) -> None:
    assert isinstance(history, Asked)
    until(history, "10:01:30")
    history.switched()
    until(history, "10:01:45")
    history.is_asked_for()
    until(history, "10:01:50")
    history.switched()
    goes_on(history)


def is_disabled_and_enabled(history: History) -> None:
    until(history, "10:01:30")
    history.switched()
    until(history, "10:04:30")
    history.switched()
    until(history, "10:05:30")


def the_cron_is_changed(history: History) -> None:
    until(history, "10:01:45")
    history.schedule_becomes(Every(60, offset=30))  # had it been in force, 10:01:30 would have been due
    until(history, "10:02:45")


def dies_in_mid_run_while_disabled(history: History) -> None:
    runs_at_10_01_05(history)
    history.switched()
    history.owner_dies()
    until(history, "10:01:30")
    history.leader_moves_it()


def runs(*fires: float) -> Callable[[Settings], tuple[Runs, NotRuns]]:
    return lambda settings: ([(minute, 1, SCHEDULED) for minute in fires], {})


def overlapped(settings: Settings) -> tuple[Runs, NotRuns]:
    if settings.misfire:
        return [(3, 1, MISFIRE), (4, 1, SCHEDULED)], {2: NotRun.OVERLAP}
    return [(4, 1, SCHEDULED)], {2: NotRun.OVERLAP, 3: NotRun.OVERLAP}


def triggered(settings: Settings) -> tuple[Runs, NotRuns]:
    return [(1.5, 1, TRIGGER), (2, 1, SCHEDULED), (2 + 8 / 60, 1, TRIGGER)], {}


def down_beyond_the_grace(settings: Settings) -> tuple[Runs, NotRuns]:
    made_up, missed = settings.missed(7, 8, 9, 10, 11)
    return made_up, {**dict.fromkeys((2, 3, 4, 5, 6), NotRun.TOO_LATE), **missed}


ROWS: Mapping[str, tuple[Story, ...]] = {
    "nothing": (Story(goes_on, runs(2)),),
    "the body raises": (Story(goes_on, runs(2), Failing),),
    "a worker dies before it claimed a fire": (Story(dies_before_a_claim, lambda settings: settings.missed(2, 3, 4)),),
    "a worker dies in mid-run": (Story(dies_in_mid_run, lambda settings: settings.lost(1)),),
    "a worker is paused or cut off beyond its session, and goes on": (
        Story(is_cut_off_in_mid_run, lambda settings: settings.lost(1)),
        Story(is_cut_off_before_a_claim, lambda settings: settings.missed(2, 3, 4)),
    ),
    "redeploy: SIGTERM, new worker": (Story(is_redeployed, runs(2)),),
    "a run is longer than the period": (Story(runs_longer_than_the_period, overlapped),),
    "the registry is gone for a while": (
        Story(is_cut_off_in_mid_run, lambda settings: settings.lost(1)),
        Story(is_cut_off_before_a_claim, lambda settings: settings.missed(2, 3, 4)),
    ),
    "everybody is down for a while": (Story(everybody_is_down, down_beyond_the_grace),),
    "somebody triggers the job": (
        Story(is_triggered, triggered, Asked),
        Story(is_triggered_while_disabled, lambda settings: ([(2, 1, SCHEDULED)], {1.75: NotRun.DISABLED}), Asked),
    ),
    "something is disabled and enabled again, a cron or a count is changed": (
        Story(is_disabled_and_enabled, runs(5)),
        Story(the_cron_is_changed, runs(2.5)),
        Story(dies_in_mid_run_while_disabled, lambda settings: ([], {1: NotRun.INTERRUPTED})),
    ),
}
AS_IF_IT_HAD_DIED = ("a worker dies before it claimed a fire", "a worker dies in mid-run")

ALL_SETTINGS = [Settings(*values) for values in product([False, True], [False, True], CatchUp)]


def play(story: Story, settings: Settings) -> History:
    chosen = policy(failover=settings.failover, misfire=settings.misfire, catch_up=settings.catch_up, misfire_grace=5 * MINUTE)
    history = story.kind(chosen, Every(60))
    story.happens(history)
    history.settle()
    history.check()
    return history


def minute(instant: datetime) -> float:
    return (instant - at("10:00")) / MINUTE


@pytest.mark.parametrize("settings", ALL_SETTINGS, ids=str)
@pytest.mark.parametrize("row", ROWS)
def test_e12_each_cell(row: str, settings: Settings) -> None:
    for story in ROWS[row]:
        history = play(story, settings)
        made, not_run = story.expected(settings)
        assert [(minute(claim.fire), claim.attempt, claim.reason) for claim in history.claims] == FIRST + made
        found = {
            minute(instant): range_.why
            for instant in history.due
            for range_ in history.not_run
            if range_.after < instant <= range_.until
        }
        assert found == not_run


def table() -> dict[str, tuple[str, str]]:
    """README's rows: with failover off, and on."""
    _, _, after = README.read_text(encoding="utf-8").partition(INTRODUCTION)
    lines = after.strip().split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {happens: (off, on) for happens, off, on in cells}


def test_e12_every_row_is_played() -> None:
    assert list(table()) == list(ROWS)


def named(row: str, *, failover: bool) -> set[Reason]:
    """The reasons that a cell names for further runs."""
    off, on = table()[row]
    cells = [on] if failover else [off]
    if failover and on.startswith("the same"):
        cells.append(off)
    words = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}
    inherited = AS_IF_IT_HAD_DIED if any(cell.startswith("as if it had died") for cell in cells) else ()
    reasons = {reason for reason in Reason if reason.value in words}
    return reasons.union(*(named(other, failover=failover) for other in inherited)) - {Reason.SCHEDULED}


@pytest.mark.parametrize("failover", [False, True], ids=["failover-off", "failover-on"])
@pytest.mark.parametrize("row", ROWS)
def test_e12_a_cell_names_the_reasons_that_occur(row: str, failover: bool) -> None:
    occur = {
        claim.reason
        for settings in ALL_SETTINGS
        for story in ROWS[row]
        for claim in play(story, settings).claims
        if settings.failover == failover
    }
    assert named(row, failover=failover) == occur - {Reason.SCHEDULED}
