"""Reports of the field that have no other place: clocks, forks, hosts without a name; and a job that fires every second.

The first fixture starts two workers that run beside all tests here; the last test looks at what they did.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ejpy.admin import operations
from ejpy.coordination.ledger import Entry
from ejpy.terms import Reason
from tests.support.fleet import NEVER, Fleet, job, now, zookeeper_url
from tests.support.jobs import Execution
from tests.support.observer import Observer
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer

SECOND = timedelta(seconds=1)
FIRES = 60


def begun_with(code: str) -> tuple[str, ...]:
    """How `ejpy` is run in a process that first does something else. Not for executors that start children afresh."""
    return sys.executable, "-c", f"{code}\nfrom ejpy.cli.main import main\nmain()"


def forked(fleet: Fleet, event: str) -> list[dict[str, Any]]:
    """The lines that children of `ForkingJob` left."""
    path = Path(f"{fleet.record}.forked")
    lines = [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []
    return [line for line in lines if line["event"] == event]


@pytest.fixture(scope="module", autouse=True)
def beside(server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Two workers with a job that fires every second and one whose body, triggered once, has its child save a checkpoint."""
    directory = tmp_path_factory.mktemp("beside")
    with Fleet(zookeeper_url(server.address), directory) as fleet:
        live_until = directory / "end"
        forking = job(cron=NEVER, body="tests.cluster.forking:ForkingJob", live_until=str(live_until), save=True)
        a, b = fleet.start(fleet.write("jobs.yml", {"second": job(items=2), "forking": forking}), "a", "b")
        fleet.wait_until_shared("second", 2, a, b)
        with Observer(fleet.url) as operator:
            operator.ask(lambda registry: operations.trigger(registry, fleet.namespace, "forking"))
        yield fleet
        live_until.touch()
        fleet.stop()


# ---- G7 -----------------------------------------------------------------------------------------------------------


class FiveSecondsAhead(WorkerProcess):
    """A worker on a machine whose clock is wrong."""

    ejpy = begun_with(
        "from datetime import timedelta\n"
        "from ejpy.clock import SystemClock\n"
        "right = SystemClock.now\n"
        "SystemClock.now = lambda self: right(self) + timedelta(seconds=5)"
    )


def test_g7_a_clock_that_is_off_is_refused_by_the_jobs_that_ask_for_it(server: ZooKeeperServer, tmp_path: Path) -> None:
    """G7: -1 meant no check and -2 raised; a refusal ended the worker; the check left a node at each fire."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        jobs = {f"limit{limit}": job(items=2, settings={"max_time_diff_seconds": limit}) for limit in (-2, -1, 1)}
        config = fleet.write("jobs.yml", jobs)
        [wrong] = fleet.launch(config, "wrong", kind=FiveSecondsAhead)
        for name in ("limit-2", "limit-1"):
            fleet.wait_for_fires(name, 1, items=2)
        [error] = [event for event in wrong.events if event["level"] == "ERROR"]
        assert error["job"] == "limit1"
        assert "max_time_diff_seconds is 1" in error["message"]
        assert error["message"].count(f"{now():%Y-%m-%d}") == 2 or now().hour == 0, "both times are named"

        [right] = fleet.start(config, "right")
        fleet.wait_for_fires("limit1", 2, items=2)
        before = {name: set(fleet.nodes(name)) for name in jobs}
        begun = now()
        for name in jobs:
            fleet.wait_for_fires(name, 5, items=2, after=begun)
        assert {name: set(fleet.nodes(name)) for name in jobs} == before
        fleet.stop()
        assert {run.pid for run in fleet.runs("limit1")} == {right.pid}
        assert all(len(runs) == 1 for by_item in fleet.fires("limit1").values() for runs in by_item.values())


# ---- M6 -----------------------------------------------------------------------------------------------------------


class WithoutName(WorkerProcess):
    """A worker on a host that has a name which nobody knows, itself included, as in a container: only numbers resolve."""

    ejpy = begun_with(
        "import socket\n"
        "def numbers_only(resolve):\n"
        "    def resolved(host, *others, **more):\n"
        "        if not set(host or '') <= set('0123456789.'):\n"
        "            raise socket.gaierror(-2, f'Name or service not known: {host}')\n"
        "        return resolve(host, *others, **more)\n"
        "    return resolved\n"
        "for name in ('getaddrinfo', 'gethostbyname', 'gethostbyname_ex', 'gethostbyaddr'):\n"
        "    setattr(socket, name, numbers_only(getattr(socket, name)))\n"
        "socket.gethostname = lambda: 'no-such-host'"
    )


def test_m6_a_worker_runs_on_a_host_whose_name_nobody_knows(server: ZooKeeperServer, tmp_path: Path) -> None:
    """M6: a job did not start where the host's own name could not be resolved."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        [worker] = fleet.start(fleet.write("jobs.yml", {"any": job()}), "nameless", kind=WithoutName)
        fleet.wait_for_fires("any", 1)
        [ip] = fleet.view("any").servers
        assert worker.id.startswith(f"{ip}@-@")
        fleet.stop()


# ---- M7 -----------------------------------------------------------------------------------------------------------


