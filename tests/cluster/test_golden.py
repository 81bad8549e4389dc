"""ElasticJob's golden trees: ejpy reads them as ElasticJob does, and leaves the same ones at the same moments.

`golden/trees.json` has what a real ElasticJob worker left at 31 moments of a job's life. Each is laid into ZooKeeper, and ejpy
says of it what ElasticJob's status rules say. Then workers of ejpy, with `running_marks: true`, are brought into the same moments
with the same configuration, and their whole tree is compared: paths, data, the session of each ephemeral node, access lists.
`ALLOWED` lists what may differ, and why. It is exact: a difference that is listed and does not occur fails as well.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from kazoo.client import KazooClient

from ejpy.admin import inspect, operations
from ejpy.terms import ItemStatus, JobStatus
from tests.cluster.golden.stage import Stage
from tests.cluster.golden.trees import JOB, differences, golden
from tests.support.fleet import now
from tests.support.observer import Observer
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.zookeeper import ZooKeeperServer

# ---- reading ElasticJob's trees -----------------------------------------------------------------------------------------

ITEM_STATUS = {
    "D": ItemStatus.DISABLED,
    "R": ItemStatus.RUNNING,
    "S": ItemStatus.SHARDING_FLAG,
    "P": ItemStatus.PENDING,
}

STATUSES = {
    "a1": (JobStatus.SHARDING_FLAG, "SSS"),
    "a2": (JobStatus.OK, "RRR"),
    "a3": (JobStatus.OK, "PPP"),
    "a4": (JobStatus.OK, "PPP"),
    "a5": (JobStatus.OK, "RRR"),
    "a6": (JobStatus.OK, "PDP"),
    "a7": (JobStatus.DISABLED, "PPP"),
    "a8": (JobStatus.DISABLED, "PPP"),
    "a9": (JobStatus.OK, "PPP"),
    "a10": (JobStatus.OK, "RRRS"),
    "a11": (JobStatus.OK, "PPPP"),
    "a12": (JobStatus.CRASHED, "SSSS"),
    "a13": (JobStatus.CRASHED, "SSSS"),
    "b1": (JobStatus.OK, "RRR"),
    "b2": (JobStatus.CRASHED, "SSS"),
    "b3": (JobStatus.CRASHED, "SSS"),
    "c1": (JobStatus.SHARDING_FLAG, "SSS"),
    "c2": (JobStatus.SHARDING_FLAG, "SSS"),
    "c3": (JobStatus.CRASHED, "SSS"),
    "d1": (JobStatus.OK, "RRR"),
    "d3": (JobStatus.SHARDING_FLAG, "PPR"),
    "d4": (JobStatus.SHARDING_FLAG, "PPR"),
    "d5": (JobStatus.SHARDING_FLAG, "PPS"),
    "d6": (JobStatus.OK, "PPP"),
    "d7": (JobStatus.SHARDING_FLAG, "SPS"),
    "d8": (JobStatus.CRASHED, "SSS"),
    "e1": (JobStatus.OK, "PPP"),
    "f1": (JobStatus.SHARDING_FLAG, "SSS"),
    "g1": (JobStatus.SHARDING_FLAG, "SSS"),
    "g3": (JobStatus.OK, "RRR"),
    "g4": (JobStatus.OK, "PPP"),
}
"""Moment → status of the job and of its items, by ElasticJob's rules (protocol reference, section 8.2).

ElasticJob shows no item that was never dealt out; ejpy shows all that are configured.
"""


@pytest.fixture(scope="module")
def replayed(server: ZooKeeperServer) -> Iterator[str]:
    """A path of the server below which each moment's tree lies, under its name."""
    root = f"/golden-{uuid4().hex}"
    client = KazooClient(server.address, timeout=4)
    client.start(PATIENCE_SECONDS)
    try:
        for moment, tree in golden().items():
            client.ensure_path(f"{root}/{moment}")
            for path, (data, session) in sorted(tree.nodes.items()):
                if path != tree.namespace:
                    place = f"{root}/{moment}{path.removeprefix(tree.namespace)}"
                    client.create(place, data.encode(), ephemeral=session is not None)
        yield root
    finally:
        client.stop()
        client.close()


def test_no_moment_is_left_out() -> None:
    assert len(golden()) == 31
    assert STATUSES.keys() == ALLOWED.keys() == golden().keys()


