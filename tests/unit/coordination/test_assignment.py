"""What the leader moves, what it leaves, and by which guards; each plan is carried out on a tree with the registry's rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeGuard

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.config.model import JobConfig, ShardingStrategyName
from ejpy.coordination.assignment import Move, Plan, clear_flags, plan, surplus, wanted_moves, with_descendants
from ejpy.coordination.changes import InForce
from ejpy.coordination.claims import Claim, Write, decide
from ejpy.coordination.ledger import Entry, NotRunRange
from ejpy.coordination.marks import marks_of
from ejpy.coordination.view import JobView
from ejpy.errors import GuardFailed
from ejpy.registry.base import Check, Create, Delete, Node, Operation, SetData
from ejpy.terms import CatchUp, NotRun, Outcome, Reason
from tests.unit.coordination.situations import BASIS, CHANGED, MINUTE, Instants, at, idle, policy, ran, running, situation
from tests.unit.coordination.trees import Job

A, B, C = "10.0.0.1@-@11.aa", "10.0.0.2@-@22.bb", "10.0.0.3@-@33.cc"
NOW = at("10:30")
STICKY, AVG = ShardingStrategyName.STICKY, ShardingStrategyName.AVG_ALLOCATION


def moves_of(job: Job, total: int, strategy: ShardingStrategyName = STICKY, stalled: Iterable[str] = ()) -> list[Move]:
    moves = wanted_moves(job.view, configured(job, strategy, total), frozenset(stalled), NOW)
    assert moves is not None
    return moves


def configured(job: Job, strategy: ShardingStrategyName, total: int, **more: object) -> JobConfig:
    required = {"job_name": job.paths.job, "job_class": "m:C", "sharding_total_count": total}
    return JobConfig.model_validate({**required, "job_sharding_strategy_type": strategy, **more})


def begins_now(item: int) -> InForce:
    return InForce(BASIS, NOW)


def plan_of(job: Job, moves: Iterable[Move], *, overdue: Iterable[int] = ()) -> Plan:
    moves = list(moves)
    return plan(job.paths, job.view, moves, job.ledger([move.item for move in moves]), begins_now, frozenset(overdue), now=NOW)


def reshard(job: Job, total: int, strategy: ShardingStrategyName = STICKY, *, stalled: Iterable[str] = ()) -> Plan:
    """As the leader does it."""
    done = plan_of(job, moves_of(job, total, strategy, stalled))
    for batch in done.batches:
        job.commit(batch)
    for removal in with_descendants([[Delete(job.paths.item(item))] for item in surplus(job.view, total)], job.nodes):
        job.commit(removal)
    if done.requests:
        job.commit(done.requests)
    return done


def sharded(total: int, *instances: str) -> Job:
    job = Job(*instances)
    reshard(job, total)
    return job


def paths_in(operations: Iterable[Operation], kind: type[Operation]) -> list[str]:
    return [operation.path for operation in operations if isinstance(operation, kind)]


# ---- what is wanted -------------------------------------------------------------------------------------------------------


def test_only_what_differs_is_wanted() -> None:
    job = sharded(6, A, B)
    assert moves_of(job, 6) == []
    job.join(C)
    moves = moves_of(job, 6)
    assert {move.to for move in moves} == {C}
    assert len(moves) == 2


def test_without_anybody_eligible_nothing_is_wanted() -> None:
    assert moves_of(Job(), 3) == []
    job = sharded(3, A)
    job.put(job.paths.server("10.0.0.1"), "DISABLED")
    assert moves_of(job, 3) == [], "its owner keeps an item until somebody can take it"


@pytest.mark.parametrize("how", ["disabled", "draining", "gone"])
def test_who_cannot_take_items_loses_his(how: str) -> None:
    job = sharded(4, A, B)
    if how == "disabled":
        job.put(job.paths.server("10.0.0.1"), "DISABLED")
    elif how == "draining":
        job.drain(A)
    else:
        job.leave(A)
    assert {move.to for move in moves_of(job, 4)} == {B}
    assert sorted(move.item for move in moves_of(job, 4)) == [item for item, owner in job.owners.items() if owner == A]


def test_c9_a_server_entry_without_instance_gets_nothing() -> None:
    """C9: servers that are long gone are listed in the registry."""
    job = Job(A)
    job.put(job.paths.server("10.9.9.9"), "ENABLED")
    reshard(job, 3)
    assert set(job.owners.values()) == {A}


def test_a_stalled_instance_gets_nothing_unless_there_is_no_other() -> None:
    job = sharded(4, A, B)
    assert {move.to for move in moves_of(job, 4, stalled=[A])} == {B}
    assert moves_of(job, 4, stalled=[A, B]) == []
    assert sorted(move.item for move in moves_of(job, 6, stalled=[A, B])) == [4, 5], "better late than never"


def test_elasticjobs_strategies_are_applied_as_they_are() -> None:
    job = Job(A, B, C)
    reshard(job, 8, AVG)
    assert job.owners == {0: C, 1: C, 6: C, 2: B, 3: B, 7: B, 4: A, 5: A}


# ---- new items --------------------------------------------------------------------------------------------------------------


def test_a_new_item_gets_its_nodes_and_an_entry_that_starts_at_the_next_fire() -> None:
    job = sharded(2, A)
    assert job.owners == {0: A, 1: A}
    assert [job.entry(item) for item in (0, 1)] == [Entry(accounted_until=NOW, basis=BASIS)] * 2


def test_an_item_without_entry_gets_one_with_its_move() -> None:
    """Sharded by a Java leader, which knows of no ledger."""
    job = Job(A)
    job.put(job.paths.item(0))
    job.put(job.paths.item_instance(0), C)
    reshard(job, 1)
    assert job.owners == {0: A}
    assert job.entry(0).accounted_until == NOW


def test_an_entry_that_somebody_else_wrote_meanwhile_is_not_overwritten() -> None:
    job = Job(A)
    done = plan_of(job, moves_of(job, 1))
    job.write_entry(0, idle("10:00"))
    with pytest.raises(GuardFailed):
        job.commit(done.batches[0])
    assert job.owners == {}


# ---- moving -----------------------------------------------------------------------------------------------------------------


def test_an_idle_item_moves_and_keeps_its_entry() -> None:
    job = sharded(1, A)
    job.write_entry(0, ran("10:00", "10:00", "10:01"))
    before = job.entry(0)
    job.join(B)
    done = plan_of(job, [Move(0, B)])
    assert done.waiting == frozenset()
    assert done.moves == (Move(0, B),)
    job.commit(done.batches[0])
    assert (job.owners, job.entry(0)) == ({0: B}, before)


def test_an_idle_item_that_starts_meanwhile_does_not_move() -> None:
    """The version of its entry is guarded: a claim in between fails the whole transaction."""
    job = sharded(2, A)
    job.join(B)
    done = plan_of(job, [Move(0, B)])
    job.write_entry(0, running("10:30", A))
    with pytest.raises(GuardFailed) as failed:
        job.commit(done.batches[0])
    assert failed.value.path == job.paths.ledger(0)
    assert job.owners == {0: A, 1: A}


def test_an_item_that_somebody_else_assigned_meanwhile_does_not_move() -> None:
    job = sharded(1, A)
    job.join(B)
    done = plan_of(job, [Move(0, B)])
    job.put(job.paths.item_instance(0), C)
    with pytest.raises(GuardFailed) as failed:
        job.commit(done.batches[0])
    assert failed.value.path == job.paths.item_instance(0)


def test_nothing_moves_to_who_has_just_left() -> None:
    job = sharded(2, A)
    job.join(B)
    done = plan_of(job, [Move(0, B)])
    job.leave(B)
    with pytest.raises(GuardFailed) as failed:
        job.commit(done.batches[0])
    assert failed.value.path == job.paths.instance(B)


def test_p6_an_item_that_runs_on_a_live_worker_waits_and_is_asked_for() -> None:
    job = sharded(2, A)
    job.write_entry(0, running("10:29", A))
    job.join(B)
    done = plan_of(job, [Move(0, B), Move(1, B)])
    assert (done.waiting, done.moves) == (frozenset({0}), (Move(1, B),)), "the other does not wait for it"
    for batch in [*done.batches, done.requests]:
        job.commit(batch)
    assert job.owners == {0: A, 1: B}
    assert job.entry(0) == replace(running("10:29", A), hand_over=True), "and runs on"


def test_an_owner_is_asked_for_the_hand_over_once() -> None:
    job = sharded(1, A)
    job.write_entry(0, replace(running("10:29", A), hand_over=True))
    job.join(B)
    done = plan_of(job, [Move(0, B)])
    assert (done.waiting, done.requests, done.batches) == (frozenset({0}), (), ())


def test_an_item_that_was_handed_over_moves_and_the_mark_goes() -> None:
    job = sharded(1, A)
    job.write_entry(0, replace(ran("10:29", "10:29", "10:30"), hand_over=True))
    job.join(B)
    job.commit(plan_of(job, [Move(0, B)]).batches[0])
    assert job.owners == {0: B}
    assert job.entry(0) == ran("10:29", "10:29", "10:30")


def test_a_request_does_not_overwrite_an_end() -> None:
    job = sharded(1, A)
    job.write_entry(0, running("10:29", A))
    job.join(B)
    done = plan_of(job, [Move(0, B)])
    ended = job.entry(0).end(Outcome.SUCCEEDED, 7, NOW)
    job.write_entry(0, ended)
    with pytest.raises(GuardFailed):
        job.commit(done.requests)
    assert job.entry(0) == ended


@pytest.mark.parametrize("hand_over", [True, False])
def test_items_of_the_gone_move_at_once_running_or_not(hand_over: bool) -> None:
    job = sharded(2, A)
    job.write_entry(0, replace(running("10:29", A), hand_over=hand_over))
    job.leave(A)
    job.join(B)
    done = reshard(job, 2)
    assert (done.waiting, set(job.owners.values())) == (frozenset(), {B})
    assert job.entry(0) == running("10:29", A), "its new owner decides what becomes of the run"


def test_an_item_that_was_run_by_the_dead_does_not_wait_for_its_present_owner() -> None:
    job = sharded(1, A)
    job.write_entry(0, running("10:29", C))
    job.join(B)
    assert plan_of(job, [Move(0, B)]).moves == (Move(0, B),)


@pytest.mark.parametrize("assigned", [True, False])
def test_an_item_that_a_live_worker_runs_past_its_assignment_gets_an_owner_at_once(assigned: bool) -> None:
    """It was removed and made again during the run, or its owner has died: the new owner waits for the end of the run."""
    job = sharded(1, C)
    job.join(B)
    job.write_entry(0, running("10:29", B))
    job.leave(C)
    if not assigned:
        job.remove(job.paths.item_instance(0))
    job.join(A)
    job.commit(plan_of(job, [Move(0, A)]).batches[0])
    assert job.owners == {0: A}
    assert job.entry(0).running


def test_an_overdue_item_is_marked_so_that_its_new_owner_knows_why() -> None:
    job = sharded(2, A)
    job.join(B)
    done = plan_of(job, [Move(0, B), Move(1, B)], overdue=[0])
    job.commit(done.batches[0])
    assert (job.entry(0).overdue, job.entry(1).overdue) == (True, False)


def test_an_overdue_item_that_was_claimed_after_all_does_not_move() -> None:
    job = sharded(1, A)
    job.join(B)
    done = plan_of(job, [Move(0, B)], overdue=[0])
    job.write_entry(0, running("10:30", A))
    with pytest.raises(GuardFailed):
        job.commit(done.batches[0])
    assert job.owners == {0: A}


def test_the_transaction_is_of_the_differences() -> None:
    job = sharded(20, A)
    job.join(B)
    [batch] = plan_of(job, [Move(3, B), Move(11, B)]).batches
    assert paths_in(batch, SetData) == [job.paths.item_instance(3), job.paths.item_instance(11)]
    assert paths_in(batch, Check) == [job.paths.instance(B), job.paths.ledger(3), job.paths.ledger(11)]
    assert paths_in(batch, Create) == paths_in(batch, Delete) == [job.paths.triggers], "nobody has triggered the owner unseen"
    assert len(batch) == 7


# ---- many -------------------------------------------------------------------------------------------------------------------


def test_a_receiver_is_checked_once_in_each_transaction() -> None:
    job = Job(A, B)
    done = plan_of(job, moves_of(job, 1000))
    assert len(done.batches) > 1
    for batch in done.batches:
        given_to = {operation.data.decode() for operation in batch if is_assignment(operation)}
        assert Counter(paths_in(batch, Check)) == Counter(job.paths.instance(receiver) for receiver in given_to)


def is_assignment(operation: Operation) -> TypeGuard[Create | SetData]:
    return isinstance(operation, Create | SetData) and operation.path.endswith("/instance")


def many(number: int) -> list[str]:
    return [f"10.{n // 65536}.{n // 256 % 256}.{n % 256}@-@{n}.aaaaaaaa" for n in range(1, number + 1)]


@pytest.mark.parametrize(("items", "instances"), [(1000, 1), (1000, 7), (1000, 250), (1000, 300), (260, 260), (1000, 1000)])
def test_many_new_items_fit_into_the_registrys_transactions(items: int, instances: int) -> None:
    job = Job(*many(instances))
    done = reshard(job, items)
    assert len(done.moves) == items
    assert sorted(job.owners) == list(range(items))
    assert len(done.batches) < 12


def test_a_thousand_items_of_the_longest_names_fit_into_the_registrys_transactions() -> None:
    job = Job(*many(50), namespace="/" + "n" * 100, job="任" * 200)
    reshard(job, 1000)
    assert sorted(job.owners) == list(range(1000))


def well_used(owner: str) -> Entry:
    """An entry with all the fires not run that it can keep."""
    start = at("04:00")
    ranges = [NotRunRange(start + 2 * n * MINUTE, start + (2 * n + 1) * MINUTE, NotRun.OVERLAP) for n in range(32)]
    return replace(ran("10:00", "10:00", "10:01"), owner=owner, not_run=tuple(ranges))


@pytest.mark.parametrize("overdue", [True, False])
def test_a_thousand_well_used_items_fit_into_the_registrys_transactions(overdue: bool) -> None:
    job = sharded(1000, A)
    for item in range(1000):
        job.write_entry(item, well_used(A))
    job.join(B)
    done = plan_of(job, [Move(item, B) for item in range(1000)], overdue=range(1000) if overdue else ())
    for batch in done.batches:
        job.commit(batch)
    assert set(job.owners.values()) == {B}


def test_items_with_large_checkpoints_fit_into_the_registrys_transactions() -> None:
    """A checkpoint may be 100 KB; those of a job with interrupted attempts are written again with the leader's mark."""
    job = sharded(8, A)
    for item in range(8):
        stopped = replace(running("10:29", A), checkpoint="x" * 100_000).interrupt(7, NOW, recover=True)
        job.write_entry(item, stopped)
    job.join(B)
    for batch in plan_of(job, [Move(item, B) for item in range(8)], overdue=range(8)).batches:
        job.commit(batch)
    assert set(job.owners.values()) == {B}


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_history_of_members_ends_even_and_complete(data: st.DataObject) -> None:
    """With items that run and end, members that come, leave and drain, counts that change."""
    names, job = [f"10.0.0.{n}@-@{n}.x" for n in range(1, 6)], Job("10.0.0.1@-@1.x")
    total = 3
    for _ in range(data.draw(st.integers(1, 8))):
        here = sorted(job.view.instances)
        match data.draw(st.sampled_from(["join", "leave", "drain", "run", "count"])):
            case "join":
                job.join(data.draw(st.sampled_from(names)), session=77)
            case "leave" if len(here) > 1:
                job.leave(data.draw(st.sampled_from(here)))
            case "drain" if len(job.view.eligible()) > 1:
                job.drain(data.draw(st.sampled_from(here)))
            case "run" if job.owners:
                item = data.draw(st.sampled_from(sorted(job.owners)))
                job.write_entry(item, running("10:29", job.owners[item]))
            case "count":
                total = data.draw(st.integers(1, 9))
        if not job.view.eligible():
            continue
        before = job.owners
        done = reshard(job, total)
        live = set(job.view.instances)
        for item in done.waiting:
            assert job.owners[item] == before[item]
            assert job.entry(item).owner in live, "it waits for the dead"
        assert set(job.owners) == set(range(total)), "complete, whoever runs"
    for item, entry in [(item, job.entry(item)) for item in job.owners]:
        if entry.running:
            job.write_entry(item, entry.end(Outcome.SUCCEEDED, 7, NOW))
    if job.view.eligible():
        assert reshard(job, total).waiting == frozenset()
        loads = [list(job.owners.values()).count(instance) for instance in job.view.eligible()]
        assert sum(loads) == total
        assert max(loads) - min(loads) <= 1
        assert moves_of(job, total) == []


