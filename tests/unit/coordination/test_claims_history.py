"""Whole histories of an item: what must hold whatever happens to its owners, and field reports told as stories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.coordination.claims import Policy
from ejpy.terms import CatchUp, NotRun, Reason
from tests.unit.coordination.history import History
from tests.unit.coordination.situations import HOUR, SECOND, Every, at, policy

Event = Callable[[History], object]

policies = st.builds(
    policy,
    failover=st.booleans(),
    misfire=st.booleans(),
    catch_up=st.sampled_from(CatchUp),
    misfire_grace=st.sampled_from([5 * SECOND, 20 * SECOND, HOUR]),
    claim_timeout=st.sampled_from([2 * SECOND, 30 * SECOND]),
)
schedules = st.sampled_from([Every(1), Every(3), Every(7, 2), Every(10), Every(40)])
quarters = st.integers(1, 60).map(lambda number: number * SECOND / 4)


def passes(time: timedelta) -> Event:
    return lambda history: history.passes(time)


def bodies_take(time: timedelta) -> Event:
    return lambda history: setattr(history, "body", time)


def gives_back(history: History) -> None:
    history.owner_loses_its_session(entered=False)


def is_switched(history: History) -> None:
    """Disabled at any time; enabled again once its owner has seen that it was disabled, and sees the change at once.

    What was switched off and on while its owner was away leaves no trace that a decision could be made from.
    """
    if history.enabled or (history.settled and history.entry.suspended):
        history.switched()


def is_switched_when_settled(history: History) -> None:
    """So that nothing is due and unclaimed at that moment: it would be recorded."""
    if history.settled:
        history.switched()


def schedule_becomes(schedule: Every) -> Event:
    """One change at a time: of several, an owner who was away knows the last."""

    def change(history: History) -> None:
        if history.entry.basis == history.basis:
            history.schedule_becomes(schedule)

    return change


TROUBLES = st.sampled_from(
    [
        History.owner_dies,
        History.owner_pauses,
        History.owner_goes_on,
        History.owner_loses_its_session,
        History.leader_moves_it,
    ]
)
time_or_body = st.one_of(
    quarters.map(passes), quarters.map(passes), st.integers(0, 60).map(lambda n: bodies_take(n * SECOND / 4))
)


def told(policy: Policy, schedule: Every, events: list[Event]) -> History:
    history = History(policy, schedule)
    for event in events:
        event(history)
    history.settle()
    return history


# ---- whatever happens -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=400)
@given(
    policies,
    schedules,
    st.lists(st.one_of(time_or_body, TROUBLES, st.just(is_switched), schedules.map(schedule_becomes)), max_size=20),
)
def test_nothing_is_run_twice_lost_early_or_replayed(policy: Policy, schedule: Every, events: list[Event]) -> None:
    told(policy, schedule, events).check()


@settings(deadline=None, max_examples=200)
@given(policies, schedules, st.lists(st.one_of(time_or_body, TROUBLES, st.just(gives_back)), max_size=20))
def test_nor_when_claims_are_given_back(policy: Policy, schedule: Every, events: list[Event]) -> None:
    told(policy, schedule, events).check()


@settings(deadline=None, max_examples=200)
@given(
    policies,
    schedules,
    st.lists(
        st.one_of(quarters.map(passes), TROUBLES, st.just(is_switched_when_settled), schedules.map(schedule_becomes)), max_size=20
    ),
    st.booleans(),
)
def test_catch_up_all_runs_every_due_instant(policy_drawn: Policy, schedule: Every, events: list[Event], misfire: bool) -> None:
    """With bodies that end at once, and a grace without end."""
    everything = policy(catch_up=CatchUp.ALL, misfire=misfire, misfire_grace=1000 * HOUR, failover=policy_drawn.failover)
    history = told(everything, schedule, events)
    history.check()
    assert [claim.fire for claim in history.claims] == history.due
    assert not history.not_run


@settings(deadline=None, max_examples=100)
@given(policies, schedules, st.lists(quarters, max_size=10))
def test_an_owner_that_is_always_there_runs_each_instant_on_time(policy: Policy, schedule: Every, times: list[timedelta]) -> None:
    history = told(policy, schedule, [passes(time) for time in times])
    assert [(claim.fire, claim.time) for claim in history.claims] == [(instant, instant) for instant in history.due]
    assert {claim.reason for claim in history.claims} <= {Reason.SCHEDULED}


@settings(deadline=None, max_examples=100)
@given(policies, schedules, st.lists(st.one_of(time_or_body, TROUBLES), max_size=20))
def test_without_failover_no_fire_is_run_twice(drawn: Policy, schedule: Every, events: list[Event]) -> None:
    """At most once when failover is off."""
    history = told(
        policy(failover=False, misfire=drawn.misfire, catch_up=drawn.catch_up, misfire_grace=drawn.misfire_grace),
        schedule,
        events,
    )
    assert set(Counter(claim.fire for claim in history.claims).values()) <= {1}


# ---- field reports as stories -----------------------------------------------------------------------------------------------


def runs(history: History) -> list[str]:
    """Time of the claim, scheduled time and reason, the times as minutes and seconds."""
    return [f"{claim.time:%M:%S} {claim.fire:%M:%S} {claim.reason.value}" for claim in history.claims]


def test_e1_any_number_of_misses_is_one_run_straight_after() -> None:
    """E1: each 2 s; the very first run takes 7 s, later ones no time."""
    history = History(policy(misfire=True), Every(2), body=7 * SECOND)
    history.passes(2 * SECOND)
    history.body = timedelta(0)
    history.passes(10 * SECOND)
    assert runs(history) == ["00:02 00:02 scheduled", "00:09 00:08 misfire", "00:10 00:10 scheduled", "00:12 00:12 scheduled"]
    assert [(f"{r.after:%S}", f"{r.until:%S}", r.why) for r in history.not_run] == [("02", "06", NotRun.OVERLAP)]


def test_e1_without_misfire_there_is_none() -> None:
    history = History(policy(misfire=False), Every(2), body=7 * SECOND)
    history.passes(2 * SECOND)
    history.body = timedelta(0)
    history.passes(10 * SECOND)
    assert runs(history) == ["00:02 00:02 scheduled", "00:10 00:10 scheduled", "00:12 00:12 scheduled"]
    assert [(f"{r.after:%S}", f"{r.until:%S}", r.why) for r in history.not_run] == [("02", "08", NotRun.OVERLAP)]


@pytest.mark.parametrize("catch_up", CatchUp)
def test_e3_enabling_again_fires_no_backlog(catch_up: CatchUp) -> None:
    """E3: each 2 s; disabled for 20 s."""
    history = History(policy(catch_up=catch_up), Every(2))
    history.passes(3 * SECOND)
    history.switched()
    history.passes(20 * SECOND)
    history.switched()
    history.passes(5 * SECOND)
    assert [f"{claim.time:%S}" for claim in history.claims] == ["02", "24", "26", "28"]
    assert {claim.reason for claim in history.claims} == {Reason.SCHEDULED}
    history.check()


def test_e4_a_body_longer_than_its_interval_runs_back_to_back_and_ends_when_disabled() -> None:
    """E4: each second, 1.5 s long, for 3 minutes."""
    history = History(policy(misfire=True), Every(1), body=1.5 * SECOND)
    history.passes(180 * SECOND)
    starts = [claim.time for claim in history.claims]
    assert {later - earlier for earlier, later in pairwise(starts)} == {1.5 * SECOND}
    before = len(starts)
    history.switched()
    history.passes(30 * SECOND)
    assert len(history.claims) == before, "it goes on though it was disabled"
    assert history.entry.suspended


def test_d8_a_fire_whose_owner_was_killed_does_not_block_the_next() -> None:
    """D8: without failover, one worker; killed in mid-run, started again 30 s later."""
    history = History(policy(failover=False), Every(60), body=20 * SECOND)
    history.passes(65 * SECOND)
    history.owner_dies()
    history.passes(30 * SECOND)
    history.leader_moves_it()
    history.passes(90 * SECOND)
    assert runs(history) == ["01:00 01:00 scheduled", "02:00 02:00 scheduled", "03:00 03:00 scheduled"]
    assert [(r.until, r.why) for r in history.not_run] == [(at("10:01"), NotRun.INTERRUPTED)]


def test_failover_goes_on_with_the_fire_and_then_with_the_schedule() -> None:
    history = History(policy(failover=True), Every(60), body=20 * SECOND)
    history.passes(65 * SECOND)
    history.owner_dies()
    history.passes(6 * SECOND)
    history.leader_moves_it()
    history.passes(60 * SECOND)
    assert runs(history) == ["01:00 01:00 scheduled", "01:11 01:00 owner_lost", "02:00 02:00 scheduled"]
    assert [claim.attempt for claim in history.claims] == [1, 2, 1]


def test_an_item_changes_hands_in_the_gap_between_fires_without_losing_one() -> None:
    """The fire at 2:00 comes while nobody owns the item."""
    history = History(policy(), Every(60))
    history.passes(119 * SECOND)
    history.owner_dies()
    history.passes(5 * SECOND)
    history.leader_moves_it()
    assert runs(history) == ["01:00 01:00 scheduled", "02:04 02:00 catch_up"]


def test_an_owner_that_hangs_loses_its_item_and_says_why() -> None:
    history = History(policy(), Every(60))
    history.owner_pauses()
    history.passes(95 * SECOND)
    history.leader_moves_it()
    assert runs(history) == ["01:35 01:00 scheduled_too_long"]


def test_a_running_item_that_shall_move_is_handed_over_between_two_runs() -> None:
    """Each second, 1.5 s long: without the pause its owner would always be first."""
    history = History(policy(), Every(1), body=1.5 * SECOND)
    history.passes(1.5 * SECOND)
    history.leader_moves_it()
    history.passes(1.5 * SECOND)
    history.leader_moves_it()
    history.passes(1 * SECOND)
    assert [claim.owner for claim in history.claims] == ["owner-1", "owner-2"]
    history.settle()
    history.check()
