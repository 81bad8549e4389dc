"""Which worker gets which items, on real worker processes: who may have them, how many there are, what was damaged by hand."""

from __future__ import annotations

import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from ejpy.config.document import from_document, to_document
from ejpy.coordination.view import DISABLED, ENABLED
from ejpy.registry.base import Create, Delete, Operation, SetData
from tests.support.fleet import NEVER, Fleet, job, now, sqlite_url, zookeeper_url
from tests.support.jobs import Execution
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer

# ---- C13 ----------------------------------------------------------------------------------------------------------


class ProcessOne(WorkerProcess):
    """A worker to which the system says that it is process 1, as the first process of each container is told."""

    ejpy = (sys.executable, "-c", "import os; os.getpid = lambda: 1; from ejpy.cli.main import main; main()")


@pytest.mark.parametrize(
    ("registry", "kind"),
    [("zookeeper", WorkerProcess), ("sqlite", WorkerProcess), ("zookeeper", ProcessOne)],
    ids=["zookeeper", "sqlite", "same-pid"],
)
def test_c13_two_workers_with_one_address_in_one_directory_are_two(
    registry: str, kind: type[WorkerProcess], server: ZooKeeperServer, tmp_path: Path
) -> None:
    """C13: two processes took the same instance id (address and PID repeat in containers), and both ran everything."""
    url = sqlite_url(tmp_path) if registry == "sqlite" else zookeeper_url(server.address)
    with Fleet(url, tmp_path) as fleet:
        config = fleet.write("jobs.yml", {"shared": job(items=4)})
        a, b = fleet.start(config, "a", "b", options=("--ip", "10.1.2.3"), kind=kind)
        owners = fleet.wait_until_shared("shared", 4, a, b)
        ids = {fleet.id_of(a), fleet.id_of(b)}
        assert len(ids) == 2
        assert Counter(owners.values()) == dict.fromkeys(ids, 2)
        assert all(one.startswith("10.1.2.3@-@") for one in ids)
        assert fleet.view("shared").servers.keys() == {"10.1.2.3"}
        if kind is ProcessOne:
            assert {one.split("@-@")[1].split(".")[0] for one in ids} == {"1"}
        for fire in fleet.wait_for_fires("shared", 2, items=4):
            by_item = fleet.fires("shared")[fire]
            assert {item: len(runs) for item, runs in by_item.items()} == dict.fromkeys(range(4), 1)
            if kind is WorkerProcess:
                assert Counter(runs[0].pid for runs in by_item.values()) == {a.pid: 2, b.pid: 2}


# ---- C2, C9 -------------------------------------------------------------------------------------------------------

SHARES = {9: [[0, 1, 2], [3, 4, 5], [6, 7, 8]], 8: [[0, 1, 6], [2, 3, 7], [4, 5]], 10: [[0, 1, 2, 9], [3, 4, 5], [6, 7, 8]]}
SHARES |= {2: [[0], [1], []]}


