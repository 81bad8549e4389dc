"""What an operator orders while real workers run: triggers, disabling, removal; all by `ejpy.admin.operations`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from ejpy.admin import operations
from ejpy.coordination.ledger import Entry
from ejpy.terms import NotRun, Reason
from tests.support.cluster import session_password
from tests.support.fleet import NEVER, Fleet, job, now, zookeeper_url
from tests.support.jobs import Execution
from tests.support.observer import Observer
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer, expire_session

SECOND = timedelta(seconds=1)


class Operator:
    """Somebody at a console: orders, over a session of his own."""

    def __init__(self, fleet: Fleet, desk: Observer) -> None:
        self._desk = desk
        self._namespace = fleet.namespace

    def trigger(self, job: str) -> list[str]:
        return self._desk.ask(lambda registry: operations.trigger(registry, self._namespace, job))

    def enable_server(self, job: str, ip: str | None = None, *, enabled: bool) -> list[str]:
        return self._desk.ask(lambda registry: operations.enable_server(registry, self._namespace, job, ip, enabled=enabled))

    def enable_item(self, job: str, item: int, *, enabled: bool) -> None:
        self._desk.ask(lambda registry: operations.enable_item(registry, self._namespace, job, item, enabled=enabled))

    def remove(self, job: str) -> None:
        self._desk.ask(lambda registry: operations.remove(registry, self._namespace, job))


@contextmanager
def operating(fleet: Fleet) -> Iterator[Operator]:
    with Observer(fleet.url) as desk:
        yield Operator(fleet, desk)


def triggered(fleet: Fleet, job: str) -> list[Execution]:
    return [run for run in fleet.runs(job) if run.reason is Reason.TRIGGER]


def wait_until_taken_note_of(fleet: Fleet, job: str) -> None:
    """No order to run is left: each worker has taken note of its own."""
    prefix = fleet.paths(job).triggers + "/"
    wait_until(
        lambda: not [path for path in fleet.nodes(job) if path.startswith(prefix)],
        PATIENCE_SECONDS,
        "no trigger is left",
    )


def wait_for_triggered(fleet: Fleet, job: str, number: int) -> list[Execution]:
    """Wait until so many triggered runs have ended; all of them."""
    return fleet.wait_for_runs(job, number, lambda run: run.reason is Reason.TRIGGER and run.end is not None)


def no_fire_missing(runs: list[Execution], items: int) -> None:
    """Each second has one run of each item that was not asked for."""
    for item in range(items):
        times = [run.scheduled_time for run in runs if run.item == item and run.reason is not Reason.TRIGGER]
        assert times == [times[0] + n * SECOND for n in range(len(times))]


@dataclass(frozen=True)
class Pair:
    """Two workers with a job for each of the next tests."""

    fleet: Fleet
    operator: Operator
    a: WorkerProcess
    b: WorkerProcess
    hold: Path
    """As long as it exists, the bodies of `held` do not end."""


@pytest.fixture(scope="module")
def pair(server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("pair")
    hold = directory / "hold"
    with Fleet(zookeeper_url(server.address), directory) as fleet, operating(fleet) as operator:
        jobs = {
            "cron": job(items=3),
            "held": job(items=2, settings={"misfire": False}, hold=str(hold)),
            "off": job(items=2, cron=NEVER),
            "half-off": job(items=2, cron=NEVER),
        }
        a, b = fleet.start(fleet.write("jobs.yml", jobs), "a", "b")
        for name, described in jobs.items():
            fleet.wait_until_shared(name, described["sharding_total_count"], a, b)
        yield Pair(fleet, operator, a, b, hold)
        hold.unlink(missing_ok=True)
        fleet.stop()


# ---- J1 -----------------------------------------------------------------------------------------------------------


def test_j1_three_triggers_are_three_more_runs_and_the_schedule_goes_on(pair: Pair) -> None:
    """J1: the node of a trigger stayed, and the schedule stopped with it."""
    fleet, a, b = pair.fleet, pair.a, pair.b
    begun = now()
    for number in (1, 2, 3):
        assert pair.operator.trigger("cron") == sorted([fleet.id_of(a), fleet.id_of(b)])
        wait_for_triggered(fleet, "cron", 3 * number)
    wait_until_taken_note_of(fleet, "cron")
    fleet.wait_for_fires("cron", 3, items=3)
    assert Counter(run.item for run in triggered(fleet, "cron")) == {0: 3, 1: 3, 2: 3}
    assert {run.pid for run in triggered(fleet, "cron")} == {a.pid, b.pid}
    no_fire_missing([run for run in fleet.runs("cron") if run.scheduled_time > begun], 3)


def test_j1_triggers_that_come_while_the_item_runs_are_one_run_when_it_ends(pair: Pair) -> None:
    fleet = pair.fleet
    pair.hold.touch()

    def held() -> dict[int, Execution]:
        return {run.item: run for run in fleet.runs("held") if run.end is None}

    begun = wait_until(lambda: held() if len(held()) == 2 else None, PATIENCE_SECONDS, "both items run")
    for _ in range(3):
        pair.operator.trigger("held")
        wait_until_taken_note_of(fleet, "held")
    assert held() == begun, "it does not run any more"
    assert triggered(fleet, "held") == []
    pair.hold.unlink()
    wait_for_triggered(fleet, "held", 2)
    fleet.wait_for_fires("held", 2, items=2)
    for item in range(2):
        runs = [run for run in fleet.runs("held") if run.item == item and run.start >= begun[item].start]
        first, second, *following = runs
        assert (first.scheduled_time, second.reason) == (begun[item].scheduled_time, Reason.TRIGGER)
        assert first.end is not None
        assert first.end <= second.start
        assert following
        assert Reason.TRIGGER not in {run.reason for run in following}


# ---- J2 -----------------------------------------------------------------------------------------------------------


def test_j2_a_job_that_was_just_deployed_is_triggered_at_once(server: ZooKeeperServer, tmp_path: Path) -> None:
    """J2: a job that is due in 2099, and so had never been shared out, could not be triggered."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet, operating(fleet) as operator:
        workers = fleet.launch(fleet.write("jobs.yml", {"fresh": job(items=6, cron=NEVER)}), "a", "b", "c")
        wait_until(lambda: len(fleet.view("fresh").instances) == 3, PATIENCE_SECONDS, "three are registered")
        operator.trigger("fresh")
        wait_for_triggered(fleet, "fresh", 6)
        wait_until_taken_note_of(fleet, "fresh")
        fleet.wait_until_shared("fresh", 6, *workers)
        assert Counter(run.item for run in fleet.runs("fresh")) == dict.fromkeys(range(6), 1)

        operator.trigger("fresh")
        wait_for_triggered(fleet, "fresh", 12)
        wait_until_taken_note_of(fleet, "fresh")
        fleet.stop()
        second = fleet.runs("fresh")[6:]
        assert Counter(run.item for run in second) == dict.fromkeys(range(6), 1)
        assert Counter(run.pid for run in second) == {worker.pid: 2 for worker in workers}


