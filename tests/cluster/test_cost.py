"""What a fire costs ZooKeeper: packets and transactions, counted by the server itself.

The figure does not grow with the number of items that a worker holds (P7). ElasticJob needs 18, 126 and 1,222 packets a fire
for 1, 10 and 100 items on the same machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fleet import NEVER, Fleet, job
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.zookeeper import ZooKeeperServer

FIRES = 10
JOB = "cost"


class Packets:
    """The server's count of packets received, without those by which it is asked for the count."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._asked = 0

    def __call__(self) -> int:
        self._asked += 1
        return int(self._server.four_letter("mntr")["zk_packets_received"]) - self._asked


def idle_packets_a_second(packets: Packets, url: str, directory: Path) -> float:
    """What a worker sends that has the job and never fires: heartbeats and probes."""
    with Fleet(url, directory) as fleet:
        fleet.start(fleet.write("jobs.yml", {JOB: job(items=10, cron=NEVER)}), "idle")
        before, began = packets(), time.monotonic()
        wait_until(lambda: packets() - before >= 12, PATIENCE_SECONDS, "a dozen packets")
        return (packets() - before) / (time.monotonic() - began)


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    """A server that nobody else asks anything of."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="module")
def packets(server: ZooKeeperServer) -> Packets:
    return Packets(server)


@pytest.fixture(scope="module")
def idle(server: ZooKeeperServer, packets: Packets, tmp_path_factory: pytest.TempPathFactory) -> float:
    return idle_packets_a_second(packets, f"zookeeper://{server.address}/idle", tmp_path_factory.mktemp("idle"))


@pytest.mark.parametrize(("items", "monitored", "most"), [(1, True, 3), (10, True, 3), (100, True, 3), (10, False, 2)])
def test_packets_a_fire(
    items: int, monitored: bool, most: int, server: ZooKeeperServer, packets: Packets, idle: float, tmp_path: Path
) -> None:
    url = f"zookeeper://{server.address}/cost-{items}-{monitored}"
    with Fleet(url, tmp_path) as fleet:  # it has no session with the server as long as nothing is looked up there

        def fires() -> int:
            return len({one.scheduled_time for one in fleet.runs(JOB)})

        fleet.start(fleet.write("jobs.yml", {JOB: job(items=items, settings={"monitor_execution": monitored})}), "w")
        wait_until(lambda: fires() >= 2, PATIENCE_SECONDS, "two fires")
        before, before_fires, began = packets(), fires(), time.monotonic()
        wait_until(lambda: fires() >= before_fires + FIRES, PATIENCE_SECONDS, f"{FIRES} fires")
        spent = packets() - before - idle * (time.monotonic() - began)
        runs = fleet.runs(JOB)
    assert len(runs) == len({(one.scheduled_time, one.item) for one in runs})
    assert len(runs) >= FIRES * items
    print(f"packets a fire, {items} items, monitored={monitored}: {spent / FIRES:.2f} (idle {idle:.2f} a second)")
    assert spent / FIRES <= most
