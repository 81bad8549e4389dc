"""What a scheduler does, and says, in a small cluster in virtual time: each story is one order of events."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from ejpy.config.document import to_document
from ejpy.coordination.ledger_document import encode
from ejpy.errors import RegistryUnavailable
from ejpy.logs import fields_of
from ejpy.registry.base import Create, Delete, SessionListener, SetData
from ejpy.scheduler.election import ELECTION_TIMEOUT_SECONDS
from ejpy.terms import NotRun, Reason
from ejpy.testing.cluster import SimCluster, instant, job_config
from ejpy.testing.virtual_loop import VirtualLoop, run_virtual
from ejpy.testing.worker import SESSION_TIMEOUT, SimRegistry


def change_config(cluster: SimCluster, **settings: Any) -> None:
    path = cluster.paths.config
    node = cluster.nodes()[path]
    cluster.config = cluster.config.model_copy(update=settings)
    cluster.store.commit(0, [SetData(path, to_document(cluster.config, previous=node.data), node.version)])


def said(caplog: pytest.LogCaptureFixture, start: str, level: int = logging.INFO) -> list[str]:
    """The lines of that level that begin so."""
    return [r.getMessage() for r in caplog.records if r.levelno == level and r.getMessage().startswith(start)]


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ejpy")


# ---- C5: the item count changes -----------------------------------------------------------------------------------------


def counts(cluster: SimCluster, second: float) -> dict[int, int]:
    """The item counts that the bodies of a fire were told, by item."""
    attempts = [record.attempt for record in cluster.evidence.started if record.attempt.scheduled_time == instant(second)]
    assert len(attempts) == len({attempt.sharding_item for attempt in attempts}), "an item was claimed twice"
    return {attempt.sharding_item: attempt.sharding_total_count for attempt in attempts}


@pytest.mark.parametrize("count", [5, 2])
@pytest.mark.parametrize("described", [False, True])
def test_c5_a_change_between_two_claims_of_a_fire_belongs_to_the_next(count: int, described: bool) -> None:
    """C5: one worker claims its items in time, the other comes to them only after the count was changed (and, once more,
    the description): both tell their bodies the count of when the fire was due."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=3, job_sharding_strategy_type="STICKY"))
        first, second = await cluster.add_leader(), await cluster.add()
        await cluster.until_shared(first, second)
        items = set(cluster.items_of(second))
        await cluster.until_time(9.9)
        second.pause()
        await cluster.until(lambda: counts(cluster, 10), "the first claims")
        change_config(cluster, sharding_total_count=count)
        await cluster.until_time(10.1)
        if described:
            change_config(cluster, description="changed")
        await cluster.until_time(10.2)
        second.resume()
        await cluster.until_time(14)
        left = {item for item in range(3) if item < count or item not in items}
        assert left <= counts(cluster, 10).keys() <= {0, 1, 2}
        assert set(counts(cluster, 10).values()) == {3}
        await cluster.until_time(19)
        assert counts(cluster, 15) == dict.fromkeys(range(count), count)

    run_virtual(story)


def test_c5_items_that_a_change_brings_take_part_in_the_next_fire_however_soon_it_comes() -> None:
    """The count is raised right before the job fires, and the items are made after."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=2))
        worker = await cluster.add_leader()
        await cluster.until_shared(worker)
        await cluster.until_time(9.999)
        change_config(cluster, sharding_total_count=4)
        await cluster.until_time(12)
        assert counts(cluster, 10) == {0: 4, 1: 4, 2: 4, 3: 4}
        assert counts(cluster, 5).keys() == {0, 1}

    run_virtual(story)


def test_a_body_that_runs_on_is_made_up_for_under_the_count_of_the_fire_it_overlapped() -> None:
    """The count changes from 2 to 3 at 12, something else at 17, while item 0 runs from 5 to 21: the make-up run is of 20."""

    async def story(loop: VirtualLoop) -> None:
        seconds = iter([16.0])
        cluster = SimCluster(loop, job_config(items=1, misfire=True))
        worker = await cluster.add_leader(body_seconds=lambda: next(seconds, 0.0))
        await cluster.until_shared(worker)
        await cluster.until_time(12)
        change_config(cluster, sharding_total_count=3)
        await cluster.until_time(17)
        change_config(cluster, description="changed")
        await cluster.until_time(24)
        assert counts(cluster, 5) == {0: 1}
        assert counts(cluster, 15) == {1: 3, 2: 3}
        assert counts(cluster, 20) == {0: 3, 1: 3, 2: 3}

    run_virtual(story)


def test_what_was_decided_under_an_old_configuration_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run lasts from 5 to 10.5, and the worker does not hear that since 9.9 nothing is due at 10: it must not record that
    instant as not run. The end of the body is recorded all the same."""

    async def story(loop: VirtualLoop) -> None:
        seconds = iter([5.5])
        cluster = SimCluster(loop, job_config(misfire=False))
        worker = await cluster.add_leader(body_seconds=lambda: next(seconds, 0.0))
        await cluster.until_shared(worker)
        await cluster.until_time(9.8)
        held_back: list[Callable[[], None]] = []
        with monkeypatch.context() as deaf:
            deaf.setattr(worker, "awake", held_back.append)  # as far as it is asked by the registry
            change_config(cluster, cron="0/7 * * * * ?")
            await cluster.until_time(10.4)
            await cluster.until(lambda: not running(cluster), "the end is recorded")
            await cluster.until_time(13)
        for event in held_back:
            event()
        await cluster.until_time(20)
        assert held_back
        assert cluster.evidence.not_run == []
        assert [run.fire for run in cluster.runs()] == [instant(5), instant(14)]

    run_virtual(story)


