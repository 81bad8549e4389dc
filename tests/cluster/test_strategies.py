"""Sharding strategies of one's own on real workers: they deal, and whoever does not know one does not lead."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from ejpy.config.document import from_document, to_document
from ejpy.config.model import JobConfig
from ejpy.registry.base import SetData
from tests.support.fleet import Fleet, job, sqlite_url
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess, said

HALVES = "tests.cluster.strategies:HalfForTheFirst"


def change_strategy(fleet: Fleet, name: str) -> None:
    """Edit the configuration in the registry."""
    path = fleet.paths("dealt").config
    node = fleet.nodes("dealt")[path]
    before = from_document(node.data, "dealt", "tests.support.jobs:RecordingJob")
    after = JobConfig.model_validate({**before.model_dump(), "job_sharding_strategy_type": name})
    fleet.change(SetData(path, to_document(after, previous=node.data), node.version))


def told(worker: WorkerProcess, words: str) -> list[str]:
    """The lines of its log on the job that hold these words."""
    return [event["message"] for event in said(worker, "ejpy.scheduler", job="dealt") if words in event["message"]]


def owners(fleet: Fleet) -> list[str]:
    return [owner for _, owner in sorted(fleet.owners("dealt").items())]


def test_it_deals_and_deals_anew_when_somebody_comes_or_goes(tmp_path: Path) -> None:
    with Fleet(sqlite_url(tmp_path), tmp_path) as fleet:
        jobs = fleet.write("jobs.yml", {"dealt": job(items=6, settings={"sharding_strategy": HALVES})})
        a, b = fleet.start(jobs, "a", "b")
        low, high = sorted([fleet.id_of(a), fleet.id_of(b)])
        wait_until(lambda: owners(fleet) == [high] * 3 + [low] * 3, PATIENCE_SECONDS, "the halves are dealt")
        [c] = fleet.start(jobs, "c")
        low, _, high = sorted([fleet.id_of(a), fleet.id_of(b), fleet.id_of(c)])
        wait_until(lambda: owners(fleet) == [high] * 3 + [low] * 3, PATIENCE_SECONDS, "the halves are dealt anew")
        gone = next(worker for worker in (a, b, c) if fleet.id_of(worker) == low)
        gone.kill9()
        low, high = sorted(fleet.id_of(worker) for worker in (a, b, c) if worker is not gone)
        wait_until(lambda: owners(fleet) == [high] * 3 + [low] * 3, PATIENCE_SECONDS, "the other half has an owner again")
        fires = fleet.wait_for_fires("dealt", 2, items=6)
        assert {len(runs) for fire in fires for runs in fleet.fires("dealt")[fire].values()} == {1}
        fleet.stop()


def test_nobody_leads_with_a_strategy_that_nobody_knows_and_all_go_on_with_what_they_have(tmp_path: Path) -> None:
    with Fleet(sqlite_url(tmp_path), tmp_path) as fleet:
        jobs = fleet.write("jobs.yml", {"dealt": job(items=4)})
        workers = fleet.start(jobs, "a", "b")
        shared = fleet.wait_until_shared("dealt", 4, *workers)
        change_strategy(fleet, "ONLY_JAVAS")
        wait_until(lambda: fleet.view("dealt").leader is None, PATIENCE_SECONDS, "the leader abdicates")
        fleet.wait_for_fires("dealt", 2, items=4)
        assert fleet.owners("dealt") == shared
        assert fleet.view("dealt").leader is None
        for worker in workers:
            [line] = told(worker, "'ONLY_JAVAS' is not allowed")
            assert line.endswith("; this worker does not lead the job")
        change_strategy(fleet, HALVES)
        low, high = sorted(map(fleet.id_of, workers))
        wait_until(lambda: owners(fleet) == [high] * 2 + [low] * 2, PATIENCE_SECONDS, "somebody leads again and deals")
        fleet.stop()


def test_with_one_that_fails_everybody_keeps_what_he_has(tmp_path: Path) -> None:
    with Fleet(sqlite_url(tmp_path), tmp_path) as fleet:
        jobs = fleet.write("jobs.yml", {"dealt": job(items=4)})
        workers = fleet.start(jobs, "a", "b")
        shared = fleet.wait_until_shared("dealt", 4, *workers)
        change_strategy(fleet, "tests.cluster.strategies:Fails")
        wait_until(lambda: any(told(worker, "the table of strategies is empty") for worker in workers), PATIENCE_SECONDS, "said")
        fires = fleet.wait_for_fires("dealt", 2, items=4)
        assert fleet.owners("dealt") == shared
        assert Counter(len(runs) for fire in fires for runs in fleet.fires("dealt")[fire].values()) == {1: 8}
        assert [worker.alive for worker in workers] == [True, True]
