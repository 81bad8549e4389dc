"""Scripts, HTTP requests, dataflow and one-off jobs, run by real workers from the files that users write."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from ejpy.config.document import from_document, to_document
from ejpy.registry.base import Create, SetData
from ejpy.terms import Outcome, Reason
from tests.support.fleet import Fleet, job, now, sqlite_url, zookeeper_url
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess, said


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(sqlite_url(tmp_path), tmp_path) as fleet:
        yield fleet


def typed(
    kind: str, props: dict[str, str], *, cron: str | None = "* * * * * ?", items: int = 1, **settings: Any
) -> dict[str, Any]:
    return {"type": kind, "cron": cron, "sharding_total_count": items, "props": props, **settings}


def script(path: Path, text: str, **settings: Any) -> dict[str, Any]:
    """A job that runs this shell script, which is told the test's directory as `$1` and the JSON as `$2`."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return typed("SCRIPT", {"script.command.line": f"{path} {path.parent}"}, **settings)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def record(fleet: Fleet, **about: Any) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in lines(fleet.record)]
    return [line for line in found if about.items() <= line.items()]


def outcome(fleet: Fleet, name: str) -> Outcome | None:
    entry = fleet.ledger(name).get(0)
    return entry.outcome if entry is not None else None


def wait_for_outcome(fleet: Fleet, name: str, wanted: Outcome) -> None:
    wait_until(lambda: outcome(fleet, name) is wanted, PATIENCE_SECONDS, f"{name} has {wanted.value}")


