"""A connection to a cluster, for as long as something is looked at or ordered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ejpy.clock import SystemClock
from ejpy.config.registry_url import RegistryAddress, parse_url
from ejpy.errors import RegistryUnreachable
from ejpy.registry.base import Registry
from ejpy.registry.open import open_registry

CLOSE_SECONDS = 1.0


@asynccontextmanager
async def connected(url: str, *, timeout: float = 10.0) -> AsyncIterator[tuple[Registry, str]]:
    """The registry at `url`, connected within `timeout` seconds, and its namespace; disconnected at the end of the block.

        async with connected("zookeeper://zk1:2181/shop") as (registry, namespace):
            await operations.trigger(registry, namespace, "order-sync")

    Raises ConfigError if the URL cannot be one, RegistryUnreachable. A SQLite file that does not exist is not made.
    """
    address = parse_url(url)
    _refuse_missing_file(address)
    registry = open_registry(address, SystemClock())
    try:
        await registry.start(timeout)
        yield registry, address.namespace
    finally:
        await registry.stop(CLOSE_SECONDS)


def _refuse_missing_file(address: RegistryAddress) -> None:
    if address.scheme == "sqlite" and not Path(address.location.removeprefix("sqlite:///")).exists():
        raise RegistryUnreachable(address.location, "there is no such file")
