"""Listeners of jobs, called by real workers: around each fire, and once for all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ejpy.admin import operations
from ejpy.admin.connection import connected
from ejpy.config.document import from_document, to_document
from ejpy.registry.base import SetData
from ejpy.terms import Outcome
from tests.support.fleet import Fleet, job, sqlite_url, zookeeper_url
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import said
from tests.support.zookeeper import ZooKeeperServer


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(sqlite_url(tmp_path), tmp_path) as fleet:
        yield fleet


def listened(*names: str, items: int = 2, **settings: Any) -> dict[str, Any]:
    listeners = [f"tests.cluster.kinds:{name}" for name in names]
    return job(
        body="tests.cluster.kinds:Short", items=items, settings={"job_parameter": "", "job_listener_types": listeners, **settings}
    )


def record(fleet: Fleet) -> list[dict[str, Any]]:
    """What bodies and listeners noted, in order."""
    return [json.loads(line) for line in fleet.record.read_text().splitlines()] if fleet.record.exists() else []


def by_fire(fleet: Fleet) -> dict[str, list[dict[str, Any]]]:
    fires: dict[str, list[dict[str, Any]]] = {}
    for line in record(fleet):
        fires.setdefault(line["scheduled_time"], []).append(line)
    return fires


def events(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_listener_is_called_around_the_bodies_of_each_fire(fleet: Fleet, executor: str) -> None:
    [worker] = fleet.start(fleet.write("jobs.yml", {"shop": listened("Audit", executor=executor)}), "a")
    pid = worker.pid

    def whole() -> list[list[dict[str, Any]]]:
        """Those of both items, which have all been entered. Where an item was late, the next ones are begun one by one."""
        fires = [lines for lines in by_fire(fleet).values() if lines[0].get("items") == [0, 1]]
        return [lines for lines in fires if None not in lines[-1].get("outcomes", [None])]

    wait_until(lambda: len(whole()) >= 2, PATIENCE_SECONDS, "two fires of both items")
    fleet.stop()
    for lines in whole():
        assert events(lines) == ["before", "body", "body", "after"]
        assert lines[3]["outcomes"] == [Outcome.SUCCEEDED.value] * 2
        assert {lines[0]["pid"], lines[3]["pid"]} == {pid}


def test_what_a_listener_raises_is_told_and_the_fire_goes_on(fleet: Fleet) -> None:
    [worker] = fleet.start(fleet.write("jobs.yml", {"shop": listened("Raising", "Audit")}), "a")
    wait_until(lambda: events(record(fleet)).count("after") >= 2, PATIENCE_SECONDS, "two fires")
    wait_until(lambda: said(worker, "ejpy.job.shop", level="ERROR"), PATIENCE_SECONDS, "the listener's failure is logged")
    worker.sigterm()
    assert worker.wait_exit(PATIENCE_SECONDS) == 0
    failure = said(worker, "ejpy.job.shop", level="ERROR")[0]
    assert failure["message"] == "failed: before_fire of Raising: LookupError: no such table"
    assert "in before_fire" in failure["exception"]
    assert said(worker, "ejpy.history", job="shop", outcome=Outcome.FAILED.value) == []


def test_an_operator_changes_the_listeners_while_the_job_runs(fleet: Fleet) -> None:
    """And a name that this worker does not know is named once, and otherwise passed over: it may be meant for Java workers."""
    [worker] = fleet.start(fleet.write("jobs.yml", {"shop": listened()}), "a")
    wait_until(lambda: events(record(fleet)).count("body") >= 2, PATIENCE_SECONDS, "a fire")
    assert events(record(fleet)).count("before") == 0

    def change(*names: str) -> None:
        path = fleet.paths("shop").config
        node = fleet.nodes("shop")[path]
        config = from_document(node.data, "shop", "m:C").model_copy(update={"job_listener_types": names})
        fleet.change(SetData(path, to_document(config, node.data), node.version))

    change("com.acme.Audit", "tests.cluster.kinds:Audit")
    wait_until(lambda: events(record(fleet)).count("after") >= 2, PATIENCE_SECONDS, "two fires with a listener")
    change()
    before = events(record(fleet)).count("before")
    wait_until(lambda: events(record(fleet))[-4:].count("body") == 4, PATIENCE_SECONDS, "fires without")
    fleet.stop()
    assert events(record(fleet)).count("before") - before <= 1
    assert worker.log.count("listener 'com.acme.Audit' is unknown") == 1


def test_after_fire_is_called_before_the_worker_ends(fleet: Fleet) -> None:
    fleet.directory.joinpath("hold").touch()
    held = job(hold=str(fleet.directory / "hold"), settings={"job_listener_types": ["tests.cluster.kinds:Audit"]})
    [worker] = fleet.start(fleet.write("jobs.yml", {"shop": held}), "a", grace=50)
    wait_until(lambda: "start" in events(record(fleet)), PATIENCE_SECONDS, "a body runs")
    worker.sigterm()
    worker.wait_for_log("stopping; ", PATIENCE_SECONDS)
    fleet.directory.joinpath("hold").unlink()
    assert worker.wait_exit(PATIENCE_SECONDS) == 0
    assert events(record(fleet)) == ["before", "start", "end", "after"]


@pytest.mark.parametrize("registry", ["sqlite", "zookeeper"])
def test_a_distribute_once_listener_is_called_once_for_all_workers(
    registry: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = sqlite_url(tmp_path)
    if registry == "zookeeper":
        server: ZooKeeperServer = request.getfixturevalue("server")
        url = zookeeper_url(server.address)
    with Fleet(url, tmp_path) as fleet:
        jobs = {"shop": listened("Once", items=4, cron="*/2 * * * * ?")}
        workers = fleet.start(fleet.write("jobs.yml", jobs), "a", "b")
        fleet.wait_until_shared("shop", 4, *workers)
        begun = set(by_fire(fleet))

        def whole() -> list[list[dict[str, Any]]]:
            later = {fire: lines for fire, lines in by_fire(fleet).items() if fire not in begun}
            return [lines for lines in later.values() if "all completed" in events(lines)]

        fires = wait_until(lambda: found if len(found := whole()) >= 3 else None, PATIENCE_SECONDS, "three whole fires")
        fleet.stop()
        for lines in fires[:3]:
            assert events(lines) == ["all started", *["body"] * 4, "all completed"]
            assert {line["item"] for line in lines[1:5]} == {0, 1, 2, 3}
            assert len({line["pid"] for line in lines[1:5]}) == 2, "on both workers"


def test_j16_a_trigger_of_a_one_off_job_is_one_fire_for_all_workers(fleet: Fleet) -> None:
    """Each worker takes note of the order for itself; what is called once for all must see one fire."""
    workers = fleet.start(fleet.write("jobs.yml", {"shop": listened("Once", items=4, cron=None)}), "a", "b")
    fleet.wait_until_shared("shop", 4, *workers)
    _trigger_to_the_end(fleet, 1)
    _trigger_to_the_end(fleet, 2)
    fleet.stop()
    assert len(by_fire(fleet)) == 2
    for lines in by_fire(fleet).values():
        assert events(lines) == ["all started", *["body"] * 4, "all completed"]
        assert len({line["pid"] for line in lines[1:5]}) == 2, "on both workers"


def _trigger_to_the_end(fleet: Fleet, number: int) -> None:
    asyncio.run(_trigger(fleet))
    wait_until(lambda: events(record(fleet)).count("all completed") == number, PATIENCE_SECONDS, "all have ended")


async def _trigger(fleet: Fleet) -> None:
    async with connected(fleet.url) as (registry, namespace):
        await operations.trigger(registry, namespace, "shop")