@pytest.mark.parametrize("moment", STATUSES)
def test_what_ejpy_says_of_elasticjobs_tree(server: ZooKeeperServer, replayed: str, moment: str) -> None:
    namespace, tree = f"{replayed}/{moment}", golden()[moment]
    with Observer(server.address) as observer:
        [job] = observer.ask(lambda registry: inspect.jobs(registry, namespace))
        shards = observer.ask(lambda registry: inspect.shards(registry, namespace, JOB))
    status, items = STATUSES[moment]
    assert (job.job, job.status) == (JOB, status)
    assert job.cron is None if moment.startswith("g") else job.cron
    assert job.instances == len([path for path in tree.nodes if "/instances/" in path])
    assert job.sharding_total_count == len(items)
    assert [shard.status for shard in shards] == [ITEM_STATUS[letter] for letter in items]
    assert [shard.parameter for shard in shards] == ["Beijing", "Shanghai", "Guangzhou", None][: len(items)]


# ---- what may differ in the trees that ejpy leaves ----------------------------------------------------------------------


@dataclass(frozen=True)
class Allowed:
    """Differences that are there on purpose; see `golden.trees.differences` for how they are written."""

    why: str
    lines: frozenset[str]


def allowed(why: str, *lines: str) -> Allowed:
    return Allowed(why, frozenset(lines))


MARKS_ASKED_FOR = allowed(
    "That marks are written without a Java worker is asked for with a setting of ejpy's own, which has its place in `props`.",
    "+ config props ejpy.running_marks: true",
)
NO_PLACE_FOR_FLAGS = allowed(
    "Among its own workers ejpy sets no flag, and so does not make their parent.",
    "- leader/sharding",
)
NO_FLAG = allowed(
    "ElasticJob's leader flags a resharding until its next fire; ejpy's does it at once, in one transaction.",
    "- leader/sharding/necessary",
)
DEALT_OUT = allowed(
    "So the items have their owners before the first fire.",
    "+ sharding",
    *(f"+ sharding/{item}" for item in range(3)),
    *(f"+ sharding/{item}/instance: <id1>" for item in range(3)),
)
FOURTH_ITEM = allowed(
    "So a new item has its owner while the others still run.",
    "+ sharding/3",
    "+ sharding/3/instance: <id1>",
)
VICTIMS_ITEM_MOVED = allowed(
    "So an item that is failed over already has the owner that it is going to have.",
    "~ sharding/2/instance: <id3> → <id1>",
)
LEADERS_ITEMS_MOVED = allowed(
    "So the items of the dead leader are the survivor's.",
    "~ sharding/0/instance: <id1> → <id2>",
    "~ sharding/2/instance: <id1> → <id2>",
)
ELECTION_DIRECTORY = allowed(
    "ElasticJob's latch lies in a container, which the server removes some time after its last child; ejpy's in a plain node.",
    "+ leader/election/latch",
)
FAILOVER_DIRECTORY = allowed(
    "The same for the latch of the failover.",
    "+ leader/failover/latch",
)
SAYS_THAT_IT_DRAINS = allowed(
    "A worker that stops says so at once, in the field `labels`, and leads no more while it waits for its bodies.",
    "- leader/election/instance",
    "~ instances/<id1>: jobInstanceId: <id1>; serverIp: <ip> (while <id1> is there)"
    " → jobInstanceId: <id1>; labels: draining; serverIp: <ip> (while <id1> is there)",
)
MARKED_AT_ONCE = allowed(
    "ElasticJob notices what it missed when the body has ended; ejpy at the time, while the body still runs.",
    *(f"+ sharding/{item}/running: <id1> (while <id1> is there)" for item in range(3)),
)

ALWAYS = (MARKS_ASKED_FOR, NO_PLACE_FOR_FLAGS)

ALLOWED: dict[str, tuple[Allowed, ...]] = {
    "a1": (*ALWAYS, NO_FLAG, DEALT_OUT),
    "a2": ALWAYS,
    "a3": ALWAYS,
    "a4": ALWAYS,
    "a5": ALWAYS,
    "a6": ALWAYS,
    "a7": (*ALWAYS, NO_FLAG),
    "a8": (*ALWAYS, NO_FLAG),
    "a9": (*ALWAYS, NO_FLAG),
    "a10": (*ALWAYS, NO_FLAG, FOURTH_ITEM),
    "a11": ALWAYS,
    "a12": ALWAYS,
    "a13": ALWAYS,
    "b1": (*ALWAYS, SAYS_THAT_IT_DRAINS),
    "b2": ALWAYS,
    "b3": ALWAYS,
    "c1": (*ALWAYS, NO_FLAG, DEALT_OUT, ELECTION_DIRECTORY),
    "c2": (*ALWAYS, NO_FLAG, DEALT_OUT, ELECTION_DIRECTORY),
    "c3": (*ALWAYS, NO_FLAG, DEALT_OUT, ELECTION_DIRECTORY),
    "d1": ALWAYS,
    "d3": (*ALWAYS, NO_FLAG, VICTIMS_ITEM_MOVED),
    "d4": (*ALWAYS, NO_FLAG, VICTIMS_ITEM_MOVED),
    "d5": (*ALWAYS, NO_FLAG, VICTIMS_ITEM_MOVED, ELECTION_DIRECTORY, FAILOVER_DIRECTORY),
    "d6": (*ALWAYS, ELECTION_DIRECTORY, FAILOVER_DIRECTORY),
    "d7": (*ALWAYS, NO_FLAG, LEADERS_ITEMS_MOVED, FAILOVER_DIRECTORY),
    "d8": (*ALWAYS, NO_FLAG, LEADERS_ITEMS_MOVED, FAILOVER_DIRECTORY),
    "e1": (*ALWAYS, MARKED_AT_ONCE),
    "f1": (*ALWAYS, NO_FLAG, DEALT_OUT),
    "g1": (*ALWAYS, NO_FLAG, DEALT_OUT),
    "g3": ALWAYS,
    "g4": ALWAYS,
}


