"""The shipped example on three workers and a real ZooKeeper: the parts add up, whatever happens to the workers.

The schedule has one instant, so that there is one fire to look at, and no next one to help out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ejpy.examples import stdlib_count
from tests.support.fleet import Fleet, job, now, zookeeper_url
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess

ITEMS = 6
FIRES_AFTER = timedelta(seconds=20)
"""Counted from the start of the workers, which have to be ready by then."""


class Count:
    """Three ready workers that will count once, and what has come of it."""

    def __init__(self, fire: datetime, db_path: Path, fleet: Fleet) -> None:
        self.fire = fire.isoformat()
        self.db_path = db_path
        self.workers = fleet.workers
        self.stop = fleet.stop

    def wait_until_counted(self) -> list[stdlib_count.Part]:
        """The parts of the fire, when all are there."""
        wait_until(lambda: stdlib_count.latest_complete_fire(self.db_path), PATIENCE_SECONDS, "all items counted")
        return stdlib_count.parts(self.db_path, self.fire)


StartCount = Callable[..., Count]


@pytest.fixture
def start_count(tmp_path: Path, zookeeper: str) -> Iterator[StartCount]:
    """Starts the workers; what it is called with becomes part of the job's parameter."""
    with Fleet(zookeeper_url(zookeeper, 4), tmp_path) as fleet:

        def start(**parameter: Any) -> Count:
            db_path = tmp_path / "results.db"
            fire = (now() + FIRES_AFTER).replace(microsecond=0)
            count = job(
                body="ejpy.examples.stdlib_count:StdlibCount",
                cron=f"{fire.second} {fire.minute} {fire.hour} {fire.day} {fire.month} ? {fire.year}",
                items=ITEMS,
                settings={"failover": True},
                db=str(db_path),
                **parameter,
            )
            fleet.start(fleet.write("jobs.yml", {"stdlib-count": count}), "a", "b", "c")
            assert now() < fire, "the workers were not ready in time for their only fire"
            return Count(fire, db_path, fleet)

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


def test_three_workers_count_what_one_process_counts(start_count: StartCount) -> None:
    count = start_count()
    parts = count.wait_until_counted()
    count.stop()

    assert stdlib_count.total(count.db_path, count.fire) == stdlib_count.count_all()
    assert [part.attempt for part in parts] == [1] * ITEMS
    by_worker = [set(bodies(worker, "counting")) for worker in count.workers]
    assert sorted(len(items) for items in by_worker) == [2, 2, 2]
    assert set().union(*by_worker) == set(range(ITEMS))


def test_the_total_is_right_though_one_worker_dies_and_one_sleeps(start_count: StartCount) -> None:
    count = start_count(checkpoint_every=25, delay_per_file_ms=25)
    survivor, killed, sleeper = count.workers
    for worker in (killed, sleeper):
        wait_for_bodies(worker, "checkpoint", 2)
    killed.kill9()
    sleeper.pause()
    lost = set(bodies(killed, "counting")) | set(bodies(sleeper, "counting"))
    assert len(lost) == 4

    wait_for_bodies(survivor, "counting", ITEMS)
    sleeper.resume()
    parts = count.wait_until_counted()
    count.stop()

    assert stdlib_count.parts(count.db_path, count.fire) == parts, "a late attempt has changed a result"
    assert stdlib_count.total(count.db_path, count.fire) == stdlib_count.count_all()
    assert {part.item for part in parts if part.attempt == 2} == lost
    assert all(part.worker.endswith(f"/{survivor.pid}") for part in parts)
    for item, line in bodies(survivor, "counting").items():
        begun_at = int(line["message"].split()[3])
        assert (begun_at >= 25) == (item in lost), line
        assert line["reason"] == ("owner_lost" if item in lost else "scheduled")
