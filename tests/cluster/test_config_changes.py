"""Configurations that change while workers run: every kind of key has its effect without a restart; and who wins, and when.

How the item count changes while a job runs is told in `test_items`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from ejpy.config.document import from_document, to_document
from ejpy.config.model import JobConfig
from ejpy.registry.base import SetData
from ejpy.terms import Reason
from tests.support.cluster import session_password
from tests.support.fleet import NEVER, Fleet, job, now, zookeeper_url
from tests.support.jobs import Execution
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess, said
from tests.support.zookeeper import ZooKeeperServer, expire_session

T = TypeVar("T")

SECOND = timedelta(seconds=1)


def stored(fleet: Fleet, name: str) -> JobConfig:
    return from_document(fleet.nodes(name)[fleet.paths(name).config].data, name, "tests.support.jobs:RecordingJob")


def change(fleet: Fleet, name: str, **keys: Any) -> datetime:
    """Change keys of a job's configuration in the registry, as a console does; returns when that was done."""
    node = fleet.nodes(name)[fleet.paths(name).config]
    keys_before = stored(fleet, name).model_dump()
    document = to_document(JobConfig.model_validate({**keys_before, **keys}), previous=node.data)
    assert document != node.data
    fleet.change(SetData(fleet.paths(name).config, document, node.version))
    return now()


# ---- each kind of key ---------------------------------------------------------------------------------------------


class Scene:
    """Two workers with a job for each test, which run as long as these tests last."""

    def __init__(self, fleet: Fleet, workers: list[WorkerProcess], hold: Path) -> None:
        self.fleet = fleet
        self.workers = workers
        self.hold = hold
        """As long as it exists, the bodies of `hung` and `killed` do not end."""

    def wait_for(self, name: str, condition: Callable[[Execution], bool], what: str) -> Execution:
        """The first run that meets a condition, waited for."""
        return wait_until(
            lambda: next((run for run in self.fleet.runs(name) if condition(run)), None), PATIENCE_SECONDS, f"{name}: {what}"
        )


def hours_of(offset: int) -> str:
    """The present hour in a zone, and the next, for a cron expression."""
    hour = (now() + timedelta(hours=offset)).hour
    return f"{hour},{(hour + 1) % 24}"