# ---- J3 -----------------------------------------------------------------------------------------------------------


def test_j3_a_trigger_of_what_is_disabled_is_recorded_and_not_replayed(pair: Pair) -> None:
    """J3: the console said "success", and nothing ran; or it ran when the job was enabled. That nothing is replayed shows in
    what the next trigger brings, which comes after it."""
    fleet, operator, names = pair.fleet, pair.operator, ("off", "half-off")

    def refused(name: str, item: int) -> bool:
        return NotRun.DISABLED in {range_.why for range_ in fleet.ledger(name)[item].not_run}

    operator.enable_server("off", enabled=False)
    operator.enable_item("half-off", 0, enabled=False)
    for name in names:
        operator.trigger(name)
    wait_until(
        lambda: refused("off", 0) and refused("off", 1) and refused("half-off", 0), PATIENCE_SECONDS, "each of them is recorded"
    )
    for name in names:
        wait_until_taken_note_of(fleet, name)
    wait_for_triggered(fleet, "half-off", 1)
    assert fleet.runs("off") == []
    assert [run.item for run in fleet.runs("half-off")] == [1]

    operator.enable_server("off", enabled=True)
    operator.enable_item("half-off", 0, enabled=True)
    wait_until(
        lambda: not any(entry.suspended for name in names for entry in fleet.ledger(name).values()),
        PATIENCE_SECONDS,
        "all are enabled again",
    )
    for name in names:
        operator.trigger(name)
    wait_for_triggered(fleet, "off", 2)
    wait_for_triggered(fleet, "half-off", 3)
    assert Counter(run.item for run in fleet.runs("off")) == {0: 1, 1: 1}
    assert Counter(run.item for run in fleet.runs("half-off")) == {0: 1, 1: 2}


