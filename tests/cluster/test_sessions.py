"""Sessions that end while their workers live, on real worker processes and a real ZooKeeper server.

A session ends because its worker was paused, because it was cut off, or by the server's decision. In each case the worker
takes part again by itself, and what it was running is either still its own, or was recovered elsewhere and does not count.
"""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

import pytest

from ejpy.coordination.ledger_document import decode
from ejpy.errors import RegistryUnavailable, SessionExpired, StaleAttempt
from ejpy.terms import Outcome, Reason
from tests.cluster.bodies import GATE_VARIABLE, notes
from tests.support.cluster import Cluster
from tests.support.jobs import Execution
from tests.support.proxy import Proxy
from tests.support.transactions import Kind, transactions
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer

# ---- A1 -----------------------------------------------------------------------------------------------------------


def test_a1_a_worker_that_was_paused_leads_and_fires_again(server: ZooKeeperServer, tmp_path: Path) -> None:
    """A1: after a pause that its session did not survive, a job's only worker waited for a leader for ever. Five times."""
    session_seconds = 1.0
    with Cluster(server.address, tmp_path, items=2, session_seconds=session_seconds) as cluster:
        [worker] = cluster.start("a")
        for _ in range(5):
            session = cluster.session_of(worker)
            end = time.monotonic() + 3 * session_seconds
            worker.pause()
            wait_until(lambda: cluster.session_of(worker) is None, PATIENCE_SECONDS, "the session ends")
            time.sleep(max(0.0, end - time.monotonic()))  # not to wait for anything: so long is the pause
            worker.resume()
            cluster.wait_for_leader([worker])
            assert cluster.session_of(worker) != session
            cluster.wait_for_fires(1)
        assert all(len(runs) == 1 for fire in cluster.fires().values() for runs in fire.values())
        cluster.stop()


# ---- B5 -----------------------------------------------------------------------------------------------------------


def test_b5_a_worker_whose_session_ended_five_times_stops_in_time(server: ZooKeeperServer, tmp_path: Path) -> None:
    """B5: a call that blocks in a connection listener hung the client for ever, and its end too."""
    grace = 2
    with Cluster(server.address, tmp_path) as cluster:
        [worker] = cluster.start("a", grace=grace)
        ended = [cluster.expire(worker) for _ in range(5)]
        assert len(set(ended)) == 5
        worker.sigterm()
        assert worker.wait_exit(grace + 5) == 0
        cluster.stop()


# ---- B6 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deaf", [False, True], ids=["stops-when-told", "runs-on"])
def test_b6_what_runs_when_the_session_ends_stays_visible_or_is_recovered(
    deaf: bool, server: ZooKeeperServer, tmp_path: Path
) -> None:
    """B6: after an expiry the ephemeral nodes were not restored: the instance was missing, and its items still ran."""
    hold = tmp_path / "hold"
    hold.touch()
    with Cluster(server.address, tmp_path, items=2, hold=str(hold), deaf=deaf) as cluster:
        [worker] = cluster.start("a")
        first = wait_until(lambda: begun(cluster, 1), PATIENCE_SECONDS, "both items run")
        ended = cluster.expire(worker)

        last = first if deaf else wait_until(lambda: begun(cluster, 2), PATIENCE_SECONDS, "both items run again")
        wait_until(lambda: cluster.session_of(worker) not in (ended, None), PATIENCE_SECONDS, "a new session")
        cluster.wait_until_assigned(worker)
        instance = cluster.id_of(worker)
        for item, row in cluster.shards_list().items():
            assert (row["status"], row["instance"], row["attempt"]) == ("RUNNING", instance, last[item].attempt)
            assert row["fencing_token"] == last[item].token
        hold.unlink()
        cluster.wait_for_fires(1)
        for item, run in first.items():
            attempts = [one for one in cluster.executions() if (one.scheduled_time, one.item) == (run.scheduled_time, item)]
            assert [one.how for one in attempts] == (["returned"] if deaf else ["raised", "returned"])
            assert [one.reason for one in attempts[1:]] == ([] if deaf else [Reason.OWNER_LOST])
            assert cluster.counted(run.scheduled_time, item) == 1
        cluster.stop()


