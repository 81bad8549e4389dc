"""ElasticJob's marks: written for those who look at them, heeded whoever wrote them, and never left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ejpy.coordination.marks import Marks, marks_of
from ejpy.coordination.view import DISABLED, ENABLED
from ejpy.registry.base import Delete
from ejpy.terms import NotRun, Reason
from ejpy.testing.cluster import SimCluster, instant, job_config
from ejpy.testing.outsider import Outsider
from ejpy.testing.virtual_loop import VirtualLoop, run_virtual
from ejpy.testing.worker import SimWorker

NEVER = "0 0 0 1 1 ? 2099"


def story(test: Callable[[SimCluster], Coroutine[Any, Any, None]], *, seed: int = 0, **settings: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        await test(SimCluster(loop, job_config(**settings), seed=seed))

    run_virtual(main)


async def workers(cluster: SimCluster, number: int, **how: Any) -> list[SimWorker]:
    found = [await cluster.add(**how) for _ in range(number)]
    await cluster.until_shared(*found)
    return found


def marks(cluster: SimCluster) -> Marks:
    return marks_of(cluster.nodes(), cluster.paths)


# ---- writing them ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failover", [True, False])
def test_running_marks_are_there_while_a_body_runs_and_name_its_instance(failover: bool) -> None:
    """Persistent with failover, so that they outlive a crash (protocol reference, section 1.7)."""

    async def test(cluster: SimCluster) -> None:
        [worker] = await workers(cluster, 1, body_seconds=lambda: 2.0)
        await cluster.until(lambda: len(cluster.runs()) == 3, "all items run")
        assert {mark.instance_id for mark in marks(cluster).running.values()} == {worker.host.instance_id}
        nodes = [cluster.store.read(cluster.paths.item_running(item)) for item in range(3)]
        assert {node is not None and node.session_id is None for node in nodes} == {failover}
        await cluster.until(lambda: all(run.ended for run in cluster.runs()), "they end")
        await cluster.until(lambda: marks(cluster) == Marks(), "no mark is left", within=1)

    story(test, items=3, running_marks=True, failover=failover)


def test_without_readers_no_mark_is_written() -> None:
    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 1, body_seconds=lambda: 7.0)
        while cluster.loop.time() < 30:
            await cluster.until_time(cluster.loop.time() + 0.1)
            assert marks(cluster) == Marks()
        assert cluster.runs()

    story(test)


def test_an_item_that_is_due_while_it_runs_is_marked_until_it_runs_again() -> None:
    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 1, body_seconds=lambda: 7.0)
        await cluster.until_time(5.1)
        assert not marks(cluster).misfire
        await cluster.until_time(10.1)
        assert marks(cluster).misfire == {0}
        await cluster.until(lambda: len(cluster.runs()) == 2, "it runs again")
        assert cluster.runs()[1].reason is Reason.MISFIRE
        assert not marks(cluster).misfire

    story(test, running_marks=True)


def test_e4_a_job_that_is_always_late_leaves_no_marks_when_it_is_removed_from_the_workers() -> None:
    async def test(cluster: SimCluster) -> None:
        [worker] = await workers(cluster, 1, body_seconds=lambda: 6.0)
        await cluster.until_time(62)
        assert len(cluster.runs()) >= 8
        assert set(Counter(run.fire for run in cluster.runs()).values()) == {1}
        await worker.stop(grace=10)
        assert not marks(cluster).running

    story(test, running_marks=True)


@pytest.mark.parametrize("mark", ["running", "misfire"])
def test_a_mark_that_somebody_removed_does_not_hold_the_item_up(mark: str) -> None:
    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 1, body_seconds=lambda: 7.0)
        await cluster.until_time(11)
        Outsider(cluster).remove(f"{cluster.paths.item(0)}/{mark}")
        await cluster.until_time(41)
        assert [run.reason for run in cluster.runs()][:2] == [Reason.SCHEDULED, Reason.MISFIRE]
        assert len(cluster.runs()) >= 4
        assert not [run for run in cluster.runs() if run.attempt != 1]

    story(test, running_marks=True)


# ---- heeding them ---------------------------------------------------------------------------------------------------


def test_an_item_that_a_foreign_instance_runs_is_waited_for_and_then_run() -> None:
    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 1)
        java = Outsider(cluster)
        java.join()
        await cluster.until(lambda: java.id in {a.instance_id for a in cluster.view().assigned.values()}, "it has a share")
        mine = [item for item, a in cluster.view().assigned.items() if a.instance_id != java.id]
        java.begin(mine[0])
        await cluster.until_time(13)
        assert mine[0] not in {run.item for run in cluster.runs() if run.entered > 6}
        java.end(mine[0])
        await cluster.until(lambda: mine[0] in {run.item for run in cluster.runs()}, "it runs", within=3)

    story(test, items=2, cron="0/10 * * * * ?")


def test_a_misfire_mark_of_others_is_one_run() -> None:
    """The mark belongs to the item: whoever owns it when it is idle runs it."""

    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 1)
        Outsider(cluster).put(cluster.paths.item_misfire(0))
        await cluster.until(lambda: cluster.runs(), "it runs", within=3)
        await cluster.until_time(cluster.loop.time() + 10)
        assert [run.reason for run in cluster.runs()] == [Reason.MISFIRE]
        assert not marks(cluster).misfire

    story(test, cron=NEVER)


def test_with_misfire_off_a_misfire_mark_is_removed_and_nothing_runs() -> None:
    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 1)
        Outsider(cluster).put(cluster.paths.item_misfire(0))
        await cluster.until(lambda: not marks(cluster).misfire, "it is removed", within=3)
        await cluster.until_time(cluster.loop.time() + 10)
        assert not cluster.runs()

    story(test, cron=NEVER, misfire=False)


@pytest.mark.parametrize("node", ["running", "failovering"])
def test_marks_of_the_dead_are_removed_and_with_failover_their_items_are_run(node: str) -> None:
    """A Java worker died, and no ejpy worker was there to see it."""

    async def test(cluster: SimCluster) -> None:
        dead = Outsider(cluster)
        dead.put(f"{cluster.paths.item(1)}/{node}", dead.id)
        await workers(cluster, 2)
        await cluster.until(lambda: cluster.runs(), "it is failed over")
        await cluster.until_time(cluster.loop.time() + 10)
        [run] = cluster.runs()
        assert (run.item, run.reason) == (1, Reason.OWNER_LOST)
        assert marks(cluster) == Marks()

    story(test, items=3, cron=NEVER)


def test_without_failover_marks_of_the_dead_are_only_removed() -> None:
    async def test(cluster: SimCluster) -> None:
        dead = Outsider(cluster)
        dead.put(cluster.paths.item_running(0), dead.id)
        await workers(cluster, 1)
        await cluster.until(lambda: marks(cluster) == Marks(), "it is removed")
        await cluster.until_time(12)
        assert [run.fire for run in cluster.runs()] == [instant(5), instant(10)]

    story(test, failover=False)


def test_failover_goes_by_marks_where_they_are_written() -> None:
    """The steps of the golden trace of ElasticJob: flagged, taken with its two marks, run, and all marks removed."""

    async def test(cluster: SimCluster) -> None:
        await cluster.add_leader(body_seconds=lambda: 4.0)
        b = await cluster.add(body_seconds=lambda: 4.0)
        await cluster.until_shared(*cluster.workers)
        await cluster.until_time(10)
        await cluster.until(lambda: len(cluster.runs(instant(10))) == 2, "both items run")
        lost = next(run.item for run in cluster.runs(instant(10)) if run.worker == b.name)
        b.crash()
        await cluster.until(lambda: lost in marks(cluster).failover, "it is taken")
        taken = marks(cluster)
        assert lost in taken.failovering
        assert taken.failovering[lost].instance_id == taken.failover[lost].instance_id
        assert not taken.to_fail_over
        await cluster.until(lambda: any(run.attempt == 2 for run in cluster.runs()), "it runs again")
        assert lost in marks(cluster).running
        again = next(run for run in cluster.runs() if run.attempt == 2)
        assert (again.fire, again.reason) == (instant(10), Reason.OWNER_LOST)
        await cluster.until(lambda: again.ended and not marks(cluster).failover, "it ends, and no mark is left")
        assert not marks(cluster).failovering
        assert lost not in marks(cluster).running

    story(test, items=2, cron="0/10 * * * * ?", running_marks=True)


def test_a_taker_that_dies_loses_what_it_took_to_another() -> None:
    async def test(cluster: SimCluster) -> None:
        first = await cluster.add_leader(body_seconds=lambda: 3.0)
        second = await cluster.add(body_seconds=lambda: 3.0)
        third = await cluster.add(body_seconds=lambda: 3.0)
        await cluster.until_shared(first, second, third)
        await cluster.until(lambda: len(cluster.runs(instant(10))) == 3, "all run")
        third.crash()
        await cluster.until(lambda: any(run.attempt == 2 for run in cluster.runs()), "it is failed over")
        taker = next(w for w in (first, second) if w.name == next(r.worker for r in cluster.runs() if r.attempt == 2))
        taker.crash()
        await cluster.until(lambda: any(run.attempt == 3 and run.ended for run in cluster.runs()), "and again", within=40)
        await cluster.until(lambda: not marks(cluster).failover and not marks(cluster).failovering, "no mark is left")
        assert not marks(cluster).to_fail_over

    story(test, items=3, cron="0/10 * * * * ?", running_marks=True)


def test_switching_failover_off_gives_up_what_waits() -> None:
    async def test(cluster: SimCluster) -> None:
        outsider = Outsider(cluster)
        outsider.join()  # a mark of the dead would go whatever `failover` says
        outsider.put(cluster.paths.failover_item(0))
        outsider.put(cluster.paths.item_failover(1), outsider.id)
        await cluster.add_leader()
        await cluster.until(lambda: marks(cluster) == Marks(), "the marks are removed")

    story(test, items=2, cron=NEVER, failover=False)


def test_j9_entries_of_servers_that_are_gone_for_long_are_removed_but_for_disabled_ones() -> None:
    """J9: each restart of a container left an entry for ever, and removing a disabled one enabled its host again. A Java worker
    makes its entry before its instance: one that is young is not touched."""

    async def test(cluster: SimCluster) -> None:
        outsider = Outsider(cluster)
        for number in range(50):
            outsider.put(cluster.paths.server(f"10.1.0.{number}"), DISABLED if number == 7 else ENABLED)
        await workers(cluster, 1)
        await cluster.until_time(50)
        outsider.put(cluster.paths.server("10.2.0.1"), ENABLED)
        await cluster.until_time(80)
        assert cluster.view().servers.keys() == {"10.0.0.1", "10.1.0.7", "10.2.0.1"}
        await cluster.until_time(130)
        assert cluster.view().servers.keys() == {"10.0.0.1", "10.1.0.7"}

    story(test)


# ---- together with instances that keep no ledger -----------------------------------------------------------------------


def test_the_leader_announces_a_resharding_and_waits_for_what_runs() -> None:
    """ElasticJob's rule (protocol reference, section 4.2): nothing moves while an item that shall move runs, by its mark."""

    async def test(cluster: SimCluster) -> None:
        java = Outsider(cluster, ip="10.0.0.0")
        await workers(cluster, 1)
        java.join()
        await cluster.until(lambda: java.id in {a.instance_id for a in cluster.view().assigned.values()}, "it has a share")
        theirs = [item for item, a in cluster.view().assigned.items() if a.instance_id == java.id]
        java.begin(theirs[0])
        await cluster.add()
        await cluster.until(lambda: cluster.view().necessary, "it is announced")
        before = dict(cluster.view().assigned)
        await cluster.until_time(cluster.loop.time() + 10)
        assert {i: a.instance_id for i, a in cluster.view().assigned.items()} == {i: a.instance_id for i, a in before.items()}
        assert cluster.view().necessary
        java.end(theirs[0])
        await cluster.until(lambda: not cluster.view().necessary, "it is done")
        assert len({a.instance_id for a in cluster.view().assigned.values()}) == 3

    story(test, items=6, cron=NEVER)