# ---- J7 -----------------------------------------------------------------------------------------------------------


def test_j7_jobs_that_are_removed_while_they_run_do_not_come_back(server: ZooKeeperServer, tmp_path: Path) -> None:
    """J7: live workers made the nodes again, and a run that ended later wrote its end. One job's bodies listen when they are
    told to stop, the other's do not. A worker that is started with the jobs in its file brings them back: that is what
    starting it means."""
    hold = tmp_path / "hold"
    removed = {"listens": "raised", "deaf": "returned"}
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet, operating(fleet) as operator:
        jobs = {name: job(items=2, hold=str(hold), deaf=name == "deaf") for name in removed} | {"beside": job(items=2)}
        config = fleet.write("jobs.yml", jobs)
        a, b = fleet.start(config, "a", "b")
        for name in jobs:
            fleet.wait_until_shared(name, 2, a, b)
        hold.touch()

        def held(name: str) -> list[Execution]:
            return [run for run in fleet.runs(name) if run.end is None]

        def on_both(name: str) -> bool:
            return {run.pid for run in held(name)} == {a.pid, b.pid}

        def known(runs: list[Execution]) -> list[tuple[datetime, int]]:
            return [(run.scheduled_time, run.item) for run in runs]

        for name in removed:
            wait_until(partial(on_both, name), PATIENCE_SECONDS, f"{name} runs on both")
        begun = {name: known(fleet.runs(name)) for name in removed}
        running = {name: known(held(name)) for name in removed}

        def nothing_left() -> bool:
            roots = [root for name in removed for root in (fleet.paths(name).root, fleet.paths(name).term)]
            return not any(fleet.tree(root) for root in roots)

        for name in removed:
            operator.remove(name)
        assert nothing_left()
        wait_until(lambda: not held("listens"), PATIENCE_SECONDS, "bodies that listen have ended")
        assert len(held("deaf")) == 2
        hold.unlink()
        wait_until(lambda: not held("deaf"), PATIENCE_SECONDS, "the others have ended")
        for name, how in removed.items():
            assert [run.how for run in fleet.runs(name) if (run.scheduled_time, run.item) in running[name]] == [how] * 2
        fleet.wait_for_fires("beside", 2, items=2)
        assert nothing_left()

        old = session_of(fleet, a)
        assert old is not None
        expire_session(server.address, (old, session_password(old)))  # whoever registers again does not register these jobs
        wait_until(lambda: session_of(fleet, a) not in (None, old), PATIENCE_SECONDS, "it is registered again")
        fleet.wait_for_fires("beside", 2, items=2)
        assert nothing_left()
        fleet.stop()
        assert nothing_left()
        assert {name: known(fleet.runs(name)) for name in removed} == begun

        [c] = fleet.start(config, "c")
        for name in removed:
            fleet.wait_for_fires(name, 1, items=2)
            again = fleet.runs(name)[len(begun[name]) :]
            assert {run.pid for run in again} == {c.pid}
            assert {run.reason for run in again} <= {Reason.SCHEDULED, Reason.CATCH_UP}
        fleet.stop()


def session_of(fleet: Fleet, worker: WorkerProcess) -> int | None:
    instance = fleet.view("beside").instances.get(fleet.id_of(worker))
    return instance.session_id if instance else None


# ---- J10 ----------------------------------------------------------------------------------------------------------