def expected(series: str) -> dict[str, set[str]]:
    """What has to differ at the moments of one story, and nothing else may."""
    return {
        moment: {line for each in reasons for line in each.lines}
        for moment, reasons in ALLOWED.items()
        if moment.startswith(series)
    }


# ---- leaving them -------------------------------------------------------------------------------------------------------


def test_the_comparison_sees_every_kind_of_difference() -> None:
    idle = golden()["a3"]
    assert differences("a3", idle, idle.ids) == set()
    assert differences("a2", idle, idle.ids) == {f"- sharding/{item}/running" for item in range(3)}
    assert differences("c1", golden()["f1"], golden()["f1"].ids) == {
        "+ leader/election/latch",
        "~ access: [('world', 'anyone', 31)] → [('digest', 'user:smGaoVKd/cQkjm7b88GyorAUz20=', 31)]",
    }
    [worker] = idle.ids
    config, leader = f"{idle.namespace}/{JOB}/config", f"{idle.namespace}/{JOB}/leader/election/instance"
    changed = {config: (idle.nodes[config][0].replace("failover: false", "failover: true"), None), leader: (worker, None)}
    assert differences("a3", replace(idle, nodes={**idle.nodes, **changed}), idle.ids) == {
        "~ config failover: false → true",
        "~ leader/election/instance: <id1> (while <id1> is there) → <id1>",
    }


@pytest.fixture(scope="module")
def patient() -> Iterator[ZooKeeperServer]:
    """A server on which sessions may last long: those of the killed are ended when the story has come there."""
    with ZooKeeperServer(properties={"maxSessionTimeout": 60_000}) as server:
        yield server


def test_a_job_with_one_worker_and_all_that_operators_do(patient: ZooKeeperServer, tmp_path: Path) -> None:
    with Stage(patient.address, tmp_path) as stage:
        worker = stage.start("w")
        stage.wait_until_settled(worker)
        stage.look("a1")
        stage.hold()
        fire = stage.fire()
        stage.wait_until_running()
        stage.look("a2")
        stage.release()
        stage.wait_until_ended(fire)
        stage.look("a3")

        worker.pause()
        stage.operate(operations.trigger)
        stage.look("a4")
        stage.hold()
        worker.resume()
        stage.wait_until_running()
        stage.look("a5")
        stage.release()
        stage.wait_until_ended()

        stage.operate(operations.enable_item, 1, enabled=False)
        stage.wait_until_suspended(1)
        stage.look("a6")
        stage.operate(operations.enable_item, 1, enabled=True)

        stage.operate(operations.enable_server, worker.id.partition("@-@")[0], enabled=False)
        stage.wait_until_suspended(0, 1, 2)
        stage.wait(lambda: stage.view().leader is None, "nobody leads")
        stage.look("a7")
        passed = stage.fire() + timedelta(seconds=1)
        stage.wait(lambda: now() > passed, "a fire time has passed")
        stage.look("a8")
        stage.operate(operations.enable_server, worker.id.partition("@-@")[0], enabled=True)
        stage.wait_until_settled(worker)
        stage.look("a9")

        stage.hold()
        stage.fire()
        stage.wait_until_running()
        stage.configure(sharding_total_count=4)
        stage.wait_until_settled(worker, items=4)
        stage.look("a10")
        stage.release()
        stage.wait_until_ended(stage.fire(), items=4)
        stage.look("a11")

        stage.operate(operations.shutdown, ip=worker.id.partition("@-@")[0])
        worker.wait_for_log("an operator removed this instance", PATIENCE_SECONDS)
        stage.wait(lambda: stage.view().leader is None, "nobody leads")
        stage.look("a12")
        assert worker.alive
        stage.stop()
        stage.look("a13")
    assert stage.unlike == expected("a")


