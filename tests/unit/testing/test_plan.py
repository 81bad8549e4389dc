"""Plans: drawn from seeds, written and read, and made smaller."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ejpy.testing.plan import Fault, FaultKind, JobPlan, Plan, Scope, WorkerPlan, from_json, plan_of, to_json
from ejpy.testing.shrink import shrink


def test_a_seed_always_yields_the_same_plan() -> None:
    assert plan_of(7) == plan_of(7)
    assert plan_of(7) != plan_of(8)


def test_what_is_fixed_stays_fixed() -> None:
    for seed in range(50):
        plan = plan_of(seed, Scope(workers=5, jobs=2, items=4, strategy="STICKY", seconds=200))
        assert (len(plan.workers), [job.items for job in plan.jobs]) == (5, [4, 4])
        assert {job.strategy for job in plan.jobs} == {"STICKY"}
        assert plan.faults_seconds + plan.quiet_seconds == 200
        assert all(0 < fault.at < plan.faults_seconds for fault in plan.faults)


def test_only_the_faults_that_are_asked_for_come_up() -> None:
    kinds = (FaultKind.DEPOSE, FaultKind.PAUSE)
    assert {fault.kind for seed in range(30) for fault in plan_of(seed, Scope(faults=kinds)).faults} == set(kinds)


def test_every_fault_and_every_setting_comes_up() -> None:
    plans = [plan_of(seed) for seed in range(300)]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(FaultKind)
    jobs = [job for plan in plans for job in plan.jobs]
    for setting in ("failover", "misfire", "monitored", "running_marks", "deaf", "checkpoints"):
        assert {getattr(job, setting) for job in jobs} == {True, False}
    assert {job.catch_up for job in jobs} == {"latest", "all", "none"}
    assert all(job.config().job_name == job.name for job in jobs)


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_that_was_written_is_read_as_the_same(seed: int) -> None:
    assert from_json(to_json(plan_of(seed))) == plan_of(seed)


def faults(*kinds: FaultKind) -> tuple[Fault, ...]:
    return tuple(Fault(5.0 * (place + 1), kind, worker=place % 3) for place, kind in enumerate(kinds))


LARGE = Plan(
    1,
    (JobPlan("job", 7, 5, "STICKY", body_seconds=3.0), JobPlan("job2", 5, 5, "STICKY")),
    (WorkerPlan(), WorkerPlan(ahead=1.0), WorkerPlan(3.0)),
    faults(*[FaultKind.PAUSE, FaultKind.CRASH, FaultKind.CUT, FaultKind.EXPIRE, FaultKind.STOP] * 2),
)


def kinds(plan: Plan) -> list[FaultKind]:
    return [fault.kind for fault in plan.faults]


def test_only_the_faults_that_matter_are_left() -> None:
    def breaks(plan: Plan) -> bool:
        return {FaultKind.CRASH, FaultKind.EXPIRE} <= set(kinds(plan))

    small = shrink(LARGE, breaks)
    assert sorted(kinds(small)) == [FaultKind.CRASH, FaultKind.EXPIRE]
    assert len(small.jobs) == 1
    assert small.jobs[0].items == 1
    assert all(fault.at < small.faults_seconds for fault in small.faults)
    assert breaks(small)


def test_a_worker_or_a_job_that_matters_stays() -> None:
    def breaks(plan: Plan) -> bool:
        return len(plan.workers) == 3 and any(job.name == "job2" and job.items >= 3 for job in plan.jobs)

    small = shrink(LARGE, breaks)
    assert [(job.name, job.items) for job in small.jobs] == [("job2", 3)]
    assert len(small.workers) == 3
    assert small.faults == ()


def test_no_more_is_played_than_allowed() -> None:
    played: list[Plan] = []

    def breaks(plan: Plan) -> bool:
        played.append(plan)
        return len(plan.faults) >= 3

    shrink(LARGE, breaks, budget=12)
    assert len(played) == 12


def test_what_cannot_be_made_smaller_is_given_back() -> None:
    plan = replace(LARGE, faults=())
    assert shrink(plan, lambda other: other == plan) == plan