# ---- triggers that nobody has taken note of ---------------------------------------------------------------------------------


def triggered(job: Job, instance: str) -> Mapping[str, Node]:
    job.put_below(f"trigger/{instance}", "")
    return marks_of(job.nodes, job.paths).triggers


@pytest.mark.parametrize("dies", [True, False])
def test_j10_an_item_that_moves_takes_the_trigger_of_its_owner_along(dies: bool) -> None:
    """Its owner is gone, or has not looked yet: whoever runs the item next has to know that it was asked for."""
    job = sharded(2, A)
    triggers = triggered(job, A)
    job.join(B)
    if dies:
        job.leave(A)
    moves = moves_of(job, 2)
    done = plan(job.paths, job.view, moves, job.ledger(range(2)), begins_now, triggers=triggers, now=NOW)
    for batch in done.batches:
        job.commit(batch)
    moved = {move.item for move in moves}
    assert len(moved) == (2 if dies else 1)
    for item in range(2):
        entry = job.entry(item)
        assert entry is not None
        assert (entry.asked is not None) == (item in moved)
        if entry.asked is not None:
            assert entry.asked.reason is Reason.TRIGGER
            trigger = triggers[A]
            assert entry.ask_by_trigger(trigger.modified, trigger.revision) is entry, "taken note of: it is not asked for twice"


