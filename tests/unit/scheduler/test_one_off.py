"""A job without a schedule: nothing is broken about it, it runs when it is triggered, and a schedule can come and go."""

from __future__ import annotations

import logging
from datetime import datetime, timezone
from typing import Any

import pytest

from ejpy.clock import SystemClock
from ejpy.config.document import to_document
from ejpy.config.model import JobConfig
from ejpy.coordination.ledger import Basis
from ejpy.coordination.paths import JobPaths
from ejpy.logs import FieldsAdapter
from ejpy.registry.base import Create, Node, SetData
from ejpy.scheduler.configuration import Configuration
from ejpy.scheduler.schedules import Schedules
from ejpy.terms import Reason
from ejpy.testing.cluster import SimCluster, instant, job_config
from ejpy.testing.virtual_loop import VirtualLoop, run_virtual
from ejpy.testing.worker import SimWorker

ONE_OFF = "one-off: runs only when it is triggered"
LOG = FieldsAdapter(logging.getLogger("ejpy.scheduler"), {})


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ejpy")


def one_off(**settings: Any) -> JobConfig:
    return job_config(items=2, **settings).model_copy(update={"cron": None})


def set_cron(cluster: SimCluster, cron: str | None) -> None:
    path = cluster.paths.config
    node = cluster.nodes()[path]
    cluster.config = cluster.config.model_copy(update={"cron": cron})
    cluster.store.commit(0, [SetData(path, to_document(cluster.config, previous=node.data), node.version)])


def trigger(cluster: SimCluster, worker: SimWorker) -> None:
    above = [] if cluster.paths.triggers in cluster.nodes() else [Create(cluster.paths.triggers)]
    cluster.store.commit(0, [*above, Create(cluster.paths.trigger(worker.host.instance_id))])


def said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def test_it_runs_when_it_is_triggered_and_at_no_other_time(caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, one_off())
        worker = await cluster.add_leader()
        await cluster.until_shared(worker)
        await cluster.until_time(100)
        assert cluster.runs() == []
        trigger(cluster, worker)
        await cluster.until(lambda: len(cluster.runs()) == 2, "both items run")
        await cluster.until_time(200)
        assert {(run.item, run.reason) for run in cluster.runs()} == {(0, Reason.TRIGGER), (1, Reason.TRIGGER)}
        second = await cluster.add()
        await cluster.until_shared(worker, second)

    run_virtual(story)
    assert said(caplog, ONE_OFF) == 2, "once for each worker"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_schedule_comes_and_goes_while_it_is_run(caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, one_off())
        worker = await cluster.add_leader()
        await cluster.until_shared(worker)
        await cluster.until_time(12)
        set_cron(cluster, "0/5 * * * * ?")
        await cluster.until_time(22)
        assert {run.fire for run in cluster.runs()} == {instant(15), instant(20)}, "what was before is not due"
        assert {run.reason for run in cluster.runs()} == {Reason.SCHEDULED}
        set_cron(cluster, None)
        await cluster.until_time(42)
        set_cron(cluster, "0/5 * * * * ?")
        await cluster.until_time(47)
        assert {run.fire for run in cluster.runs()} == {instant(15), instant(20), instant(45)}
        assert cluster.evidence.not_run == []

    run_virtual(story)
    assert said(caplog, f"the schedule is now {ONE_OFF}, the item count 2") == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_no_schedule_is_not_one_that_cannot_be_understood(caplog: pytest.LogCaptureFixture) -> None:
    schedules = Schedules(SystemClock(), LOG)
    assert schedules.read(Basis("", None, 1)) is None
    assert schedules.of(Basis("", "Asia/Tokyo", 1)) is None
    assert caplog.records == []
    assert schedules.of(Basis("nonsense", None, 1)) is None
    assert len(caplog.records) == 1


def test_what_stands_for_the_class_here_survives_a_change_in_the_registry() -> None:
    file = job_config().model_copy(update={"job_class": "com.acme.Orders", "python_class": "shop.jobs:Orders"})
    paths = JobPaths("/ns", file.job_name)
    configuration = Configuration(paths, file, SystemClock(), LOG)
    written = datetime(2026, 3, 2, 10, tzinfo=timezone.utc)
    document = to_document(file.model_copy(update={"description": "changed"}))
    assert b"shop.jobs" not in document
    nodes = {paths.config: Node(document, version=1, created_revision=4, revision=5, modified=written, session_id=None)}
    configuration.look(nodes)
    assert configuration.current.description == "changed"
    assert configuration.current.body_class == "shop.jobs:Orders"
