"""ZooKeeper that is away: at the start, for a while, and at the end; on real worker processes and real servers.

At the start a worker says in one line what is wrong. For a while: everything is back afterwards without a restart. At the end:
a worker that is told to stop does so in time, whether ZooKeeper answers or not.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ejpy.terms import NotRun, Reason
from tests.support.cluster import Cluster
from tests.support.command import run_ejpy
from tests.support.jobs import Execution
from tests.support.proxy import Proxy
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer, four_letter_word

# ---- B1: away for a while -----------------------------------------------------------------------------------------


def live_sessions(address: str) -> set[int]:
    """The sessions that have a connection to the server, as it says itself."""
    words = four_letter_word(address, "cons").replace("(", ",").replace(")", ",").split(",")
    numbers = {int(word[len("sid=0x") :], 16) for word in words if word.startswith("sid=0x")}
    return {number - (1 << 64) if number >> 63 else number for number in numbers}


def held_runs(cluster: Cluster) -> dict[int, Execution] | None:
    """What runs now, by item, when every item does."""
    running = {run.item: run for run in cluster.executions() if run.end is None}
    return running if len(running) == cluster.items else None


@pytest.mark.parametrize(("outage", "failover"), [("cut-off", True), ("cut-off", False), ("server-away", True)])
def test_b1_jobs_go_on_after_a_long_outage(outage: str, failover: bool, own_server: ZooKeeperServer, tmp_path: Path) -> None:
    """B1: the registry was away for long, and when it was back, jobs did not go on. Both workers are cut off, or the server
    itself is stopped and started again with the same data, for three session time-outs; bodies run on and end meanwhile."""
    session_seconds = 2.0
    gate = tmp_path / "gate"
    with (
        Proxy(own_server.address) as proxy,
        Cluster(
            own_server.address,
            tmp_path,
            items=4,
            session_seconds=session_seconds,
            settings={"failover": failover},
            hold=str(gate),
            deaf=True,
        ) as cluster,
    ):
        workers = cluster.start("a", "b", via=proxy.address)
        cluster.wait_until_assigned(*workers)
        gate.touch()
        held = wait_until(lambda: held_runs(cluster), PATIENCE_SECONDS, "all items run")
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
        wait_until(lambda: all(run.end for run in cluster.executions()), PATIENCE_SECONDS, "all bodies end in the outage")
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


# ---- B8: away at the start ----------------------------------------------------------------------------------------

CONNECTION_SECONDS = 1
START_SECONDS = 15
"""What a command may take on a busy machine before it begins to connect."""


@pytest.fixture(params=["unknown-host", "closed-port", "silent-port"])
def nobody(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """An address where no ZooKeeper server is, and what is wrong with it."""
    with closing(socket.socket()) as holder:
        holder.bind(("127.0.0.1", 0))  # so that nobody else takes the port
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        if request.param == "unknown-host":
            yield "no-such-host.invalid:2181", "the host name cannot be resolved"
        elif request.param == "closed-port":
            yield address, "Connection refused"
        else:
            holder.listen()  # the kernel accepts for it
            yield address, "does not answer as a ZooKeeper server"


def test_b8_a_worker_says_in_one_line_why_it_cannot_reach_zookeeper(nobody: tuple[str, str], tmp_path: Path) -> None:
    """B8: an unreachable or wrong address led to an endless wait without a message."""
    address, cause = nobody
    config = tmp_path / "jobs.yml"
    config.write_text("jobs: {one: {class: 'tests.support.jobs:RecordingJob', cron: '* * * * * ?', sharding_total_count: 1}}")
    url = f"zookeeper://{address}/nobody"
    with WorkerProcess(config, url, tmp_path, options=("--connection-timeout", f"{CONNECTION_SECONDS}")) as worker:
        worker.wait_for_log("1 job, registry", START_SECONDS)
        assert worker.wait_exit(CONNECTION_SECONDS + 2) == 1
    lines = worker.log.splitlines()
    said = [line for line in lines if not line[:4].isdecimal()]
    assert all(line.split()[1] == "INFO" for line in lines if line not in said), worker.log
    assert len(said) == 1, worker.log
    assert address in said[0]
    assert cause in said[0]


def test_b8_a_command_says_in_one_line_why_it_cannot_reach_zookeeper(nobody: tuple[str, str]) -> None:
    """B8, for those that look at a cluster."""
    address, cause = nobody
    done = run_ejpy(
        *("jobs", "list", "--registry", f"zookeeper://{address}/nobody", "--connection-timeout", f"{CONNECTION_SECONDS}"),
        timeout=START_SECONDS + CONNECTION_SECONDS + 2,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert address in line
    assert cause in line


@pytest.mark.parametrize("reached", [False, True], ids=["not-reached", "silent-after-the-session"])
def test_sigterm_is_obeyed_in_time_by_a_worker_that_waits_for_zookeeper_at_its_start(
    reached: bool, own_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """A worker in its start has nothing to end, and need not be killed: when it has not reached ZooKeeper yet, and when that
    falls silent while jobs are being registered."""
    with Proxy(own_server.address) as proxy, Cluster(own_server.address, tmp_path) as cluster:
        if reached:
            proxy.alter(to_server=silent_after(cluster.namespace.encode()))
        else:
            proxy.black_hole()
        [worker] = cluster.launch("a", via=proxy.address)
        worker.wait_for_log("session connected" if reached else "1 job, registry", PATIENCE_SECONDS)
        worker.sigterm()
        assert worker.wait_exit(CLOSING_SECONDS) == 0
        cluster.stop()
        assert not cluster.executions()


def test_a_worker_begins_though_zookeeper_falls_silent_while_it_starts(own_server: ZooKeeperServer, tmp_path: Path) -> None:
    """Between opening the session and registering the jobs there may be an outage like any other: no job is left out for it."""
    with Proxy(own_server.address) as proxy, Cluster(own_server.address, tmp_path) as cluster:
        proxy.alter(to_server=silent_after(cluster.namespace.encode()))
        [worker] = cluster.launch("a", via=proxy.address)
        worker.wait_for_log("could not be started, trying again", PATIENCE_SECONDS)
        proxy.restore()
        worker.wait_ready(PATIENCE_SECONDS)
        cluster.wait_for_fires(1)
        cluster.stop()


def silent_after(mark: bytes) -> Callable[[bytes], bytes]:
    """Lets pass what clients send, up to the first that contains `mark`, and nothing from then on."""
    silent = False

    def alter(data: bytes) -> bytes:
        nonlocal silent
        silent = silent or mark in data
        return b"" if silent else data

    return alter


# ---- away at the end ----------------------------------------------------------------------------------------------

GRACE_SECONDS = 1
CLOSING_SECONDS = 5


@pytest.mark.parametrize(("fault", "deaf"), [("frozen-server", False), ("black-hole", True)])
def test_sigterm_is_obeyed_in_time_while_zookeeper_does_not_answer(
    fault: str, deaf: bool, own_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """Four workers, two of which run a body. One of each kind is told to stop right after ZooKeeper has fallen silent, when
    it does not know yet, and one of each when it has given its session up."""
    hold = tmp_path / "hold"
    with (
        Proxy(own_server.address) as proxy,
        Cluster(own_server.address, tmp_path, items=2, session_seconds=2, hold=str(hold), deaf=deaf) as cluster,
    ):
        workers = cluster.start("a", "b", "c", "d", via=proxy.address, grace=GRACE_SECONDS)
        wait_until(lambda: len(cluster.view().instances) == 4, PATIENCE_SECONDS, "all take part")
        hold.touch()
        held = wait_until(lambda: held_runs(cluster), PATIENCE_SECONDS, "both items run")
        pids = {run.pid for run in held.values()}
        busy = [worker for worker in workers if worker.pid in pids]
        idle = [worker for worker in workers if worker.pid not in pids]
        assert (len(busy), len(idle)) == (2, 2)

        if fault == "frozen-server":
            own_server.freeze()
        else:
            proxy.black_hole()
        for soon, later in (busy, idle):
            soon.sigterm()
            later.wait_for_log("ZooKeeper session lost", PATIENCE_SECONDS)
            later.sigterm()
            assert soon.wait_exit(GRACE_SECONDS + CLOSING_SECONDS) == 0
            assert later.wait_exit(GRACE_SECONDS + CLOSING_SECONDS) == 0
        own_server.thaw()
        proxy.restore()
        cluster.stop()
        held_fires = {(item, run.scheduled_time) for item, run in held.items()}
        runs = [run for run in cluster.executions() if (run.item, run.scheduled_time) in held_fires]
        assert [run.how for run in runs] == [None if deaf else "raised"] * 2


def test_a_second_sigterm_cancels_what_runs_also_while_zookeeper_does_not_answer(
    own_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """The grace period is long; the second signal ends it. What was cancelled is run again by whoever comes next."""
    hold = tmp_path / "hold"
    hold.touch()
    with Cluster(own_server.address, tmp_path, items=2, hold=str(hold)) as cluster:
        [worker] = cluster.start("a", grace=PATIENCE_SECONDS)
        held = wait_until(lambda: held_runs(cluster), PATIENCE_SECONDS, "both items run")
        own_server.freeze()
        worker.sigterm()
        worker.wait_for_log("stopping; bodies may run", PATIENCE_SECONDS)
        assert all(run.end is None for run in cluster.executions()), "the first signal cancelled"
        worker.sigterm()
        assert worker.wait_exit(CLOSING_SECONDS) == 0
        assert [run.how for run in cluster.executions()] == ["raised", "raised"]

        own_server.thaw()
        hold.unlink()
        cluster.start("b")
        cluster.wait_for_fires(1)
        for item, run in held.items():
            _, again = cluster.fires()[run.scheduled_time][item]
            assert (again.attempt, again.reason, again.how) == (2, Reason.OWNER_LOST, "returned")
        cluster.stop()
