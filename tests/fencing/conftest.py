"""What the tests of fencing write to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fencing import servers


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    with servers.postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    with servers.mariadb() as url:
        yield url


@pytest.fixture(scope="session")
def redis_port() -> Iterator[int]:
    with servers.redis_server() as port:
        yield port


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    with servers.object_store() as endpoint:
        yield endpoint
