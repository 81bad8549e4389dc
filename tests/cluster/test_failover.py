"""Workers that are killed, or wake up too late, in the middle of a run, on real processes.

With failover the run is begun again elsewhere, once, from its checkpoint; without, it is recorded as interrupted. Nobody
believes that it still runs, and nothing of the kind happens where nobody died.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from ejpy.terms import NotRun, Outcome, Reason
from tests.cluster.resuming import notes
from tests.support.fleet import Fleet, job, sqlite_url, zookeeper_url
from tests.support.jobs import Execution
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess, said
from tests.support.zookeeper import ZooKeeperServer


def begun(fleet: Fleet, name: str, items: int) -> dict[int, Execution]:
    """Wait until bodies of all items run that are held; by item."""

    def running() -> dict[int, Execution] | None:
        found = {run.item: run for run in fleet.runs(name) if run.end is None and time.time() > run.start + 0.5}
        return found if len(found) == items else None

    return wait_until(running, PATIENCE_SECONDS, f"{items} items of {name} run")


def attempts_at(fleet: Fleet, name: str, run: Execution) -> list[Execution]:
    return [one for one in fleet.runs(name) if (one.scheduled_time, one.item) == (run.scheduled_time, run.item)]


def not_run(fleet: Fleet, name: str, run: Execution) -> list[NotRun]:
    """Why the ledger says that a run's fire was not run, if it does."""
    ranges = fleet.ledger(name)[run.item].not_run
    return [one.why for one in ranges if one.after < run.scheduled_time <= one.until]


# ---- D2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("registry", "workers"), [("zookeeper", 2), ("zookeeper", 3), ("sqlite", 2)])
def test_d2_what_a_killed_worker_ran_is_run_once_elsewhere_or_recorded(
    registry: str, workers: int, server: ZooKeeperServer, tmp_path: Path
) -> None:
    """D2: failover never happened on another host. Two jobs of two items run on two workers (a third has nothing); one is
    killed. With failover its item is begun again while the other still runs, and ends well once. Without, it is recorded as
    interrupted, and runs at the next fire."""
    url = sqlite_url(tmp_path) if registry == "sqlite" else zookeeper_url(server.address)
    hold = tmp_path / "hold"
    policies = {"recovered": True, "given-up": False}
    with Fleet(url, tmp_path) as fleet:
        jobs = {
            name: job(items=2, settings={"failover": failover}, hold=str(hold), deaf=True) for name, failover in policies.items()
        }
        started = fleet.start(fleet.write("jobs.yml", jobs), *"abc"[:workers])
        for name in policies:
            fleet.wait_until_shared(name, 2, *started)
            fleet.wait_for_fires(name, 1, items=2)
        hold.touch()
        running = {name: begun(fleet, name, 2) for name in policies}
        [pids] = {(by_item[0].pid, by_item[1].pid) for by_item in running.values()}
        assert len(set(pids)) == 2
        victim = next(worker for worker in started if worker.pid == pids[0])
        survivors = [worker for worker in started if worker is not victim]

        victim.kill9()
        lost, kept = running["recovered"][0], running["recovered"][1]
        again = wait_until(lambda: attempts_at(fleet, "recovered", lost)[1:], PATIENCE_SECONDS, "a further attempt")[0]
        assert not any(run.end for run in (*attempts_at(fleet, "recovered", kept), again)), "it had to wait for the other item"
        assert (again.attempt, again.reason) == (2, Reason.OWNER_LOST)
        assert again.token > lost.token
        given_up = running["given-up"][0]
        [later, *_] = fleet.wait_for_runs(
            "given-up", 1, lambda run: run.item == 0 and run.scheduled_time > given_up.scheduled_time
        )
        assert later.attempt == 1
        assert {later.pid, again.pid} <= {worker.pid for worker in survivors}
        hold.unlink()
        for name in policies:
            fleet.wait_for_fires(name, 1, items=2)
            fleet.wait_until_shared(name, 2, *survivors)
        fleet.stop()

        assert [(run.attempt, run.how) for run in attempts_at(fleet, "recovered", lost)] == [(1, None), (2, "returned")]
        assert [(run.attempt, run.how) for run in attempts_at(fleet, "given-up", given_up)] == [(1, None)]
        for run in (kept, running["given-up"][1]):
            assert [(one.attempt, one.how) for one in attempts_at(fleet, run.job, run)] == [(1, "returned")]
        for run in (lost, kept, given_up, running["given-up"][1]):
            assert counted(started, run) == (0 if run is given_up else 1)
            assert not_run(fleet, run.job, run) == ([NotRun.INTERRUPTED] if run is given_up else [])


def counted(workers: list[WorkerProcess], run: Execution) -> int:
    """How often the workers say that the fire of a run succeeded on its item."""
    when = run.scheduled_time.isoformat().replace("+00:00", "Z")
    about = {"job": run.job, "item": run.item, "scheduled_time": when, "message": Outcome.SUCCEEDED.value}
    return sum(len(said(worker, "ejpy.history", **about)) for worker in workers)


# ---- D8 -----------------------------------------------------------------------------------------------------------


