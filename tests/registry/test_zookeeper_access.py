"""Credentials: every node is closed to others, and a refusal is told as such."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from ejpy.errors import AccessDenied
from ejpy.registry.base import Create, Delete, SetData
from tests.support.loop import run
from tests.support.zookeeper import connected, expire

CREDENTIALS = ("user", "secret:with:colons")


@pytest.fixture
def root() -> str:
    return f"/access-{uuid.uuid4().hex}"


def access_lists(address: str, paths: list[str]) -> list[object]:
    client = KazooClient(address, auth_data=[("digest", ":".join(CREDENTIALS))])
    client.start()
    try:
        return [client.get_acls(path)[0] for path in paths]
    finally:
        client.stop()
        client.close()


def test_every_node_has_the_digest_of_the_user_and_nobody_else(zookeeper: str, root: str) -> None:
    """K2: the credentials are plain, the list has their hash; and what recipes make counts, too."""

    async def story() -> None:
        async with connected(zookeeper, credentials=CREDENTIALS) as registry:
            await registry.commit([Create(root), Create(f"{root}/latch"), Create(f"{root}/instance", ephemeral=True)])
            await registry.create_sequential(f"{root}/latch/_c_x-latch-")
            await registry.create_sequential(f"{root}/latch/kept-", ephemeral=False)
            paths = list(await registry.tree(root))
            assert len(paths) == 5
            expected = [make_digest_acl(*CREDENTIALS, all=True)]
            assert await asyncio.to_thread(access_lists, zookeeper, paths) == [expected] * 5

    run(story())


def test_credentials_hold_after_the_session_expired(zookeeper: str, root: str) -> None:
    """K3: they must be sent again on every connection."""

    async def story() -> None:
        async with connected(zookeeper, credentials=CREDENTIALS) as registry:
            await registry.commit([Create(root, b"0")])
            for count in range(1, 4):
                await expire(registry, zookeeper)
                await registry.commit([SetData(root, str(count).encode()), Create(f"{root}/{count}", ephemeral=True)])
                tree = await registry.tree(root)
                assert tree[root].data == str(count).encode()

    run(story())


@pytest.mark.parametrize("credentials", [None, ("user", "wrong"), ("other", "secret:with:colons")], ids=str)
def test_others_are_refused_whatever_they_ask(credentials: tuple[str, str] | None, zookeeper: str, root: str) -> None:
    async def story() -> None:
        async with connected(zookeeper, credentials=CREDENTIALS) as owner:
            await owner.commit([Create(root), Create(f"{root}/a")])
            async with connected(zookeeper, credentials=credentials) as stranger:
                await stranger.sync()
                calls: list[Callable[[], Awaitable[object]]] = [
                    lambda: stranger.read([root]),
                    lambda: stranger.children([root]),
                    lambda: stranger.tree(root),
                    lambda: stranger.read_and_watch(root, lambda: None),
                    lambda: stranger.commit([Create(f"{root}/b")]),
                    lambda: stranger.commit([SetData(root, b"1")]),
                    lambda: stranger.commit([Delete(f"{root}/a")]),
                    lambda: stranger.create_sequential(f"{root}/n-"),
                ]
                for call in calls:
                    with pytest.raises(AccessDenied) as raised:
                        await call()
                    assert root in str(raised.value)
            assert {path: node.version for path, node in (await owner.tree(root)).items()} == {root: 0, f"{root}/a": 0}

    run(story())


def test_without_credentials_nodes_are_open(zookeeper: str, root: str) -> None:
    async def story() -> None:
        async with connected(zookeeper) as one, connected(zookeeper, credentials=("somebody", "else")) as other:
            await one.commit([Create(root)])
            await other.sync()
            await other.commit([SetData(root, b"1"), Delete(root)])

    run(story())
