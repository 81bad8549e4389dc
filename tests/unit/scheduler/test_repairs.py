"""What others left in a job's tree, or took out of it, and what becomes of it: each story is one order of events."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from ejpy.config.document import from_document, to_document
from ejpy.coordination import failover
from ejpy.coordination.view import DISABLED, ENABLED
from ejpy.errors import AccessDenied
from ejpy.registry.base import Delete, Operation
from ejpy.terms import Outcome, Reason
from ejpy.testing.cluster import SimCluster, instant, job_config
from ejpy.testing.outsider import Outsider
from ejpy.testing.virtual_loop import VirtualLoop, run_virtual
from ejpy.testing.worker import SimWorker

NEVER = "0 0 0 1 1 ? 2099"
DEAD = "10.0.0.8@-@8.dead"


def story(test: Callable[[SimCluster], Awaitable[None]], **settings: Any) -> None:
    async def main(loop: VirtualLoop) -> None:
        await test(SimCluster(loop, job_config(**settings)))

    run_virtual(main)


@pytest.fixture(autouse=True)
def everything_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ejpy")


def said(caplog: pytest.LogCaptureFixture, words: str, level: int | None = None) -> list[str]:
    lines = [(record.levelno, record.getMessage()) for record in caplog.records]
    return [text for number, text in lines if words in text and level in (None, number)]


async def two(cluster: SimCluster) -> list[SimWorker]:
    workers = [await cluster.add_leader(), await cluster.add()]
    await cluster.until_shared(*workers)
    return workers


# ---- nodes that cannot be removed as they are ---------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["trigger/1.2.3.4@-@77/x", "leader/sharding/necessary/x/y", "servers/10.9.9.9/hostName"])
def test_c4_nodes_below_those_that_the_leader_removes_go_along(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """ElasticJob 1.x had some; nobody knows them now, and while one is there its parent cannot go."""

    async def test(cluster: SimCluster) -> None:
        await two(cluster)
        outsider = Outsider(cluster)
        outsider.put(f"{cluster.paths.root}/{path}")
        _, other = cluster.workers
        other.crash()
        await cluster.until(lambda: len(cluster.items_of(cluster.workers[0])) == 4, "the items have moved")
        removed = f"{cluster.paths.root}/{path}".rsplit("/", 1)[0]
        await cluster.until(lambda: not outsider.exists(removed), "it is removed", within=90)

    story(test, items=4, cron=NEVER)
    assert len(said(caplog, "met a change")) <= 3


def test_what_cannot_be_put_right_is_said_once_and_holds_up_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: SimCluster) -> None:
        await two(cluster)
        right = failover.left_over

        def with_more(*about: Any) -> list[list[Operation]]:
            return [[Delete(f"{cluster.paths.root}/nothing")], *right(*about)]

        monkeypatch.setattr(failover, "left_over", with_more)
        outsider = Outsider(cluster)
        outsider.put(cluster.paths.trigger(DEAD))
        cluster.workers[1].crash()
        await cluster.until(lambda: len(cluster.items_of(cluster.workers[0])) == 4, "the items have moved")
        await cluster.until(lambda: not outsider.exists(cluster.paths.trigger(DEAD)), "the other one is put right")
        await cluster.until_time(cluster.loop.time() + 100)

    story(test, items=4, cron=NEVER)
    assert said(caplog, "cannot be put right", logging.WARNING) == [
        "cannot be put right: /sim/job/nothing: no node (operation 1)"
    ]
    assert len(said(caplog, "putting right met a change")) <= 15, "it is tried every ten seconds, not without pause"


# ---- what operators ordered ---------------------------------------------------------------------------------------------


def test_an_operators_enable_outlives_the_absence_of_its_worker() -> None:
    """The job says `disabled: true`, and its servers were enabled by hand. One worker is away for more than a minute."""

    async def test(cluster: SimCluster) -> None:
        a, b = [await cluster.add(), await cluster.add()]
        outsider = Outsider(cluster)
        for worker in (a, b):
            outsider.put(cluster.paths.server(worker.host.ip), ENABLED)
        await cluster.until_shared(a, b)
        b.crash()
        await cluster.until_time(cluster.loop.time() + 100)
        assert outsider.data(cluster.paths.server(b.host.ip)) == ENABLED.decode()

    story(test, items=2, disabled=True)


@pytest.mark.parametrize("text", ["", "enabled", "\x00"])
def test_an_entry_of_the_server_that_says_nothing_is_written_anew(text: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: SimCluster) -> None:
        worker = await cluster.add_leader()
        outsider, path = Outsider(cluster), cluster.paths.server(worker.host.ip)
        outsider.put(path, text)
        await cluster.until(lambda: outsider.data(path) == ENABLED.decode(), "it is enabled again")
        await cluster.until(lambda: cluster.runs(), "fires go on")

    story(test)
    assert len(said(caplog, "says ENABLED again", logging.WARNING)) == 1


@pytest.mark.parametrize("by_its_file", [True, False])
def test_w2_a_worker_whose_server_is_disabled_says_so(by_its_file: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: SimCluster) -> None:
        worker = cluster.make()
        outsider, path = Outsider(cluster), cluster.paths.server(worker.host.ip)
        if not by_its_file:
            outsider.put(path, DISABLED)
        await worker.start()
        await cluster.until_time(10)
        assert cluster.runs() == []
        outsider.put(path, ENABLED)
        await cluster.until(lambda: cluster.runs(), "it runs")

    story(test, disabled=by_its_file)
    [line] = said(caplog, "is disabled for this job", logging.INFO if by_its_file else logging.WARNING)
    assert line.endswith("nothing of it runs here until it is enabled")
    assert len(said(caplog, "is enabled again", logging.INFO)) == 1


# ---- a configuration that is gone ---------------------------------------------------------------------------------------


def test_g6_a_configuration_that_was_removed_is_written_anew() -> None:
    """Without it operators would find no job, and whoever starts next would bring his own."""

    async def test(cluster: SimCluster) -> None:
        await two(cluster)
        outsider, path = Outsider(cluster), cluster.paths.config
        outsider.remove(path)
        await cluster.until(lambda: outsider.exists(path), "it is there again")
        assert from_document(cluster.nodes()[path].data, "job", "m:J") == cluster.config

    story(test, items=3)


def test_a_job_that_is_removed_without_its_instances_does_not_come_back() -> None:
    """A console removes node by node; the configuration is gone some time before the instances are."""

    async def test(cluster: SimCluster) -> None:
        await two(cluster)
        outsider = Outsider(cluster)
        outsider.remove(cluster.paths.config)
        await cluster.until_time(cluster.loop.time() + 2)
        outsider.remove_tree(cluster.paths.root)
        await cluster.until_time(cluster.loop.time() + 60)
        assert not outsider.exists(cluster.paths.root)

    story(test, items=3)


# ---- marks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_whom", [0, 1])
def test_a_mark_of_what_does_not_run_is_removed_by_whom_it_names(of_whom: int, caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: SimCluster) -> None:
        workers = await two(cluster)
        [item] = cluster.items_of(workers[0])
        outsider, path = Outsider(cluster), cluster.paths.item_running(item)
        outsider.put(path, workers[of_whom].host.instance_id)
        await cluster.until(lambda: not outsider.exists(path), "the mark is removed")
        before = len(cluster.runs())
        await cluster.until(lambda: item in {run.item for run in cluster.runs()[before:]}, "the item runs")

    story(test, items=2)


def test_a_mark_of_what_runs_stays(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: SimCluster) -> None:
        await cluster.add_leader(body_seconds=lambda: 30.0)
        outsider, path = Outsider(cluster), cluster.paths.item_running(0)
        await cluster.until(lambda: outsider.exists(path), "it runs", within=70)
        begun = cluster.loop.time()
        await cluster.until(lambda: cluster.runs() and cluster.runs()[0].ended is not None, "it ends", within=40)
        assert cluster.loop.time() - begun > 25
        assert not said(caplog, "which it does not")

    story(test, cron="0 * * * * ?", running_marks=True)


def test_a_mark_of_a_taker_that_is_gone_and_had_no_session_is_removed() -> None:
    async def test(cluster: SimCluster) -> None:
        await cluster.add_leader()
        outsider, path = Outsider(cluster), cluster.paths.item_failover(0)
        outsider.put(path, DEAD)
        await cluster.until(lambda: not outsider.exists(path), "the mark is removed")
        await cluster.until(lambda: cluster.runs(), "the item runs")

    story(test)


def test_a_body_that_runs_when_a_java_worker_joins_is_marked() -> None:
    """Java workers know of it only by its mark, and would take the item for an idle one."""

    async def test(cluster: SimCluster) -> None:
        await cluster.add_leader(body_seconds=lambda: 20.0)
        await cluster.until_time(61)
        java, path = Outsider(cluster), cluster.paths.item_running(0)
        assert not java.exists(path)
        java.join()
        await cluster.until(lambda: java.exists(path), "its mark is there", within=5)
        assert java.data(path) == cluster.workers[0].host.instance_id
        [run] = cluster.runs()
        await cluster.until(lambda: run.ended is not None, "it ends")
        await cluster.until(lambda: not java.exists(path), "and its mark goes with it", within=2)
        assert run.outcome is Outcome.SUCCEEDED

    story(test, cron="0 * * * * ?")


# ---- long runs ----------------------------------------------------------------------------------------------------------


def test_l3_a_long_run_hears_that_its_item_shall_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream ends then, at the next batch, as ElasticJob's does when a resharding is due."""

    async def test(cluster: SimCluster) -> None:
        told: list[tuple[int, float]] = []
        worker = await cluster.add_leader(body_seconds=lambda: 300.0)
        start = worker.runner.start

        def noted(*about: Any, **how: Any) -> Any:
            execution = start(*about, **how)
            monkeypatch.setattr(
                execution, "withdraw", lambda: told.append((execution.attempt.sharding_item, cluster.loop.time()))
            )
            return execution

        monkeypatch.setattr(worker.runner, "start", noted)
        await cluster.until(lambda: len(cluster.runs(instant(60))) == 4, "they run", within=70)
        await cluster.until_time(100)
        await cluster.add()
        await cluster.until(lambda: told, "it is told", within=20)
        await cluster.until_time(cluster.loop.time() + 5)
        assert len({item for item, _ in told}) == 2, "two of four items shall move"

    story(test, items=4, cron="0 * * * * ?")


