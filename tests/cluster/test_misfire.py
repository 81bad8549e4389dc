"""Fires that come while an item still runs, or while its job is disabled, on real worker processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from ejpy.coordination.view import DISABLED, ENABLED
from ejpy.registry.base import SetData
from ejpy.terms import NotRun, Reason
from tests.support.fleet import Fleet, job, now, zookeeper_url
from tests.support.jobs import Execution
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.zookeeper import ZooKeeperServer

SECOND = timedelta(seconds=1)


def instants(after: datetime, until: datetime, step: timedelta = SECOND) -> list[datetime]:
    """`after` + step, + 2 · step, … up to `until`."""
    found = []
    while (after := after + step) <= until:
        found.append(after)
    return found


def ended(run: Execution) -> datetime:
    assert run.end is not None
    return datetime.fromtimestamp(run.end, run.scheduled_time.tzinfo)


# ---- E1 -----------------------------------------------------------------------------------------------------------


def test_e1_fires_missed_by_the_first_run_are_made_up_for_once_or_not_at_all(server: ZooKeeperServer, tmp_path: Path) -> None:
    """E1: missed fires ran once too often, or went unnoticed in the very first run. A fire every 2 s, the first run takes 7 s.

    With misfire: one make-up run straight after it, then the usual rhythm. Without: none.
    """
    hold = tmp_path / "hold"
    hold.touch()
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        jobs = {
            name: job(cron="0/2 * * * * ?", settings={"misfire": misfire}, hold=str(hold))
            for name, misfire in {"made-up": True, "skipped": False}.items()
        }
        fleet.start(fleet.write("jobs.yml", jobs), "a")
        began = max(fleet.wait_for_runs(name, 1, lambda run: True)[0].scheduled_time for name in jobs)
        seven = began + timedelta(seconds=7)
        wait_until(lambda: now() >= seven, PATIENCE_SECONDS, "the first run has taken 7 s")
        hold.unlink()
        for name in jobs:
            fleet.wait_for_fires(name, 2)
        ledger = {name: fleet.ledger(name)[0] for name in jobs}
        fleet.stop()
        for name in jobs:
            run, *following = fleet.runs(name)
            missed = instants(run.scheduled_time, ended(run), 2 * SECOND)
            assert len(missed) >= 3
            last = missed[-1]
            recorded = {
                one for one in missed if any(r.after < one <= r.until and r.why is NotRun.OVERLAP for r in ledger[name].not_run)
            }
            if name == "made-up":
                make_up = following.pop(0)
                assert (make_up.scheduled_time, make_up.reason, make_up.attempt) == (last, Reason.MISFIRE, 1)
                assert ended(make_up) < last + 2 * SECOND, "it waited for the next fire"
                assert recorded == set(missed[:-1])
            else:
                assert recorded == set(missed)
            assert [run.scheduled_time for run in following] == instants(last, following[-1].scheduled_time, 2 * SECOND)
            assert {run.reason for run in following} == {Reason.SCHEDULED}


# ---- E3 -----------------------------------------------------------------------------------------------------------


def test_e3_enabling_a_job_again_does_not_fire_what_passed_meanwhile(server: ZooKeeperServer, tmp_path: Path) -> None:
    """E3: re-enabling a job fired the backlog at once. One job is disabled for five fires of the one beside it."""
    with Fleet(zookeeper_url(server.address), tmp_path) as fleet:
        jobs = {"switched": job(items=2, settings={"catch_up": "all"}), "beside": job()}
        a, b = fleet.start(fleet.write("jobs.yml", jobs), "a", "b")
        fleet.wait_until_shared("switched", 2, a, b)
        fleet.wait_for_fires("switched", 1, items=2)
        [ip] = fleet.view("switched").servers
        server_entry = fleet.paths("switched").server(ip)

        disabled = now()
        fleet.change(SetData(server_entry, DISABLED))
        wait_until(
            lambda: all(entry.suspended for entry in fleet.ledger("switched").values()), PATIENCE_SECONDS, "both items rest"
        )
        rested = now()
        fleet.wait_for_fires("beside", 5)
        enabled = now()
        fleet.change(SetData(server_entry, ENABLED))
        fleet.wait_for_fires("switched", 3, items=2)
        fleet.stop()
        runs = [run for run in fleet.runs("switched") if run.scheduled_time > disabled + SECOND]
        assert not [run for run in runs if rested < run.scheduled_time < enabled], "a fire of the time when it was disabled"
        for item in range(2):
            after = [run for run in runs if run.item == item and run.scheduled_time > rested]
            assert after[0].scheduled_time <= enabled.replace(microsecond=0) + 2 * SECOND
            assert [run.scheduled_time for run in after] == instants(after[0].scheduled_time - SECOND, after[-1].scheduled_time)
            assert {run.reason for run in after} == {Reason.SCHEDULED}


# ---- E4, E5: long runs beside short ones --------------------------------------------------------------------------


@dataclass(frozen=True)
class Uneven:
    """What came of two workers that had jobs with long and with short runs for a while."""

    busy: list[Execution]
    """One item whose every run takes longer than from fire to fire, until it is disabled."""
    busy_nodes: list[frozenset[str]]
    """The paths of its job's tree, looked at now and then; the last time after it was disabled."""
    uneven: list[Execution]
    """Item 0 takes several fires, item 1, on the other worker, no time."""
    beside: list[Execution]
    """Two items that take no time, on both workers."""