def test_d8_the_only_worker_is_killed_in_mid_run_and_its_successor_fires_again(server: ZooKeeperServer, tmp_path: Path) -> None:
    """D8: a job that does not overlap was believed to be running for ever after its process was killed. Two jobs, with
    failover and without; nobody is left to take over until the worker is started again."""
    hold = tmp_path / "hold"
    hold.touch()
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        policies = {"failover": True, "plain": False}
        jobs = {
            name: job(items=2, settings={"failover": failover}, hold=str(hold), deaf=True) for name, failover in policies.items()
        }
        config = fleet.write("jobs.yml", jobs)
        [first] = fleet.start(config, "first")
        running = {name: begun(fleet, name, 2) for name in policies}
        first.kill9()
        first.wait_exit(PATIENCE_SECONDS)
        hold.unlink()
        [second] = fleet.start(config, "second")
        for name in policies:
            fleet.wait_for_fires(name, 2, items=2)
        fleet.stop()
        for name in policies:
            for run in running[name].values():
                attempts = attempts_at(fleet, name, run)
                further = [(one.attempt, one.reason, one.how, one.pid) for one in attempts[1:]]
                assert attempts[0].how is None
                if name == "failover":
                    assert further == [(2, Reason.OWNER_LOST, "returned", second.pid)]
                else:
                    assert further == []
                    assert not_run(fleet, name, run) == [NotRun.INTERRUPTED]


# ---- D4 -----------------------------------------------------------------------------------------------------------


def test_d4_where_nobody_died_every_fire_runs_once(server: ZooKeeperServer, tmp_path: Path) -> None:
    """D4: failover was on, nobody had crashed, and item 0 ran twice a round. A failure is not a crash, either."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        settings = {"failover": True}
        config = fleet.write("jobs.yml", {"calm": job(items=4, settings=settings, fail_items=[0, 2])})
        fleet.start(config, "only")
        fires = fleet.wait_for_fires("calm", 10, items=4)
        by_fire = fleet.fires("calm")
        for fire in fires:
            assert {item: len(runs) for item, runs in by_fire[fire].items()} == dict.fromkeys(range(4), 1)
            assert {item for item, [run] in by_fire[fire].items() if run.how == "raised"} == {0, 2}
        # The very first fire may come while the items are being assigned, and count as caught up.
        runs = [run for run in fleet.runs("calm") if run.scheduled_time >= fires[0]]
        assert {(run.attempt, run.reason) for run in runs} == {(1, Reason.SCHEDULED)}
        outcomes = {item: entry.outcome for item, entry in fleet.ledger("calm").items() if not entry.running}
        assert set(outcomes.items()) <= {
            (0, Outcome.FAILED),
            (1, Outcome.SUCCEEDED),
            (2, Outcome.FAILED),
            (3, Outcome.SUCCEEDED),
        }


# ---- checkpoints --------------------------------------------------------------------------------------------------


def resuming(gate: Path) -> dict[str, Any]:
    return job(body="tests.cluster.resuming:Resuming", settings={"failover": True}, gate=str(gate))


def entered(fleet: Fleet, attempt: int) -> dict[str, Any] | None:
    """The note of the first body that entered on this attempt."""
    found = [note for note in notes(fleet.record, "entered") if note["attempt"] == attempt]
    return found[0] if found else None


def owner_of(note: dict[str, Any], workers: list[WorkerProcess]) -> tuple[WorkerProcess, WorkerProcess]:
    """The worker that a note is from, and the other one."""
    a, b = workers
    return (a, b) if note["pid"] == a.pid else (b, a)


def test_a_further_attempt_after_kill_9_goes_on_from_the_checkpoint(server: ZooKeeperServer, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        workers = fleet.start(fleet.write("jobs.yml", {"resumed": resuming(gate)}), "a", "b")
        first = wait_until(lambda: notes(fleet.record, "saved"), PATIENCE_SECONDS, "a checkpoint is saved")[0]
        victim, survivor = owner_of(first, workers)
        victim.kill9()
        again = wait_until(lambda: entered(fleet, 2), PATIENCE_SECONDS, "a further attempt")
        assert again["scheduled_time"] == first["scheduled_time"]
        assert again["pid"] == survivor.pid
        assert again["checkpoint"] == {"saved by": 1, "of": first["scheduled_time"]}
        gate.unlink()

        def later() -> dict[str, Any] | None:
            found = [note for note in notes(fleet.record, "entered") if note["scheduled_time"] > first["scheduled_time"]]
            return found[0] if found else None

        following = wait_until(later, PATIENCE_SECONDS, "the next fire")
        assert (following["attempt"], following["checkpoint"]) == (1, None)
        fleet.stop()


def test_an_owner_that_was_stopped_and_wakes_up_cannot_save_its_checkpoint(server: ZooKeeperServer, tmp_path: Path) -> None:
    """Its item was run again elsewhere meanwhile. The body is awake before anybody told its worker.

    (On SQLite a process that is stopped in the middle of its write keeps all others waiting.)"""
    gate = tmp_path / "gate"
    gate.touch()
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        workers = fleet.start(fleet.write("jobs.yml", {"resumed": resuming(gate)}), "a", "b")
        first = wait_until(lambda: notes(fleet.record, "saved"), PATIENCE_SECONDS, "a checkpoint is saved")[0]
        sleeper, _ = owner_of(first, workers)
        sleeper.pause()
        wait_until(lambda: entered(fleet, 2), PATIENCE_SECONDS, "a further attempt")
        gate.unlink()
        sleeper.resume()

        def left() -> dict[str, Any] | None:
            found = [note for note in notes(fleet.record, "left") if note["pid"] == sleeper.pid and note["attempt"] == 1]
            return next((note for note in found if note["scheduled_time"] == first["scheduled_time"]), None)

        late = wait_until(left, PATIENCE_SECONDS, "the late body leaves")
        assert late["answers"][-1] == "StaleAttempt"
        assert "saved" not in late["answers"]
        fleet.stop()
