"""What a worker holds does not grow with its jobs."""

from __future__ import annotations

from pathlib import Path

from tests.support.fleet import NEVER, Fleet, job, zookeeper_url
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer

FEW, MANY = 3, 150


def threads(worker: WorkerProcess) -> int:
    return len(list(Path(f"/proc/{worker.pid}/task").iterdir()))


def connections(worker: WorkerProcess) -> int:
    links = [descriptor.readlink() for descriptor in Path(f"/proc/{worker.pid}/fd").iterdir() if descriptor.is_symlink()]
    return sum(str(link).startswith("socket:") for link in links)


def test_p8_threads_and_connections_do_not_grow_with_the_number_of_jobs(server: ZooKeeperServer, tmp_path: Path) -> None:
    held = []
    for number in (FEW, MANY):
        directory = tmp_path / str(number)
        directory.mkdir()
        with Fleet(zookeeper_url(server.address), directory) as fleet:
            config = fleet.write("jobs.yml", {f"job-{n}": job(items=2, cron=NEVER) for n in range(number)})
            [worker] = fleet.start(config, "w")
            held.append((threads(worker), connections(worker)))
            fleet.stop()
    few, many = held
    assert many == few
