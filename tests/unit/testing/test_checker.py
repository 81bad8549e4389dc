"""The checker on histories that are written by hand: each invariant has one that breaks it, beside one that is well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ejpy.terms import NotRun, Reason
from ejpy.testing import history
from ejpy.testing.checker import Invariant, check
from ejpy.testing.history import Event, read_lines, write_lines
from tests.unit.testing.histories import BEGIN, JOB, A, B, C, Teller, cluster, configured, fires

LOST = Reason.OWNER_LOST


def broken(rows: list[Event]) -> list[str]:
    return sorted(invariant.value for invariant in check(rows).broken())


def good() -> Teller:
    return fires(cluster(), 10, 20, 30, 40)


def recovered() -> Teller:
    """B dies while it runs item 1 at 10; A recovers that at 15."""
    teller = fires(cluster(), 10).runs(20.01, 0, A, 20).claims(20.02, 1, B, 20).enters(20.03, 1, B, 20).goes(24, B)
    teller.assigns(24.1, A, i1=A).claims(24.2, 1, A, 20, attempt=2, reason=LOST).enters(24.3, 1, A, 20).ends(24.4, 1, A, 20)
    return teller.runs(30.01, 0, A, 30).runs(30.02, 1, A, 30)


def test_a_good_history_breaks_nothing() -> None:
    verdict = check(good().ends_at(45))
    assert verdict.violations == []
    assert (verdict.fires, verdict.claims, verdict.runs) == (8, 8, 8)


def test_a_recovery_breaks_nothing() -> None:
    verdict = check(recovered().ends_at(39))
    assert verdict.violations == []
    assert verdict.recoveries == {"owner_lost": 1}


def test_a_history_that_was_written_and_read_is_judged_alike() -> None:
    rows = recovered().claims(30.5, 1, B, 30).ends_at(39)
    again = read_lines(write_lines(rows))
    assert again == rows
    assert check(again) == check(rows)
    assert not check(again).passed


@pytest.mark.parametrize(
    "line", ['{"event":"nothing","time":"2026-01-01T00:00:00Z"}', '{"event":"quiet"}', '{"event":"quiet","time":"1"}']
)
def test_what_is_no_row_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"not a row|Invalid isoformat"):
        read_lines([line])


# ---- S1 -------------------------------------------------------------------------------------------------------------


def test_s1_a_write_of_an_older_attempt() -> None:
    assert broken(recovered().written(31, 1, B, token=9, scheduled_time=BEGIN + 20, attempt=1, owner=B).ends_at(39)) == ["S1"]


def test_s1_a_write_of_a_session_that_has_ended() -> None:
    rows = good().rows
    last = rows[-2]
    assert isinstance(last, history.Written)
    assert broken([*rows[:-2], replace(last, live=False), rows[-1], history.Finished(BEGIN + 45)]) == ["S1"]


def test_s1_a_body_that_is_entered_when_a_newer_attempt_is_granted() -> None:
    teller = fires(cluster(), 10).runs(20.01, 0, A, 20).claims(20.02, 1, B, 20).goes(24, B).assigns(24.1, A, i1=A)
    old = teller.rows[-3]
    assert isinstance(old, history.Claimed)
    teller.claims(24.2, 1, A, 20, attempt=2, reason=LOST).enters(24.3, 1, A, 20).enters(25, 1, B, 20, token=old.token)
    assert broken(teller.ends(26, 1, A, 20).ends_at(29)) == ["S1"]


def test_s1_a_body_that_is_entered_in_another_session_than_its_claim() -> None:
    def entered(session: int) -> list[Event]:
        teller = fires(cluster(), 10).runs(20.01, 0, A, 20).claims(20.02, 1, B, 20).enters(20.03, 1, B, 20, session=session)
        return teller.ends(21, 1, B, 20).ends_at(29)

    assert broken(entered(2)) == []
    assert broken(entered(7)) == ["S1"]


# ---- S2 -------------------------------------------------------------------------------------------------------------


def test_s2_one_attempt_that_is_claimed_twice() -> None:
    assert "S2" in broken(good().claims(40.5, 1, A, 40).ends_at(45))


def test_s2_a_further_attempt_without_a_reason() -> None:
    rows = [replace(row, reason=Reason.SCHEDULED) if isinstance(row, history.Claimed) and row.attempt == 2 else row
            for row in recovered().ends_at(39)]  # fmt: skip
    assert "S2" in broken(rows)


def test_s2_attempts_out_of_order_in_a_log() -> None:
    log = Teller(configured()).claims(10, 0, A, 10, attempt=2, reason=LOST, token=5, seen=False)
    log.claims(11, 0, B, 10, attempt=1, token=6, seen=False)
    assert broken(log.rows) == ["S2"]


def test_s2_does_not_miss_attempts_that_a_log_does_not_show() -> None:
    log = Teller(configured()).claims(10, 0, A, 10, attempt=3, reason=LOST, token=5, seen=False)
    assert broken(log.enters(10.1, 0, A, 10).ends(10.2, 0, A, 10).rows) == []


# ---- S3, S4, S5 -----------------------------------------------------------------------------------------------------


def test_s3_an_item_that_is_given_to_somebody_who_is_gone() -> None:
    assert "S3" in broken(good().goes(41, B).assigns(42, A, i0=B).assigns(42.5, A, i0=A, i1=A).ends_at(45))


def test_s3_an_item_that_is_taken_from_who_runs_it() -> None:
    teller = good().claims(50.01, 1, B, 50).enters(50.02, 1, B, 50).joins(50.3, C, 3)
    teller.assigns(50.5, A, i1=C).ends(51, 1, B, 50).assigns(51.2, A, i1=B).goes(51.3, C)
    assert broken(teller.runs(50.01, 0, A, 50).ends_at(54)) == ["S3"]


def test_s3_an_item_that_moves_when_it_has_ended() -> None:
    teller = good().runs(50.01, 0, A, 50).runs(50.02, 1, B, 50).joins(51, C, 3).assigns(51.2, A, i1=C).goes(52, B)
    assert "S3" not in broken(teller.ends_at(55))


def test_s4_items_that_are_not_shared_evenly_in_the_end() -> None:
    four = cluster(items=4, cron="0 0 0 1 1 ? 2099")
    assert broken([*four.rows, history.Finished(BEGIN + 45)]) == []
    assert broken(four.assigns(3, A, i2=A).ends_at(45)) == ["S4"]


def test_s4_sticky_moves_no_more_than_have_to() -> None:
    six: dict[str, Any] = {"items": 6, "strategy": "STICKY", "cron": "0 0 0 1 1 ? 2099"}
    assert broken(cluster(**six).joins(10, C, 3).assigns(10.2, A, i0=C, i5=C).ends_at(45)) == []
    assert broken(cluster(**six).joins(10, C, 3).assigns(10.2, A, i0=C, i5=C, i1=B, i4=A).ends_at(45)) == ["S4"]
    moved_all = cluster(**{**six, "strategy": "AVG_ALLOCATION"}).joins(10, C, 3)
    assert broken(moved_all.assigns(10.2, A, i0=C, i5=C, i1=B, i4=A).ends_at(45)) == []


def test_s5_a_leader_who_acts_in_anothers_term() -> None:
    assert broken(good().leads(41, None).leads(41.1, B).assigns(41.2, B, i0=A).ends_at(45)) == []
    assert broken(good().leads(41, None).assigns(41.2, A, i0=A).leads(41.3, A).ends_at(45)) == []
    assert broken(good().leads(41, None).leads(41.1, B).assigns(41.2, A, i0=A).ends_at(45)) == ["S5"]


# ---- S6, S7 ---------------------------------------------------------------------------------------------------------


def test_s6_nothing_begins_before_its_time() -> None:
    assert broken(fires(cluster(), 10).runs(15, 0, A, 20, decided=20.001).runs(20.1, 1, B, 20).ends_at(29)) == ["S6"]
    assert broken(fires(cluster(), 10).runs(19, 0, A, 20, decided=20.001).runs(20.1, 1, B, 20).ends_at(29)) == []
    assert broken(fires(cluster(), 10).runs(19.9, 0, A, 20).runs(20.1, 1, B, 20).ends_at(29)) == ["S6"]


def test_s6_nothing_is_made_up_for_after_its_grace() -> None:
    late = Teller(configured(misfire_grace=5.0)).joins(0.1, A).leads(0.2, A).assigns(0.3, A, i0=A).written(0.3, 0, A)
    assert broken(late.claims(16, 0, A, 10, reason=Reason.CATCH_UP).enters(16, 0, A, 10).ends(16.1, 0, A, 10).rows) == ["S6"]


@pytest.mark.parametrize("what", ["item", "server"])
def test_s7_what_is_disabled_does_not_start(what: str) -> None:
    def disabled(at: float) -> Teller:
        teller = fires(cluster(), 10)
        return (
            teller.switched(at, item=1, enabled=False)
            if what == "item"
            else teller.switched(at, server="10.0.0.2", enabled=False)
        )

    assert "S7" in broken(disabled(11).runs(20.01, 0, A, 20).runs(20.02, 1, B, 20).ends_at(25))
    assert "S7" not in broken(disabled(19.9).runs(20.01, 0, A, 20).runs(20.02, 1, B, 20).ends_at(25))


# ---- S8, S9, S10 ----------------------------------------------------------------------------------------------------


def saving(*values: int | None, told: int | None = None) -> list[Event]:
    """Item 1 saves these at 20, and its next attempt is told `told`."""
    teller = fires(cluster(), 10).runs(20.01, 0, A, 20).claims(20.02, 1, B, 20).enters(20.03, 1, B, 20)
    claim = next(row for row in reversed(teller.rows) if isinstance(row, history.Claimed))
    of = {"token": claim.token, "scheduled_time": BEGIN + 20, "attempt": 1, "owner": B, "running": True}
    for place, value in enumerate(values):
        teller.written(21 + place, 1, B, checkpoint=value, **of)
    teller.goes(25, B).assigns(25.1, A, i1=A).claims(25.2, 1, A, 20, attempt=2, reason=LOST, checkpoint=values[-1])
    return teller.enters(25.3, 1, A, 20, checkpoint=told).ends(26, 1, A, 20).ends_at(29)


def test_s8_a_checkpoint_never_goes_back() -> None:
    assert broken(saving(1, 2, told=2)) == []
    assert broken(saving(2, 1, told=1)) == ["S8"]
    assert broken(saving(2, None, told=None)) == ["S8"]


def test_s8_the_next_attempt_is_told_what_is_saved() -> None:
    assert broken(saving(1, 2, told=1)) == ["S8"]


def test_s9_an_entry_that_runs_nowhere() -> None:
    teller = fires(cluster(), 10).runs(20.01, 0, A, 20).claims(20.02, 1, B, 20).enters(20.03, 1, B, 20).goes(24, B)
    assert "S9" in broken(teller.assigns(24.1, A, i1=A).ends_at(50))


def test_s9_a_mark_that_its_owner_left() -> None:
    assert broken(good().marked(41, 1, B).goes(42, B).assigns(42.1, A, i1=A).marked(45, 1, None).ends_at(47)) == []
    left = good().marked(41, 1, B).goes(42, B).assigns(42.1, A, i1=A)
    assert broken(left.runs(50, 0, A, 50).runs(50.1, 1, A, 50).ends_at(58)) == ["S9"]


def test_s9_a_claim_of_somebody_who_is_not_registered() -> None:
    assert "S9" in broken(good().goes(41, B).runs(50, 1, B, 50).ends_at(51))


def test_s10_items_of_one_fire_that_saw_different_counts() -> None:
    assert broken(cluster().runs(10.1, 0, A, 10, total=2).runs(10.2, 1, B, 10, total=2).ends_at(15)) == []
    assert broken(cluster().runs(10.1, 0, A, 10, total=2).runs(10.2, 1, B, 10, total=3).ends_at(15)) == ["S10"]


# ---- L1 to L5 -------------------------------------------------------------------------------------------------------


def test_l1_a_fire_that_vanished() -> None:
    gap = fires(fires(cluster(), 10).runs(20.01, 0, A, 20), 30, 40)
    assert broken(gap.ends_at(45)) == ["L1"]


def test_l1_a_fire_that_is_recorded_is_accounted_for() -> None:
    gap = fires(cluster(), 10).runs(20.01, 0, A, 20).not_run(25, 1, 10, 20)
    assert broken(fires(gap, 30, 40).ends_at(45)) == []
    assert check(gap.rows).not_run == {"missed": 1}


def test_l1_a_fire_that_is_accounted_for_too_late() -> None:
    late = fires(cluster(), 10).runs(20.01, 0, A, 20).runs(32, 1, B, 20, reason=Reason.CATCH_UP)
    assert broken(fires(late, 40).not_run(33, 0, 20, 30).not_run(33, 1, 20, 30).ends_at(45)) == ["L1"]


def test_l1_a_fire_waits_for_the_run_before_it() -> None:
    busy = fires(cluster(), 10).runs(20.01, 0, A, 20).claims(20.02, 1, B, 20).enters(20.03, 1, B, 20).runs(30, 0, A, 30)
    busy.ends(45, 1, B, 20).runs(45.1, 1, B, 30, reason=Reason.MISFIRE).runs(40, 0, A, 40).not_run(45, 1, 30, 40, NotRun.OVERLAP)
    assert broken(busy.ends_at(48)) == []


def test_l1_a_run_that_nobody_asks_after() -> None:
    lost = fires(cluster(), 10).runs(20.01, 0, A, 20).claims(20.02, 1, B, 20).enters(20.03, 1, B, 20).goes(24, B)
    assert "L1" in broken(
        lost.assigns(24.1, A, i1=A).written(25, 1, A, token=None).runs(30, 1, A, 30).runs(30, 0, A, 30).ends_at(39)
    )


def test_l1_while_faults_last_nothing_is_late() -> None:
    rows = fires(cluster(quiet=30.0), 10).not_run(38, 0, 10, 30).not_run(39, 1, 10, 30)
    assert broken(rows.ends_at(39.5)) == []


def test_l2_a_run_that_is_repeated_though_its_owner_is_alive() -> None:
    teller = fires(cluster(), 10).runs(20.01, 0, A, 20).claims(20.02, 1, B, 20).enters(20.03, 1, B, 20)
    teller.claims(21, 1, A, 20, attempt=2, reason=LOST).enters(21.1, 1, A, 20).ends(22, 1, A, 20)
    assert broken(teller.ends_at(29)) == ["L2"]


def test_l2_a_run_that_is_repeated_for_another_reason() -> None:
    teller = recovered().rows
    rows = [
        replace(row, reason=Reason.CATCH_UP) if isinstance(row, history.Claimed) and row.attempt == 2 else row for row in teller
    ]
    assert broken(rows) == ["L2"]


def test_l3_an_item_that_belongs_to_nobody_alive() -> None:
    teller = good().goes(41, B)
    assert "L3" in broken(teller.ends_at(45))


def test_l3_nobody_leads() -> None:
    assert broken(good().leads(42, None).ends_at(45)) == ["L3"]


def test_l3_items_that_never_come_to_rest() -> None:
    assert broken(good().assigns(41, A, i0=B, i1=A).ends_at(45)) == ["L3"]


def test_l4_what_is_left_over() -> None:
    assert broken([*good().rows, history.LeftOver(BEGIN + 45, "watch", "1 of a", JOB), history.Finished(BEGIN + 45)]) == ["L4"]


def test_l5_a_worker_that_does_not_end() -> None:
    def stopped(took: float, held: float = 0.0) -> list[Event]:
        return [*good().rows, history.AtRest(BEGIN + 41), history.Stopped(BEGIN + 41 + took, A, BEGIN + 41, 2.0, held)]

    assert broken(stopped(3.0)) == []
    assert broken(stopped(30.0)) == ["L5"]
    assert broken(stopped(30.0, held=28.0)) == []


def test_each_invariant_says_what_it_is() -> None:
    assert len(Invariant) == 15