def test_nothing_is_begun_while_a_foreign_leader_reshards() -> None:
    async def test(cluster: SimCluster) -> None:
        java = Outsider(cluster)
        java.join()
        java.put(cluster.paths.leader, java.id, ephemeral=True)
        worker = await cluster.add()
        for item in range(2):
            java.put(cluster.paths.item_instance(item), worker.host.instance_id)
        java.put(cluster.paths.resharding_necessary)
        await cluster.until_time(13)
        assert not cluster.runs()
        java.remove(cluster.paths.resharding_necessary)
        await cluster.until_time(16)
        assert {run.item for run in cluster.runs()} == {0, 1}

    story(test, items=2)


@pytest.mark.parametrize("seed", range(20))
def test_an_item_that_a_foreign_leader_gives_away_is_not_run_here_as_well(seed: int) -> None:
    """The assignment changes at about the time of a claim; where the other knows no ledger, the assignment is all there is."""

    async def test(cluster: SimCluster) -> None:
        java = Outsider(cluster)
        java.join()
        java.put(cluster.paths.leader, java.id, ephemeral=True)
        worker = await cluster.add()
        java.put(cluster.paths.item_instance(0), worker.host.instance_id)
        await cluster.until_time(9.97 + seed * 0.003)
        java.put(cluster.paths.resharding_necessary)
        if not marks(cluster).running:  # as ElasticJob's leader does: it waits for what runs, then assigns
            java.do(Delete(cluster.paths.item_instance(0)))
            java.put(cluster.paths.item_instance(0), java.id)
            java.remove(cluster.paths.resharding_necessary)
            moved = cluster.loop.time()
            await cluster.until_time(14)
            assert not [run for run in cluster.runs() if run.entered > moved]
        assert len(cluster.runs(instant(10))) <= 1

    story(test, seed=seed)


