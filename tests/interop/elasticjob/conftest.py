"""ElasticJob and a server for the tests of mixed clusters."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.elasticjob.mixed import Installation
from tests.support.zookeeper import ZooKeeperServer


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation.compiled(tmp_path_factory.mktemp("elasticjob"))


@pytest.fixture(scope="package")
def address() -> Iterator[str]:
    """A server for tests that leave it running, with short ticks, so that sessions may be short."""
    with ZooKeeperServer(tick_time=200, java_properties={"zookeeper.preAllocSize": "1024"}) as server:
        yield server.address
