"""Leaders that are lost, doubted, killed and elected all at once, on real worker processes and a real ZooKeeper server.

Whatever happens to a leader: there is another (or the same again) soon, there is never more than one, and nobody but the
present leader assigns items. The last is read off ZooKeeper's transaction log, which knows the session of every write.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ejpy.coordination.ledger import JUST_BEFORE
from ejpy.coordination.paths import JobPaths
from ejpy.registry.base import Create, Delete, SetData
from ejpy.terms import Reason
from tests.support.cluster import Cluster, believes_to_lead
from tests.support.transactions import Kind, transactions
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer


def assert_only_leaders_assigned(server: ZooKeeperServer, paths: JobPaths, by_hand: Container[int] = ()) -> None:
    """Every write under `sharding` was made by the session that owned the leader's node then, or is a revision of `by_hand`."""
    leader: int | None = None
    assigned = 0
    for transaction in transactions(server, paths.root):
        for change in transaction.changes:
            if change.path == paths.leader and change.kind is not Kind.CHECK:
                leader = transaction.session_id if change.kind is Kind.CREATE else None
            elif change.path.startswith(paths.sharding) and transaction.revision not in by_hand:
                assert transaction.session_id == leader, f"{transaction} is not of the leader, {leader}"
                assigned += 1
    assert assigned > 0


def wait_until_one_believes(cluster: Cluster) -> WorkerProcess:
    """Wait until exactly one of the living workers believes that it leads, and the tree says so too; returns it."""

    def the_one() -> WorkerProcess | None:
        living = [worker for worker in cluster.workers if worker.alive]
        leader = cluster.wait_for_leader(living)
        return leader if [worker for worker in living if believes_to_lead(worker)] == [leader] else None

    return wait_until(the_one, PATIENCE_SECONDS, "exactly one worker believes that it leads")


# ---- A6 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paused", [False, True], ids=["awake", "paused"])
def test_a6_a_leader_whose_session_ended_leads_no_more_and_takes_part_again(
    paused: bool, server: ZooKeeperServer, tmp_path: Path
) -> None:
    """A6: the leader is not told that it lost, and goes on as if it led. Here it is awake, or finds out after a pause."""
    with Cluster(server.address, tmp_path, items=6) as cluster:
        a, b = cluster.start("a", "b")
        cluster.wait_until_assigned(a, b)
        old = wait_until_one_believes(cluster)
        other = b if old is a else a
        if paused:
            old.pause()
        ended = cluster.expire(old)
        if paused:
            cluster.wait_for_leader([other])
            cluster.wait_until_assigned(other)
            old.resume()

        cluster.wait_until_assigned(a, b)
        leader = wait_until_one_believes(cluster)
        assert cluster.session_of(old) not in (ended, None)
        assert old.alive
        row = cluster.jobs_list()
        assert (row["leader"], row["instances"], row["status"]) == (cluster.id_of(leader), 2, "OK")
        [fire, *_] = cluster.wait_for_fires(1)
        runs = cluster.fires()[fire]
        assert {run.pid for item in runs.values() for run in item} == {a.pid, b.pid}
        cluster.stop()
        assert_only_leaders_assigned(server, cluster.paths)


# ---- A5 -----------------------------------------------------------------------------------------------------------