class PreForked(WorkerProcess):
    """A worker in a child of a process that had imported all of ejpy before it forked, as web servers do. The parent passes
    SIGTERM on, and ends as its child."""

    ejpy = begun_with(
        "import os, signal, threading\n"
        "import ejpy, ejpy.cli.main, ejpy.cli.worker, ejpy.registry.open, kazoo.client\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "child = os.fork()\n"
        "if child:\n"
        "    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))\n"
        "    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )


def test_m7_a_process_that_has_imported_ejpy_may_fork_and_start_a_worker_in_the_child(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """M7: a scheduler that was made before the fork did nothing in the child. Importing ejpy starts nothing."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        config = fleet.write("jobs.yml", {"thread": job(), "process": job(settings={"executor": "process"})})
        [worker] = fleet.start(config, "child", kind=PreForked)
        for name in ("thread", "process"):
            fleet.wait_for_fires(name, 2)
        assert worker.pid not in {run.pid for run in fleet.runs("thread")}
        fleet.stop()


def test_m7_a_child_that_a_body_forked_disturbs_nobody(server: ZooKeeperServer, tmp_path: Path) -> None:
    """It has copies of all that the worker has open. It keeps neither the session of a worker that was killed alive, nor the
    end of one that stops from being known at once."""
    live_until = tmp_path / "end"
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        forking = job(items=2, body="tests.cluster.forking:ForkingJob", live_until=str(live_until))
        a, b = fleet.start(fleet.write("jobs.yml", {"forking": forking}), "a", "b")
        fleet.wait_until_shared("forking", 2, a, b)
        wait_until(
            lambda: {line["worker"] for line in forked(fleet, "forked")} == {a.pid, b.pid}, PATIENCE_SECONDS, "both forked"
        )
        sessions = {one.id: one.session_id for one in fleet.view("forking").instances.values()}
        fleet.wait_for_fires("forking", 3, items=2)
        assert {one.id: one.session_id for one in fleet.view("forking").instances.values()} == sessions

        children = [line["pid"] for line in forked(fleet, "forked") if line["worker"] == a.pid]
        a.kill9()
        fleet.wait_until_shared("forking", 2, b)  # the session ended, though its connection is still open
        fleet.wait_for_fires("forking", 1, items=2)
        assert all(alive(pid) for pid in children)
        b.sigterm()
        assert b.wait_exit(PATIENCE_SECONDS) == 0
        assert not fleet.view("forking").instances
        assert all(len(runs) == 1 for by_item in fleet.fires("forking").values() for runs in by_item.values())
        live_until.touch()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_m7_a_child_that_a_body_forked_cannot_use_the_workers_session(beside: Fleet) -> None:
    """M7: what the child asks of the worker's session, nobody answers. It is told so after 30 s, and does not hang for ever;
    and nothing is written."""
    [saved] = wait_until(lambda: forked(beside, "saved"), PATIENCE_SECONDS, "the child was answered")
    assert saved["result"] == "OutcomeUnknown"
    [forking] = beside.runs("forking")
    assert (forking.reason, forking.how) == (Reason.TRIGGER, "returned")
    assert beside.ledger("forking")[0].checkpoint is None


# ---- F17, E6: a minute of a job that fires every second -----------------------------------------------------------


def recorded_as_not_run(entry: Entry, instant: datetime) -> bool:
    return any(range_.after < instant <= range_.until for range_ in entry.not_run)


@pytest.fixture(scope="module")
def minute(beside: Fleet) -> list[Execution]:
    """The runs of the job that fires every second, of a minute at least."""
    runs = beside.runs("second")
    first = min(run.scheduled_time for run in runs)
    wait_until(lambda: now() > first + (FIRES + 1) * SECOND, 2 * PATIENCE_SECONDS, "a minute is over")
    return beside.runs("second")


def test_f17_each_second_is_run_once_or_said_not_to_be(beside: Fleet, minute: list[Execution]) -> None:
    """F17: an instant that was computed a millisecond too early ran twice. On a machine that is busy for more than a second an
    instant may be left out, but not in silence."""
    ledger = beside.ledger("second")
    for item in range(2):
        times = [run.scheduled_time for run in minute if run.item == item]
        assert len(times) == len(set(times)), "an instant ran twice"
        assert times == sorted(times)
        span = int((times[-1] - times[0]).total_seconds())
        left_out = {times[0] + n * SECOND for n in range(span)} - set(times)
        assert span >= FIRES - 5
        assert not [instant for instant in left_out if not recorded_as_not_run(ledger[item], instant)]
        assert len(left_out) <= FIRES // 10
    assert all(run.start >= run.scheduled_time.timestamp() for run in minute), "a run before its time"


def test_e6_a_run_starts_soon_after_its_time(minute: list[Execution]) -> None:
    """E6: a poll every 100 ms delayed every start. The median of a minute: a busy machine cannot make it long."""
    delays = [run.start - run.scheduled_time.timestamp() for run in minute]
    print(f"start delay: median {1000 * statistics.median(delays):.0f} ms, longest {1000 * max(delays):.0f} ms")
    assert statistics.median(delays) < 0.5