@pytest.fixture(scope="module")
def scene(server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("scene")
    hold = directory / "hold"
    with Fleet(zookeeper_url(server.address), directory) as fleet:
        jobs = {
            "cron": job(),
            "zone": job(cron=f"* * {hours_of(5)} * * ?"),
            "parameters": job(items=2, settings={"sharding_item_parameters": {0: "old"}}),
            "misfire": job(seconds=1.5, settings={"misfire": False}),
            "odevity": job(items=2, cron=NEVER),
            "marks": job(seconds=0.5),
            "hung": job(items=2, hold=str(hold), deaf=True),
        }
        workers = fleet.start(fleet.write("jobs.yml", jobs), "a", "b")
        for name, described in jobs.items():
            fleet.wait_until_shared(name, described["sharding_total_count"], *workers)
        yield Scene(fleet, workers, hold)
        hold.unlink(missing_ok=True)
        assert [worker.alive for worker in workers] == [True, True]
        fleet.stop()


def test_a_changed_cron_counts_from_the_next_fire_on(scene: Scene) -> None:
    changed = change(scene.fleet, "cron", cron="1/3 * * * * ?")
    fires = scene.fleet.wait_for_fires("cron", 2, after=changed + SECOND)
    assert {fire.second % 3 for fire in fires} == {1}
    assert fires[1] - fires[0] == 3 * SECOND
    assert not [
        run for run in scene.fleet.runs("cron") if run.scheduled_time > changed + SECOND and run.scheduled_time.second % 3 != 1
    ]


def test_a_changed_zone_moves_the_schedule(scene: Scene) -> None:
    """The job is due every second of hours that it is now in a zone five hours ahead, and not in UTC."""
    assert scene.fleet.runs("zone") == []
    changed = change(scene.fleet, "zone", time_zone="GMT+05:00")
    first, _ = scene.fleet.wait_for_fires("zone", 2, after=changed - SECOND)
    assert first <= changed + 3 * SECOND
    changed = change(scene.fleet, "zone", time_zone="UTC")
    scene.fleet.wait_for_fires("cron", 1)
    assert not [run for run in scene.fleet.runs("zone") if run.scheduled_time > changed + SECOND]


def test_changed_parameters_reach_the_next_runs(scene: Scene) -> None:
    [fire] = scene.fleet.wait_for_fires("parameters", 1, items=2)
    assert {item: run.parameter for item, [run] in scene.fleet.fires("parameters")[fire].items()} == {0: "old", 1: None}

    new = {"sharding_item_parameters": {0: "new", 1: "a=b,c"}, "job_parameter": json.dumps({"seconds": 0.3})}
    changed = change(scene.fleet, "parameters", **new)
    fires = scene.fleet.wait_for_fires("parameters", 2, items=2, after=changed + SECOND)
    for fire in fires:
        runs = {item: run for item, [run] in scene.fleet.fires("parameters")[fire].items()}
        assert {item: run.parameter for item, run in runs.items()} == {0: "new", 1: "a=b,c"}
        assert all(run.end is not None and run.end - run.start >= 0.3 for run in runs.values())


def test_misfire_is_switched_on_and_off(scene: Scene) -> None:
    """Every run takes longer than from fire to fire. Without misfire, what passes meanwhile is not run."""
    scene.wait_for("misfire", lambda run: run.end is not None, "a run")
    assert Reason.MISFIRE not in {run.reason for run in scene.fleet.runs("misfire")}
    change(scene.fleet, "misfire", misfire=True)
    scene.wait_for("misfire", lambda run: run.reason is Reason.MISFIRE, "a miss is made up for")
    changed = change(scene.fleet, "misfire", misfire=False)
    scene.wait_for("misfire", lambda run: run.scheduled_time > changed + 3 * SECOND, "two runs later")
    later = [run for run in scene.fleet.runs("misfire") if run.scheduled_time > changed + 3 * SECOND]
    assert Reason.MISFIRE not in {run.reason for run in later}


def test_a_changed_strategy_deals_anew(scene: Scene) -> None:
    """ODEVITY deals in the other order to a job whose name has an even hash, as this one."""
    before = scene.fleet.owners("odevity")
    assert before[0] > before[1], "the higher id is first"
    change(scene.fleet, "odevity", job_sharding_strategy_type="ODEVITY")
    wait_until(lambda: scene.fleet.owners("odevity") == {0: before[1], 1: before[0]}, PATIENCE_SECONDS, "dealt anew")


def test_running_marks_are_switched_on_and_off(scene: Scene) -> None:
    mark = scene.fleet.paths("marks").item_running(0)

    def marked() -> bool:
        return mark in scene.fleet.nodes("marks")

    scene.wait_for("marks", lambda run: run.end is None, "it runs")
    assert not marked()
    change(scene.fleet, "marks", running_marks=True)
    wait_until(marked, PATIENCE_SECONDS, "a run is marked")
    changed = change(scene.fleet, "marks", running_marks=False)
    scene.wait_for("marks", lambda run: run.scheduled_time > changed + SECOND and run.end is None, "it runs")
    assert not marked()


def test_m8_a_timeout_frees_a_job_that_hangs(scene: Scene) -> None:
    """M8: hung code blocked its job for ever. A time-out, set while the job runs, holds for the runs that begin after that:
    items whose bodies hang and do not listen are run again, while the hung ones are still there."""
    fleet = scene.fleet
    changed = change(fleet, "hung", timeout="500ms")
    fleet.wait_for_fires("hung", 1, items=2, after=changed + SECOND)
    begun = now()
    scene.hold.touch()

    def hung(item: int) -> list[datetime]:
        return [run.scheduled_time for run in fleet.runs("hung") if run.item == item and run.end is None]

    wait_until(lambda: len(hung(0)) >= 2 and len(hung(1)) >= 2, PATIENCE_SECONDS, "both items hang, and were begun again")
    first = {(fire.isoformat().replace("+00:00", "Z"), item) for item in (0, 1) for fire in hung(item)[:1]}
    scene.hold.unlink()
    fleet.wait_for_fires("hung", 1, items=2)
    timed_out = [end for worker in scene.workers for end in said(worker, "ejpy.history", job="hung", message="timed_out")]
    assert {(end["scheduled_time"], end["item"]) for end in timed_out} >= first
    runs = [run for run in fleet.runs("hung") if run.scheduled_time > begun]
    assert len(runs) == len({(run.scheduled_time, run.item) for run in runs})


def test_failover_is_switched_on_while_the_item_runs(server: ZooKeeperServer, tmp_path: Path) -> None:
    """What counts is what is configured when the owner is found dead."""
    hold = tmp_path / "hold"
    hold.touch()
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        config = fleet.write("jobs.yml", {"killed": job(hold=str(hold))})
        a, b = fleet.start(config, "a", "b")
        fleet.wait_until_shared("killed", 1, a, b)
        [first] = fleet.wait_for_runs("killed", 1, lambda run: True)
        change(fleet, "killed", failover=True)
        victim, other = (a, b) if first.pid == a.pid else (b, a)
        fleet.wait_until_shared("killed", 1, a, b)
        victim.kill9()
        [again] = fleet.wait_for_runs("killed", 1, lambda run: run.attempt == 2)
        assert (again.pid, again.scheduled_time, again.reason) == (other.pid, first.scheduled_time, Reason.OWNER_LOST)
        hold.unlink()
        fleet.wait_for_fires("killed", 1)
        fleet.stop()


# ---- G12 ----------------------------------------------------------------------------------------------------------


def test_g12_of_two_files_that_overwrite_the_one_that_started_last_has_won(server: ZooKeeperServer, tmp_path: Path) -> None:
    """G12: two files that overwrite, with different counts, might pull to and fro. Not even a worker that has to register
    anew, under another session, writes its configuration again."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        files = {n: fleet.write(f"{n}.yml", {"torn": job(items=n, settings={"overwrite": True})}) for n in (2, 3)}
        [two] = fleet.start(files[2], "two")
        fleet.wait_for_fires("torn", 1, items=2)
        [three] = fleet.start(files[3], "three")
        fleet.wait_until_shared("torn", 3, two, three)
        node = fleet.nodes("torn")[fleet.paths("torn").config]

        fleet.wait_for_fires("torn", 3, items=3)
        old = session_of(fleet, two)
        assert old is not None
        expire_session(server.address, (old, session_password(old)))
        wait_until(lambda: session_of(fleet, two) not in (None, old), PATIENCE_SECONDS, "it is registered again")
        fleet.wait_until_shared("torn", 3, two, three)
        fires = fleet.wait_for_fires("torn", 6, items=3)

        assert fleet.nodes("torn")[fleet.paths("torn").config] == node
        for fire in fires:
            assert {run.total for runs in fleet.fires("torn")[fire].values() for run in runs} == {3}
        fleet.stop()


def session_of(fleet: Fleet, worker: WorkerProcess) -> int | None:
    instance = fleet.view("torn").instances.get(fleet.id_of(worker))
    return instance.session_id if instance else None