def test_c2_c9_three_workers_share_as_elasticjob_would_and_an_entry_without_worker_gets_nothing(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """C2: the allocation is complete, disjoint and ElasticJob's own. C9: a server that is listed and has no instance got
    items, or distorted the status."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        config = fleet.write("jobs.yml", {f"of-{items}": job(items=items, cron=NEVER) for items in SHARES})
        workers = fleet.start(config, "a", "b", "c")
        in_order = sorted((fleet.id_of(worker) for worker in workers), reverse=True)
        for items, shares in SHARES.items():
            wanted = {item: instance for instance, share in zip(in_order, shares, strict=True) for item in share}
            wait_until(
                lambda items=items, wanted=wanted: fleet.owners(f"of-{items}") == wanted,  # type: ignore[misc]
                PATIENCE_SECONDS,
                f"{items} items are shared as {wanted}",
            )
            assert fleet.view(f"of-{items}").items == set(range(items))

        paths = fleet.paths("of-2")
        fleet.change(*(Create(fleet.paths(f"of-{items}").server("10.9.9.9"), ENABLED) for items in SHARES))
        fleet.change(Create(paths.server("10.9.9.8"), DISABLED))
        workers[0].sigterm()
        assert workers[0].wait_exit(PATIENCE_SECONDS) == 0
        for items in SHARES:
            owners = fleet.wait_until_shared(f"of-{items}", items, *workers[1:])
            assert set(owners.values()) <= {fleet.id_of(worker) for worker in workers[1:]}
        assert {paths.server("10.9.9.9"), paths.server("10.9.9.8")} <= fleet.nodes("of-2").keys()
        assert {(row["instances"], row["status"]) for row in fleet.rows("jobs", "list")} == {(2, "OK")}
        fleet.stop()


# ---- C4 -----------------------------------------------------------------------------------------------------------


def test_c4_nodes_that_were_removed_by_hand_are_made_again_by_the_next_fire_but_one(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """C4: resharding was impossible when one expected node was missing."""
    items = 3
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        config = fleet.write("jobs.yml", {"mended": job(items=items)})
        a, b = fleet.start(config, "a", "b")
        fleet.wait_until_shared("mended", items, a, b)
        paths = fleet.paths("mended")
        [ip] = fleet.view("mended").servers
        damages: list[list[Operation]] = [
            [Delete(paths.item_instance(1)), Delete(paths.item(1))],
            [Delete(paths.item_instance(0))],
            [Delete(paths.leader)],
            [Delete(paths.latch)],
            [Delete(paths.server(ip))],
            [Delete(paths.ledger(2))],
        ]
        begun = now()
        for damage in damages:
            fleet.wait_for_fires("mended", 1, items=items)  # and idle from now on until the next
            fleet.change(*damage)
            damaged = now()
            but_one = damaged.replace(microsecond=0) + timedelta(seconds=2)
            gone = [operation.path for operation in damage]

            def complete(fire: datetime = but_one) -> bool:
                by_item = fleet.fires("mended").get(fire, {})
                return by_item.keys() == set(range(items)) and all(runs[-1].end for runs in by_item.values())

            wait_until(complete, PATIENCE_SECONDS, f"the fire of {but_one} is complete, after the loss of {gone}")
            wait_until(
                lambda: fleet.wait_until_shared("mended", items, a, b) and fleet.view("mended").leader,
                PATIENCE_SECONDS,
                "a leader",
            )
        for fire, by_item in fleet.fires("mended", begun).items():
            assert all(len(runs) == 1 for runs in by_item.values()), f"an item of {fire} ran twice"
        fleet.stop()


# ---- C5 -----------------------------------------------------------------------------------------------------------


def totals(runs: list[Execution]) -> dict[datetime, set[int]]:
    """The item counts that the runs of each fire were told."""
    found: dict[datetime, set[int]] = {}
    for run in runs:
        found.setdefault(run.scheduled_time, set()).add(run.total)
    return found


def test_c5_the_item_count_changes_while_the_job_runs(server: ZooKeeperServer, tmp_path: Path) -> None:
    """C5: changing the item count at run time lost items, doubled them, or showed a body an item beyond the count. Each
    change is brought by another worker, whose file overwrites."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        workers = fleet.start(fleet.write("5.yml", {"counted": job(items=5)}), "five")
        fleet.wait_for_fires("counted", 1, items=5)
        for items in (3, 6):
            config = fleet.write(f"{items}.yml", {"counted": job(items=items, settings={"overwrite": True})})
            workers += fleet.start(config, f"overwriting-{items}")
            fleet.wait_until_shared("counted", items, *workers)
            fires = fleet.wait_for_fires("counted", 2, items=items)
            for fire in fires:
                by_item = fleet.fires("counted")[fire]
                assert {item: [run.total for run in runs] for item, runs in by_item.items()} == {
                    item: [items] for item in range(items)
                }
            assert fleet.view("counted").items == set(range(items))
        fleet.stop()
        runs = fleet.runs("counted")
        assert all(run.item < run.total for run in runs)
        assert len(runs) == len({(run.scheduled_time, run.item) for run in runs}), "an item ran twice"


def test_c5_a_fire_uses_one_count_only(server: ZooKeeperServer, tmp_path: Path) -> None:
    """The count changes right before the job fires, and one worker has not heard of it yet, since it was paused for a moment:
    two items of one fire must not believe in different counts, or some work would be done twice and some not at all.

    With STICKY, the late worker's items stay with it, so that nobody else's claims are in its way."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        settings = {"job_sharding_strategy_type": "STICKY"}
        workers = fleet.start(fleet.write("jobs.yml", {"counted": job(items=6, settings=settings)}), "a", "b", "c")
        fleet.wait_until_shared("counted", 6, *workers)
        path = fleet.paths("counted").config
        begun = now()
        for count in (4, 6, 4, 6):
            node = fleet.nodes("counted")[path]
            config = from_document(node.data, "counted", "tests.support.jobs:RecordingJob")
            document = to_document(config.model_copy(update={"sharding_total_count": count}), previous=node.data)
            leader = fleet.view("counted").leader
            late = next(worker for worker in workers if fleet.id_of(worker) != leader)
            fire = now().replace(microsecond=0) + timedelta(seconds=2)
            wait_for_moment(fire - timedelta(seconds=0.4))
            late.pause()
            fleet.change(SetData(path, document, node.version))
            wait_for_moment(fire + timedelta(seconds=0.2))
            late.resume()
            fleet.wait_until_shared("counted", count, *workers)
        fleet.wait_for_fires("counted", 1, items=6)
        fleet.stop()
        runs = [run for run in fleet.runs("counted") if run.scheduled_time > begun]
        assert {run.total for run in runs} == {4, 6}
        assert all(run.item < run.total for run in runs)
        mixed = {f"{fire:%H:%M:%S}": counts for fire, counts in totals(runs).items() if len(counts) > 1}
        assert not mixed


def wait_for_moment(moment: datetime) -> None:
    wait_until(lambda: now() >= moment, PATIENCE_SECONDS, str(moment))


# ---- J5 -----------------------------------------------------------------------------------------------------------


def test_j5_a_job_that_is_disabled_from_the_start_never_runs_until_it_is_enabled(server: ZooKeeperServer, tmp_path: Path) -> None:
    """J5: `disabled: true` lost a race at the start, and the job ran. Three workers start with it at once, twice; the job
    beside it tells that there was time to run. Then a file that overwrites enables it for all."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        beside = job()
        config = fleet.write("jobs.yml", {"beside": beside, "off": job(items=4, settings={"disabled": True})})
        for round_ in range(2):
            for worker in fleet.workers:
                worker.kill9()
            workers = fleet.start(config, *(f"{name}{round_}" for name in "abc"))
            fleet.wait_for_fires("beside", 2)
        assert fleet.runs("off") == []

        enabling = fleet.write("on.yml", {"beside": beside, "off": job(items=4, settings={"overwrite": True})})
        workers += fleet.start(enabling, "enabling")
        enabled = now()
        [first] = fleet.wait_for_fires("off", 1, items=4)
        assert first - enabled < timedelta(seconds=2)
        fleet.wait_until_shared("off", 4, *workers)
        fires = fleet.wait_for_fires("off", 1, items=4)
        assert {run.pid for runs in fleet.fires("off")[fires[-1]].values() for run in runs} == {worker.pid for worker in workers}
        assert all(len(runs) == 1 for by_item in fleet.fires("off").values() for runs in by_item.values())
        fleet.stop()
