"""The shipped example on three workers and a real ZooKeeper: the parts add up, whatever happens to the workers.

The schedule has one instant, so that there is one fire to look at, and no next one to help out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml

from ejpy.examples import stdlib_count
from tests.support.waiting import wait_until
from tests.support.workers import WorkerProcess

ITEMS = 6
FIRES_AFTER = timedelta(seconds=20)
"""Counted from the start of the workers, which have to be ready by then."""
PATIENCE_SECONDS = 90


class Cluster:
    """Three ready workers that will count once, and what has come of it."""

    def __init__(self, fire: datetime, db_path: Path, workers: list[WorkerProcess]) -> None:
        self.fire = fire.isoformat()
        self.db_path = db_path
        self.workers = workers

    def wait_until_counted(self) -> list[stdlib_count.Part]:
        """The parts of the fire, when all are there."""
        wait_until(lambda: stdlib_count.latest_complete_fire(self.db_path), PATIENCE_SECONDS, "all items counted")
        return stdlib_count.parts(self.db_path, self.fire)

    def stop(self) -> None:
        """Stop all workers that live, in an orderly way."""
        living = [worker for worker in self.workers if worker.alive]
        for worker in living:
            worker.sigterm()
        assert [worker.wait_exit(PATIENCE_SECONDS) for worker in living] == [0] * len(living)


StartCluster = Callable[..., Cluster]


@pytest.fixture
def start_cluster(tmp_path: Path, zookeeper: str) -> Iterator[StartCluster]:
    """Starts the workers; what it is called with becomes part of the job's parameter."""
    with ExitStack() as stack:

        def start(**parameter: Any) -> Cluster:
            db_path, config = tmp_path / "results.db", tmp_path / "jobs.yml"
            fire = (datetime.now(timezone.utc) + FIRES_AFTER).replace(microsecond=0)
            job = {
                "class": "ejpy.examples.stdlib_count:StdlibCount",
                "cron": f"{fire.second} {fire.minute} {fire.hour} {fire.day} {fire.month} ? {fire.year}",
                "time_zone": "UTC",
                "sharding_total_count": ITEMS,
                "failover": True,
                "job_parameter": json.dumps({"db": str(db_path), **parameter}),
            }
            config.write_text(yaml.safe_dump({"jobs": {"stdlib-count": job}}))
            url = f"zookeeper://{zookeeper}/stdlib-count-{uuid4().hex}?session_timeout=4s"
            workers = [
                stack.enter_context(WorkerProcess(config, url, tmp_path, name=name, options=("--log-format", "json")))
                for name in ("a", "b", "c")
            ]
            for worker in workers:
                worker.wait_ready(PATIENCE_SECONDS)
            assert datetime.now(timezone.utc) < fire, "the workers were not ready in time for their only fire"
            return Cluster(fire, db_path, workers)

        yield start


def bodies(worker: WorkerProcess, beginning: str) -> dict[int, dict[str, Any]]:
    """By item, the last line of a worker's bodies that begins so."""
    return {
        line["item"]: line
        for line in worker.events
        if line["logger"] == "ejpy.job.stdlib-count" and line["message"].startswith(beginning)
    }


def wait_for_bodies(worker: WorkerProcess, beginning: str, number: int) -> None:
    """Wait until so many items of a worker have said something that begins so."""
    what = f"{number} items of {worker.name} say {beginning!r}"
    wait_until(lambda: len(bodies(worker, beginning)) >= number, PATIENCE_SECONDS, what)


def test_three_workers_count_what_one_process_counts(start_cluster: StartCluster) -> None:
    cluster = start_cluster()
    parts = cluster.wait_until_counted()
    cluster.stop()

    assert stdlib_count.total(cluster.db_path, cluster.fire) == stdlib_count.count_all()
    assert [part.attempt for part in parts] == [1] * ITEMS
    by_worker = [set(bodies(worker, "counting")) for worker in cluster.workers]
    assert sorted(len(items) for items in by_worker) == [2, 2, 2]
    assert set().union(*by_worker) == set(range(ITEMS))


def test_the_total_is_right_though_one_worker_dies_and_one_sleeps(start_cluster: StartCluster) -> None:
    cluster = start_cluster(checkpoint_every=25, delay_per_file_ms=25)
    survivor, killed, sleeper = cluster.workers
    for worker in (killed, sleeper):
        wait_for_bodies(worker, "checkpoint", 2)
    killed.kill9()
    sleeper.pause()
    lost = set(bodies(killed, "counting")) | set(bodies(sleeper, "counting"))
    assert len(lost) == 4

    wait_for_bodies(survivor, "counting", ITEMS)
    sleeper.resume()
    parts = cluster.wait_until_counted()
    cluster.stop()

    assert stdlib_count.parts(cluster.db_path, cluster.fire) == parts, "a late attempt has changed a result"
    assert stdlib_count.total(cluster.db_path, cluster.fire) == stdlib_count.count_all()
    assert {part.item for part in parts if part.attempt == 2} == lost
    assert all(part.worker.endswith(f"/{survivor.pid}") for part in parts)
    for item, line in bodies(survivor, "counting").items():
        begun_at = int(line["message"].split()[3])
        assert (begun_at >= 25) == (item in lost), line
        assert line["reason"] == ("owner_lost" if item in lost else "scheduled")