@pytest.mark.parametrize("known", [True, False])
def test_j2_nothing_moves_past_a_trigger_that_the_leader_has_not_seen(known: bool) -> None:
    """The receiver may have obeyed its own before the item came, and whoever had the item has not yet."""
    job = sharded(4, A)
    job.join(B)
    if known:
        job.put_below("trigger/other", "")
    done = plan(job.paths, job.view, moves_of(job, 4), job.ledger(range(4)), begins_now, existing=job.nodes, now=NOW)
    triggered(job, A)
    [batch] = done.batches
    with pytest.raises(GuardFailed, match="/trigger"):
        job.commit(batch)
    assert set(job.owners.values()) == {A}


# ---- fewer items, and more again ---------------------------------------------------------------------------------------------


def test_items_beyond_the_count_are_removed_with_all_below_them_and_keep_their_entries() -> None:
    job = sharded(4, A)
    job.put(job.paths.item_disabled(3))
    job.put(job.paths.item(3) + "/failover", C, session=5)
    job.put(job.paths.item(3) + "/odd")
    job.put(job.paths.item(3) + "/odd/below")
    assert surplus(job.view, 2) == [2, 3]
    reshard(job, 2)
    assert job.view.items == {0, 1}
    assert [path for path in job.nodes if path.startswith(job.paths.sharding + "/3")] == []
    assert job.entry(3) is not None, "tokens never go back, so the ledger outlives the item"


