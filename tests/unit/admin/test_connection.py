"""Connecting to a cluster for a while, on a SQLite file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ejpy.admin import inspect
from ejpy.admin.connection import connected
from ejpy.errors import ConfigError, RegistryUnreachable
from ejpy.registry.base import Create, Registry, SessionState


def test_it_is_connected_within_the_block_and_no_longer(tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()

    async def main() -> Registry:
        async with connected(f"sqlite:///{tmp_path}/shop.db") as (registry, namespace):
            assert registry.state is SessionState.CONNECTED
            assert namespace == "/ejpy"
            await registry.commit([Create(namespace)])
            assert await inspect.jobs(registry, namespace) == []
            return registry

    assert asyncio.run(main()).state is SessionState.LOST


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("sqlite:///{}/none.db", RegistryUnreachable, "there is no such file"),
        ("nonsense://x", ConfigError, "nonsense"),
    ],
)
def test_what_is_not_there_is_not_made(url: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with connected(url.format(tmp_path)):
            raise AssertionError("there is nothing to connect to")

    with pytest.raises(error, match=message):
        asyncio.run(main())
    assert not list(tmp_path.iterdir())
