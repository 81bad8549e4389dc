"""How workers end when they are told to, on real processes: in an orderly way, in time, and with items given away at once."""

from __future__ import annotations

import os
import signal
import time
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ejpy.terms import Outcome
from tests.cluster.misbehaving import entered
from tests.support.fleet import NEVER, Fleet, job, now, sqlite_url, zookeeper_url
from tests.support.jobs import Execution
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess, faults, said
from tests.support.zookeeper import ZooKeeperServer

CLOSING_SECONDS = 5
"""What an end may take beyond the grace period."""


def exits_within(worker: WorkerProcess, seconds: float, send: signal.Signals) -> float:
    """Send a signal; the worker must end with code 0 in so many seconds. Returns how many it took."""
    began = time.monotonic()
    os.kill(worker.pid, send)
    assert worker.wait_exit(PATIENCE_SECONDS) == 0
    took = time.monotonic() - began
    assert took < seconds, f"{worker.name} took {took:.1f} s to end:\n{worker.log}"
    return took


# ---- H1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("registry", "send"), [("zookeeper", signal.SIGTERM), ("sqlite", signal.SIGINT)])
def test_h1_a_stopping_worker_ends_what_runs_and_gives_the_rest_away_at_once(
    registry: str, send: signal.Signals, server: ZooKeeperServer, tmp_path: Path
) -> None:
    """H1: items waited for the session of a stopped worker to expire, or new ones started on it, or running ones were cut.

    Item 0 takes 5 s and runs when its worker is told to stop; the worker's other item is idle.
    """
    url = sqlite_url(tmp_path) if registry == "sqlite" else zookeeper_url(server.address)
    with Fleet(url, tmp_path) as fleet:
        config = fleet.write("jobs.yml", {"drained": job(items=4, slow_items={"0": 5})})
        workers = fleet.start(config, "a", "b", grace=20)
        owners = fleet.wait_until_shared("drained", 4, *workers)
        leaving = next(worker for worker in workers if fleet.id_of(worker) == owners[0])
        staying = next(worker for worker in workers if worker is not leaving)
        assert owners[0] == owners[1]
        began = now()
        [*_, slow] = fleet.wait_for_runs(
            "drained", 1, lambda run: run.item == 0 and run.end is None and run.scheduled_time > began
        )
        wait_until(lambda: not fleet.ledger("drained")[1].running, PATIENCE_SECONDS, "item 1 is idle")

        os.kill(leaving.pid, send)
        told = now()
        wait_until(lambda: fleet.owners("drained")[1] == fleet.id_of(staying), PATIENCE_SECONDS, "item 1 is given away")
        fleet.wait_for_runs("drained", 1, lambda run: run.item == 1 and run.pid == staying.pid)
        assert _again(fleet, slow).end is None, "item 1 was given away only when item 0 had ended"

        assert leaving.wait_exit(PATIENCE_SECONDS) == 0
        wait_until(lambda: fleet.id_of(leaving) not in fleet.view("drained").instances, 1.0, "its node is gone")
        assert _again(fleet, slow).how == "returned"
        about = {"item": 0, "token": slow.token, "message": Outcome.SUCCEEDED.value}
        assert len(said(leaving, "ejpy.history", **about)) == 1
        fleet.wait_for_runs("drained", 1, lambda run: run.item == 0 and run.pid == staying.pid)
        fleet.wait_until_shared("drained", 4, staying)
        assert not [run for run in fleet.runs("drained") if run.pid == leaving.pid and run.scheduled_time > told]
        fleet.stop()
        for item in (1, 2, 3):
            fires = [run.scheduled_time for run in fleet.runs("drained") if run.item == item]
            assert len(fires) == len(set(fires)), f"item {item} ran twice"
            span = (fires[-1] - fires[0]).total_seconds()
            assert len(fires) == span + 1, f"item {item} missed a fire while it changed hands"


def _again(fleet: Fleet, run: Execution) -> Execution:
    """The same run as it is now."""
    return next(one for one in fleet.runs(run.job) if (one.item, one.token) == (run.item, run.token))


def _later(than: datetime, run: Execution) -> bool:
    return run.scheduled_time > than


def test_h1_an_idle_worker_ends_soon_and_is_gone(server: ZooKeeperServer, tmp_path: Path) -> None:
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        config = fleet.write("jobs.yml", {f"idle{number}": job(cron=NEVER, items=2) for number in range(3)})
        workers = fleet.start(config, "a", "b", "c")
        for worker, send in zip(workers, (signal.SIGTERM, signal.SIGINT, signal.SIGTERM), strict=True):
            left = [other for other in workers if other.alive and other is not worker]
            exits_within(worker, 3, send)
            for number in range(3):
                assert fleet.view(f"idle{number}").instances.keys() == {fleet.id_of(other) for other in left}
                if left:
                    fleet.wait_until_shared(f"idle{number}", 2, *left)
        assert not any(faults(worker) for worker in workers)


