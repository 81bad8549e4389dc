"""C5: a change of the item count or the schedule divides the instants: before it the former counts, after it the new one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from ejpy.coordination.changes import KEPT, Changes, InForce, begins, learn, next_change
from ejpy.coordination.claims import Claim, Situation, Step, Write, decide
from ejpy.coordination.ledger import Basis, Entry
from ejpy.terms import CatchUp, NotRun, Outcome
from tests.unit.coordination.situations import HOUR, MINUTE, Instants, at, idle, policy, ran, situation

THREE, FIVE = Basis("a", "UTC", 3), Basis("a", "UTC", 5)
FIVES = Instants("10:00", "10:05", "10:10", "10:15", "10:20")
BOTH = {THREE: FIVES, FIVE: FIVES}


def changed(*times_and_bases: tuple[str, Basis]) -> Changes:
    known: Changes = ()
    for time, basis in times_and_bases:
        known = learn(known, basis, at(time), at(time))
    return known


def runs(entry: Entry, s: Situation, *, item: int = 0, enabled: bool = True) -> tuple[list[tuple[str, int | None]], Entry]:
    """The fires that are claimed, each with the count that its body is told; bodies end at once."""
    done: list[tuple[str, int | None]] = []
    for _ in range(20):
        step: Step = decide(item, entry, s, held_since=at("00:00"), enabled=enabled)
        if not isinstance(step, Claim | Write):
            return done, entry
        entry = step.entry
        if isinstance(step, Claim):
            assert entry.fire is not None
            done.append((f"{entry.fire:%H:%M}", entry.basis.sharding_total_count))
            entry = entry.end(Outcome.SUCCEEDED, 8, s.now)
    raise AssertionError(f"it does not come to rest: {entry}")


# ---- which count an instant is due under -----------------------------------------------------------------------------------


@pytest.mark.parametrize("knows_before", [True, False])
@pytest.mark.parametrize(
    ("written", "count"), [("10:05:00.5", 3), ("10:05", 3), ("10:04:59.9", 5)], ids=["after it", "at its very time", "before it"]
)
def test_an_instant_is_of_the_count_that_was_in_force_then(knows_before: bool, written: str, count: int) -> None:
    """One worker has claimed its item of 10:05 before the change was written; this one comes to it after."""
    entry = idle("10:00", basis=THREE)
    changes = changed(("09:00", THREE), (written, FIVE)) if knows_before else changed((written, FIVE))
    done, after = runs(entry, situation("10:05:01", BOTH, changes=changes))
    assert done == [("10:05", count)]
    assert after.basis == FIVE


def test_each_of_several_missed_instants_is_of_its_own_count() -> None:
    s = situation("10:16", BOTH, policy=policy(catch_up=CatchUp.ALL), changes=changed(("09:00", THREE), ("10:07", FIVE)))
    assert runs(idle("10:00", basis=THREE), s)[0] == [("10:05", 3), ("10:10", 5), ("10:15", 5)]


def test_a_count_that_was_changed_and_changed_back_counts_in_between() -> None:
    s = situation(
        "10:16",
        BOTH,
        policy=policy(catch_up=CatchUp.ALL),
        changes=changed(("09:00", THREE), ("10:07", FIVE), ("10:12", THREE)),
    )
    assert runs(idle("10:00", basis=THREE), s)[0] == [("10:05", 3), ("10:10", 5), ("10:15", 3)]


def test_an_item_that_did_not_exist_in_between_has_nothing_due_then() -> None:
    """From five to three and back: item 4."""
    changes = changed(("09:00", FIVE), ("10:07", THREE), ("10:12", FIVE))
    s = situation("10:16", BOTH, policy=policy(catch_up=CatchUp.ALL), changes=changes)
    done, entry = runs(idle("10:00", basis=FIVE), s, item=4)
    assert done == [("10:05", 5), ("10:15", 5)]
    assert entry.not_run == ()
    assert runs(idle("10:00", basis=FIVE), s, item=2)[0] == [("10:05", 5), ("10:10", 3), ("10:15", 5)]


def test_what_is_recorded_when_it_is_disabled_leaves_out_when_the_item_did_not_exist() -> None:
    changes = changed(("09:00", FIVE), ("10:07", THREE), ("10:12", FIVE))
    done, entry = runs(idle("10:00", basis=FIVE), situation("10:16", BOTH, changes=changes), item=4, enabled=False)
    assert done == []
    assert [(f"{r.after:%H:%M}", f"{r.until:%H:%M}", r.why) for r in entry.not_run] == [
        ("10:00", "10:05", NotRun.MISSED),
        ("10:12", "10:15", NotRun.MISSED),
    ]


def test_what_passed_during_a_run_is_of_the_count_of_its_time() -> None:
    """The run lasts from 10:00 to 10:12, the count changes at 10:07."""
    s = situation("10:12", BOTH, changes=changed(("09:00", THREE), ("10:07", FIVE)))
    assert runs(ran("10:00", "10:00", "10:12", basis=THREE), s)[0] == [("10:05", 3), ("10:10", 5)]


def test_a_run_that_was_begun_late_takes_no_instant_along_that_came_after_the_change() -> None:
    """10:00 was caught up at 10:12 and ran until 10:24; the count changed at 10:18."""
    s = situation("10:24", BOTH, policy=policy(misfire=False), changes=changed(("09:00", THREE), ("10:18", FIVE)))
    step = decide(0, ran("10:00", "10:12", "10:24", basis=THREE), s, held_since=at("00:00"), enabled=True)
    assert isinstance(step, Claim)
    assert (step.entry.fire, step.entry.accounted_until) == (at("10:10"), at("10:15"))
    done, _ = runs(step.entry.end(Outcome.SUCCEEDED, 8, s.now), s)
    assert done == [("10:20", 5)]


def test_an_entry_that_is_accounted_for_under_what_is_in_force_is_left_alone() -> None:
    """However old the change is, and whoever wrote the entry with another idea of its time."""
    for accounted in ("09:00", "09:59", "10:01"):
        assert next_change(changed(("10:00", FIVE)), idle(accounted, basis=FIVE)) is None


# ---- what a worker knows of changes ------------------------------------------------------------------------------------------


def test_a_later_write_of_something_else_moves_no_change() -> None:
    known = changed(("09:00", THREE), ("10:07", FIVE))
    assert learn(known, FIVE, at("10:30"), at("10:30")) == known


def test_a_registry_whose_clock_is_ahead_moves_no_change_into_the_future() -> None:
    known = learn(changed(("09:00", THREE)), FIVE, at("10:30"), at("10:07"))
    assert known[-1] == InForce(FIVE, at("10:07"))


def test_changes_stay_in_order_though_clocks_do_not() -> None:
    known = learn(changed(("10:10", THREE)), FIVE, at("10:05"), at("10:05"))
    assert [change.since for change in known] == [at("10:10"), at("10:10")]
    done, entry = runs(idle("10:00", basis=THREE), situation("10:06", BOTH, changes=known))
    assert done == [("10:05", 3)]
    assert entry.basis == THREE, "the clock was set back; what has not come yet is not accounted for"


def test_only_so_many_changes_are_remembered() -> None:
    known: Changes = ()
    for minute in range(2 * KEPT):
        known = learn(known, Basis("a", "UTC", minute + 1), at("10:00") + minute * MINUTE, at("12:00"))
    assert len(known) == KEPT
    assert known[-1].basis.sharding_total_count == 2 * KEPT
    forgotten = idle("10:00", basis=Basis("a", "UTC", 1))
    assert next_change(known, forgotten) == known[0]


# ---- new items -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("item", "now", "grace", "since"),
    [
        (3, "10:08", HOUR, "10:07"),
        (3, "10:08", timedelta(seconds=59), "10:08"),
        (2, "10:08", HOUR, "10:08"),
    ],
    ids=["brought by the change", "too long ago", "not brought by it"],
)
def test_a_new_item_takes_part_from_the_change_on_that_brought_it(item: int, now: str, grace: timedelta, since: str) -> None:
    assert begins(changed(("09:00", THREE), ("10:07", FIVE)), item, at(now), grace) == InForce(FIVE, at(since))


def test_an_item_that_is_first_seen_with_its_job_starts_at_the_next_fire() -> None:
    assert begins(changed(("09:00", FIVE)), 3, at("10:08"), HOUR) == InForce(FIVE, at("10:08"))


def test_a_new_item_that_a_later_change_keeps_counts_from_the_first() -> None:
    other = Basis("b", "UTC", 5)
    known = changed(("09:00", THREE), ("10:07", FIVE), ("10:08", other))
    assert begins(known, 4, at("10:09"), HOUR) == InForce(FIVE, at("10:07"))
