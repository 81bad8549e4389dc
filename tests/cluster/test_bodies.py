"""Bodies that raise anything, kill their process or never end, on every executor of one worker; and a normal job beside them.

One worker runs all of it for a while, every job every second. What came of it is looked at from several sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from ejpy.coordination.ledger import Entry
from ejpy.terms import NotRun, Outcome, Reason
from tests.cluster.misbehaving import ERRORS, entered
from tests.support.fleet import Fleet, job, zookeeper_url
from tests.support.jobs import Execution
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.zookeeper import ZooKeeperServer

EXECUTORS = {"thread": "", "process": "", "asyncio": "Async"}
"""And which variant of a class runs there."""
SECOND = timedelta(seconds=1)
FIRES = 5


def on(executor: str, kind: str, *, timeout: str | None = None, **behaviour: Any) -> dict[str, Any]:
    """A job of a kind of `misbehaving`, for an executor."""
    body = f"tests.cluster.misbehaving:{kind}{EXECUTORS[executor]}"
    settings = {"executor": executor, "catch_up": "all", "timeout": timeout}
    return job(body=body, settings={key: value for key, value in settings.items() if value}, **behaviour)


@dataclass(frozen=True)
class History:
    """What the worker, its bodies and the ledger say."""

    worker_pid: int
    exit_code: int
    events: list[dict[str, Any]]
    entered: dict[str, list[dict[str, Any]]]
    """By job, what its bodies noted when they were entered."""
    normal: list[Execution]
    ledger: dict[str, Entry]
    """At the end, by job."""
    outcomes: dict[str, set[Outcome]]
    """What stood in the ledger whenever it was looked at, by job."""

    def fires(self, name: str) -> list[datetime]:
        return [datetime.fromisoformat(line["scheduled_time"]) for line in self.entered[name]]

    def may_miss(self, name: str) -> Callable[[datetime], bool]:
        """Tells whether a fire of a job came while the one before was still running; in threads and coroutines, none does.

        A child process takes its time to start."""
        ranges = [one for one in self.ledger[name].not_run if one.why is NotRun.OVERLAP]
        children = name == "killed" or name.endswith("process")
        return lambda fire: children and any(one.after < fire <= one.until for one in ranges)

    def ends(self, name: str) -> dict[datetime, dict[str, Any]]:
        """What the worker says of the ends of a job's bodies, by scheduled time. (Whatever waits for a child process when the
        worker is told to stop is not entered.)"""
        return {
            datetime.fromisoformat(event["scheduled_time"].replace("Z", "+00:00")): event
            for event in self.events
            if event["logger"] == "ejpy.history"
            and event.get("job") == name
            and event.get("outcome", "not entered") != "not entered"
        }


@pytest.fixture(scope="module")
def history(server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    directory = tmp_path_factory.mktemp("bodies")
    gate = directory / "gate"
    gate.touch()
    raising = {
        f"{error or 'garbage'} in {executor}": on(executor, "Raising", error=error)
        for error in (*ERRORS, None)
        for executor in EXECUTORS
    }
    slow = {f"patient in {executor}": on(executor, "Patient", timeout="1s") for executor in EXECUTORS}
    slow |= {f"stubborn in {executor}": on(executor, "Stubborn", timeout="1s", gate=str(gate)) for executor in EXECUTORS}
    others = {"normal": job(settings={"catch_up": "all"}), "killed": on("process", "KillsItself")}
    with Fleet(zookeeper_url(server.address), directory) as fleet:
        config = fleet.write("jobs.yml", {**raising, **slow, **others})
        [worker] = fleet.start(config, "only", grace=1, options=("--processes", "5"))
        wait_until(lambda: all(entered(fleet.record, name) for name in slow), PATIENCE_SECONDS, "every slow job has begun to run")
        gate.unlink()
        many = (*raising, "killed")
        wait_until(
            lambda: (
                all(len(entered(fleet.record, name)) > FIRES for name in many)
                and all(len(entered(fleet.record, name)) > 1 for name in slow)
                and len(fleet.runs("normal")) > FIRES
            ),
            PATIENCE_SECONDS,
            "every job has run often enough",
        )
        names = (*raising, *slow, *others)
        outcomes: dict[str, set[Outcome]] = {name: set() for name in names}

        def seen() -> bool:
            for name in raising:
                entry = fleet.ledger(name)[0]
                outcomes[name] |= {entry.outcome} if entry.outcome else set()
            return all(outcomes[name] for name in raising)

        wait_until(seen, PATIENCE_SECONDS, "an outcome of every job")
        pid = worker.pid
        worker.sigterm()
        code = worker.wait_exit(PATIENCE_SECONDS)
        yield History(
            pid,
            code,
            worker.events,
            {name: entered(fleet.record, name) for name in names},
            fleet.runs("normal"),
            {name: fleet.ledger(name)[0] for name in names},
            outcomes,
        )


def assert_no_gap(fires: list[datetime], beside: Callable[[datetime], bool] = lambda fire: False) -> None:
    """A fire every second; but for those that `beside` allows to be missing."""
    assert len(fires) >= FIRES
    assert fires == sorted(set(fires))
    span = int((fires[-1] - fires[0]).total_seconds())
    missing = {fires[0] + number * SECOND for number in range(span)} - set(fires)
    assert not [fire for fire in missing if not beside(fire)]


# ---- M1 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("error", ERRORS)
def test_m1_whatever_a_body_raises_its_job_goes_on(error: str, executor: str, history: History) -> None:
    """M1: an exception ended the schedule of its job, or of all jobs. Each failure is logged with job, item and trace."""
    name = f"{error} in {executor}"
    assert_no_gap(history.fires(name), history.may_miss(name))
    ends = history.ends(name)
    assert ends.keys() >= set(history.fires(name)[:FIRES])
    assert {end["outcome"] for end in ends.values()} == {Outcome.FAILED.value}
    assert {end["attempt"] for end in ends.values()} == {1}
    kind = ERRORS[error].__name__
    assert {end["message"] for end in ends.values()} == {"failed"}
    traces = [event for event in history.events if event.get("job") == name and "exception" in event]
    assert len(traces) == len(ends)
    for trace in traces:
        assert trace["item"] == 0
        assert "in execute" in trace["exception"]
        assert kind in trace["exception"]
    assert history.outcomes[name] == {Outcome.FAILED}


@pytest.mark.parametrize("executor", EXECUTORS)
def test_m1_a_body_that_returns_garbage_succeeds_where_it_was_to_run(executor: str, history: History) -> None:
    """And one job for each executor: threads and coroutines run in the worker's process, the others in children."""
    name = f"garbage in {executor}"
    assert_no_gap(history.fires(name), history.may_miss(name))
    assert {end["outcome"] for end in history.ends(name).values()} == {Outcome.SUCCEEDED.value}
    assert history.outcomes[name] == {Outcome.SUCCEEDED}
    pids = {line["pid"] for line in history.entered[name]}
    assert (pids == {history.worker_pid}) == (executor != "process")
    assert history.worker_pid not in pids or executor != "process"