def is_gone(pid: int) -> bool:
    """It has ended; a zombie has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def errors(worker: WorkerProcess, name: str) -> list[dict[str, Any]]:
    return [event for event in worker.events if event["level"] == "ERROR" and event.get("job") == name]


# ---- scripts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("registry", ["sqlite", "zookeeper"])
def test_a_script_is_told_its_item_and_its_output_is_logged(
    registry: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = sqlite_url(tmp_path) if registry == "sqlite" else zookeeper_url(request.getfixturevalue("server").address)
    with Fleet(url, tmp_path) as fleet:
        text = 'echo "$2" >> "$1/told"; echo "token $EJPY_FENCING_TOKEN"'
        parameters = {0: "north", 1: "south"}
        jobs = {"report": script(tmp_path / "run.sh", text, items=2, sharding_item_parameters=parameters)}
        [worker] = fleet.start(fleet.write("jobs.yml", jobs), "a")
        wait_until(lambda: len(lines(tmp_path / "told")) >= 4, PATIENCE_SECONDS, "two fires")
        told = [json.loads(line) for line in lines(tmp_path / "told")]
        assert {(one["jobName"], one["shardingItem"], one["shardingParameter"]) for one in told} == {
            ("report", 0, "north"),
            ("report", 1, "south"),
        }
        assert {one["taskId"] for one in told} == {f"report@-@{item}@-@READY@-@{worker.id}" for item in (0, 1)}
        wait_for_outcome(fleet, "report", Outcome.SUCCEEDED)
        output = [event for event in said(worker, "ejpy.job.report") if event["message"].startswith("token ")]
        assert output
        assert all(event["message"] == f"token {event['token']}" for event in output)
        fleet.stop()


def test_an_exit_code_that_is_not_0_is_a_failure_whose_output_is_told_once(fleet: Fleet, tmp_path: Path) -> None:
    jobs = {"report": script(tmp_path / "run.sh", "seq 1 100; echo no such table >&2; exit 3")}
    [worker] = fleet.start(fleet.write("jobs.yml", jobs), "a")
    wait_for_outcome(fleet, "report", Outcome.FAILED)
    failure = wait_until(lambda: errors(worker, "report"), PATIENCE_SECONDS, "the failure is logged")[0]
    assert failure["message"] == "failed: ScriptFailed: exit code 3: no such table"
    assert "exception" not in failure  # its output stands above; frames of Python's tell nothing
    token = failure["token"]
    output = [
        event["message"] for event in said(worker, "ejpy.job.report") if event["level"] == "INFO" and event["token"] == token
    ]
    assert output == [*map(str, range(1, 101)), "no such table"]
    assert (failure["item"], failure["attempt"]) == (0, 1)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_its_timeout_ends_a_script_and_what_it_started(fleet: Fleet, tmp_path: Path, executor: str) -> None:
    text = 'sleep 1000 & echo $$ > "$1/mine"; echo $! > "$1/child"; echo > "$1/ready"; wait'
    jobs = {"report": script(tmp_path / "run.sh", text, executor=executor, timeout="1s", misfire=False)}
    [worker] = fleet.start(fleet.write("jobs.yml", jobs), "a")
    wait_until(lambda: (tmp_path / "ready").exists(), PATIENCE_SECONDS, "the script runs")
    pids = [int((tmp_path / name).read_text()) for name in ("mine", "child")]
    wait_for_outcome(fleet, "report", Outcome.TIMED_OUT)
    assert all(is_gone(pid) for pid in pids), "it is ended before its end is recorded"
    [told, *_] = errors(worker, "report")
    assert told["message"] == "failed: ran past the job's timeout of 1 s"


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_script_ends_with_its_worker(fleet: Fleet, tmp_path: Path, executor: str) -> None:
    """SIGTERM of the worker, and a script that does not end within the grace."""
    text = 'sleep 1000 & echo $$ > "$1/mine"; echo $! > "$1/child"; echo > "$1/ready"; wait'
    jobs = {"report": script(tmp_path / "run.sh", text, executor=executor)}
    [worker] = fleet.start(fleet.write("jobs.yml", jobs), "a", grace=0.5)
    wait_until(lambda: (tmp_path / "ready").exists(), PATIENCE_SECONDS, "the script runs")
    worker.sigterm()
    assert worker.wait_exit(PATIENCE_SECONDS) == 0
    assert all(is_gone(int((tmp_path / name).read_text())) for name in ("mine", "child"))
    assert outcome(fleet, "report") is Outcome.INTERRUPTED
    assert errors(worker, "report") == [], "it was told to stop: that is no failure of its own"


def test_a_script_that_ends_within_the_grace_has_succeeded(fleet: Fleet, tmp_path: Path) -> None:
    text = 'echo > "$1/ready"; while [ -e "$1/hold" ]; do sleep 0.05; done'
    (tmp_path / "hold").touch()
    [worker] = fleet.start(fleet.write("jobs.yml", {"report": script(tmp_path / "run.sh", text)}), "a", grace=50)
    wait_until(lambda: (tmp_path / "ready").exists(), PATIENCE_SECONDS, "the script runs")
    worker.sigterm()
    worker.wait_for_log("stopping; ", PATIENCE_SECONDS)
    (tmp_path / "hold").unlink()
    assert worker.wait_exit(PATIENCE_SECONDS) == 0
    assert outcome(fleet, "report") is Outcome.SUCCEEDED


# ---- HTTP ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def web() -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """An address, and what was asked there: path, and the sharding context. The last part of the path is the status."""
    asked: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            asked.append((self.path, json.loads(self.headers["shardingContext"])))
            self.send_response(int(self.path.rpartition("/")[2]))
            self.send_header("Content-Length", "5")
            self.end_headers()
            self.wfile.write(b"sorry")

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()
    thread.join()


def test_http_jobs_ask_and_their_answers_decide(fleet: Fleet, web: tuple[str, list[tuple[str, dict[str, Any]]]]) -> None:
    address, asked = web

    def asking(path: str) -> dict[str, Any]:
        return typed("HTTP", {"http.uri": f"{address}{path}", "http.method": "POST", "http.data": "x=1"})

    jobs = {"good": asking("/close/200"), "bad": asking("/close/500")}
    [worker] = fleet.start(fleet.write("jobs.yml", jobs), "a")
    wait_for_outcome(fleet, "good", Outcome.SUCCEEDED)
    wait_for_outcome(fleet, "bad", Outcome.FAILED)
    assert {(path, told["jobName"], told["shardingItem"]) for path, told in asked} == {
        ("/close/200", "good", 0),
        ("/close/500", "bad", 0),
    }
    failure = wait_until(lambda: errors(worker, "bad"), PATIENCE_SECONDS, "the failure is logged")[0]
    assert "500" in failure["message"]
    assert "sorry" in failure["message"]
    assert errors(worker, "good") == []


# ---- dataflow -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streaming", [True, False])
def test_a_dataflow_job_fetches_until_there_is_no_more_or_once_for_each_fire(
    fleet: Fleet, tmp_path: Path, streaming: bool
) -> None:
    queue = tmp_path / "queue"
    queue.mkdir()
    for number in range(5):
        (queue / f"{number}").touch()
    props = {"streaming.process": "true"} if streaming else {}
    flow = job(body="tests.cluster.kinds:Queue", settings={"job_parameter": str(queue), "props": props})
    fleet.start(fleet.write("jobs.yml", {"flow": flow}), "a")
    wait_until(lambda: [] in [line["data"] for line in record(fleet, event="fetch")], PATIENCE_SECONDS, "nothing is left")
    fetched = record(fleet, event="fetch")[:4]
    assert [line["data"] for line in fetched] == [["0", "1"], ["2", "3"], ["4"], []]
    assert len({line["scheduled_time"] for line in fetched}) == (1 if streaming else 4)
    wait_for_outcome(fleet, "flow", Outcome.SUCCEEDED)
    fleet.stop()


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_stream_ends_well_when_its_worker_is_to_end(fleet: Fleet, executor: str) -> None:
    """In ElasticJob a stream that never runs dry blocks the shutdown. Here it ends after what it is at, long before the grace."""
    settings = {"props": {"streaming.process": "true"}, "executor": executor}
    flow = job(body="tests.cluster.kinds:Endless", settings=settings)
    [worker] = fleet.start(fleet.write("jobs.yml", {"flow": flow}), "a", grace=600)
    wait_until(lambda: len(record(fleet, event="process")) > 10, PATIENCE_SECONDS, "the stream runs")
    worker.sigterm()
    assert worker.wait_exit(PATIENCE_SECONDS) == 0
    assert outcome(fleet, "flow") is Outcome.SUCCEEDED


# ---- one-off ------------------------------------------------------------------------------------------------------


def trigger(fleet: Fleet, name: str, worker: WorkerProcess) -> None:
    paths = fleet.paths(name)
    above = [] if paths.triggers in fleet.nodes(name) else [Create(paths.triggers)]
    fleet.change(*above, Create(paths.trigger(worker.id)))


def set_cron(fleet: Fleet, name: str, cron: str | None) -> None:
    """What an operator does while the job runs."""
    path = fleet.paths(name).config
    node = fleet.nodes(name)[path]
    config = from_document(node.data, name, "m:C")
    fleet.change(SetData(path, to_document(config.model_copy(update={"cron": cron}), node.data), node.version))


def test_a_one_off_job_runs_when_it_is_triggered_and_gets_and_loses_a_schedule_while_it_is_run(fleet: Fleet) -> None:
    [worker] = fleet.start(fleet.write("jobs.yml", {"import": {**job(), "cron": None}}), "a")
    assert [event["message"] for event in said(worker, "ejpy.scheduler", job="import")].count(
        "one-off: runs only when it is triggered"
    ) == 1
    assert fleet.runs("import") == []

    trigger(fleet, "import", worker)
    [run] = fleet.wait_for_runs("import", 1, lambda run: run.end is not None)
    assert run.reason is Reason.TRIGGER

    set_cron(fleet, "import", "* * * * * ?")
    fleet.wait_for_runs("import", 2, lambda run: run.reason is Reason.SCHEDULED)
    set_cron(fleet, "import", None)
    worker.wait_for_log(r"the schedule is now one-off: runs only when it is triggered, the item count 1", PATIENCE_SECONDS)
    last = len(fleet.runs("import"))
    changed = now()
    trigger(fleet, "import", worker)
    runs = fleet.wait_for_runs("import", last + 1, lambda run: run.end is not None)
    assert [run.reason for run in runs if run.scheduled_time > changed] == [Reason.TRIGGER]
    another = fleet.start(fleet.directory / "jobs.yml", "b")
    fleet.stop()
    for one in (worker, *another):
        assert [event for event in one.events if event["level"] in ("WARNING", "ERROR") and event.get("job") == "import"] == []


# ---- a Spring Boot application's file -------------------------------------------------------------------------------


def test_a_worker_runs_the_jobs_of_a_spring_boot_application(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f'#!/bin/sh\necho "$1" >> {tmp_path}/told\n')
    (tmp_path / "run.sh").chmod(0o755)
    file = tmp_path / "application.yml"
    file.write_text(
        yaml.safe_dump(
            {
                "spring": {"application": {"name": "shop"}},
                "elasticjob": {
                    "regCenter": {"serverLists": "${ZK_HOSTS:localhost:2181}", "namespace": "${spring.application.name}"},
                    "jobs": {
                        "orders": {
                            "elasticJobClass": "com.acme.Orders",
                            "cron": "* * * * * ?",
                            "shardingTotalCount": 2,
                            "shardingItemParameters": "0=Beijing,1=Shanghai",
                        },
                        "backup": {
                            "elasticJobType": "SCRIPT",
                            "jobBootstrapBeanName": "backupJob",
                            "shardingTotalCount": 1,
                            "props": {"script.command.line": f"{tmp_path}/run.sh"},
                        },
                    },
                },
                "ejpy": {"classes": {"com.acme.Orders": "tests.support.jobs:RecordingJob"}},
            }
        )
    )
    [worker] = fleet.start(file, "a")
    runs = fleet.wait_for_runs("orders", 4, lambda run: run.end is not None)
    assert {(run.item, run.parameter) for run in runs} == {(0, "Beijing"), (1, "Shanghai")}
    paths = fleet.paths("orders")
    nodes = fleet.nodes("orders")
    assert nodes[paths.root].data == b"com.acme.Orders"
    assert b"tests.support" not in nodes[paths.config].data, "what stands for the class here is no other worker's business"
    assert fleet.nodes("backup")[fleet.paths("backup").root].data == b"SCRIPT"

    assert lines(tmp_path / "told") == []
    trigger(fleet, "backup", worker)
    [told] = wait_until(lambda: lines(tmp_path / "told"), PATIENCE_SECONDS, "the script was run")
    assert json.loads(told)["jobName"] == "backup"
    fleet.stop()