def running(cluster: SimCluster) -> bool:
    entry = cluster.entry(0)
    return entry is not None and entry.running


# ---- an entry of a later ejpy --------------------------------------------------------------------------------------------


def test_an_entry_of_a_later_ejpy_is_left_alone_by_owner_and_leader(caplog: pytest.LogCaptureFixture) -> None:
    """Its item rests where it is, which is said once by each; the others go on, also when the leader shares them out anew."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=4, job_sharding_strategy_type="AVG_ALLOCATION"))
        first, second = await cluster.add_leader(), await cluster.add()
        await cluster.until_shared(first, second)
        item = cluster.items_of(second)[0]
        path = cluster.paths.ledger(item)
        later = json.dumps({"v": 2, "meaning": "unknown"}).encode()
        second.crash()
        cluster.store.commit(0, [SetData(path, later)])
        await cluster.until(lambda: len(cluster.items_of(first)) == 3, "the other items move")
        third = await cluster.add()
        await cluster.until_time(30)
        node = cluster.store.read(path)
        assert node is not None
        assert node.data == later
        assert all(run.item != item for run in cluster.runs(instant(20)))
        assert {run.item for run in cluster.runs(instant(20))} == {0, 1, 2, 3} - {item}
        assert len(cluster.items_of(third)) in (1, 2)
        lines = [r for r in caplog.records if "of a later ejpy" in r.getMessage()]
        assert len(lines) == 1
        assert fields_of(lines[0])["item"] == item

    run_virtual(story)


def test_an_entry_of_a_later_ejpy_is_taken_up_when_it_is_replaced() -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=2))
        first, second = await cluster.add_leader(), await cluster.add()
        await cluster.until_shared(first, second)
        item = cluster.items_of(second)[0]
        entry = cluster.entry(item)
        assert entry is not None
        second.crash()
        cluster.store.commit(0, [SetData(cluster.paths.ledger(item), b'{"v":2}')])
        await cluster.until_time(3 * SESSION_TIMEOUT)
        assert cluster.items_of(first) == [1 - item]
        cluster.store.commit(0, [SetData(cluster.paths.ledger(item), encode(entry))])
        await cluster.until_shared(first)

    run_virtual(story)


@pytest.mark.parametrize("data", [b"rubbish", b'{"v":2}', None])
def test_what_becomes_of_an_entry_that_is_waited_for_does_not_stop_the_leader(data: bytes | None) -> None:
    """An item that shall move runs; while the leader waits for its end, somebody breaks its entry, or removes it."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=2, cron="* * * * * ?", job_sharding_strategy_type="AVG_ALLOCATION"))
        bodies = iter([15.0, 15.0])
        first = await cluster.add_leader(body_seconds=lambda: next(bodies, 0.0))
        await cluster.until_shared(first)
        await cluster.until(lambda: len(first.job.running) == 2, "both run")
        second = await cluster.add()
        await cluster.until(lambda: hand_over_asked(cluster), "the leader waits")
        moved = asked(cluster)
        path = cluster.paths.ledger(moved)
        cluster.store.commit(0, [Delete(path) if data is None else SetData(path, data)])
        await cluster.until_time(25)
        third = await cluster.add()
        await cluster.until(lambda: third.host.instance_id in cluster.view().instances, "the third has joined")
        await cluster.until_time(30)
        assert cluster.leader() is first
        other = 1 - moved
        assert cluster.runs(instant(29))[0].item == other or data != b'{"v":2}'
        assert second.host.instance_id in cluster.view().instances

    run_virtual(story)