def test_the_fire_at_which_a_foreign_leader_deals_anew_is_run_by_whoever_has_the_item_then() -> None:
    """It removes the assignments and makes them anew, and everybody waits for that: nobody else has run the fire."""

    async def test(cluster: SimCluster) -> None:
        java = Outsider(cluster)
        java.join()
        java.put(cluster.paths.leader, java.id, ephemeral=True)
        worker = await cluster.add()
        for item, owner in enumerate((worker.host.instance_id, java.id)):
            java.put(cluster.paths.item_instance(item), owner)
        await cluster.until_time(8)
        java.put(cluster.paths.resharding_necessary)
        await cluster.until_time(10)
        for item in range(2):
            java.remove(cluster.paths.item_instance(item))
        await cluster.until_time(10.06)
        for item in range(2):
            java.put(cluster.paths.item_instance(item), worker.host.instance_id)
        java.remove(cluster.paths.resharding_necessary)
        await cluster.until_time(14)
        assert {(run.item, run.reason) for run in cluster.runs(instant(10))} == {(0, Reason.SCHEDULED), (1, Reason.SCHEDULED)}

    story(test, items=2)


def test_fires_that_a_foreign_instance_ran_are_not_caught_up() -> None:
    async def test(cluster: SimCluster) -> None:
        java = Outsider(cluster)
        java.join()
        java.put(cluster.paths.leader, java.id, ephemeral=True)
        for item in range(2):
            java.put(cluster.paths.item_instance(item), java.id)
        await cluster.add()
        await cluster.until_time(42)
        assert not cluster.runs()
        java.die()
        await cluster.until_time(58)
        assert [run.reason for run in cluster.runs()] == [Reason.SCHEDULED] * len(cluster.runs())
        assert {run.fire for run in cluster.runs()} == {instant(45), instant(50), instant(55)}
        assert not [record for record in cluster.evidence.not_run if record.why is not NotRun.MISSED]

    story(test, items=2)
