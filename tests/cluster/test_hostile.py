"""What somebody breaks on purpose or by accident: nodes removed and forged, bodies that misbehave, a log that nobody reads."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kazoo.client import KazooClient
from kazoo.exceptions import NotEmptyError

from tests.support.command import EJPY, ROOT, environment
from tests.support.fleet import Fleet, job, zookeeper_url
from tests.support.jobs import RECORD_VARIABLE
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer

JOB = "j"
ITEMS = 4
PIPE_BYTES = 4096


class Scene(Fleet):
    """A job with a fire a second on one namespace of a server; further job classes may lie in its directory."""

    def __init__(self, directory: Path, address: str) -> None:
        super().__init__(zookeeper_url(address, 4), directory)
        self.environment = {"PYTHONPATH": f"{ROOT}{os.pathsep}{directory}"}
        self.config = self.describe()

    def describe(self, *, body: str = "tests.support.jobs:RecordingJob", items: int = ITEMS) -> Path:
        return self.write("jobs.yml", {JOB: job(body=body, items=items, settings={"failover": True})})

    def worker(self) -> WorkerProcess:
        [worker] = self.launch(self.config, "w", grace=3, env=self.environment)
        return worker

    def wait_until_all_run(self, what: str) -> None:
        """Every item is begun after now."""
        begun = time.time()
        wait_until(lambda: {run.item for run in self.runs(JOB) if run.start > begun} == set(range(ITEMS)), PATIENCE_SECONDS, what)


@pytest.fixture
def scene(tmp_path: Path, zookeeper: str) -> Iterator[Scene]:
    with Scene(tmp_path, zookeeper) as scene:
        yield scene


@pytest.fixture
def client(zookeeper: str) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper)
    client.start()
    yield client
    client.stop()
    client.close()


def removed(client: KazooClient, path: str) -> bool:
    """Remove a subtree; False if somebody made a node in it meanwhile."""
    try:
        client.delete(path, recursive=True)
    except NotEmptyError:
        return False
    return True


@pytest.mark.parametrize("path", ["{ns}/j/servers", "{ns}.ledger/j", "{ns}/j/sharding", "{ns}/j/leader"])
def test_a_removed_subtree_is_made_again(path: str, scene: Scene, client: KazooClient) -> None:
    worker = scene.worker()
    worker.wait_ready(PATIENCE_SECONDS)
    scene.wait_until_all_run("all items run")
    wait_until(lambda: removed(client, path.format(ns=scene.namespace)), PATIENCE_SECONDS, f"{path} is removed")
    scene.wait_until_all_run(f"all items run again after {path} was removed")


FORGED = {
    "far": {"accounted_until": "9999-12-31T23:59:59Z"},
    "early": {"accounted_until": "0001-01-01T00:00:00Z"},
    "ended far": {"accounted_until": "2026-01-01T00:00:00Z", "ended": "9999-12-31T23:59:59Z", "hand_over": True},
    "of the dead": {
        "accounted_until": "2026-01-01T00:00:00Z",
        "running": True,
        "owner": "x@-@1",
        "attempt": 1,
        "fire": "0001-01-01T00:00:00Z",
    },
    "too large": {"accounted_until": "2026-01-01T00:00:00Z", "checkpoint": "x" * 1_000_000, "to_recover": True, "attempt": 1},
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_ledger_entry_harms_no_other_item(forged: dict[str, object], scene: Scene, client: KazooClient) -> None:
    entry = {"v": 1, "cron": "* * * * * ?", "time_zone": "UTC", **forged}
    path = scene.paths(JOB).ledger(0)
    worker = scene.worker()
    worker.wait_ready(PATIENCE_SECONDS)
    scene.wait_until_all_run("all items run")
    client.set(path, json.dumps(entry).encode())
    now = time.time()
    wait_until(
        lambda: {e.item for e in scene.runs(JOB) if e.start > now + 2} >= {1, 2, 3},
        PATIENCE_SECONDS,
        "the other items go on",
    )
    assert "Exception in callback" not in worker.log


def test_a_body_that_cancels_its_own_task_has_failed_and_runs_once(scene: Scene) -> None:
    """asyncio counts a task that was cancelled in its last step as cancelled, though it ran to its end."""
    (scene.directory / "selfcancel.py").write_text(
        "import asyncio, os\n"
        "from ejpy import ShardedJob\n"
        "class J(ShardedJob):\n"
        "    async def execute(self, ctx):\n"
        "        with open('runs.txt', 'a') as runs:\n"
        "            runs.write(f'{ctx.scheduled_time.isoformat()} {ctx.attempt}\\n')\n"
        "        asyncio.current_task().cancel()\n"
    )
    scene.describe(body="selfcancel:J", items=1)
    runs = scene.directory / "runs.txt"
    worker = scene.worker()
    wait_until(lambda: runs.exists() and len(runs.read_text().splitlines()) >= 3, PATIENCE_SECONDS, "three runs")
    worker.sigterm()
    assert worker.wait_exit(PATIENCE_SECONDS) == 0
    lines = runs.read_text().splitlines()
    assert len(lines) == len(set(lines))
    assert all(line.endswith(" 1") for line in lines)


def test_a_wiped_zookeeper_takes_the_old_workers_back(tmp_path: Path) -> None:
    """kazoo remembers the newest transaction it has seen, and a server that is older than that refuses it."""
    with ZooKeeperServer() as server, Scene(tmp_path, server.address) as scene:
        worker = scene.worker()
        worker.wait_ready(PATIENCE_SECONDS)
        scene.wait_until_all_run("all items run")
        server.kill()
        shutil.rmtree(server.log_path.parent / "data")
        server.start()
        scene.wait_until_all_run("all items run on the empty server")


def test_a_log_that_nobody_reads_stops_neither_the_job_nor_the_end(scene: Scene) -> None:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ if hasattr(fcntl, "F_SETPIPE_SZ") else 1031, PIPE_BYTES)
    command = [EJPY, "worker", "--config", str(scene.config), "--registry", scene.url, "--grace", "3"]
    variables = environment(**scene.environment, **{RECORD_VARIABLE: str(scene.record)})
    process = subprocess.Popen(command, env=variables, cwd=scene.directory, stdout=writer, stderr=writer)
    try:
        os.close(writer)
        wait_until(lambda: len({e.scheduled_time for e in scene.runs(JOB)}) > 12, PATIENCE_SECONDS, "a full pipe and more")
        scene.wait_until_all_run("all items run though the pipe is full")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reader)


def test_a_body_may_close_standard_error(scene: Scene) -> None:
    (scene.directory / "closing.py").write_text(
        "import sys\n"
        "from tests.support.jobs import RecordingJob\n"
        "class J(RecordingJob):\n"
        "    def execute(self, ctx):\n"
        "        super().execute(ctx)\n"
        "        sys.stderr.close()\n"
    )
    scene.describe(body="closing:J")
    worker = scene.worker()
    scene.wait_until_all_run("all items run")
    scene.wait_until_all_run("all items run after standard error was closed")
    worker.sigterm()
    assert worker.wait_exit(PATIENCE_SECONDS) == 0


def test_a_signal_in_the_last_moments_does_not_change_the_exit_code(scene: Scene) -> None:
    worker = scene.worker()
    worker.wait_ready(PATIENCE_SECONDS)
    worker.sigterm()
    worker.wait_for_log('"stopped"', PATIENCE_SECONDS)
    if worker.alive:
        worker.sigterm()
    assert worker.wait_exit(PATIENCE_SECONDS) == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(("check",), 0), (("worker", "--registry", "zookeeper://127.0.0.1:1/x", "--connection-timeout", "1"), 1)],
)
def test_threads_of_a_jobs_module_keep_no_command_alive(arguments: tuple[str, ...], code: int, tmp_path: Path) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\n"
        "from tests.support.jobs import RecordingJob as J\n"
        "threading.Thread(target=threading.Event().wait).start()\n"
    )
    (tmp_path / "jobs.yml").write_text(yaml.safe_dump({"jobs": {JOB: job(body="threaded:J")}}))
    command = [EJPY, *arguments, "--config", "jobs.yml"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == code