def hand_over_asked(cluster: SimCluster) -> bool:
    return any(entry is not None and entry.hand_over for entry in map(cluster.entry, range(2)))


def asked(cluster: SimCluster) -> int:
    return next(item for item in range(2) if (entry := cluster.entry(item)) is not None and entry.hand_over)


# ---- what blocks silently ----------------------------------------------------------------------------------------------------


def test_an_item_that_is_said_to_run_on_a_live_worker_is_waited_for_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=2, claim_timeout=timedelta(seconds=6)))
        first, second = await cluster.add_leader(), await cluster.add()
        await cluster.until_shared(first, second)
        await cluster.until_time(11)
        [item], [other] = cluster.items_of(second), cluster.items_of(first)
        entry = cluster.entry(item)
        assert entry is not None
        forged = replace(entry, running=True, owner=first.host.instance_id, claimed=instant(10), ended=None, outcome=None)
        cluster.store.commit(0, [SetData(cluster.paths.ledger(item), encode(forged))])
        await cluster.until_time(21)
        start = "not run here: by its ledger entry it runs on"
        assert said(caplog, start, logging.WARNING) == []
        await cluster.until_time(60)
        [line] = said(caplog, start, logging.WARNING)
        assert f"{first.host.instance_id} since {instant(10)}" in line
        assert [run.item for run in cluster.runs(instant(55))] == [other]

    run_virtual(story)


def test_an_item_that_is_said_to_run_here_and_does_not_is_taken_for_a_lost_attempt() -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=1))
        worker = await cluster.add_leader()
        await cluster.until_shared(worker)
        await cluster.until_time(11)
        entry = cluster.entry(0)
        assert entry is not None
        forged = replace(entry, running=True, owner=worker.host.instance_id, claimed=instant(10), ended=None, outcome=None)
        cluster.store.commit(0, [SetData(cluster.paths.ledger(0), encode(forged))])
        await cluster.until_time(21)
        assert [run.reason for run in cluster.runs(instant(10))] == [Reason.SCHEDULED, Reason.OWNER_LOST]
        assert len(cluster.runs(instant(20))) == 1

    run_virtual(story)


def test_a_latch_node_whose_owner_does_not_take_the_leadership_is_named(caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config())
        worker = await cluster.add_leader()
        await cluster.until_shared(worker)
        session = cluster.store.open_session(10_000, lambda: None)
        cluster.store.commit(0, [Create(f"{cluster.paths.latch}/!garbage")])
        stuck = f"{cluster.paths.latch}/_c_stuck-latch--000000001"
        cluster.store.commit(session, [Create(stuck, ephemeral=True), Delete(cluster.paths.leader)])
        await cluster.until_time(loop.time() + ELECTION_TIMEOUT_SECONDS - 1)
        assert said(caplog, "no leader", logging.WARNING) == []
        await cluster.until_time(loop.time() + 2)
        [line] = said(caplog, "no leader", logging.WARNING)
        assert f"{stuck} of session {session:#x} stands first" in line
        cluster.store.close_session(session)
        await cluster.until(lambda: cluster.leader() is worker, "it leads again")

    run_virtual(story)


# ---- nothing is replayed after an outage -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outage", "recovered"), [(timedelta(seconds=20), True), (timedelta(seconds=90), False)])
def test_a_run_that_an_outage_of_the_whole_cluster_ended_is_recovered_only_if_that_was_short(
    outage: timedelta, recovered: bool
) -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(cron="0 0/1 * * * ?", misfire_grace=timedelta(minutes=1)))
        worker = await cluster.add_leader(body_seconds=lambda: 1000.0)
        await cluster.until_shared(worker)
        await cluster.until_time(61)
        worker.crash()
        await cluster.until_time(61 + outage.total_seconds())
        again = await cluster.add()
        await cluster.until_shared(again)
        await cluster.until_time(loop.time() + 5)
        runs = [run.reason for run in cluster.runs(instant(60))]
        assert runs == [Reason.SCHEDULED, *([Reason.OWNER_LOST] if recovered else [])]
        lost = [record for record in cluster.evidence.not_run if record.until == instant(60)]
        assert [(record.first, record.why) for record in lost] == ([] if recovered else [(instant(60), NotRun.TOO_LATE)])

    run_virtual(story)


