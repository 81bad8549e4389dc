"""What operators order through a job's nodes: triggers above all. Each order has its effect once, wherever its items go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from ejpy.config.document import to_document
from ejpy.coordination.view import DISABLED, ENABLED
from ejpy.terms import NotRun, Outcome, Reason
from ejpy.testing.bodies import Run
from ejpy.testing.cluster import SimCluster, instant, job_config
from ejpy.testing.outsider import Outsider
from ejpy.testing.virtual_loop import VirtualLoop, run_virtual
from ejpy.testing.worker import SimWorker

NEVER = "0 0 0 1 1 ? 2099"
FAR = 200.0
"""Virtual seconds that no story here lasts."""


def triggered(cluster: SimCluster) -> list[Run]:
    return [run for run in cluster.runs() if run.reason is Reason.TRIGGER]


def no_trigger_left(cluster: SimCluster) -> bool:
    return not [path for path in cluster.nodes() if path.startswith(cluster.paths.triggers + "/")]


def story(test: Callable[[SimCluster], Coroutine[Any, Any, None]], **settings: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        await test(SimCluster(loop, job_config(**settings)))

    run_virtual(main)


async def workers(cluster: SimCluster, number: int, **how: Any) -> list[SimWorker]:
    found = [await cluster.add(**how) for _ in range(number)]
    await cluster.until_shared(*found)
    return found


def test_j2_a_trigger_runs_a_job_that_was_just_deployed_on_all_its_workers() -> None:
    """J2: a daily job that had never been sharded could not be triggered."""

    async def test(cluster: SimCluster) -> None:
        a, b = await cluster.add(), await cluster.add()
        await cluster.until(lambda: len(cluster.view().instances) == 2, "both are registered")
        Outsider(cluster).trigger()
        await cluster.until(lambda: len(triggered(cluster)) == 4, "all items run", within=5)
        await cluster.until_time(cluster.loop.time() + 5)
        assert Counter(run.item for run in triggered(cluster)) == Counter(range(4))
        assert {run.worker for run in triggered(cluster)} == {a.name, b.name}
        assert {run.attempt for run in triggered(cluster)} == {1}
        assert no_trigger_left(cluster)

    story(test, items=4, cron=NEVER)


def test_j1_a_trigger_has_an_instant_of_its_own_and_moves_no_schedule() -> None:
    """J1: the flag stayed, and the schedule stopped."""

    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 1)
        await cluster.until_time(7)
        for seconds in (7, 12, 17):
            await cluster.until_time(seconds)
            Outsider(cluster).trigger()
        await cluster.until_time(29)
        assert len(triggered(cluster)) == 3
        assert no_trigger_left(cluster)
        assert len({run.fire for run in triggered(cluster)}) == 3
        assert [run.fire for run in cluster.runs() if run.reason is Reason.SCHEDULED] == [instant(s) for s in (5, 10, 15, 20, 25)]
        assert not cluster.evidence.not_run

    story(test)


def test_triggers_that_come_while_the_item_runs_are_one_run_when_it_ends() -> None:
    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 1, body_seconds=lambda: 8.0)
        await cluster.until(lambda: cluster.runs(), "it runs", within=70)
        began = cluster.loop.time()
        for _ in range(3):
            await cluster.until_time(cluster.loop.time() + 1)
            Outsider(cluster).trigger()
            await cluster.until(lambda: no_trigger_left(cluster), "the order is taken note of")
        assert len(cluster.runs()) == 1
        await cluster.until_time(began + 30)
        first, second = cluster.runs()
        assert second.reason is Reason.TRIGGER
        assert first.ended is not None
        assert first.ended <= second.entered < first.ended + 1

    story(test, cron="0 * * * * ?")


def test_w14_two_triggers_in_quick_succession_are_two_runs_or_one_but_never_none() -> None:
    """W14: the second deletes the first before its target has seen it, so that neither is seen."""

    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 2)
        outsider = Outsider(cluster)
        outsider.trigger()
        outsider.trigger()
        await cluster.until_time(cluster.loop.time() + 10)
        assert set(Counter(run.item for run in triggered(cluster)).values()) <= {1, 2}
        assert {run.item for run in triggered(cluster)} == set(range(3))
        assert no_trigger_left(cluster)

    story(test, items=3, cron=NEVER)


@pytest.mark.parametrize("what", ["item", "job"])
def test_j3_a_trigger_of_what_is_disabled_runs_nothing_and_is_not_replayed(what: str) -> None:
    """J3: a trigger of a disabled job was accepted, and nothing ran."""

    async def test(cluster: SimCluster) -> None:
        [worker] = await workers(cluster, 1)
        outsider = Outsider(cluster)
        switch = cluster.paths.item_disabled(0) if what == "item" else cluster.paths.server(worker.host.ip)
        outsider.put(switch, b"" if what == "item" else DISABLED)
        await cluster.until_time(cluster.loop.time() + 1)
        outsider.trigger()
        await cluster.until(lambda: cluster.evidence.not_run and no_trigger_left(cluster), "it is recorded, and gone")
        if what == "item":
            outsider.remove(switch)
        else:
            outsider.put(switch, ENABLED)
        await cluster.until_time(cluster.loop.time() + 20)
        assert not cluster.runs()
        assert [record.why for record in cluster.evidence.not_run] == [NotRun.DISABLED]

    story(test, cron=NEVER)


def test_a_trigger_goes_with_its_item_when_that_is_moved_before_it_ran() -> None:
    async def test(cluster: SimCluster) -> None:
        [a] = await workers(cluster, 1, body_seconds=lambda: 6.0)
        Outsider(cluster).trigger()
        await cluster.until(lambda: len(cluster.runs()) == 2, "both items run")
        Outsider(cluster).trigger()  # waits for the ends
        await cluster.until(lambda: no_trigger_left(cluster), "the order is taken note of")
        b = await cluster.add(body_seconds=lambda: 0.5)
        await a.stop(grace=30)
        await cluster.until(lambda: len(cluster.runs()) == 4, "both items run again", within=40)
        await cluster.until_time(cluster.loop.time() + 20)
        second = cluster.runs()[2:]
        assert {run.worker for run in second} == {b.name}
        assert {(run.item, run.reason) for run in second} == {(0, Reason.TRIGGER), (1, Reason.TRIGGER)}
        assert len(cluster.runs()) == 4

    story(test, items=2, cron=NEVER)


@pytest.mark.parametrize("failover", [True, False])
def test_a_triggered_run_whose_worker_dies_is_recovered_or_recorded(failover: bool) -> None:
    async def test(cluster: SimCluster) -> None:
        a = await cluster.add_leader(body_seconds=lambda: 6.0)
        await cluster.until_time(cluster.loop.time() + 1)
        Outsider(cluster).trigger()
        await cluster.until(lambda: cluster.runs(), "it runs")
        await cluster.add()
        a.crash()
        await cluster.until_time(cluster.loop.time() + 30)
        again = [run for run in cluster.runs() if run.attempt == 2]
        assert len(again) == (1 if failover else 0)
        assert [(record.why, record.until) for record in cluster.evidence.not_run] == (
            [] if failover else [(NotRun.INTERRUPTED, cluster.runs()[0].fire)]
        )
        if failover:
            assert again[0].fire == cluster.runs()[0].fire
            assert again[0].reason is Reason.OWNER_LOST
            assert again[0].outcome is Outcome.SUCCEEDED
        entry = cluster.entry(0)
        assert entry is not None
        assert entry.accounted_until < again[0].fire if again else True

    story(test, cron=NEVER, failover=failover)


def test_j10_a_trigger_for_an_instance_that_just_died_leaves_no_node() -> None:
    async def test(cluster: SimCluster) -> None:
        a, b = await workers(cluster, 2)
        b.crash()
        Outsider(cluster).trigger()
        await cluster.until(lambda: no_trigger_left(cluster), "no order is left")
        assert {run.worker for run in triggered(cluster)} == {a.name}

    story(test, items=2, cron=NEVER)


def test_j10_what_a_trigger_asked_of_an_instance_that_died_is_run_by_others() -> None:
    """Its node was written while the instance lived, as far as anybody could know. No later fire of a one-off job would make up
    for it."""

    async def test(cluster: SimCluster) -> None:
        a, b = await workers(cluster, 2)
        lost = set(cluster.items_of(b))
        assert lost
        b.crash()
        Outsider(cluster).trigger()
        await cluster.until(lambda: len(triggered(cluster)) == 4, "all items run", within=40)
        assert {(run.item, run.worker) for run in triggered(cluster)} == {(item, a.name) for item in range(4)}
        await cluster.until(lambda: no_trigger_left(cluster), "no order is left")
        await cluster.until_time(cluster.loop.time() + 20)
        assert len(cluster.runs()) == 4
        assert cluster.evidence.not_run == []

    story(test, items=4, cron=None)


def test_all_items_that_one_order_triggers_have_the_same_instant() -> None:
    """So that what is called once for all sees one fire, whichever workers run its items."""

    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 2)
        Outsider(cluster).trigger()
        await cluster.until(lambda: len(triggered(cluster)) == 4, "all items run")
        assert len({run.worker for run in triggered(cluster)}) == 2
        assert len({run.fire for run in triggered(cluster)}) == 1

    story(test, items=4, cron=NEVER)


@pytest.mark.parametrize("seed", range(10))
def test_whatever_the_network_does_a_trigger_runs_each_item_once(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=3, cron=NEVER), seed=seed)
        await workers(cluster, 2)
        cluster.trouble.lost_requests = cluster.trouble.lost_replies = 0.2
        Outsider(cluster).trigger()
        await cluster.until(lambda: no_trigger_left(cluster) and len(triggered(cluster)) >= 3, "all have run", within=120)
        cluster.trouble.lost_requests = cluster.trouble.lost_replies = 0.0
        await cluster.until_time(cluster.loop.time() + 30)
        assert Counter(run.item for run in triggered(cluster)) == Counter(range(3))
        assert {run.reason for run in cluster.runs()} <= {Reason.TRIGGER, Reason.OWNER_LOST}

    run_virtual(main)


# ---- sharding --------------------------------------------------------------------------------------------------------


def test_single_sharding_balance_takes_turns() -> None:
    """A job of one item moves on to the next server after each run, and stays with those that are there."""

    async def test(cluster: SimCluster) -> None:
        await workers(cluster, 3)
        await cluster.until_time(61)
        fires = [instant(seconds) for seconds in range(5, 61, 5)]
        assert [run.fire for run in cluster.runs()] == fires
        turns = [run.worker for run in cluster.runs()]
        assert Counter(turns) == Counter({"1": 4, "2": 4, "3": 4})
        assert all(before != after for before, after in pairwise(turns))
        cluster.workers[1].crash()
        await cluster.until_time(120)
        assert {run.worker for run in cluster.runs() if run.entered > 80} == {"1", "3"}
        assert not [run for run in cluster.runs() if run.attempt > 1]

    story(test, job_sharding_strategy_type="SINGLE_SHARDING_BALANCE")


def test_static_sharding_moves_nothing_when_workers_come_and_go() -> None:
    """Only another item count deals anew (protocol reference, section 4.7)."""

    async def test(cluster: SimCluster) -> None:
        a = await cluster.add_leader()
        await cluster.until(lambda: len(cluster.items_of(a)) == 4, "all items are its own")
        b = await cluster.add()
        await cluster.until_time(21)
        assert len(cluster.items_of(a)) == 4
        config = cluster.config.model_copy(update={"sharding_total_count": 6})
        node = cluster.store.read(cluster.paths.config)
        assert node is not None
        Outsider(cluster).put(cluster.paths.config, to_document(config, previous=node.data))
        await cluster.until(lambda: len(cluster.view().assigned) == 6, "the new items are assigned")
        owners = Counter(assigned.instance_id for assigned in cluster.view().assigned.values())
        assert owners == Counter({a.host.instance_id: 3, b.host.instance_id: 3})

    story(test, items=4, static_sharding=True)
