"""What the owner of an item does with it: each row of the table, each border between rows, and daylight saving time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from ejpy.coordination.changes import learn
from ejpy.coordination.claims import Claim, Schedule, Situation, Step, Wait, Write, decide, give_back
from ejpy.coordination.ledger import HAND_OVER, Basis, Entry, NotRunRange, new_entry
from ejpy.schedule.cron import parse
from ejpy.terms import CatchUp, NotRun, Outcome, Reason
from tests.unit.coordination.situations import (
    BASIS,
    CHANGED,
    GONE,
    ME,
    MINUTE,
    OTHER,
    Instants,
    at,
    idle,
    policy,
    ran,
    running,
    situation,
)

MINUTELY = parse("0 * * * * ?", "UTC", now=at("00:00"))
FIVES = Instants("10:00", "10:05", "10:10", "10:15", "10:20")


def look(entry: Entry, s: Situation, *, held_since: str = "00:00", enabled: bool = True) -> Step:
    return decide(0, entry, s, held_since=at(held_since), enabled=enabled)


def claimed(step: Step) -> tuple[datetime | None, int, Reason | None]:
    assert isinstance(step, Claim), step
    assert step.entry.owner == ME
    assert step.entry.token is None, "the token is the revision that the claim will get"
    return step.entry.fire, step.entry.attempt, step.entry.reason


def recorded(step: Step) -> list[NotRunRange]:
    assert isinstance(step, Claim | Write), step
    return list(step.entry.not_run)


# ---- nothing to do ------------------------------------------------------------------------------------------------------


def test_before_the_next_instant_nothing_is_done() -> None:
    assert look(idle("10:00"), situation("10:00:59.999", MINUTELY)) is None


def test_an_item_that_is_first_seen_starts_at_its_next_fire() -> None:
    entry = new_entry(BASIS, at("10:00:00.5"))
    assert look(entry, situation("10:00:30", MINUTELY)) is None
    assert claimed(look(entry, situation("10:01", MINUTELY))) == (at("10:01"), 1, Reason.SCHEDULED)


def test_a_schedule_that_has_no_further_instant() -> None:
    assert look(idle("10:20"), situation("23:00", FIVES)) is None


def test_a_schedule_that_cannot_be_understood_does_nothing() -> None:
    assert look(idle("10:00"), situation("10:30", {})) is None


# ---- on time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("catch_up", CatchUp)
@pytest.mark.parametrize("now", ["10:05", "10:05:00.020", "10:05:30"])
def test_an_instant_that_came_is_claimed(now: str, catch_up: CatchUp) -> None:
    step = look(idle("10:00"), situation(now, FIVES, policy=policy(catch_up=catch_up)))
    assert claimed(step) == (at("10:05"), 1, Reason.SCHEDULED)
    assert isinstance(step, Claim)
    assert (step.entry.running, step.entry.claimed, step.entry.accounted_until) == (True, at(now), at("10:05"))
    assert recorded(step) == []


@pytest.mark.parametrize(
    ("held_since", "now", "why"),
    [
        ("10:05:00.001", "10:05:02", "the item came here after the instant"),
        ("00:00", "10:05:30.001", "its owner was late by more than claim_timeout"),
    ],
)
def test_what_is_not_on_time_is_a_catch_up(held_since: str, now: str, why: str) -> None:
    entry = idle("10:00")
    assert claimed(look(entry, situation(now, FIVES), held_since=held_since)) == (at("10:05"), 1, Reason.CATCH_UP), why
    none = look(entry, situation(now, FIVES, policy=policy(catch_up=CatchUp.NONE)), held_since=held_since)
    assert isinstance(none, Write)
    assert recorded(none) == [NotRunRange(at("10:00"), at("10:05"), NotRun.MISSED)]


def test_an_item_that_was_here_at_the_instant_itself_is_on_time() -> None:
    assert claimed(look(idle("10:00"), situation("10:05:01", FIVES), held_since="10:05"))[2] is Reason.SCHEDULED


def test_a_second_that_was_missed_by_a_late_look_is_merged_into_the_next() -> None:
    seconds = parse("* * * * * ?", "UTC", now=at("00:00"))
    step = look(idle("10:00"), situation("10:00:02.2", seconds))
    assert claimed(step) == (at("10:00:02"), 1, Reason.SCHEDULED)
    assert recorded(step) == [NotRunRange(at("10:00"), at("10:00:01"), NotRun.MISSED)]


def test_of_several_that_passed_only_the_last_can_be_on_time() -> None:
    s = situation("10:00:02.2", parse("* * * * * ?", "UTC", now=at("00:00")), policy=policy(catch_up=CatchUp.ALL))
    step = look(idle("10:00"), s)
    assert claimed(step) == (at("10:00:01"), 1, Reason.CATCH_UP)
    assert isinstance(step, Claim)
    assert claimed(look(step.entry.end(Outcome.SUCCEEDED, 1, s.now), s)) == (at("10:00:02"), 1, Reason.SCHEDULED)


def test_a_job_that_is_not_monitored_is_claimed_without_mark() -> None:
    step = look(idle("10:00"), situation("10:05", FIVES, policy=policy(monitored=False)))
    assert isinstance(step, Claim)
    assert not step.entry.running


# ---- missed -------------------------------------------------------------------------------------------------------------


def missed(catch_up: CatchUp, **changes: Any) -> Step:
    """10:05, 10:10 and 10:15 were missed."""
    return look(idle("10:00"), situation("10:16", FIVES, policy=policy(catch_up=catch_up, **changes)), held_since="10:15:30")


def test_catch_up_latest_runs_the_last_and_records_the_others() -> None:
    step = missed(CatchUp.LATEST)
    assert claimed(step) == (at("10:15"), 1, Reason.CATCH_UP)
    assert recorded(step) == [NotRunRange(at("10:00"), at("10:10"), NotRun.MISSED)]


def test_catch_up_all_runs_each_the_oldest_first() -> None:
    step = missed(CatchUp.ALL)
    assert claimed(step) == (at("10:05"), 1, Reason.CATCH_UP)
    assert recorded(step) == []
    assert isinstance(step, Claim)
    after = step.entry.end(Outcome.SUCCEEDED, 1, at("10:16"))
    step = look(after, situation("10:16", FIVES, policy=policy(catch_up=CatchUp.ALL)), held_since="10:15:30")
    assert claimed(step) == (at("10:10"), 1, Reason.CATCH_UP)


def test_catch_up_none_records_them() -> None:
    step = missed(CatchUp.NONE)
    assert isinstance(step, Write)
    assert recorded(step) == [NotRunRange(at("10:00"), at("10:15"), NotRun.MISSED)]
    assert step.entry.fire is None


@pytest.mark.parametrize("catch_up", CatchUp)
def test_what_is_older_than_the_grace_is_recorded_and_never_replayed(catch_up: CatchUp) -> None:
    step = missed(catch_up, misfire_grace=4 * MINUTE)
    assert isinstance(step, Write)
    assert recorded(step) == [NotRunRange(at("10:00"), at("10:10"), NotRun.TOO_LATE)]
    assert step.entry.fire is None


def test_what_is_just_as_old_as_the_grace_is_not_too_late() -> None:
    """At 10:16 the instant 10:10 is six minutes old."""
    step = look(idle("10:05"), situation("10:16", FIVES, policy=policy(catch_up=CatchUp.ALL, misfire_grace=6 * MINUTE)))
    assert claimed(step)[0] == at("10:10")
    step = missed(CatchUp.ALL, misfire_grace=6 * MINUTE)
    assert recorded(step) == [NotRunRange(at("10:00"), at("10:05"), NotRun.TOO_LATE)], "10:05 is older, 10:10 is not"


def test_a_fire_that_its_owner_left_unclaimed_says_so() -> None:
    overdue = idle("10:00").mark_overdue()
    step = look(overdue, situation("10:06", FIVES), held_since="10:05:50")
    assert claimed(step) == (at("10:05"), 1, Reason.SCHEDULED_TOO_LONG)
    assert isinstance(step, Claim)
    assert not step.entry.overdue, "the mark is used up"


def test_a_long_absence_costs_no_list_of_instants() -> None:
    """E11: the clock is set ten years forward, on a job of each second."""
    seconds = parse("* * * * * ?", "UTC", now=at("00:00"))
    entry, now = idle("10:00"), at("10:00") + timedelta(days=3650)
    s = replace(situation("10:00", seconds, policy=policy(misfire_grace=5 * MINUTE)), now=now)
    step = look(entry, s)
    assert [r.why for r in recorded(step)] == [NotRun.TOO_LATE]
    assert isinstance(step, Write)
    assert claimed(look(step.entry, s))[0] == now


def test_a_clock_that_was_set_back_runs_nothing_twice() -> None:
    """E11."""
    entry = ran("10:05", "10:05", "10:05:01")
    assert look(entry, situation("09:05", MINUTELY)) is None
    assert look(entry, situation("10:05:30", MINUTELY)) is None
    assert claimed(look(entry, situation("10:06", MINUTELY))) == (at("10:06"), 1, Reason.SCHEDULED)


# ---- overlap ------------------------------------------------------------------------------------------------------------


def test_misfire_merges_what_passed_during_the_run_into_one() -> None:
    step = look(ran("10:00", "10:00", "10:12"), situation("10:12", FIVES))
    assert claimed(step) == (at("10:10"), 1, Reason.MISFIRE)
    assert recorded(step) == [NotRunRange(at("10:00"), at("10:05"), NotRun.OVERLAP)]


def test_without_misfire_what_passed_during_the_run_is_recorded() -> None:
    step = look(ran("10:00", "10:00", "10:12"), situation("10:12", FIVES, policy=policy(misfire=False)))
    assert isinstance(step, Write)
    assert recorded(step) == [NotRunRange(at("10:00"), at("10:10"), NotRun.OVERLAP)]
    assert step.entry.fire == at("10:00")


@pytest.mark.parametrize("catch_up", CatchUp)
def test_overlap_is_not_a_matter_of_catch_up(catch_up: CatchUp) -> None:
    step = look(ran("10:00", "10:00", "10:07"), situation("10:07", FIVES, policy=policy(catch_up=catch_up)))
    assert claimed(step) == (at("10:05"), 1, Reason.MISFIRE)


def test_an_instant_at_the_end_of_the_run_overlaps_and_one_at_its_claim_does_not() -> None:
    overlapped = look(ran("10:00", "10:00", "10:05"), situation("10:05", FIVES, policy=policy(misfire=False)))
    assert recorded(overlapped) == [NotRunRange(at("10:00"), at("10:05"), NotRun.OVERLAP)]
    caught_up = ran("10:00", "10:05", "10:06")
    assert claimed(look(caught_up, situation("10:06", FIVES, policy=policy(misfire=False))))[2] is not Reason.MISFIRE


def test_what_passed_after_the_run_is_missed_and_comes_after_what_overlapped() -> None:
    """The run lasted from 10:00 to 10:07; at 10:11 somebody looks."""
    step = look(ran("10:00", "10:00", "10:07"), situation("10:11", FIVES), held_since="10:10:50")
    assert claimed(step) == (at("10:05"), 1, Reason.MISFIRE)
    assert isinstance(step, Claim)
    after = step.entry.end(Outcome.SUCCEEDED, 1, at("10:11"))
    assert claimed(look(after, situation("10:11", FIVES), held_since="10:10:50")) == (at("10:10"), 1, Reason.CATCH_UP)


def test_what_was_missed_before_a_late_claim_comes_before_what_overlapped_its_run() -> None:
    """10:00 was caught up from 10:06 to 10:12: 10:05 was missed before, 10:10 overlapped."""
    step = look(ran("10:00", "10:06", "10:12"), situation("10:12", FIVES, policy=policy(catch_up=CatchUp.ALL)))
    assert claimed(step) == (at("10:05"), 1, Reason.CATCH_UP)
    assert recorded(step) == []


def test_a_miss_that_is_too_late_does_not_take_the_overlap_along() -> None:
    """10:00 was caught up from 10:06 to 10:22, grace 5 minutes: 10:05 is too late, 10:10 to 10:20 are for misfire to decide."""
    s = situation("10:22", FIVES, policy=policy(catch_up=CatchUp.ALL, misfire_grace=11 * MINUTE))
    step = look(ran("10:00", "10:06", "10:22"), s)
    assert recorded(step) == [NotRunRange(at("10:00"), at("10:05"), NotRun.TOO_LATE)]
    assert isinstance(step, Write)
    step = look(step.entry, s)
    assert claimed(step) == (at("10:20"), 1, Reason.MISFIRE)
    assert recorded(step)[1:] == [NotRunRange(at("10:05"), at("10:15"), NotRun.OVERLAP)]


def test_what_passed_while_nobody_knows_whether_it_ran_is_missed_and_not_overlap() -> None:
    """The owner died in mid-run, when is not known; found at 10:12."""
    dead = running("10:00", GONE)
    s = situation("10:12", FIVES, policy=policy(failover=False, misfire=False, catch_up=CatchUp.ALL))
    step = look(dead, s, held_since="10:11")
    assert isinstance(step, Write)
    assert claimed(look(step.entry, s, held_since="10:11")) == (at("10:05"), 1, Reason.CATCH_UP)


# ---- running ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("failover", [True, False])
def test_an_item_that_somebody_alive_runs_is_left_to_him(failover: bool, enabled: bool) -> None:
    s = situation("10:12", FIVES, policy=policy(failover=failover), basis=CHANGED)
    assert look(running("10:00", OTHER), s, enabled=enabled) == Wait()


@pytest.mark.parametrize("owner", [GONE, ME, None])
def test_failover_claims_the_fire_of_a_lost_owner_again_from_its_checkpoint(owner: str | None) -> None:
    """Its own entry, too: it is of a body that did not survive."""
    entry = replace(running("10:00", GONE), owner=owner)
    step = look(entry, situation("10:00:20", FIVES, policy=policy(failover=True)))
    assert claimed(step) == (at("10:00"), 2, Reason.OWNER_LOST)
    assert isinstance(step, Claim)
    assert (step.entry.checkpoint, step.entry.running) == ({"row": 17}, True)


@pytest.mark.parametrize("owner", [GONE, ME])
def test_without_failover_a_lost_owners_fire_is_interrupted(owner: str) -> None:
    step = look(running("10:00", owner), situation("10:00:20", FIVES))
    assert isinstance(step, Write)
    assert (step.entry.running, step.entry.outcome, step.entry.to_recover) == (False, Outcome.INTERRUPTED, False)
    assert (step.entry.token, step.entry.checkpoint) == (7, None)
    assert [(r.until, r.why) for r in recorded(step)] == [(at("10:00"), NotRun.INTERRUPTED)]


@pytest.mark.parametrize("failover", [True, False])
def test_d8_a_job_whose_process_was_killed_is_not_believed_to_run_for_ever(failover: bool) -> None:
    """D8: killed in mid-run of 10:00, started again under a new id; fires from the next instant on."""
    s = situation("10:05", FIVES, policy=policy(failover=failover))
    entry, seen = running("10:00", GONE), []
    for _ in range(4):
        step = look(entry, s, held_since="10:01")
        assert isinstance(step, Claim | Write), step
        entry = step.entry
        if isinstance(step, Claim):
            seen.append(claimed(step))
            if entry.fire == at("10:05"):
                break
            entry = entry.end(Outcome.SUCCEEDED, 1, at("10:04"))
    again = [(at("10:00"), 2, Reason.OWNER_LOST)] if failover else []
    assert seen == [*again, (at("10:05"), 1, Reason.SCHEDULED)]


@pytest.mark.parametrize(("usual", "recovered"), [(None, True), (599.0, True), (601.0, False)])
def test_failover_is_for_what_usually_takes_less_than_the_job_says(usual: float | None, recovered: bool) -> None:
    s = situation("10:00:20", FIVES, policy=policy(failover=True, failover_max_duration=timedelta(minutes=10)))
    step = look(running("10:00", GONE, usual_seconds=usual, usual_runs=1 if usual else 0), s)
    if recovered:
        assert claimed(step) == (at("10:00"), 2, Reason.OWNER_LOST)
    else:
        assert isinstance(step, Write)
        assert step.entry.not_run[-1].why is NotRun.INTERRUPTED
        assert not step.entry.to_recover


def test_what_an_item_usually_takes_is_the_average_of_its_last_successful_runs() -> None:
    entry = ran("10:00", "10:00", "10:00:00")
    for seconds in (10, 20, 30):
        entry = _after_run(entry, seconds, Outcome.SUCCEEDED)
    assert (entry.usual_seconds, entry.usual_runs) == (20.0, 3)
    for outcome in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CANCELLED, Outcome.INTERRUPTED):
        entry = _after_run(entry, 500, outcome)
    assert (entry.usual_seconds, entry.usual_runs) == (20.0, 3), "those that did not succeed tell nothing"
    for _ in range(60):
        entry = _after_run(entry, 100, Outcome.SUCCEEDED)
    assert entry.usual_seconds == pytest.approx(100, abs=1), "older ones count less and less"
    assert entry.usual_runs == 10


def _after_run(entry: Entry, seconds: float, outcome: Outcome) -> Entry:
    begun = (entry.fire or at("10:00")) + timedelta(hours=1)
    claimed = entry.claim(begun, Reason.SCHEDULED, ME, begun, monitored=True)
    return claimed.end(outcome, 7, begun + timedelta(seconds=seconds))


def test_an_attempt_that_was_stopped_is_recovered_with_failover() -> None:
    stopped = running("10:00", ME).interrupt(7, at("10:00:10"), recover=True)
    step = look(stopped, situation("10:00:20", FIVES, policy=policy(failover=True)))
    assert claimed(step) == (at("10:00"), 2, Reason.OWNER_LOST)
    assert isinstance(step, Claim)
    assert step.entry.checkpoint == {"row": 17}


def test_an_attempt_that_was_stopped_is_interrupted_if_failover_was_switched_off_since() -> None:
    stopped = running("10:00", ME).interrupt(7, at("10:00:10"), recover=True)
    step = look(stopped, situation("10:00:20", FIVES))
    assert isinstance(step, Write)
    assert (step.entry.to_recover, step.entry.checkpoint, step.entry.outcome) == (False, None, Outcome.INTERRUPTED)
    assert look(step.entry, situation("10:00:20", FIVES)) is None


def test_a_recovery_comes_before_everything_that_passed_since() -> None:
    s = situation("10:12", {BASIS: FIVES, CHANGED: MINUTELY}, policy=policy(failover=True), basis=CHANGED, changed_at="10:11")
    assert claimed(look(running("10:00", GONE), s)) == (at("10:00"), 2, Reason.OWNER_LOST)


def test_what_passed_until_the_recovery_was_missed() -> None:
    """Lost at 10:00, recovered at 10:07: nobody could run 10:05."""
    s = situation("10:07", FIVES, policy=policy(failover=True, misfire=False))
    step = look(running("10:00", GONE), s, held_since="10:06")
    assert isinstance(step, Claim)
    after = step.entry.end(Outcome.SUCCEEDED, 1, at("10:08"))
    assert claimed(look(after, replace(s, now=at("10:08")), held_since="10:06")) == (at("10:05"), 1, Reason.CATCH_UP)


# ---- to be moved --------------------------------------------------------------------------------------------------------


def test_an_item_that_its_leader_wants_to_move_is_left_idle_for_a_while() -> None:
    ended = replace(running("10:00", ME), hand_over=True).end(Outcome.SUCCEEDED, 7, at("10:05"))
    until = at("10:05") + HAND_OVER
    assert look(ended, situation("10:05:01", FIVES)) == Wait(until)
    assert isinstance(look(ended, replace(situation("10:05", FIVES), now=until)), Claim), "it is not waited for longer"


# ---- disabled, enabled again ----------------------------------------------------------------------------------------------


def test_an_item_that_is_disabled_is_suspended_once() -> None:
    step = look(ran("10:00", "10:00", "10:01"), situation("10:03", FIVES), enabled=False)
    assert isinstance(step, Write)
    assert (step.entry.suspended, step.entry.accounted_until) == (True, at("10:03"))
    assert look(step.entry, situation("10:30", FIVES), enabled=False) is None


def test_e3_enabling_again_replays_nothing() -> None:
    """E3: disabled at 10:03, enabled at 10:16; the backlog does not fire."""
    suspended = ran("10:00", "10:00", "10:01").rebase(BASIS, at("10:03"), suspended=True)
    step = look(suspended, situation("10:16", FIVES, policy=policy(catch_up=CatchUp.ALL)))
    assert isinstance(step, Write)
    assert (step.entry.suspended, step.entry.accounted_until, step.entry.not_run) == (False, at("10:16"), ())
    assert look(step.entry, situation("10:16", FIVES)) is None
    assert claimed(look(step.entry, situation("10:20", FIVES))) == (at("10:20"), 1, Reason.SCHEDULED)


@pytest.mark.parametrize("owner", [ME, GONE])
def test_the_run_of_a_lost_owner_is_not_taken_up_while_disabled(owner: str) -> None:
    s = situation("10:07", FIVES, policy=policy(failover=True))
    step = look(running("10:00", owner), s, enabled=False)
    assert isinstance(step, Write)
    assert (step.entry.outcome, step.entry.to_recover) == (Outcome.INTERRUPTED, False)
    entry = at_rest(step.entry, s, enabled=False)
    assert (entry.suspended, entry.accounted_until, entry.fire, entry.attempt) == (True, at("10:07"), at("10:00"), 1)


def test_an_attempt_that_was_stopped_is_not_taken_up_while_disabled() -> None:
    s = situation("10:03", FIVES, policy=policy(failover=True))
    entry = at_rest(running("10:00", ME).interrupt(7, at("10:00:10"), recover=True), s, enabled=False)
    assert (entry.suspended, entry.to_recover, entry.attempt) == (True, False, 1)
    assert isinstance(look(entry, s), Write), "enabled again"
    assert not at_rest(entry, s, enabled=True).to_recover


def at_rest(entry: Entry, s: Situation, *, enabled: bool) -> Entry:
    """The entry when nothing more is to be done about it."""
    for _ in range(5):
        step = look(entry, s, enabled=enabled)
        if step is None:
            return entry
        assert isinstance(step, Write), step
        entry = step.entry
    raise AssertionError(f"it does not come to rest: {entry}")


def recorded_or_claimed(entry: Entry, s: Situation, *, enabled: bool, held_since: str = "00:00") -> set[datetime]:
    """The instants of FIVES that are accounted for with a reason, when nothing is left to do."""
    fires: set[datetime] = set()
    ranges: set[NotRunRange] = set()
    for _ in range(20):
        step = look(entry, s, enabled=enabled, held_since=held_since)
        if not isinstance(step, Claim | Write):
            break
        entry = step.entry
        ranges |= set(entry.not_run)
        if isinstance(step, Claim):
            assert entry.fire is not None
            fires.add(entry.fire)
            entry = entry.end(Outcome.SUCCEEDED, 1, s.now)
    return {i for i in FIVES.all if i in fires or any(r.after < i <= r.until for r in ranges)}


def test_what_was_due_before_a_disabling_does_not_vanish() -> None:
    """10:05 passed while nobody owned the item; it is disabled when its new owner first looks, at 10:07."""
    assert at("10:05") in recorded_or_claimed(idle("10:00"), situation("10:07", FIVES), enabled=False, held_since="10:06")


@pytest.mark.parametrize("misfire", [True, False])
def test_what_passed_during_a_run_does_not_vanish_when_the_item_is_disabled_before_its_end(misfire: bool) -> None:
    """The run lasts from 10:00 to 10:12, the item is disabled at 10:11: 10:05 and 10:10 were due."""
    s = situation("10:12", FIVES, policy=policy(misfire=misfire))
    assert {at("10:05"), at("10:10")} <= recorded_or_claimed(ran("10:00", "10:00", "10:12"), s, enabled=False)


def test_a_disabling_records_what_passed_during_the_run_and_after_it_apart() -> None:
    """The run lasted from 10:00 to 10:07; the item is found disabled at 10:16."""
    entry = at_rest(ran("10:00", "10:00", "10:07"), situation("10:16", FIVES), enabled=False)
    assert entry.not_run == (
        NotRunRange(at("10:00"), at("10:05"), NotRun.OVERLAP),
        NotRunRange(at("10:05"), at("10:15"), NotRun.MISSED),
    )


def test_what_was_due_under_a_changed_schedule_does_not_vanish_when_the_item_is_disabled_before_it_was_seen() -> None:
    """From tens to fives at 10:01, disabled when its new owner first looks, at 10:07: 10:05 was due."""
    s = situation("10:07", {BASIS: Instants("10:00", "10:10"), CHANGED: FIVES}, basis=CHANGED, changed_at="10:01")
    assert at("10:05") in recorded_or_claimed(ran("10:00", "10:00", "10:00:30"), s, enabled=False, held_since="10:06")


# ---- the schedule changed -------------------------------------------------------------------------------------------------

TENS = Instants("10:00", "10:10", "10:20")
BOTH: Mapping[Basis, Schedule] = {BASIS: FIVES, CHANGED: TENS}


def test_a_changed_schedule_counts_from_when_it_was_written() -> None:
    """Changed at 10:07, seen at 10:11: 10:10 was due under the new one."""
    s = situation("10:11", BOTH, basis=CHANGED, changed_at="10:07")
    step = look(ran("10:05", "10:05", "10:06"), s)
    assert isinstance(step, Write)
    assert (step.entry.basis, step.entry.accounted_until) == (CHANGED, at("10:07"))
    assert claimed(look(step.entry, s)) == (at("10:10"), 1, Reason.CATCH_UP)


def test_what_was_due_under_the_former_schedule_still_is() -> None:
    """Changed at 10:07, seen at 10:08 by a new owner: 10:05 was due under the former one, and had not been run."""
    s = situation("10:08", BOTH, basis=CHANGED, changed_at="10:07")
    step = look(idle("10:00"), s, held_since="10:08")
    assert claimed(step) == (at("10:05"), 1, Reason.CATCH_UP)
    assert isinstance(step, Claim)
    step = look(step.entry.end(Outcome.SUCCEEDED, 1, at("10:08")), s, held_since="10:08")
    assert isinstance(step, Write)
    assert (step.entry.basis, step.entry.accounted_until) == (CHANGED, at("10:07"))


@pytest.mark.parametrize("catch_up", CatchUp)
def test_a_changed_schedule_replays_nothing(catch_up: CatchUp) -> None:
    """To one that had instants before the change."""
    s = situation("10:12", {BASIS: TENS, CHANGED: FIVES}, policy=policy(catch_up=catch_up), basis=CHANGED, changed_at="10:11")
    step = look(ran("10:10", "10:10", "10:10:30"), s)
    assert isinstance(step, Write)
    assert look(step.entry, s) is None


def test_an_instant_at_the_very_time_of_the_change_belongs_to_the_former_schedule() -> None:
    s = situation("10:10", {BASIS: Instants("10:10"), CHANGED: Instants("10:10", "10:15")}, basis=CHANGED, changed_at="10:10")
    step = look(idle("10:06"), s)
    assert claimed(step) == (at("10:10"), 1, Reason.SCHEDULED)
    assert isinstance(step, Claim)
    step = look(step.entry.end(Outcome.SUCCEEDED, 1, at("10:10")), s)
    assert isinstance(step, Write)
    assert look(step.entry, s) is None


def test_a_change_during_a_run_divides_what_passed() -> None:
    """The run lasts from 10:00 to 10:12, the schedule changes at 10:07 from fives to tens: 10:05 and 10:10 overlapped."""
    s = situation("10:12", BOTH, policy=policy(misfire=False), basis=CHANGED, changed_at="10:07")
    step = look(ran("10:00", "10:00", "10:12"), s)
    assert recorded(step) == [NotRunRange(at("10:00"), at("10:05"), NotRun.OVERLAP)]
    assert isinstance(step, Write)
    step = look(step.entry, s)
    assert isinstance(step, Write)
    assert (step.entry.basis, step.entry.accounted_until) == (CHANGED, at("10:07"))
    step = look(step.entry, s)
    assert recorded(step)[1:] == [NotRunRange(at("10:07"), at("10:10"), NotRun.OVERLAP)]


def test_a_former_schedule_that_cannot_be_understood_is_left_behind() -> None:
    s = situation("10:11", {CHANGED: TENS}, basis=CHANGED, changed_at="10:07")
    step = look(idle("10:00"), s)
    assert isinstance(step, Write)
    assert (step.entry.basis, step.entry.accounted_until) == (CHANGED, at("10:07"))


def test_a_registry_whose_clock_is_ahead_moves_nothing_into_the_future() -> None:
    changes = learn(learn((), BASIS, at("09:00"), at("09:00")), CHANGED, at("10:30"), at("10:06"))
    s = situation("10:06", BOTH, changes=changes)
    step = look(ran("10:05", "10:05", "10:05:30"), s)
    assert isinstance(step, Write)
    assert step.entry.accounted_until == at("10:06")


# ---- given back ---------------------------------------------------------------------------------------------------------


def test_a_fire_that_was_given_back_is_claimed_again_as_a_further_attempt() -> None:
    entry = replace(running("10:05", ME), checkpoint=None, accounted_until=at("10:05"))
    back = give_back(entry)
    assert not back.running
    assert claimed(look(back, situation("10:06", FIVES), held_since="10:05:50")) == (at("10:05"), 2, Reason.CATCH_UP)


def test_a_recovery_that_was_given_back_waits_for_a_further_one() -> None:
    """Whatever passed since stays accounted for."""
    entry = replace(running("10:05", ME), attempt=2, reason=Reason.OWNER_LOST, accounted_until=at("10:10"))
    back = give_back(entry)
    assert (back.to_recover, back.accounted_until, back.checkpoint) == (True, at("10:10"), {"row": 17})
    step = look(back, situation("10:12", FIVES, policy=policy(failover=True)))
    assert claimed(step) == (at("10:05"), 3, Reason.OWNER_LOST)


def test_a_fire_that_was_given_back_is_merged_into_the_latest_that_was_missed() -> None:
    """`catch_up: latest` runs the last one: of 10:05, given back, and 10:10."""
    back = give_back(replace(running("10:05", ME), checkpoint=None))
    step = look(back, situation("10:12", FIVES), held_since="10:11")
    assert claimed(step) == (at("10:10"), 1, Reason.CATCH_UP)


def test_what_was_recorded_with_a_claim_stays_recorded_when_it_is_given_back() -> None:
    step = missed(CatchUp.LATEST)
    assert isinstance(step, Claim)
    back = give_back(replace(step.entry, token=9))
    again = look(back, situation("10:17", FIVES), held_since="10:15:30")
    assert claimed(again) == (at("10:15"), 2, Reason.CATCH_UP)
    assert recorded(again) == [NotRunRange(at("10:00"), at("10:10"), NotRun.MISSED)]


# ---- daylight saving time ---------------------------------------------------------------------------------------------------


def new_york(cron: str, month_day: str, start: str, *looks: str) -> list[str]:
    """What is done, by the hour in UTC, about an item in New York whose owner looks at these times (UTC).

    A fire that is run says its attempt and reason, one that is recorded why it is not run. Bodies end at once.
    """
    schedule = parse(cron, "America/New_York", now=datetime(2026, 1, 1, tzinfo=timezone.utc))

    def moment(text: str) -> datetime:
        return datetime.fromisoformat(f"2026-{month_day}T{text}").replace(tzinfo=timezone.utc)

    entry, done = Entry(accounted_until=moment(start), basis=BASIS), []
    for now in map(moment, looks):
        s = replace(situation("10:00", schedule), now=now)
        for _ in range(5):
            step = decide(0, entry, s, held_since=moment("00:00"), enabled=True)
            if not isinstance(step, Claim | Write):
                break
            done += [f"{r.until.astimezone(timezone.utc):%H:%M} {r.why.value}" for r in step.entry.not_run[len(entry.not_run) :]]
            entry = step.entry
            if isinstance(step, Claim):
                assert entry.fire is not None
                assert entry.reason is not None
                done.append(f"{entry.fire.astimezone(timezone.utc):%H:%M} {entry.reason.value} {entry.attempt}")
                entry = entry.end(Outcome.SUCCEEDED, 1, now)
    return done


def test_in_autumn_the_half_hour_that_comes_twice_is_run_twice_and_not_more() -> None:
    """On 2026-11-01 the clock in New York goes from 01:59 EDT (05:59 UTC) back to 01:00 EST."""
    looks = ["05:30", "05:30:30", "06:30", "06:30:10", "06:40", "07:00", "07:30"]
    assert new_york("0 30 * * * ?", "11-01", "05:00", *looks) == ["05:30 scheduled 1", "06:30 scheduled 1", "07:30 scheduled 1"]


def test_in_autumn_an_instant_with_an_earlier_wall_time_counts_as_later() -> None:
    looks = ["05:45", "06:00", "06:01", "06:15", "06:30", "06:45", "07:00"]
    expected = [f"{time} scheduled 1" for time in looks if time != "06:01"]
    assert new_york("0 0/15 * * * ?", "11-01", "05:40", *looks) == expected


def test_in_autumn_what_was_missed_in_the_hour_that_comes_twice_is_recorded() -> None:
    """A fire at 01:00 EST has 01:45 EDT before it, and not 00:45."""
    assert new_york("0 0/15 * * * ?", "11-01", "05:40", "06:00") == ["05:45 missed", "06:00 scheduled 1"]


def test_in_spring_nothing_is_recorded_before_its_time() -> None:
    """On 2026-03-08 the clock in New York goes from 01:59 EST (06:59 UTC) to 03:00 EDT."""
    looks = ["06:50", "07:00", "07:10", "07:20", "07:30"]
    assert new_york("0 0/10 * * * ?", "03-08", "06:45", *looks) == [f"{time} scheduled 1" for time in looks]


def test_times_of_a_claimed_entry_are_utc() -> None:
    """Two times of one zone are compared by the wall clock, which goes back in autumn."""
    schedule = parse("0 * * * * ?", "America/New_York", now=at("00:00"))
    step = look(idle("10:00"), situation("10:05", schedule))
    assert isinstance(step, Claim)
    times = [step.entry.fire, step.entry.accounted_until, *(t for r in step.entry.not_run for t in (r.after, r.until))]
    assert {time.tzinfo for time in times if time is not None} == {timezone.utc}


def test_a_fire_that_was_given_back_is_claimed_again_with_a_reason() -> None:
    """P1: a further claim of a fire is granted as a recovery only."""
    back = give_back(replace(running("10:05", ME), checkpoint=None))
    step = look(back, situation("10:05:01", FIVES), held_since="10:00")
    assert claimed(step) == (at("10:05"), 2, Reason.CATCH_UP)


def test_a_run_that_was_begun_late_and_is_longer_than_the_period_catches_up_with_the_schedule() -> None:
    """10:00 was caught up at 10:12 and ran until 10:24: 10:05 and 10:10 were missed before, 10:15 and 10:20 passed during it."""
    s = situation("10:24", FIVES)
    step = look(ran("10:00", "10:12", "10:24"), s)
    assert recorded(step) == [NotRunRange(at("10:00"), at("10:10"), NotRun.MISSED)]
    assert isinstance(step, Write)
    assert claimed(look(step.entry, s)) == (at("10:20"), 1, Reason.MISFIRE)


def test_without_misfire_such_a_run_is_followed_by_the_latest_missed_and_the_overlap_is_recorded() -> None:
    step = look(ran("10:00", "10:12", "10:24"), situation("10:24", FIVES, policy=policy(misfire=False)))
    assert claimed(step) == (at("10:10"), 1, Reason.CATCH_UP)
    assert recorded(step) == [
        NotRunRange(at("10:00"), at("10:05"), NotRun.MISSED),
        NotRunRange(at("10:10"), at("10:20"), NotRun.OVERLAP),
    ]
    assert isinstance(step, Claim)
    assert step.entry.accounted_until == at("10:20")


# ---- how old is too old to be made up for ---------------------------------------------------------------------------------

SHORT = policy(failover=True, misfire_grace=5 * MINUTE)


@pytest.mark.parametrize(
    ("gone", "written", "claimed_again"),
    [
        ("10:28", None, True),
        ("10:24", None, False),
        (None, "10:26", True),
        (None, "10:24", False),
        (None, None, False),
    ],
    ids=["seen to go lately", "seen to go long ago", "saved lately", "saved long ago", "claimed long ago"],
)
def test_a_lost_attempt_is_recovered_within_the_grace_after_its_owners_last_sign_of_life(
    gone: str | None, written: str | None, claimed_again: bool
) -> None:
    """A run that began at 10:00, found at 10:30: how long it ran does not matter, how long nobody was there for it does."""
    s = situation("10:30", FIVES, policy=SHORT, gone_since={GONE: at(gone)} if gone else None)
    step = decide(0, running("10:00", GONE), s, held_since=at("00:00"), enabled=True, written=at(written) if written else None)
    if claimed_again:
        assert claimed(step) == (at("10:00"), 2, Reason.OWNER_LOST)
    else:
        assert isinstance(step, Write)
        assert [(r.until, r.why) for r in recorded(step)] == [(at("10:00"), NotRun.TOO_LATE)]
        assert (step.entry.running, step.entry.outcome, step.entry.checkpoint) == (False, Outcome.INTERRUPTED, None)


@pytest.mark.parametrize(("stopped", "claimed_again"), [("10:26", True), ("10:24", False)])
def test_an_attempt_that_was_stopped_is_recovered_within_the_grace_after_that(stopped: str, claimed_again: bool) -> None:
    """Also by the one who ran it: its cluster may have been away for days."""
    entry = running("10:00", ME).interrupt(7, at(stopped), recover=True)
    step = look(entry, situation("10:30", FIVES, policy=SHORT))
    assert isinstance(step, Claim if claimed_again else Write)


def test_my_own_run_that_did_not_survive_is_recovered_however_long_it_ran() -> None:
    assert claimed(look(running("10:00", ME), situation("10:30", FIVES, policy=SHORT))) == (at("10:00"), 2, Reason.OWNER_LOST)


@pytest.mark.parametrize(("ended", "made_up"), [("10:16", True), ("10:14", False)])
def test_an_overlap_is_made_up_for_within_the_grace_after_the_runs_end(ended: str, made_up: bool) -> None:
    """The run lasted from 10:00 on; its item is looked at at 10:20:30, after an outage: 10:05 and 10:10 overlapped."""
    step = look(ran("10:00", "10:00", ended), situation("10:20:30", FIVES, policy=SHORT))
    if made_up:
        assert claimed(step)[2] is Reason.MISFIRE
    else:
        assert isinstance(step, Write)
        assert recorded(step) == [NotRunRange(at("10:00"), at("10:10"), NotRun.TOO_LATE)]
