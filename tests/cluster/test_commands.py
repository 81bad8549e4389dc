"""The `ejpy` command as people use it: what it lists, what it refuses, which of file and registry counts, what it takes from
the environment and the working directory."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner

from ejpy.cli.check import check
from ejpy.cli.look import list_jobs, list_shards
from ejpy.cli.worker import worker
from ejpy.coordination.view import DISABLED
from ejpy.registry.base import SetData
from ejpy.version import __version__
from tests.support.cluster import PATIENCE_SECONDS, faults, run_ejpy
from tests.support.fleet import NEVER, Fleet, job, now, sqlite_url, zookeeper_url
from tests.support.jobs import Execution
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, WorkerProcess
from tests.support.zookeeper import ZooKeeperServer

CPU_SECONDS = 3.0
"""What a refusal may take, of the processor: its wall time depends on who else is busy."""

# ---- what is listed -----------------------------------------------------------------------------------------------

JOB_FIELDS = ["job", "cron", "sharding_total_count", "instances", "leader", "status", "problem"]
SHARD_FIELDS = ["item", "parameter", "instance", "status", "last_fire", "outcome", "attempt", "fencing_token"]


def status_of(fleet: Fleet, name: str) -> str:
    [status] = [row["status"] for row in fleet.rows("jobs", "list") if row["job"] == name]
    return str(status)


def table(text: str) -> list[list[str]]:
    """The cells of a printed table, heading first; cells have two blanks between them."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not set(line.strip()) <= {"─", " "}]
    return [re.split(r"\s{2,}", line) for line in lines]


def test_jobs_and_shards_are_listed_as_they_are(server: ZooKeeperServer, tmp_path: Path) -> None:
    """J8: statuses were shown wrong. Every field of both lists, in both forms, while items run, are idle, and have no owner."""
    hold = tmp_path / "hold"
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        assert fleet.rows("jobs", "list") == []
        settings = {"sharding_item_parameters": {0: "Beijing", 1: "a=1, b"}}
        jobs = {
            "alpha": job(items=3, settings=settings, hold=str(hold)),
            "beta": job(cron=NEVER, settings={"disabled": True}),
        }
        [worker] = fleet.start(fleet.write("jobs.yml", jobs), "a", options=("--ip", "10.1.1.1"))
        instance = fleet.id_of(worker)
        fleet.wait_for_fires("alpha", 1, items=3)
        hold.touch()

        def held() -> dict[int, Execution] | None:
            found = {run.item: run for run in fleet.runs("alpha") if run.end is None and time.time() > run.start + 0.5}
            return found if len(found) == 3 else None

        running = wait_until(held, PATIENCE_SECONDS, "all items are held")
        alpha, beta = fleet.rows("jobs", "list")
        assert list(alpha.items()) == list(zip(JOB_FIELDS, ["alpha", "* * * * * ?", 3, 1, instance, "OK", None], strict=True))
        assert list(beta.items()) == list(zip(JOB_FIELDS, ["beta", NEVER, 1, 1, None, "DISABLED", None], strict=True))
        parameters = ["Beijing", "a=1, b", None]
        for item, row in enumerate(fleet.rows("shards", "list", "alpha")):
            fire = running[item].scheduled_time.isoformat().replace("+00:00", "Z")
            wanted = [item, parameters[item], instance, "RUNNING", fire, None, 1, running[item].token]
            assert list(row.items()) == list(zip(SHARD_FIELDS, wanted, strict=True))
        heading, *lines = table(fleet.ejpy("jobs", "list").stdout)
        assert heading == [field.replace("_", " ") for field in JOB_FIELDS if field != "problem"]
        assert lines[0] == ["alpha", "* * * * * ?", "3", "1", instance, "OK"]
        assert lines[1] == ["beta", NEVER, "1", "1", "–", "DISABLED"]
        heading, *lines = table(fleet.ejpy("shards", "list", "alpha").stdout)
        assert heading == [field.replace("_", " ") for field in SHARD_FIELDS]
        assert [line[:4] for line in lines] == [
            ["0", "Beijing", instance, "RUNNING"],
            ["1", "a=1, b", instance, "RUNNING"],
            ["2", "–", instance, "RUNNING"],
        ]
        assert [line[-1] for line in lines] == [str(running[item].token) for item in range(3)]

        fleet.change(SetData(fleet.paths("alpha").server("10.1.1.1"), DISABLED))
        hold.unlink()
        wait_until(lambda: all(e.suspended for e in fleet.ledger("alpha").values()), PATIENCE_SECONDS, "alpha rests")
        assert [row["status"] for row in fleet.rows("jobs", "list")] == ["DISABLED", "DISABLED"]
        for row in fleet.rows("shards", "list", "alpha"):
            assert (row["status"], row["outcome"], row["attempt"]) == ("PENDING", "succeeded", 1)

        worker.sigterm()
        assert worker.wait_exit(PATIENCE_SECONDS) == 0
        for row in fleet.rows("jobs", "list"):
            assert (row["instances"], row["leader"], row["status"]) == (0, None, "CRASHED")
        assert {row["status"] for row in fleet.rows("shards", "list", "alpha")} == {"SHARDING_FLAG"}
        unknown = fleet.ejpy("shards", "list", "gamma")
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "there is no job 'gamma'" in unknown.stderr
        assert len(unknown.stderr.splitlines()) == 1