def test_m1_a_normal_job_beside_them_has_all_its_fires(history: History) -> None:
    assert_no_gap([run.scheduled_time for run in history.normal])
    assert history.normal[0].reason in (Reason.SCHEDULED, Reason.CATCH_UP)  # it may come while the item is being assigned
    assert {run.reason for run in history.normal[1:]} == {Reason.SCHEDULED}
    assert {run.how for run in history.normal} == {"returned"}
    assert history.exit_code == 0
    beyond = [event for event in history.events if event["level"] in ("ERROR", "CRITICAL") and "job" not in event]
    assert not beyond, "a fault that belongs to no job"


# ---- executors ----------------------------------------------------------------------------------------------------


def test_a_body_whose_process_is_killed_has_failed_and_the_next_fire_is_normal(history: History) -> None:
    assert_no_gap(history.fires("killed"), history.may_miss("killed"))
    assert {end["outcome"] for end in history.ends("killed").values()} == {Outcome.FAILED.value, Outcome.SUCCEEDED.value}
    said = {
        datetime.fromisoformat(event["scheduled_time"].replace("Z", "+00:00"))
        for event in history.events
        if event.get("job") == "killed" and event["message"] == "failed: its child process was killed by SIGKILL"
    }
    for fire, end in history.ends("killed").items():
        killed = fire.second % 2 == 0
        assert end["outcome"] == (Outcome.FAILED if killed else Outcome.SUCCEEDED).value
        assert (fire in said) == killed


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_body_that_listens_ends_at_its_timeout_each_time(executor: str, history: History) -> None:
    name = f"patient in {executor}"
    ends = list(history.ends(name).values())[:-1]  # the last one may have been told to stop with the worker
    assert ends
    assert {end["outcome"] for end in ends} == {Outcome.TIMED_OUT.value}
    assert len(history.fires(name)) == len(set(history.fires(name)))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_body_that_does_not_listen_is_timed_out_all_the_same(executor: str, history: History) -> None:
    """A thread or coroutine is given up, a child process is killed; then the item runs again, and this time it ends."""
    name = f"stubborn in {executor}"
    first, *others = history.ends(name).values()
    assert first["outcome"] == Outcome.TIMED_OUT.value
    assert others[0]["outcome"] == Outcome.SUCCEEDED.value
    assert history.fires(name)[0] < history.fires(name)[1]
    said = [event["message"] for event in history.events if event.get("job") == name and event["logger"] == "ejpy.execution"]
    assert any(message.startswith("killed: " if executor == "process" else "given up: ") for message in said)
    pids = [line["pid"] for line in history.entered[name]]
    assert (pids[0] == pids[1] == history.worker_pid) == (executor != "process")
