"""Servers for the cluster tests, with short ticks, so that sessions may be short."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.zookeeper import ZooKeeperServer

TICK_MILLISECONDS = 200
"""Sessions may last from two to twenty of these."""


def _server() -> ZooKeeperServer:
    return ZooKeeperServer(tick_time=TICK_MILLISECONDS, java_properties={"zookeeper.preAllocSize": "1024"})


@pytest.fixture(scope="package")
def server() -> Iterator[ZooKeeperServer]:
    """A server for tests that leave it running."""
    with _server() as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[ZooKeeperServer]:
    """A server for one test, to be frozen and stopped at will."""
    with _server() as server:
        yield server