def test_a_removal_takes_no_other_item_along() -> None:
    job = sharded(13, A)
    [removal] = with_descendants([[Delete(job.paths.item(1))]], job.nodes)
    job.commit(removal)
    assert job.view.items == set(range(13)) - {1}


FIVES = Instants("10:00", "10:05", "10:10", "10:15", "10:20", "10:25", "10:30", "10:35")


def steps_after_lowering_and_raising(entry: Entry, *, failover: bool = False) -> tuple[list[str], Entry]:
    """What the new owner of the item does with it at 10:30, when it exists again after it did not; bodies end at once."""
    job = sharded(2, B)
    job.write_entry(1, entry)
    reshard(job, 1)
    assert job.view.items == {0}
    reshard(job, 2)
    assert job.owners[1] == B
    entry, done = job.entry(1), []
    everything = policy(catch_up=CatchUp.ALL, failover=failover)
    for _ in range(20):
        s = replace(situation("10:30", FIVES, policy=everything), me=B, live={B})
        step = decide(1, entry, s, held_since=NOW, enabled=True)
        if not isinstance(step, Claim | Write):
            break
        entry = step.entry
        if isinstance(step, Claim):
            assert entry.fire is not None
            assert entry.reason is not None
            done.append(f"{entry.fire:%H:%M} {entry.reason.value} {entry.attempt}")
            entry = entry.end(Outcome.SUCCEEDED, 9, NOW)
    return done, entry