@pytest.fixture(scope="module")
def histories(server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Uneven]:
    with Fleet(zookeeper_url(server.address), tmp_path_factory.mktemp("uneven")) as fleet:
        jobs = {
            "busy": job(seconds=1.5),
            "uneven": job(items=2, slow_items={"0": 4.5}),
            "beside": job(items=2),
        }
        a, b = fleet.start(fleet.write("jobs.yml", jobs), "a", "b")
        for name, items in (("busy", 1), ("uneven", 2), ("beside", 2)):
            fleet.wait_until_shared(name, items, a, b)
        fleet.wait_for_fires("busy", 1)
        begun = now()
        nodes = []
        for _ in range(3):
            nodes.append(frozenset(fleet.nodes("busy")))
            fleet.wait_for_fires("beside", 3, items=2)
        paths = fleet.paths("busy")
        [ip] = fleet.view("busy").servers
        fleet.change(SetData(paths.server(ip), DISABLED))
        wait_until(lambda: _rests(fleet, "busy"), PATIENCE_SECONDS, "the busy job rests")
        nodes.append(frozenset(fleet.nodes("busy")))
        fleet.wait_for_runs("uneven", 2, partial(_slow_and_over, begun))
        after = {name: [run for run in fleet.runs(name) if run.scheduled_time > begun] for name in jobs}
        fleet.stop()
        yield Uneven(after["busy"], nodes, after["uneven"], after["beside"])


def _slow_and_over(begun: datetime, run: Execution) -> bool:
    return run.item == 0 and run.scheduled_time > begun and run.how == "returned"


def _rests(fleet: Fleet, name: str) -> bool:
    return all(entry.suspended and not entry.running for entry in fleet.ledger(name).values())


def test_e4_an_item_that_is_always_late_runs_once_at_a_time_and_leaves_no_marks(histories: Uneven) -> None:
    """E4: a misfire loop never ended; a fire every second, each run 1.5 s."""
    runs = histories.busy
    assert len(runs) >= 4
    for run, following in pairwise(runs):
        assert run.end is not None
        assert run.end <= following.start, "two runs of an item at once"
        assert run.scheduled_time < following.scheduled_time
    assert {run.reason for run in runs} <= {Reason.SCHEDULED, Reason.MISFIRE}
    assert Reason.MISFIRE in {run.reason for run in runs}
    *enabled, disabled = histories.busy_nodes
    assert len(set(enabled)) == 1
    assert disabled < enabled[0], "more nodes than before"
    assert not [path for path in disabled if path.endswith("/misfire")]


def test_e5_a_slow_item_delays_no_other(histories: Uneven) -> None:
    """E5: one slow item delayed all others. Beside it, on both workers, items of its own and another job fire every second."""
    slow = [run for run in histories.uneven if run.item == 0 and run.how == "returned"]
    assert len(slow) >= 2
    others = (
        [run for run in histories.uneven if run.item == 1],
        *([run for run in histories.beside if run.item == item] for item in range(2)),
    )
    slow_pids, other_pids = {run.pid for run in slow}, {run.pid for runs in others for run in runs}
    assert slow_pids < other_pids
    for runs in others:
        assert [run.scheduled_time for run in runs] == instants(runs[0].scheduled_time - SECOND, runs[-1].scheduled_time)
        assert {run.reason for run in runs} == {Reason.SCHEDULED}
        for run in slow:
            meanwhile = [one for one in runs if run.scheduled_time < one.scheduled_time <= ended(run) - SECOND]
            assert len(meanwhile) >= 2
            assert all(run.start < one.start and ended(one) < ended(run) for one in meanwhile), "a run waited for the slow one"
