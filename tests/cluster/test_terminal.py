"""What the commands print, and where: nothing that is stored steers a terminal, and no stream is taken for granted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from ejpy.admin.connection import connected
from ejpy.coordination.paths import JobPaths
from ejpy.registry.base import Create
from tests.support.cluster import PATIENCE_SECONDS, run_ejpy
from tests.support.command import EJPY, environment
from tests.support.fleet import NEVER, job
from tests.support.waiting import wait_until

# ---- what stands in the registry, on a terminal -------------------------------------------------------------------

STEERING = "\x1b[31mRED\x07\x9b2J :bug:"


def test_what_stands_in_the_registry_does_not_steer_the_terminal(tmp_path: Path) -> None:
    """Names, classes, expressions, identities: whoever may write into the registry could clear the screen of an operator."""
    odd = f"z{STEERING}"
    values = {"cron": STEERING, "shardingTotalCount": 1, "shardingItemParameters": f"0={STEERING}"}
    url = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "shop.db").touch()

    async def store() -> None:
        async with connected(url) as (registry, namespace):
            await registry.commit([Create(namespace)])
            for paths in (JobPaths(namespace, "alpha"), JobPaths(namespace, odd)):
                stored = json.dumps(values).encode()
                await registry.commit([Create(paths.root, STEERING.encode()), Create(paths.config, stored)])

    asyncio.run(store())
    for command in (("jobs", "list"), ("shards", "list", "alpha"), ("shards", "list", "none" + STEERING)):
        for form in ("table", "json"):
            done = run_ejpy(*command, "-o", form, "--registry", url, timeout=PATIENCE_SECONDS)
            assert not [c for c in done.stdout + done.stderr if not c.isprintable() and c != "\n"]
            assert ":bug:" in done.stdout + done.stderr
    alpha, other = json.loads(run_ejpy("jobs", "list", "-o", "json", "--registry", url, timeout=PATIENCE_SECONDS).stdout)
    assert (alpha["cron"], other["job"]) == (STEERING, odd)


@pytest.mark.parametrize(
    ("document", "cron", "problem"),
    [
        ({"cron": "0 0 25 * * ?"}, "0 0 25 * * ?", "25"),
        ({"cron": "0 0 3 * * ?", "timeZone": "Europe/Berln"}, "0 0 3 * * ?", "did you mean Europe/Berlin"),
        ({"cron": "0 0 3 * * ?", "misfire": "maybe"}, None, "misfire"),
        ({"cron": "0 0 3 * * ?"}, "0 0 3 * * ?", None),
        ({}, None, None),
    ],
    ids=["cron", "zone", "another key", "nothing", "a one-off job"],
)
def test_a_configuration_that_is_not_in_force_is_listed_with_what_is_wrong(
    document: dict[str, str], cron: str | None, problem: str | None, tmp_path: Path
) -> None:
    """Workers hold to the one before; a list that shows the stored one alone looks as if it were in force."""
    url = f"sqlite:///{tmp_path}/shop.db"
    paths = JobPaths("/ejpy", "alpha")
    (tmp_path / "shop.db").touch()

    async def store() -> None:
        async with connected(url) as (registry, namespace):
            stored = json.dumps({"shardingTotalCount": 1, **document}).encode()
            await registry.commit([Create(namespace), Create(paths.root, b"m:J"), Create(paths.config, stored)])

    asyncio.run(store())
    [row] = json.loads(run_ejpy("jobs", "list", "-o", "json", "--registry", url, timeout=PATIENCE_SECONDS).stdout)
    heading = run_ejpy("jobs", "list", "--registry", url, timeout=PATIENCE_SECONDS).stdout.split("─")[0].split()
    assert row["cron"] == cron
    assert (row["problem"] is None) is (problem is None)
    assert ("problem" in heading) is (problem is not None)
    assert (problem or "") in (row["problem"] or "")


# ---- where the output goes ----------------------------------------------------------------------------------------


def shell(command: str, *, cwd: Path, **further: str) -> subprocess.CompletedProcess[str]:
    arguments = ["/bin/sh", "-c", command, EJPY]
    return subprocess.run(
        arguments, cwd=cwd, env=environment(**further), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    (tmp_path / "jobs.yml").write_text(json.dumps({"jobs": {"nightly": job(cron=NEVER)}}))
    (tmp_path / "shop.db").touch()
    return f"{tmp_path}/jobs.yml"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["jobs list", "jobs list -o json", "check --config jobs.yml", "--help", "worker --help"])
def test_output_that_cannot_be_written_is_an_error_of_one_line(
    command: str, unbuffered: str, job_file: str, tmp_path: Path
) -> None:
    settings = {"EJPY_REGISTRY": f"sqlite:///{tmp_path}/shop.db", "PYTHONUNBUFFERED": unbuffered}
    done = shell(f'"$0" {command} > /dev/full', cwd=tmp_path, **settings)
    assert (done.returncode, done.stderr) == (1, "standard output cannot be written: No space left on device\n")


@pytest.mark.parametrize("command", ["jobs list", "check --config jobs.yml", "--help"])
def test_a_reader_that_leaves_early_is_no_trouble(command: str, job_file: str, tmp_path: Path) -> None:
    done = shell(f'"$0" {command} | true', cwd=tmp_path, EJPY_REGISTRY=f"sqlite:///{tmp_path}/shop.db")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("closed", "numbers"), [("2>&-", [2]), (">&- 2>&-", [1, 2]), ("0>&- >&- 2>&-", [0, 1, 2])], ids=["2", "1, 2", "all"]
)
def test_a_worker_without_standard_streams_runs_and_its_files_are_not_taken_for_them(
    closed: str, numbers: list[int], job_file: str, tmp_path: Path
) -> None:
    """The next file to be opened would be number 2, and what a script writes to standard error would go into the database."""
    url = f"sqlite:///{tmp_path}/shop.db"
    command = f'exec "$0" worker --config jobs.yml --registry {url} {closed}'
    worker = subprocess.Popen(["/bin/sh", "-c", command, EJPY], cwd=tmp_path, env=environment())

    def instances() -> int:
        listed = run_ejpy("jobs", "list", "-o", "json", "--registry", url, timeout=PATIENCE_SECONDS)
        return sum(row["instances"] for row in json.loads(listed.stdout))

    try:
        wait_until(instances, PATIENCE_SECONDS, "the worker is registered")
        for number in numbers:
            assert os.readlink(f"/proc/{worker.pid}/fd/{number}") == "/dev/null"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_SECONDS) == 0
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize("command", ["check", "worker"])
def test_a_working_directory_that_was_removed_is_said(command: str, job_file: str, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell(f'rmdir ../gone; "$0" {command} --config {job_file}', cwd=tmp_path / "gone")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "the working directory was removed; change to one that exists\n"