def test_j10_a_trigger_for_an_instance_that_was_just_killed_is_over_with_it(server: ZooKeeperServer, tmp_path: Path) -> None:
    """J10: a trigger that was sent to a dead instance never completed. The items of the living run at once, before it is known
    that the other is dead."""
    with Fleet(zookeeper_url(server.address, 4), tmp_path) as fleet, operating(fleet) as operator:
        a, b = fleet.start(fleet.write("jobs.yml", {"cron": job(items=4)}), "a", "b")
        owners = fleet.wait_until_shared("cron", 4, a, b)
        fleet.wait_for_fires("cron", 1, items=4)
        of_a = {item for item, owner in owners.items() if owner == fleet.id_of(a)}
        b.kill9()
        assert operator.trigger("cron") == sorted([fleet.id_of(a), fleet.id_of(b)])
        wait_until(
            lambda: {run.item for run in triggered(fleet, "cron") if run.end and run.pid == a.pid} >= of_a,
            PATIENCE_SECONDS,
            "the items of the living run",
        )
        assert fleet.id_of(b) in fleet.view("cron").instances, "they waited for the end of the other's session"
        fleet.wait_until_shared("cron", 4, a)
        wait_until_taken_note_of(fleet, "cron")
        fleet.wait_for_fires("cron", 2, items=4)
        fleet.stop()
        times = Counter(run.item for run in triggered(fleet, "cron"))
        assert {times[item] for item in of_a} == {1}
        assert max(times.values()) == 1


# ---- C8 -----------------------------------------------------------------------------------------------------------

IP_A, IP_B = "10.0.0.1", "10.0.0.2"
QUIET_SECONDS = 5


def packets(server: ZooKeeperServer) -> int:
    return int(server.four_letter("mntr")["zk_packets_received"])


def cpu_seconds(worker: WorkerProcess) -> float:
    fields = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_c8_a_job_whose_servers_are_all_disabled_rests_and_recovers(tmp_path: Path) -> None:
    """C8: with all servers disabled, workers waited busily for a sharding that could not come, and never recovered."""

    def rests(entries: dict[int, Entry]) -> bool:
        return len(entries) == 4 and all(entry.suspended and not entry.running for entry in entries.values())

    with ZooKeeperServer() as server, Fleet(zookeeper_url(server.address, 10), tmp_path) as fleet:
        config = fleet.write("jobs.yml", {"switched": job(items=4)})
        [a] = fleet.start(config, "a", options=("--ip", IP_A))
        [b] = fleet.start(config, "b", options=("--ip", IP_B))
        with Fleet(fleet.url, tmp_path) as watching, operating(fleet) as operator:
            watching.wait_until_shared("switched", 4, a, b)
            watching.wait_for_fires("switched", 1, items=4)
            assert operator.enable_server("switched", enabled=False) == [IP_A, IP_B]
            wait_until(lambda: rests(watching.ledger("switched")), PATIENCE_SECONDS, "all items rest")
        # From here on, only the workers have sessions.
        ran, sent, used, began = len(fleet.runs("switched")), packets(server), cpu_seconds(a) + cpu_seconds(b), time.monotonic()
        wait_until(lambda: time.monotonic() >= began + QUIET_SECONDS, PATIENCE_SECONDS, f"{QUIET_SECONDS} fires have passed")
        sent, used, took = packets(server) - sent - 1, cpu_seconds(a) + cpu_seconds(b) - used, time.monotonic() - began
        print(f"{sent / took:.2f} packets/s, {used / took:.1%} CPU of two workers")
        assert len(fleet.runs("switched")) == ran
        assert sent / took < 5
        assert used / took < 0.1

        with operating(fleet) as operator:
            enabled = now()
            operator.enable_server("switched", IP_A, enabled=True)
            [fire] = fleet.wait_for_fires("switched", 1, items=4)
            assert fire <= floor(enabled) + 2 * SECOND
            assert {run.pid for run in fleet.runs("switched")[ran:]} == {a.pid}

            enabled = now()
            operator.enable_server("switched", IP_B, enabled=True)
            split = wait_until(lambda: first_split(fleet, {a.pid, b.pid}, enabled), PATIENCE_SECONDS, "it is split")
            assert split <= floor(enabled) + 3 * SECOND
        fleet.stop()
        again = fleet.runs("switched")[ran:]
        assert len(again) == len({(run.scheduled_time, run.item) for run in again})
        assert {run.reason for run in again} <= {Reason.SCHEDULED, Reason.CATCH_UP}  # an item may move in the moment of a fire


def floor(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)


def first_split(fleet: Fleet, pids: set[int], after: datetime) -> datetime | None:
    for fire, by_item in fleet.fires("switched", after).items():
        if len(by_item) == 4 and {run.pid for runs in by_item.values() for run in runs} == pids:
            return fire
    return None