def begun(cluster: Cluster, attempt: int) -> dict[int, Execution] | None:
    """The runs of the first fire on that attempt, when all items are there."""
    runs = cluster.executions()
    found = {run.item: run for run in runs if run.scheduled_time == runs[0].scheduled_time and run.attempt == attempt}
    return found if len(found) == cluster.items else None


# ---- a partition --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaves", ["in-the-hole", "afterwards"])
def test_what_a_worker_in_a_black_hole_runs_is_told_to_stop_and_recovered_elsewhere(
    leaves: str, server: ZooKeeperServer, tmp_path: Path
) -> None:
    """One of three workers is cut off so that nobody is told. Its bodies are told to stop while its session still lives; its
    items are run again elsewhere; and what its bodies say after that, in the hole or out of it again, is refused."""
    gate = tmp_path / "gate"
    job = {"class": "tests.cluster.bodies:LateJob"}
    with Proxy(server.address) as proxy, Cluster(server.address, tmp_path, items=6, settings=job) as cluster:
        [lost] = cluster.launch("lost", via=proxy.address, env={GATE_VARIABLE: str(gate)})
        others = cluster.launch("b", "c")
        for worker in (lost, *others):
            worker.wait_ready(PATIENCE_SECONDS)
        cluster.wait_until_assigned(lost, *others)
        session = cluster.session_of(lost)
        gate.touch()
        wait_until(lambda: len(notes(cluster.record, "entered")) == 2, PATIENCE_SECONDS, "the bodies to be lost have begun")
        entered = {
            item: datetime.fromisoformat(note["scheduled_time"]) for item, note in notes(cluster.record, "entered").items()
        }

        proxy.black_hole()
        wait_until(lambda: recovered(cluster, entered), PATIENCE_SECONDS, "the items are run again elsewhere")
        told = notes(cluster.record, "told")
        assert told.keys() == entered.keys()
        [end] = [one for one in transactions(server) if one.ends_session and one.session_id == session]
        assert all(note["at"] < end.time for note in told.values()), "the session had ended before a body was told to stop"

        if leaves == "in-the-hole":
            gate.unlink()
            let_them_leave(cluster, entered)
            proxy.restore()
        else:
            proxy.restore()
            wait_until(lambda: cluster.session_of(lost) not in (session, None), PATIENCE_SECONDS, "a new session")
            gate.unlink()
            let_them_leave(cluster, entered)
        refusals = (
            {StaleAttempt.__name__}
            if leaves == "afterwards"
            else {error.__name__ for error in (StaleAttempt, RegistryUnavailable, SessionExpired)}
        )
        assert {note["checkpoint"] for note in notes(cluster.record, "left").values()} <= refusals
        cluster.wait_until_assigned(lost, *others)
        wait_until(lambda: set(refused_ends(lost)) == set(entered), PATIENCE_SECONDS, "the late ends are refused")
        cluster.wait_for_fires(1)

        sessions = {session, cluster.session_of(lost)}
        cluster.stop()
        for transaction in transactions(server, cluster.paths.term):
            for change in transaction.changes:
                name = change.path.removeprefix(f"{cluster.paths.term}/")
                if transaction.session_id in sessions and change.kind is Kind.SET_DATA and name.isdecimal():
                    entry = decode(change.data, transaction.revision, change.path)
                    assert entry.running or entry.fire != entered.get(int(name)), "a late end was written"
        for item, fire in entered.items():
            assert cluster.counted(fire, item) == 1


def recovered(cluster: Cluster, lost: dict[int, datetime]) -> bool:
    """Every lost run has been run to its end by a further attempt."""
    again = {
        (one.item, one.scheduled_time)
        for one in cluster.executions()
        if one.how == "returned" and one.reason is Reason.OWNER_LOST and one.attempt == 2
    }
    return set(lost.items()) <= again


def let_them_leave(cluster: Cluster, entered: dict[int, datetime]) -> None:
    wait_until(lambda: notes(cluster.record, "left").keys() == entered.keys(), PATIENCE_SECONDS, "the late bodies leave")


def refused_ends(worker: WorkerProcess) -> list[int]:
    """Items of which a worker says that their end does not count."""
    return [
        event["item"]
        for event in worker.events
        if event["logger"] == "ejpy.history" and "does not count" in event["message"] and event["outcome"] == Outcome.SUCCEEDED
    ]