def test_h1_a_worker_that_is_told_to_stop_while_it_starts_ends_too(server: ZooKeeperServer, tmp_path: Path) -> None:
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        workers = fleet.launch(fleet.write("jobs.yml", {"started": job(cron=NEVER)}), "a", "b")
        for worker in workers:
            fleet.id_of(worker)
            exits_within(worker, CLOSING_SECONDS, signal.SIGTERM)
            assert not faults(worker)
        assert fleet.view("started").instances == {}


# ---- H2 -----------------------------------------------------------------------------------------------------------

BODIES = {"thread": "", "process": "", "asyncio": "Async"}
"""The executors, and which variant of a class runs there."""


def on_each_executor(kind: str, **behaviour: Any) -> dict[str, dict[str, Any]]:
    """A job of that kind for each executor."""
    return {
        name: job(body=f"tests.cluster.misbehaving:{kind}{variant}", settings={"executor": name}, **behaviour)
        for name, variant in BODIES.items()
    }


def entered_on_each(fleet: Fleet) -> dict[str, dict[str, Any]]:
    """Wait until a body runs on each executor; what the first of each noted."""

    def first() -> dict[str, dict[str, Any]] | None:
        found = {name: lines[0] for name in BODIES if (lines := entered(fleet.record, name))}
        return found if len(found) == len(BODIES) else None

    return wait_until(first, PATIENCE_SECONDS, "a body runs on each executor")


def test_h2_bodies_that_do_not_stop_do_not_keep_the_worker(server: ZooKeeperServer, tmp_path: Path) -> None:
    """H2: the process did not end. Bodies in a thread, a coroutine and a child process sleep for 1000 s, deaf; another job
    fires every second while the worker stops."""
    grace = 3
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        jobs = on_each_executor("Stubborn", gate=str(tmp_path))
        [worker] = fleet.start(fleet.write("jobs.yml", {**jobs, "beside": job()}), "a", grace=grace)
        stuck = entered_on_each(fleet)
        took = exits_within(worker, grace + CLOSING_SECONDS, signal.SIGTERM)
        assert took >= grace, "it did not let them run on"
        left = [event for event in worker.events if event["message"].startswith("left running: ")]
        assert {(event["job"], event["item"], event["level"]) for event in left} == {
            ("thread", 0, "ERROR"),
            ("asyncio", 0, "ERROR"),
        }
        assert all(event["job"] in event["message"] for event in left)
        told = [
            event["job"] for event in worker.events if "told to stop" in event["message"] and event["logger"] == "ejpy.worker"
        ]
        assert sorted(told) == sorted(BODIES)
        assert not os.path.exists(f"/proc/{stuck['process']['pid']}"), "the child process outlived its worker"
        assert "cannot schedule new futures" not in worker.log
        assert not faults(worker)
        assert all(fleet.view(name).instances == {} for name in jobs)


def test_h2_a_second_signal_cancels_what_listens_at_once(server: ZooKeeperServer, tmp_path: Path) -> None:
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        jobs = on_each_executor("Patient")
        [worker] = fleet.start(fleet.write("jobs.yml", jobs), "a", grace=600)
        entered_on_each(fleet)
        worker.sigterm()
        worker.wait_for_log("stopping", PATIENCE_SECONDS)
        exits_within(worker, CLOSING_SECONDS, signal.SIGINT)
        ends = said(worker, "ejpy.history", outcome=Outcome.CANCELLED.value)
        assert {event["job"] for event in ends} == set(jobs)
        assert not [event for event in worker.events if "left running" in event["message"]]
        assert not faults(worker)


def test_h2_workers_that_stop_in_the_middle_of_a_fire_say_nothing_strange(server: ZooKeeperServer, tmp_path: Path) -> None:
    """H2: "cannot schedule new futures after interpreter shutdown". Four workers stop right when many jobs fire."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        jobs = {f"job{number}": job(items=4, seconds=0.05) for number in range(10)}
        workers = fleet.start(fleet.write("jobs.yml", jobs), "a", "b", "c", "d")
        for worker in workers:
            begun = now()
            fleet.wait_for_runs("job0", 1, partial(_later, begun))
            worker.sigterm()
        assert [worker.wait_exit(PATIENCE_SECONDS) for worker in workers] == [0] * 4
        for worker in workers:
            assert "cannot schedule" not in worker.log
            assert not faults(worker)
            assert not [event for event in worker.events if event["level"] in ("ERROR", "CRITICAL")]
        for name in jobs:
            pairs = [(run.scheduled_time, run.item) for run in fleet.runs(name)]
            assert len(pairs) == len(set(pairs)), f"an item of {name} ran twice"
            assert all(run.how == "returned" for run in fleet.runs(name)), "a body was cut"