def test_a5_workers_that_come_at_the_same_moment_elect_one_leader_and_share_the_first_fire(
    own_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """A5: election and sharding at the same moment block each other. Three workers of a new job are started one right after
    the other, or wait at the door of a frozen server and are let in together."""
    for number in range(4):
        directory = tmp_path / str(number)
        directory.mkdir()
        let_in = number % 2 == 1
        with Cluster(own_server.address, directory, items=7) as cluster:
            if let_in:
                own_server.freeze()
            workers = cluster.launch("a", "b", "c")
            if let_in:
                for worker in workers:
                    cluster.id_of(worker)
                own_server.thaw()
            cluster.wait_until_assigned(*workers)
            wait_until_one_believes(cluster)
            cluster.wait_for_fires(1)
            fires = cluster.fires()
            first = fires[min(fires)]
            assert {item: len(runs) for item, runs in first.items()} == dict.fromkeys(range(7), 1)
            cluster.stop()
            assert_only_leaders_assigned(own_server, cluster.paths)


# ---- A4 -----------------------------------------------------------------------------------------------------------

EVERY_OTHER_SECOND = {"cron": "0/2 * * * * ?"}


def next_fires(after: datetime) -> tuple[datetime, datetime]:
    """The next two instants of EVERY_OTHER_SECOND."""
    second = after.replace(microsecond=0, second=after.second - after.second % 2)
    return second + timedelta(seconds=2), second + timedelta(seconds=4)


def test_a4_assignments_that_were_damaged_are_mended_by_the_next_fire_but_one(server: ZooKeeperServer, tmp_path: Path) -> None:
    """A4: a sharding transaction that failed left rubbish and a stale mark, and all items stopped until a restart."""
    with Cluster(server.address, tmp_path, items=4, settings=EVERY_OTHER_SECOND) as cluster:
        workers = cluster.start("a", "b")
        cluster.wait_until_assigned(*workers)
        paths = cluster.paths
        cluster.change(Create(f"{paths.root}/leader/sharding"))
        cluster.wait_for_fires(1)
        by_hand = set()
        for strange in (b"", b"10.9.9.9@-@4711", b"\xff\xfe/\x00"):  # a fire has just ended: idle until the next
            damage = (
                SetData(paths.item_instance(1), strange),
                Delete(paths.item_instance(2)),
                Delete(paths.item(2)),
                Create(paths.resharding_necessary),
                Create(paths.resharding_processing),
            )
            by_hand.add(cluster.change(*damage))
            damaged = datetime.now(timezone.utc)
            _, fire = next_fires(damaged)

            cluster.wait_for_fires(1, after=fire - JUST_BEFORE)
            runs = cluster.fires(damaged)
            assert all(len(attempts) == 1 for by_item in runs.values() for attempts in by_item.values()), "an item ran twice"
            assert runs[fire].keys() == set(range(4)), "an item did not run"
            cluster.wait_until_assigned(*workers)
            view = cluster.view()
            assert (view.necessary, view.processing) == (False, False)
        assert cluster.jobs_list()["status"] == "OK"
        cluster.stop()
        assert_only_leaders_assigned(server, paths, by_hand)


# ---- A9 -----------------------------------------------------------------------------------------------------------


def test_a9_the_schedule_goes_on_however_often_the_leader_is_killed(server: ZooKeeperServer, tmp_path: Path) -> None:
    """A9: after a re-election the schedule stopped or skipped. The leader is killed, and another worker started, three times.

    Every fire is run once, or recorded as not run.
    """
    session_seconds, kills = 4, 3
    settings = {"failover": False}
    with Cluster(server.address, tmp_path, items=1, session_seconds=session_seconds, settings=settings) as cluster:
        cluster.start("a", "b", "c")
        [first] = cluster.wait_for_fires(1)
        for number in range(kills):
            leader = wait_until_one_believes(cluster)
            leader.kill9()
            leader.wait_exit(PATIENCE_SECONDS)
            cluster.launch(f"d{number}")
            living = [worker for worker in cluster.workers if worker.alive]
            cluster.wait_for_leader(living)
            wait_until(lambda: len(cluster.view().instances) == 3, PATIENCE_SECONDS, "the new worker takes part")
            cluster.wait_for_fires(1)
        [*_, last] = cluster.wait_for_fires(2)
        fires = cluster.fires()
        not_run = cluster.ledger()[0].not_run
        cluster.stop()

        assert all(len(by_item[0]) == 1 for by_item in fires.values()), "a fire was run twice"
        due = [first + timedelta(seconds=n) for n in range(int((last - first).total_seconds()) + 1)]
        missed = [fire for fire in due if fire not in fires]
        assert all(any(one.after < fire <= one.until for one in not_run) for fire in missed), "a fire has vanished"
        assert len(missed) <= kills * (session_seconds + 1)
        made_up = {run.reason for run in cluster.executions()} - {Reason.SCHEDULED}
        assert made_up <= {Reason.CATCH_UP}
        assert_only_leaders_assigned(server, cluster.paths)


# ---- owners that go while the leader waits for them ---------------------------------------------------------------


@pytest.mark.parametrize("drains", ["leader", "follower"])
def test_what_a_draining_worker_runs_is_recovered_when_it_is_killed(drains: str, server: ZooKeeperServer, tmp_path: Path) -> None:
    """A worker is told to stop, does not end in time, and is killed: as containers end. The leader was waiting for the end of
    what it ran, to move it; nobody tells it that this end will not come, but that the worker is gone."""
    hold = tmp_path / "hold"
    with Cluster(server.address, tmp_path, items=2, hold=str(hold)) as cluster:
        workers = cluster.start("a", "b", grace=PATIENCE_SECONDS)
        cluster.wait_until_assigned(*workers)
        leader = wait_until_one_believes(cluster)
        [follower] = [worker for worker in workers if worker is not leader]
        draining, stays = (leader, follower) if drains == "leader" else (follower, leader)
        hold.touch()
        wait_until(lambda: len([run for run in cluster.executions() if run.end is None]) == 2, PATIENCE_SECONDS, "both items run")
        [lost] = [run for run in cluster.executions() if run.end is None and run.pid == draining.pid]

        draining.sigterm()
        wait_until(lambda: cluster.ledger()[lost.item].hand_over, PATIENCE_SECONDS, "the leader waits for the item")
        draining.kill9()
        cluster.wait_until_assigned(stays)
        hold.unlink()
        cluster.wait_for_fires(1)
        _, again = cluster.fires()[lost.scheduled_time][lost.item]
        assert (again.pid, again.attempt, again.reason, again.how) == (stays.pid, 2, Reason.OWNER_LOST, "returned")
        cluster.stop()
        assert_only_leaders_assigned(server, cluster.paths)