def test_a_worker_that_is_told_to_stop_while_it_runs(patient: ZooKeeperServer, tmp_path: Path) -> None:
    with Stage(patient.address, tmp_path) as stage:
        worker = stage.start("w")
        stage.wait_until_settled(worker)
        stage.hold()
        stage.fire()
        stage.wait_until_running()
        worker.sigterm()
        stage.wait(lambda: stage.view().instances[worker.id].draining, "the worker has understood")
        stage.look("b1")
        stage.release()
        assert worker.wait_exit(PATIENCE_SECONDS) == 0
        stage.look("b2")
        stage.look("b3")  # ElasticJob's session lasted until here; ejpy's ended with the worker
        stage.stop()
    assert stage.unlike == expected("b")


def test_a_worker_that_is_killed_before_it_ever_fired(patient: ZooKeeperServer, tmp_path: Path) -> None:
    with Stage(patient.address, tmp_path) as stage:
        worker = stage.start("w")
        stage.wait_until_settled(worker)
        stage.look("c1")
        end_session = stage.kill(worker)
        stage.look("c2")
        end_session()
        stage.look("c3")
    assert stage.unlike == expected("c")


def test_a_failover_and_then_the_death_of_the_leader(patient: ZooKeeperServer, tmp_path: Path) -> None:
    """Addresses are chosen so that the ids sort as they did there: the leader last, the victim first."""
    with Stage(patient.address, tmp_path, failover=True) as stage:
        leader = stage.start("leader", ip="10.9.0.3")
        stage.wait_until_settled(leader)
        other, victim = stage.start("other", ip="10.9.0.2"), stage.start("victim", ip="10.9.0.1")
        stage.wait_until_settled(leader, other, victim)
        stage.hold()
        stage.fire()
        stage.wait_until_running()
        stage.look("d1")

        end_session = stage.kill(victim)
        stage.release(0)  # the leader is free now, and so the one that takes over
        stage.wait_until_running(1, 2)
        end_session()
        stage.wait(lambda: stage.marks().taken_by(leader.id) == [2], "the leader takes the victim's item over")
        stage.release(1)
        stage.wait_until_running(2)
        stage.wait_until_settled(leader, other)
        stage.look("d3")
        stage.look("d4")
        stage.release(2)
        stage.wait_until_ended()
        stage.look("d5")
        stage.wait_until_ended(stage.fire())
        stage.look("d6")

        stage.kill(leader)()
        stage.wait_until_settled(other)
        stage.look("d7")
        stage.stop()
        stage.look("d8")
    assert stage.unlike == expected("d")


def test_items_that_are_due_while_they_run(patient: ZooKeeperServer, tmp_path: Path) -> None:
    with Stage(patient.address, tmp_path, cron="0/2 * * * * ?") as stage:
        stage.hold()
        stage.start("w")
        stage.wait(lambda: stage.marks().misfire == {0, 1, 2}, "all are marked")
        stage.look("e1")
        stage.release()
        stage.stop()
    assert stage.unlike == expected("e")


def test_nodes_with_access_lists(patient: ZooKeeperServer, tmp_path: Path) -> None:
    with Stage(patient.address, tmp_path, credentials=("user", "pass")) as stage:
        stage.wait_until_settled(stage.start("w"))
        stage.look("f1")
        stage.stop()
    assert stage.unlike == expected("f")


def test_a_one_off_job(patient: ZooKeeperServer, tmp_path: Path) -> None:
    with Stage(patient.address, tmp_path, cron=None) as stage:
        stage.wait_until_settled(stage.start("w"))
        stage.look("g1")
        stage.hold()
        stage.operate(operations.trigger)
        stage.wait_until_running()
        stage.look("g3")
        stage.release()
        stage.wait_until_ended()
        stage.look("g4")
        stage.stop()
    assert stage.unlike == expected("g")


# ---- what ElasticJob does, and ejpy does not ----------------------------------------------------------------------------


def test_a_server_that_was_disabled_stays_so_over_a_restart(patient: ZooKeeperServer, tmp_path: Path) -> None:
    """ElasticJob enables it at every start."""
    with Stage(patient.address, tmp_path) as stage:
        first = stage.start("first")
        stage.wait_until_settled(first)
        ip = first.id.partition("@-@")[0]
        stage.operate(operations.enable_server, ip, enabled=False)
        stage.stop()
        second = stage.start("second")
        assert list(stage.view().instances) == [second.id]
        assert stage.view().disabled_servers == {ip}
        stage.operate(operations.enable_server, ip, enabled=True)
        stage.wait_until_settled(second)
        stage.stop()