def test_a_long_run_is_recovered_by_whoever_saw_its_owner_go() -> None:
    """It had lasted much longer than `misfire_grace`."""

    async def story(loop: VirtualLoop) -> None:
        config = job_config(cron="0 0/1 * * * ?", misfire_grace=timedelta(seconds=30), misfire=False)
        cluster = SimCluster(loop, config)
        workers = [await cluster.add_leader(body_seconds=lambda: 170.0), await cluster.add(body_seconds=lambda: 170.0)]
        await cluster.until_shared(*workers)
        await cluster.until_time(60 + 120)
        next(worker for worker in workers if worker.job.running).crash()
        await cluster.until_time(loop.time() + 3 * SESSION_TIMEOUT)
        assert [run.reason for run in cluster.runs(instant(60))] == [Reason.SCHEDULED, Reason.OWNER_LOST]

    run_virtual(story)


# ---- what an operator reads ----------------------------------------------------------------------------------------------------


def test_instances_items_and_resharding_are_told_in_words(caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=10, job_sharding_strategy_type="AVG_ALLOCATION"))

        async def told(*lines: str) -> None:
            starts = ("instance ", "items here", "resharded", "there ")
            await cluster.until(lambda: sum(len(said(caplog, start)) for start in starts) >= len(lines), f"{lines}")
            assert sorted(line for start in starts for line in said(caplog, start)) == sorted(lines)
            caplog.clear()

        first = await cluster.add_leader()
        a = first.host.instance_id
        await told("there are 0 other instances", "items here: 0-9", f"resharded: 0-9 to {a}")
        second = await cluster.add()
        b = second.host.instance_id
        here = ("items here: 0-4", "items here: 5-9", f"resharded: 0-4 to {b}")
        await told(f"instance {b} joined; 2 now", "there is 1 other instance", *here)
        await second.stop(grace=1)
        await cluster.until_shared(first)
        await told(f"instance {b} left; 1 now", "items here: 0-9", f"resharded: 0-4 to {a}")
        change_config(cluster, sharding_total_count=8)
        await told("items here: 0-7", "resharded: 8-9 removed")
        await cluster.until_time(loop.time() + 30)
        await told()

    run_virtual(story)


# ---- listeners of the session -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("starts", [True, False])
def test_a_job_that_left_or_could_not_be_started_listens_no_more(starts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker tries again and again to start a job; each try must leave nothing behind."""
    listening: set[object] = set()
    subscribe = SimRegistry.on_session

    def on_session(registry: SimRegistry, listener: SessionListener) -> Callable[[], None]:
        take_back, key = subscribe(registry, listener), object()
        listening.add(key)

        def taken_back() -> None:
            listening.discard(key)
            take_back()

        return taken_back

    monkeypatch.setattr(SimRegistry, "on_session", on_session)

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config())
        worker = cluster.make()
        await worker.registry.start(10)
        if starts:
            await worker.job.start()
            await cluster.until_shared(worker)
            assert len(listening) == 3
        else:
            worker.registry.disconnect()
            with pytest.raises(RegistryUnavailable):
                await worker.job.start()
        await worker.job.leave()
        assert not listening

    run_virtual(story)


# ---- clocks -------------------------------------------------------------------------------------------------------------


def test_a_worker_whose_clock_is_set_right_takes_part_again(caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=4, cron="0/10 * * * * ?", max_time_diff_seconds=60))
        right, wrong = await cluster.add_leader(), await cluster.add(ahead=timedelta(minutes=2))
        await cluster.until_time(99)
        assert {run.worker for run in cluster.runs()} == {right.name}
        wrong.clock.ahead = timedelta(0)
        await cluster.until(
            lambda: {run.worker for run in cluster.runs()} == {right.name, wrong.name}, "it takes part again", within=90
        )

    run_virtual(story)
    assert len(said(caplog, "nothing is run here", logging.ERROR)) == 1
    assert len(said(caplog, "this clock is near enough now")) == 1


# ---- owners that leave fires unclaimed ----------------------------------------------------------------------------------


def test_whether_a_fire_was_left_unclaimed_is_judged_by_the_configuration_of_then(caplog: pytest.LogCaptureFixture) -> None:
    """The leader looks, some time after a fire, whether everybody claimed it. Meanwhile owners were given more time."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=4, cron="30 * * * * ?", claim_timeout=timedelta(seconds=6)))
        _, busy = await cluster.add_leader(), await cluster.add()
        await cluster.until_shared(*cluster.workers)
        busy.runner.waiting = 100_000  # it cannot begin anything
        await cluster.until_time(31)
        change_config(cluster, claim_timeout=timedelta(hours=1))
        await cluster.until_time(80)
        assert len(cluster.runs(instant(30))) == 2

    run_virtual(story)
    assert not [r for r in caplog.records if "left the fire" in r.getMessage()]
