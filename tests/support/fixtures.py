"""Fixtures for every test. `tests/conftest.py` imports them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.zookeeper import ZooKeeperServer, classpath, four_letter_word

TEST_SERVER = "EJPY_TEST_ZOOKEEPER"


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[str]:
    """The address of a running ZooKeeper server, for tests that leave it alone. They keep to paths of their own."""
    address = os.environ.get(TEST_SERVER)
    if address:
        try:
            four_letter_word(address, "srvr")
        except OSError as error:
            pytest.exit(f"{TEST_SERVER}={address}: no server answers there ({error})", returncode=4)
        yield address
    elif classpath() is None:
        pytest.exit(
            "these tests need a ZooKeeper server: install Java and ZooKeeper (Debian: apt-get install zookeeper), or unpack "
            f"a release and set ZOOKEEPER_HOME, or set {TEST_SERVER}=host:port to a server that may be written to",
            returncode=4,
        )
    else:
        with ZooKeeperServer() as server:
            yield server.address