def test_a_list_without_registry_is_refused() -> None:
    done = run_ejpy("jobs", "list", timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert "--registry" in line
    assert "EJPY_REGISTRY" in line


def test_a_registry_url_that_cannot_be_is_refused() -> None:
    done = run_ejpy("shards", "list", "alpha", "--registry", "mysql://host/x", timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("registry: 'mysql://host/x' is not a registry URL")


@pytest.mark.parametrize("command", [("jobs", "list"), ("shards", "list", "alpha")], ids=["jobs", "shards"])
def test_a_list_of_a_file_that_is_not_there_makes_none(command: tuple[str, ...], tmp_path: Path) -> None:
    done = run_ejpy(*command, "--registry", sqlite_url(tmp_path), timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert "there is no such file; give the path of the workers' file" in line
    assert "running" not in line
    assert not list(tmp_path.iterdir())


def test_a_worker_without_a_directory_for_its_file_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "jobs.yml").write_text(json.dumps({"jobs": {"nightly": job(cron=NEVER)}}))
    url = f"sqlite:///{tmp_path}/none/shop.db"
    done = run_ejpy("worker", "--config", f"{tmp_path}/jobs.yml", "--registry", url, timeout=PATIENCE_SECONDS)
    assert done.returncode == 1
    assert f"the directory {tmp_path}/none does not exist; give the path of the workers' file" in done.stderr.splitlines()[-1]


# ---- G4 -----------------------------------------------------------------------------------------------------------

GOOD = {"class": "tests.support.jobs:RecordingJob", "cron": "'* * * * * ?'", "sharding_total_count": "1"}

UNCALLABLE = "tests.unit.config.uncallable"

FAULTS: dict[str, tuple[dict[str, str | None], list[str]]] = {
    "misspelled": ({"shardingTotalcount": "3"}, [r"shardingTotalcount: .*did you mean shardingTotalCount\?"]),
    "strategy": ({"jobShardingStrategyType": "ROUNDROBIN"}, [r"jobShardingStrategyType: .*did you mean ROUND_ROBIN\?"]),
    "no-cron": ({"cron": None}, ["cron: required"]),
    "no-class": ({"class": None}, ["class: required"]),
    "no-module": ({"class": "nowhere.jobs:Job"}, ["class: there is no module nowhere"]),
    "other-class": ({"class": "tests.support.jobs:RecordinJob"}, [r"class: .*did you mean RecordingJob\?"]),
    "takes-nothing": ({"class": f"{UNCALLABLE}:TakesNothing"}, [r"class: .*the context alone.*uncallable\.py:\d+\)$"]),
    "needs-more": ({"class": f"{UNCALLABLE}:NeedsMore"}, [r"class: .*without arguments.*uncallable\.py:\d+\)$"]),
    "unquoted": ({"cron": "*/5 * * * * ?"}, ["cron: .*quotes"]),
    "never": ({"cron": "'0 0 0 31 2 ?'"}, ["cron: "]),
    "no-items": ({"sharding_total_count": "0"}, ["sharding_total_count: '0' is not allowed"]),
    "executor": ({"executor": "asyncio"}, ["executor: asyncio cannot run"]),
    "several": (
        {"cron": "'* *'", "sharding_total_count": "-1", "failover": "perhaps", "timeout": "soon"},
        ["cron: ", "sharding_total_count: ", "failover: 'perhaps'", "timeout: "],
    ),
}
"""What is changed in a good job (None: left out), and what shall be said of it, in the order of lines."""


def faulty(*names: str) -> tuple[str, list[tuple[str, str]]]:
    """A file with a good job and one of each of these faults; for each error, how its line begins, and a pattern of the rest."""
    lines = ["jobs:"]
    errors = []
    for name in ("good", *names):
        changes, wanted = FAULTS.get(name, ({}, []))
        keys = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
        head = len(lines) + 1
        lines += [f"  {name}:", *(f"    {key}: {value}" for key, value in keys.items())]
        for pattern in wanted:
            key = pattern.split(":")[0]
            line = head + 1 + list(keys).index(key) if key in keys else head
            errors.append((f":{line}: job '{name}': ", pattern))
    return "\n".join(lines) + "\n", errors


@dataclass(frozen=True)
class Refused:
    """How a command ended."""

    code: int
    lines: list[str]
    output: str
    cpu_seconds: float


def refused(command: str, config: Path, url: str | None) -> Refused:
    arguments = [str(Path(sys.executable).with_name("ejpy")), command, "--config", str(config)]
    arguments += ["--registry", url] if url else []
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EJPY_")}
    errors = config.with_suffix(f".{command}.err")
    with errors.open("wb") as error_file, config.with_suffix(f".{command}.out").open("wb") as output_file:
        process = subprocess.Popen(
            arguments,
            cwd=config.parent,
            env={**environment, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output_file,
            stderr=error_file,
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    output = config.with_suffix(f".{command}.out").read_text()
    return Refused(process.returncode, errors.read_text().splitlines(), output, usage.ru_utime + usage.ru_stime)


@pytest.mark.parametrize(
    ("command", "faults_"),
    [
        ("worker", ["misspelled"]),
        ("worker", ["unquoted"]),
        ("worker", ["no-module"]),
        ("worker", list(FAULTS)),
        ("check", list(FAULTS)),
    ],
    ids=["misspelled", "unquoted", "no-module", "all", "all-checked"],
)
def test_g4_a_bad_file_is_refused_at_once_with_all_its_errors(
    command: str, faults_: list[str], server: ZooKeeperServer, tmp_path: Path
) -> None:
    """G4: typos were ignored in silence, errors were not readable. One line for each, with file, line, job and key; nothing
    is written to the registry, nor is one made."""
    text, wanted = faulty(*faults_)
    config = tmp_path / "jobs.yml"
    config.write_text(text)
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        done = refused(command, config, fleet.url if command == "worker" else None)
        assert (done.code, done.output) == (2, "")
        assert len(done.lines) == len(wanted), done.lines
        for line, (beginning, pattern) in zip(done.lines, wanted, strict=True):
            assert line.startswith(f"{config}{beginning}"), line
            assert re.match(pattern, line.removeprefix(f"{config}{beginning}")), line
        assert done.cpu_seconds < CPU_SECONDS
        assert not [path for path in fleet.tree() if path.startswith(fleet.namespace)]


def test_g4_a_bad_file_makes_no_embedded_registry(tmp_path: Path) -> None:
    config = tmp_path / "jobs.yml"
    config.write_text(faulty("no-cron")[0])
    assert refused("worker", config, None).code == 2  # its registry would be a file in the working directory
    assert refused("worker", config, sqlite_url(tmp_path)).code == 2
    assert not list(tmp_path.glob("*.db*"))


def test_a_good_file_is_checked_without_a_registry(tmp_path: Path) -> None:
    """F14: the fires shown carry their offset."""
    config = tmp_path / "jobs.yml"
    settings = {"time_zone": "Asia/Shanghai"}
    config.write_text(json.dumps({"jobs": {"nightly": job(cron="0 30 2 * * ?", items=3, settings=settings)}}))
    done = CliRunner().invoke(check, ["--config", str(config)])
    assert (done.exit_code, done.stderr) == (0, "")
    assert "nightly: 3 items" in done.stdout
    assert len(re.findall(r"02:30:00\+08:00", done.stdout)) == 3
    assert "no errors" in done.stdout
    [row] = json.loads(CliRunner().invoke(check, ["--config", str(config), "-o", "json"]).stdout)
    assert list(row) == ["job", "cron", "time_zone", "sharding_total_count", "next_fires"]
    assert list(row.values())[:4] == ["nightly", "0 30 2 * * ?", "Asia/Shanghai", 3]
    assert [fire[-14:] for fire in row["next_fires"]] == ["02:30:00+08:00"] * 3


@pytest.mark.parametrize("given", ["option", "variable"])
def test_a_registry_that_cannot_be_is_found_by_check_beside_what_is_wrong_with_the_file(given: str, tmp_path: Path) -> None:
    config = tmp_path / "jobs.yml"
    wrong = "mysql://app:hunter2@host/x"
    runner, arguments = CliRunner(), ["--config", str(config)]

    def checked() -> tuple[int, list[str]]:
        if given == "option":
            done = runner.invoke(check, [*arguments, "--registry", wrong])
        else:
            done = runner.invoke(check, arguments, env={"EJPY_REGISTRY": wrong})
        assert done.stdout == ""
        assert "hunter2" not in done.stderr
        return done.exit_code, done.stderr.splitlines()

    config.write_text(faulty()[0])
    code, [line] = checked()
    assert (code, line.startswith("registry: '…@host/x' is not a registry URL")) == (2, True)
    config.write_text("registry: sqlite://\n" + faulty("no-cron")[0])
    code, lines = checked()
    assert (code, len(lines)) == (2, 3)
    assert lines[0] == line
    assert lines[1].startswith(f"{config}:1: registry: no file; expected sqlite:///")
    assert "cron: required" in lines[2]


# ---- G5, G6: what counts, the file or the registry ----------------------------------------------------------------


def test_g5_a_job_of_another_class_is_refused_and_the_first_is_not_disturbed(server: ZooKeeperServer, tmp_path: Path) -> None:
    """G5: two classes under one name. The second worker says so and runs its other jobs; with `overwrite` it would take over."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        [first] = fleet.start(fleet.write("first.yml", {"orders": job(items=2)}), "first")
        fleet.wait_for_fires("orders", 1, items=2)
        before = fleet.nodes("orders")
        other = job(items=4, body="tests.cluster.misbehaving:Raising")
        [second] = fleet.start(fleet.write("second.yml", {"orders": other, "own": job()}), "second")
        fleet.wait_for_fires("own", 1)
        fires = fleet.wait_for_fires("orders", 2, items=2)
        [error] = [event for event in second.events if event["level"] == "ERROR"]
        for word in ("'orders'", "tests.support.jobs:RecordingJob", "tests.cluster.misbehaving:Raising", "overwrite"):
            assert word in error["message"]
        runs = [run for fire in fires for by_item in fleet.fires("orders")[fire].values() for run in by_item]
        assert {(run.pid, run.attempt) for run in runs} == {(first.pid, 1)}
        assert {path: node.data for path, node in fleet.nodes("orders").items()} == {p: n.data for p, n in before.items()}

        alone = fleet.write("alone.yml", {"orders": other})
        [third] = fleet.launch(alone, "third")
        assert third.wait_exit(PATIENCE_SECONDS) == 2
        assert "tests.cluster.misbehaving:Raising" in third.log
        assert "Traceback" not in third.log
        fleet.stop()


def warnings_of(worker: WorkerProcess) -> list[str]:
    return [event["message"] for event in worker.events if event["level"] == "WARNING" and "overwrite" in event["message"]]


@pytest.mark.parametrize("registry", ["zookeeper", "sqlite"])
def test_g6_the_registry_counts_until_a_file_overwrites(registry: str, server: ZooKeeperServer, tmp_path: Path) -> None:
    """G6: users could not tell which of file and registry counts. Without `overwrite` the registry does, for everything, and
    one warning names what differs. With it all workers switch without a restart."""
    url = sqlite_url(tmp_path) if registry == "sqlite" else zookeeper_url(server.address)
    with Fleet(url, tmp_path) as fleet:
        stored = job(items=2, settings={"sharding_item_parameters": "0=old", "description": "first"})
        [first] = fleet.start(fleet.write("first.yml", {"orders": stored}), "first")
        fleet.wait_for_fires("orders", 1, items=2)
        assert warnings_of(first) == []

        differing = job(
            cron=NEVER,
            items=4,
            settings={"sharding_item_parameters": "0=new", "description": "first", "failover": True, "misfire": False},
        )
        [second] = fleet.start(fleet.write("second.yml", {"orders": differing}), "second")
        fleet.wait_until_shared("orders", 2, first, second)
        [fire] = fleet.wait_for_fires("orders", 1, items=2)
        runs = {item: run for item, [run] in fleet.fires("orders")[fire].items()}
        assert {item: (run.total, run.parameter) for item, run in runs.items()} == {0: (2, "old"), 1: (2, None)}
        assert {run.pid for run in runs.values()} == {first.pid, second.pid}
        [warning] = warnings_of(second)
        for key, file, registry_value in (("cron", NEVER, "* * * * * ?"), ("sharding_total_count", "4", "2")):
            assert re.search(rf"{key}: file '?{re.escape(file)}'?, registry '?{re.escape(registry_value)}'?", warning), warning
        for key in ("sharding_item_parameters.0: file 'new'", "failover: ", "misfire: "):
            assert key in warning
        assert "description" not in warning

        overwriting = {**stored, "sharding_total_count": 3, "sharding_item_parameters": "0=new", "cron": "0/2 * * * * ?"}
        third_file = fleet.write("third.yml", {"orders": {**overwriting, "overwrite": True}})
        [third] = fleet.start(third_file, "third")
        workers = first, second, third
        fleet.wait_until_shared("orders", 3, *workers)
        changed = now()
        assert warnings_of(third) == []
        fires = fleet.wait_for_fires("orders", 2, items=3, after=changed)
        assert [fire.second % 2 for fire in fires] == [0, 0]
        for fire in fires:
            runs = {item: run for item, [run] in fleet.fires("orders")[fire].items()}
            assert {run.total for run in runs.values()} == {3}
            assert runs[0].parameter == "new"
            assert {run.pid for run in runs.values()} == {worker.pid for worker in workers}
        assert not [run for run in fleet.runs("orders") if run.scheduled_time > changed and run.scheduled_time.second % 2]
        assert [worker.alive for worker in workers] == [True] * 3
        [row] = fleet.rows("jobs", "list")
        assert (row["cron"], row["sharding_total_count"]) == ("0/2 * * * * ?", 3)
        shards = fleet.rows("shards", "list", "orders")
        assert [(row["item"], row["parameter"]) for row in shards] == [(0, "new"), (1, None), (2, None)]
        assert {row["instance"] for row in shards} == {fleet.id_of(worker) for worker in workers}
        fleet.stop()


# ---- environment, working directory, help -------------------------------------------------------------------------


def test_python_m_ejpy_is_the_command() -> None:
    def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-m", "ejpy", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)

    version = run_module("--version")
    assert (version.returncode, version.stdout, version.stderr) == (0, f"ejpy, version {__version__}\n", "")
    refusal = run_module("jobs", "list", "--registry", "nothing")
    assert (refusal.returncode, refusal.stdout, len(refusal.stderr.splitlines())) == (2, "", 1)


LOOKING = ["REGISTRY", "CONNECTION_TIMEOUT", "OUTPUT"]
OPTIONS = [
    (worker, ["CONFIG", "REGISTRY", "CONNECTION_TIMEOUT", "GRACE", "IP", "POOL_SIZE", "PROCESSES", "LOG_LEVEL", "LOG_FORMAT"]),
    (check, ["CONFIG", "REGISTRY", "OUTPUT"]),
    (list_jobs, LOOKING),
    (list_shards, LOOKING),
]


@pytest.mark.parametrize(("command", "names"), OPTIONS)
def test_help_names_an_environment_variable_for_every_option(command: Command, names: list[str]) -> None:
    done = CliRunner().invoke(command, ["--help"])
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    flags = set(re.findall(r"(?<![a-z-])--[a-z][a-z-]+", text)) - {"--help"}
    assert flags == {f"--{name.lower().replace('_', '-')}" for name in names}
    assert sorted(set(re.findall(r"EJPY_[A-Z_]+", text))) == sorted(f"EJPY_{name}" for name in names)


OWN_JOB = """\
import os
from ejpy import ShardedJob

class Own(ShardedJob):
    def execute(self, shard_ctx):
        shard_ctx.log.info("own job of %s at %s", shard_ctx.sharding_total_count, os.getcwd())
"""


class ByEnvironment(WorkerProcess):
    """A worker that is told everything by environment variables, and finds its modules without PYTHONPATH."""

    def __init__(self, config: Path, url: str, cwd: Path, env: Mapping[str, str], name: str) -> None:
        super().__init__(config, url, cwd, {**env, "EJPY_CONFIG": str(config), "EJPY_REGISTRY": url}, name)
        self._command = self._command[:2]
        del self._environment["PYTHONPATH"]


@pytest.fixture
def own_directory(tmp_path: Path) -> Path:
    directory = tmp_path / "elsewhere"
    directory.mkdir()
    (directory / "own_jobs.py").write_text(OWN_JOB)
    return directory


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_everything_by_environment_with_a_class_of_the_working_directory(
    executor: str, server: ZooKeeperServer, own_directory: Path
) -> None:
    url = zookeeper_url(server.address)
    with Fleet(url, own_directory) as fleet:
        config = fleet.write("jobs.yml", {"own": job(body="own_jobs:Own", settings={"executor": executor})})
        variables = {"EJPY_IP": "10.7.7.7", "EJPY_GRACE": "1.25", "EJPY_LOG_FORMAT": "json"}
        with ByEnvironment(config, url, own_directory, variables, "own") as process:
            process.wait_ready(PATIENCE_SECONDS)
            process.wait_for_log(rf"own job of 1 at {re.escape(str(own_directory))}", PATIENCE_SECONDS)
            assert fleet.id_of(process).startswith("10.7.7.7@-@")
            assert fleet.view("own").servers.keys() == {"10.7.7.7"}
            os.kill(process.pid, signal.SIGINT)
            process.wait_for_log(r"bodies may run for 1\.25 s", PATIENCE_SECONDS)
            assert process.wait_exit(PATIENCE_SECONDS) == 0
            assert not faults(process)
        listed = subprocess.run(
            [str(Path(sys.executable).with_name("ejpy")), "jobs", "list"],
            env={**os.environ, "EJPY_REGISTRY": url, "EJPY_OUTPUT": "json"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert [row["job"] for row in json.loads(listed.stdout)] == ["own"]


def test_a_namespace_without_jobs_is_said_to_have_none(tmp_path: Path) -> None:
    """A table without rows looks like a cluster that is there; the namespace may have been misspelt."""
    (tmp_path / "shop.db").touch()
    done = run_ejpy("jobs", "list", "-o", "json", "--registry", f"sqlite:///{tmp_path}/shop.db", timeout=PATIENCE_SECONDS)
    assert (done.returncode, json.loads(done.stdout)) == (0, [])
    assert "there are no jobs in" in done.stderr
    assert "shop.db" in done.stderr
