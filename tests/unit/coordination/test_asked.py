"""Runs outside the schedule: asked for, claimed once, and moving nothing of the schedule."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from ejpy.coordination.changes import learn
from ejpy.coordination.claims import Claim, Step, Wait, Write, decide, give_back
from ejpy.coordination.ledger import Asked, Entry, NotRunRange
from ejpy.terms import NotRun, Outcome, Reason
from tests.unit.coordination.situations import (
    BASIS,
    CHANGED,
    GONE,
    HOUR,
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

FIVES = Instants("10:00", "10:05", "10:10", "10:15", "10:20")
ASKED = Asked(at("10:02:30.125"), Reason.TRIGGER)


def asked(entry: Entry) -> Entry:
    return entry.ask(ASKED.instant, ASKED.reason, revision=230)


def look(entry: Entry, now: str, *, enabled: bool = True, **settings: object) -> Step:
    return decide(0, entry, situation(now, FIVES, policy=policy(**settings)), held_since=at("00:00"), enabled=enabled)


def test_what_was_asked_for_is_claimed_at_its_own_instant_and_accounts_for_nothing_else() -> None:
    step = look(asked(idle("10:00")), "10:02:31")
    assert isinstance(step, Claim)
    entry = step.entry
    assert (entry.fire, entry.attempt, entry.reason, entry.owner) == (ASKED.instant, 1, Reason.TRIGGER, ME)
    assert (entry.asked, entry.unscheduled, entry.accounted_until) == (None, True, at("10:00"))


def test_it_comes_before_what_is_due_so_that_a_job_that_is_always_late_does_not_keep_it_waiting() -> None:
    step = look(asked(idle("10:00")), "10:05:01")
    assert isinstance(step, Claim)
    assert step.entry.reason is Reason.TRIGGER
    ended = replace(step.entry.end(Outcome.SUCCEEDED, 9, at("10:05:02")), token=9)
    after = look(ended, "10:05:03")
    assert isinstance(after, Claim)
    assert (after.entry.fire, after.entry.unscheduled) == (at("10:05"), False)


def test_while_the_item_runs_it_waits_and_the_end_leaves_it() -> None:
    entry = asked(running("10:00", OTHER))
    assert look(entry, "10:02:31") == Wait()
    step = look(entry.end(Outcome.FAILED, 7, at("10:03")), "10:03:01")
    assert isinstance(step, Claim)
    assert step.entry.fire == ASKED.instant


def test_several_that_wait_are_one_and_one_that_was_noted_is_not_noted_again() -> None:
    entry = asked(idle("10:00"))
    assert entry.ask(at("10:04"), Reason.TRIGGER, revision=230) is entry
    again = entry.ask(at("10:04"), Reason.TRIGGER, revision=330)
    assert again.asked is not None
    assert (again.asked, again.asked_revision) == (Asked(at("10:04"), Reason.TRIGGER), 330), "it has the instant of the newest"
    claimed = again.claim_asked(again.asked, ME, at("10:04"), monitored=True)
    assert claimed.ask(at("10:05"), Reason.TRIGGER, revision=330) is claimed
    assert claimed.ask(at("10:05"), Reason.MISFIRE).asked == Asked(at("10:05"), Reason.MISFIRE)


@pytest.mark.parametrize("written", ["10:04", "10:04:00.125"])
def test_a_trigger_has_the_instant_at_which_it_was_written_but_none_of_a_schedule(written: str) -> None:
    triggered = idle("10:00").ask_by_trigger(at(written), 330)
    assert triggered.asked is not None
    assert timedelta(0) <= triggered.asked.instant - at(written) <= timedelta(microseconds=1)
    assert triggered.asked.instant.microsecond != 0
    assert triggered == idle("10:00").ask_by_trigger(at(written), 330), "whichever worker takes note of it"
    ended = triggered.claim_asked(triggered.asked, ME, at("10:04"), monitored=True).end(Outcome.SUCCEEDED, 7, at("10:04"))
    again = ended.ask_by_trigger(at(written), 331)
    assert again.asked is not None
    assert again.asked.instant > triggered.asked.instant, "a second one of the same moment is a run of its own"


def test_one_that_was_claimed_and_given_back_keeps_its_instant() -> None:
    claimed = replace(idle("10:00").claim_asked(ASKED, ME, at("10:02:31"), monitored=True), token=7)
    assert give_back(claimed).ask_by_trigger(at("10:04"), 330).asked == ASKED


def test_how_late_it_is_counts_from_the_end_of_the_run_before_it() -> None:
    """A run may take longer than the grace. What is asked for meanwhile could not begin earlier."""
    entry = asked(running("10:00", OTHER)).end(Outcome.SUCCEEDED, 7, at("13:00"))
    step = look(entry, "13:00:01", misfire_grace=HOUR)
    assert isinstance(step, Claim)
    assert step.entry.fire == ASKED.instant
    late = look(entry, "14:00:01", misfire_grace=HOUR)
    assert isinstance(late, Write)
    assert late.entry.not_run[-1].why is NotRun.TOO_LATE


def test_older_than_the_grace_it_is_recorded() -> None:
    step = look(asked(idle("10:00")), "11:02:31", misfire_grace=HOUR)
    assert isinstance(step, Write)
    [record] = step.entry.not_run
    assert (record.until, record.why) == (ASKED.instant, NotRun.TOO_LATE)
    assert (step.entry.asked, step.entry.accounted_until) == (None, at("10:00"))


@pytest.mark.parametrize("suspended", [True, False])
def test_j3_of_what_is_disabled_it_is_recorded(suspended: bool) -> None:
    step = look(replace(asked(idle("10:00")), suspended=suspended), "10:02:31", enabled=False)
    assert isinstance(step, Write)
    [record] = step.entry.not_run
    assert (record.until, record.why, step.entry.asked) == (ASKED.instant, NotRun.DISABLED, None)


@pytest.mark.parametrize("failover", [True, False])
def test_its_owner_dies(failover: bool) -> None:
    entry = replace(asked(idle("10:00")).claim_asked(ASKED, GONE, at("10:02:31"), monitored=True), token=7)
    step = look(entry, "10:04", failover=failover)
    if failover:
        assert isinstance(step, Claim)
        assert (step.entry.fire, step.entry.attempt, step.entry.reason) == (ASKED.instant, 2, Reason.OWNER_LOST)
        assert step.entry.unscheduled
    else:
        assert isinstance(step, Write)
        [record] = step.entry.not_run
        assert (record.until, record.why) == (ASKED.instant, NotRun.INTERRUPTED)
    assert step.entry.accounted_until == at("10:00"), "10:00 to the instant of the request is still to be accounted for"


@pytest.mark.parametrize("reason", [Reason.TRIGGER, Reason.MISFIRE])
def test_a_claim_that_is_given_back_is_asked_for_again(reason: Reason) -> None:
    wanted = Asked(ASKED.instant, reason)
    entry = replace(idle("10:00").claim_asked(wanted, ME, at("10:02:31"), monitored=True), token=7)
    back = give_back(entry)
    assert (back.asked, back.running, back.accounted_until) == (wanted, False, at("10:00"))
    step = look(back, "10:02:40")
    assert isinstance(step, Claim)
    assert (step.entry.fire, step.entry.attempt, step.entry.unscheduled) == (ASKED.instant, 2, True)


def test_an_instant_that_passes_during_its_run_overlaps() -> None:
    entry = replace(asked(idle("10:00")).claim_asked(ASKED, ME, at("10:02:31"), monitored=True), token=7)
    step = look(entry.end(Outcome.SUCCEEDED, 7, at("10:06")), "10:06:01", misfire=True)
    assert isinstance(step, Claim)
    assert (step.entry.fire, step.entry.reason) == (at("10:05"), Reason.MISFIRE)


def test_a_change_of_schedule_is_settled_first_so_that_the_run_is_told_the_count_in_force() -> None:
    known = learn(learn((), BASIS, at("00:00"), at("00:00")), CHANGED, at("10:02"), at("10:02:31"))
    s = situation("10:02:31", {BASIS: FIVES, CHANGED: FIVES}, changes=known)
    step = decide(0, asked(idle("10:00")), s, held_since=at("00:00"), enabled=True)
    assert isinstance(step, Write)
    assert (step.entry.basis, step.entry.asked) == (CHANGED, ASKED)
    assert isinstance(decide(0, step.entry, s, held_since=at("00:00"), enabled=True), Claim)


def test_what_a_foreign_owner_had_is_accounted_for_up_to_now() -> None:
    s = replace(situation("10:12", FIVES), others_until=at("10:11"))
    step = decide(0, ran("10:00", "10:00:01", "10:00:02"), s, held_since=at("10:11:30"), enabled=True)
    assert isinstance(step, Write)
    assert (step.entry.accounted_until, step.entry.not_run) == (at("10:11"), ())
    assert decide(0, step.entry, s, held_since=at("10:11:30"), enabled=True) is None


def test_what_was_due_here_beside_foreign_instances_is_run() -> None:
    s = replace(situation("10:05:01", FIVES), others_until=at("10:05:01"))
    step = decide(0, ran("10:00", "10:00:01", "10:00:02"), s, held_since=at("10:01"), enabled=True)
    assert isinstance(step, Write)
    step = decide(0, step.entry, s, held_since=at("10:01"), enabled=True)
    assert isinstance(step, Claim)
    assert step.entry.fire == at("10:05")


def test_records_of_what_was_asked_for_are_no_range_of_the_schedule() -> None:
    entry = idle("10:05").record(at("10:00"), at("10:05"), NotRun.MISSED)
    refused = asked(entry).refuse_asked(ASKED, NotRun.DISABLED)
    assert [record.why for record in refused.not_run] == [NotRun.MISSED, NotRun.DISABLED]
    assert refused.not_run[0] == NotRunRange(at("10:00"), at("10:05"), NotRun.MISSED)
    assert refused.record(at("10:05"), at("10:05") + MINUTE, NotRun.MISSED).not_run[-1].after == at("10:05")


def test_a_fire_that_was_given_back_comes_before_what_was_asked_for_so_that_its_attempts_are_counted() -> None:
    claimed = look(idle("10:00"), "10:05:01")
    assert isinstance(claimed, Claim)
    back = give_back(replace(claimed.entry, token=7))
    step = look(asked(back), "10:05:03")
    assert isinstance(step, Claim)
    assert (step.entry.fire, step.entry.attempt) == (at("10:05"), 2)
    then = look(step.entry.end(Outcome.SUCCEEDED, 8, at("10:05:04")), "10:05:05")
    assert isinstance(then, Claim)
    assert then.entry.fire == ASKED.instant
