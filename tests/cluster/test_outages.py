"""ZooKeeper that is away: at the start, for a while, and at the end; on real worker processes and real servers.

At the start a worker says in one line what is wrong. For a while: everything is back afterwards without a restart. At the end:
a worker that is told to stop does so in time, whether ZooKeeper answers or not.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import yaml

from ejpy.terms import NotRun, Outcome, Reason
from tests.support.cluster import PATIENCE_SECONDS, Cluster, run_ejpy
from tests.support.jobs import Execution
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer, four_letter_word

# ---- B1: away for a while -----------------------------------------------------------------------------------------


def live_sessions(address: str) -> set[int]:
    """The sessions that have a connection to the server, as it says itself."""
    words = four_letter_word(address, "cons").replace("(", ",").replace(")", ",").split(",")
    numbers = {int(word[len("sid=0x") :], 16) for word in words if word.startswith("sid=0x")}
    return {number - (1 << 64) if number >> 63 else number for number in numbers}


def first_fire(cluster: Cluster) -> list[Execution]:
    """The runs of the first fire, when all items have begun; a further look shows further attempts."""
    runs = cluster.executions()
    found = [run for run in runs if run.scheduled_time == runs[0].scheduled_time]
    return found if {run.item for run in found} == set(range(cluster.items)) else []


@pytest.mark.parametrize("failover", [True, False], ids=["failover", "no-failover"])
@pytest.mark.parametrize("outage", ["cut-off", "server-away"])
def test_b1_jobs_go_on_after_a_long_outage(
    outage: str, failover: bool, own_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """B1: the registry was away for long, and when it was back, jobs did not go on. Both workers are cut off, or the server
    itself is stopped and started again with the same data, for three session time-outs; bodies run on and end meanwhile."""
    session_seconds = 2.0
    gate = tmp_path / "gate"
    with Proxy(own_server.address) as proxy, Cluster(
        own_server.address,
        tmp_path,
        items=4,
        session_seconds=session_seconds,
        settings={"failover": failover},
        hold=str(gate),
        deaf=True,
    ) as cluster:
        workers = cluster.start("a", "b", via=proxy.address)
        cluster.wait_until_assigned(*workers)
        gate.touch()
        wait_until(lambda: running(cluster), PATIENCE_SECONDS, "all items run")
        held = running(cluster)
        sessions = {cluster.session_of(worker) for worker in workers}
        end = time.monotonic() + 3 * session_seconds
        if outage == "cut-off":
            proxy.refuse()
            wait_until(lambda: not cluster.view().instances, PATIENCE_SECONDS, "both sessions end")
        else:
            own_server.stop()
            for worker in workers:
                worker.wait_for_log("ZooKeeper session lost", PATIENCE_SECONDS)
        gate.unlink()
        wait_until(lambda: not running_now(cluster), PATIENCE_SECONDS, "the bodies end during the outage")
        time.sleep(max(0.0, end - time.monotonic()))  # not to wait for anything: so long is the outage
        if outage == "cut-off":
            proxy.restore()
        else:
            own_server.start()

        cluster.wait_until_assigned(*workers)
        cluster.wait_for_fires(2)
        assert all(worker.alive for worker in workers)
        back = {cluster.session_of(worker) for worker in workers}
        assert back <= live_sessions(own_server.address)
        if outage == "cut-off":
            assert not back & sessions
        ledger = cluster.ledger()
        cluster.stop()
        for item, run in held.items():
            attempts = [one for one in cluster.executions() if (one.scheduled_time, one.item) == (run.scheduled_time, item)]
            interrupted = any(
                one.after < run.scheduled_time <= one.until for one in ledger[item].not_run if one.why is NotRun.INTERRUPTED
            )
            assert attempts[0].how == "returned"
            assert {one.reason for one in attempts[1:]} <= ({Reason.OWNER_LOST} if failover else set())
            assert cluster.counted(run.scheduled_time, item) + interrupted == 1, f"item {item}: {attempts}"
