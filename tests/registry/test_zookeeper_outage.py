"""What is logged of servers that cannot be reached, and of the session before, meanwhile and afterwards."""

from __future__ import annotations

import logging

import pytest

from ejpy.registry.base import SessionState
from ejpy.registry.zookeeper.outage import Outage
from tests.support.loop import Signals, run
from tests.support.zookeeper import ZooKeeperServer, connected


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records if record.name == "ejpy.registry.zookeeper"]


def test_each_server_is_told_once_and_all_of_them_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage()
    for second in range(200):
        outage.failed("zk1:2181", "refused", 1000.0 + second)
        outage.failed("zk2:2181", "refused" if second < 90 else "silent", 1000.5 + second)
    assert lines(caplog) == [
        "INFO ZooKeeper server zk1:2181: refused",
        "INFO ZooKeeper server zk2:2181: refused",
        "WARNING ZooKeeper has not been reached for 1 min: zk1:2181: refused; zk2:2181: refused",
        "WARNING ZooKeeper has not been reached for 2 min: zk1:2181: refused; zk2:2181: silent",
        "WARNING ZooKeeper has not been reached for 3 min: zk1:2181: refused; zk2:2181: silent",
    ]


def test_the_next_outage_is_told_anew(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outage = Outage()
    for start in (0.0, 30.0):
        outage.failed("zk1:2181", "refused", start)
        outage.over()
    outage.failed("zk1:2181", "refused", 100.0)
    outage.failed("zk1:2181", "refused", 110.0)
    assert lines(caplog) == ["INFO ZooKeeper server zk1:2181: refused"] * 3


def test_an_outage_and_an_orderly_end_are_told_in_one_line_a_change(caplog: pytest.LogCaptureFixture) -> None:
    """A worker in an outage of hours tried each second, and said so each time; one that ends has lost nothing."""
    caplog.set_level(logging.INFO)

    async def story(server: ZooKeeperServer) -> int:
        states = Signals()
        async with connected(server.address, session_timeout=4) as registry:
            registry.on_session(states.add)
            server.kill()
            await states.until(lambda seen: seen == [SessionState.SUSPENDED, SessionState.LOST], 15)  # it has tried often by now
            server.start()
            await states.until(lambda seen: seen[-1] is SessionState.CONNECTED, 15)
            return (registry.session_id or 0) & (1 << 64) - 1

    with ZooKeeperServer(tick_time=200) as server:
        session_id = run(story(server), 60)
    address = server.address
    told = [line for line in lines(caplog) if "breaking the connection" not in line]
    assert told[0] == told[-2] == f"INFO ZooKeeper session connected: {session_id:#x}, time-out 4 s"
    assert told[1:-2] == [
        "WARNING ZooKeeper session suspended: the connection was lost",
        f"INFO ZooKeeper server {address}: socket connection error: Connection refused",
        "WARNING ZooKeeper session lost: the lease of the session is over",
    ]
    assert told[-1] == "INFO ZooKeeper session closed"