# ---- what a worker may not do -------------------------------------------------------------------------------------------


def deny(cluster: SimCluster, monkeypatch: pytest.MonkeyPatch, *paths: str, reading: bool = False) -> None:
    """From now on the registry refuses to write (or read) these nodes."""
    write, read = cluster.store.write, cluster.store.read

    def writing(session_id: int, change: Callable[[Any], Any]) -> Any:
        def checked(transaction: Any) -> Any:
            done = change(transaction)
            if not transaction.changed.isdisjoint(paths):
                raise AccessDenied(f"{', '.join(paths)}: denied")
            return done

        return write(session_id, checked)

    def reading_(path: str) -> Any:
        if path in paths:
            raise AccessDenied(f"{path}: denied")
        return read(path)

    if reading:
        monkeypatch.setattr(cluster.store, "read", reading_)
    else:
        monkeypatch.setattr(cluster.store, "write", writing)


def commits(cluster: SimCluster, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When transactions are asked for, from now on."""
    seen: list[float] = []
    write = cluster.store.write

    def noted(session_id: int, change: Callable[[Any], Any]) -> Any:
        seen.append(cluster.loop.time())
        return write(session_id, change)

    monkeypatch.setattr(cluster.store, "write", noted)
    return seen


def test_an_item_that_cannot_be_written_holds_up_no_trigger_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: SimCluster) -> None:
        await cluster.add_leader()
        await cluster.until(lambda: len(cluster.runs()) >= 3, "all run")
        deny(cluster, monkeypatch, cluster.paths.ledger(0))
        asked = commits(cluster, monkeypatch)
        begun = cluster.loop.time()
        Outsider(cluster).trigger()
        await cluster.until_time(begun + 18)
        triggered = {run.item for run in cluster.runs() if run.reason is Reason.TRIGGER}
        assert triggered == {1, 2}
        scheduled = [run.item for run in cluster.runs() if run.reason is Reason.SCHEDULED and run.entered > begun + 5]
        assert {1, 2} <= set(scheduled)
        assert len(asked) < 60, "not without pause"

    story(test, items=3)


def test_what_may_not_be_removed_holds_up_no_resharding(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: SimCluster) -> None:
        await two(cluster)
        path = cluster.paths.trigger(DEAD)
        Outsider(cluster).put(path)
        deny(cluster, monkeypatch, path)
        third = await cluster.add()
        await cluster.until(lambda: len(cluster.items_of(third)) == 2, "it has its share")
        asked = commits(cluster, monkeypatch)
        await cluster.until_time(cluster.loop.time() + 60)
        assert len(asked) < 40, "it is tried every ten seconds"

    story(test, items=6, cron=NEVER)
    assert len(said(caplog, "cannot be put right", logging.WARNING)) == 1


def test_an_entry_that_may_not_be_read_stops_its_item_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(cluster: SimCluster) -> None:
        a, _ = await two(cluster)
        deny(cluster, monkeypatch, cluster.paths.ledger(0), reading=True)
        cluster.store.expire(a.registry.session_id or 0)
        begun = cluster.loop.time()
        await cluster.until_time(begun + 25)
        assert {1, 2, 3} <= {run.item for run in cluster.runs() if run.entered > begun + 8}

    story(test, items=4)
    assert said(caplog, "its ledger entry may not be read, the item rests", logging.ERROR)


# ---- beside a Java worker -----------------------------------------------------------------------------------------------


def test_a_leader_that_waits_for_bodies_without_marks_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody removed the marks of what runs. The leader goes by the ledger, too, and waits for its entries to change."""

    async def test(cluster: SimCluster) -> None:
        await cluster.add_leader(body_seconds=lambda: 30.0)
        await cluster.until_time(61)
        java = Outsider(cluster)
        java.join()
        await cluster.until(lambda: all(java.exists(cluster.paths.item_running(item)) for item in range(2)), "they are marked")
        for item in range(2):
            java.remove(cluster.paths.item_running(item))
        asked = commits(cluster, monkeypatch)
        begun = cluster.loop.time()
        await cluster.until_time(begun + 20)
        assert len(asked) < 40

    story(test, items=2, cron="0 * * * * ?")


def test_an_entry_of_a_later_ejpy_does_not_keep_java_workers_from_running() -> None:
    """It stays where it is; a resharding that waits for it would stop all foreign instances for ever."""

    async def test(cluster: SimCluster) -> None:
        await two(cluster)
        before = cluster.view().assigned
        outsider = Outsider(cluster)
        for item in range(4):
            outsider.put(cluster.paths.ledger(item), '{"v": 99}')
        outsider.join()
        await cluster.until_time(cluster.loop.time() + 30)
        assert not outsider.exists(cluster.paths.resharding_necessary)
        assert cluster.view().assigned == before

    story(test, items=4, cron=NEVER)


# ---- fires and clocks ---------------------------------------------------------------------------------------------------


def test_a_fire_that_comes_while_the_leader_waits_to_look_at_the_one_before_is_looked_at_too() -> None:
    async def test(cluster: SimCluster) -> None:
        leader = await cluster.add_leader()
        busy = await cluster.add()
        await cluster.until_shared(leader, busy)
        await cluster.until_time(20 + 10)
        busy.runner.waiting = 100_000  # it cannot begin anything
        await cluster.until_time(35 + 20 + 15)
        assert {run.item for run in cluster.runs(instant(35))} == {0, 1}, "the item that was left is run elsewhere"

    story(test, items=2, cron="20,35 * * * * ?", claim_timeout=timedelta(seconds=20))


def test_a_worker_says_that_it_is_refused_also_when_that_is_an_operators_new_limit(caplog: pytest.LogCaptureFixture) -> None:
    async def test(cluster: SimCluster) -> None:
        await cluster.add_leader()
        await cluster.add(ahead=timedelta(seconds=8))
        await cluster.until_time(5)
        path = cluster.paths.config
        limited = cluster.config.model_copy(update={"max_time_diff_seconds": 5})
        Outsider(cluster).put(path, to_document(limited))
        await cluster.until(lambda: said(caplog, "nothing is run here", logging.ERROR), "it says so")

    story(test, items=2)


def test_a_worker_that_registers_anew_goes_by_the_registrys_configuration() -> None:
    """The file says `disabled: true`, the registry not, and it counts. The worker is away until its entry is removed."""

    async def test(cluster: SimCluster) -> None:
        first = await cluster.add_leader()
        cluster.config = cluster.config.model_copy(update={"disabled": True})
        away = await cluster.add()
        path, outsider = cluster.paths.server(away.host.ip), Outsider(cluster)
        await cluster.until_shared(first, away)
        away.registry.disconnect()
        await cluster.until(lambda: not outsider.exists(path), "its entry is removed", within=90)
        away.registry.reconnect()
        await cluster.until(lambda: outsider.data(path) == ENABLED.decode(), "it is enabled")

    story(test, items=2)


def test_a_configuration_is_restored_with_what_ejpy_does_not_act_on() -> None:
    async def test(cluster: SimCluster) -> None:
        await cluster.add_leader()
        outsider, path = Outsider(cluster), cluster.paths.config
        document = to_document(cluster.config).decode() + "jobExecutorServiceHandlerType: CPU\n"
        outsider.put(path, document)
        await cluster.until_time(cluster.loop.time() + 1)
        outsider.remove(path)
        await cluster.until(lambda: outsider.exists(path), "it is there again")
        assert outsider.data(path) == document

    story(test)