def test_lowering_and_raising_the_count_replays_nothing() -> None:
    done, entry = steps_after_lowering_and_raising(ran("10:00", "10:00", "10:01"))
    assert done == []
    assert entry.accounted_until == NOW
    assert (entry.fire, entry.token) == (at("10:00"), 7), "it remembers what it did last"


def test_lowering_and_raising_the_count_replays_nothing_of_an_item_whose_run_was_stopped() -> None:
    done, _ = steps_after_lowering_and_raising(running("10:00", B).interrupt(7, at("10:02"), recover=True), failover=True)
    assert done == []


@pytest.mark.parametrize("failover", [True, False])
def test_lowering_and_raising_the_count_replays_nothing_of_an_item_whose_owner_died(failover: bool) -> None:
    """It ran when the count was lowered, and its owner has died since: at most that one fire is run again."""
    done, _ = steps_after_lowering_and_raising(running("10:00", A), failover=failover)
    assert done == (["10:00 owner_lost 2"] if failover else [])


def test_lowering_and_raising_the_count_under_another_schedule_counts_from_now() -> None:
    job = sharded(2, A)
    job.write_entry(1, replace(ran("10:00", "10:00", "10:01"), basis=CHANGED, suspended=True))
    reshard(job, 1)
    reshard(job, 2)
    entry = job.entry(1)
    assert (entry.basis, entry.suspended, entry.accounted_until) == (BASIS, False, NOW)


# ---- flags --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("necessary", [True, False])
@pytest.mark.parametrize("processing", [True, False])
def test_flags_that_somebody_else_set_are_cleared(necessary: bool, processing: bool) -> None:
    job = Job(A)
    if necessary:
        job.put(job.paths.resharding_necessary)
    if processing:
        job.put(job.paths.resharding_processing, session=44)
    operations = clear_flags(job.paths, job.view)
    assert len(operations) == necessary + processing
    job.commit(operations)
    assert (job.view.necessary, job.view.processing) == (False, False)


def test_an_empty_view_asks_for_nothing() -> None:
    job = Job()
    assert clear_flags(job.paths, JobView()) == []
    assert surplus(JobView(), 5) == []
    assert plan(job.paths, JobView(), [], {}, begins_now, now=NOW) == Plan((), frozenset(), (), ())
