"""Watches: on every new connection again, and around what ZooKeeper 3.8.0 does wrong."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from ejpy.errors import RegistryUnavailable
from ejpy.registry.base import Create, Delete, SessionState, SetData
from ejpy.registry.zookeeper import ZooKeeperRegistry
from ejpy.registry.zookeeper.requests import GET_CHILDREN, Request
from ejpy.registry.zookeeper.watches import CHANGED, CREATED
from tests.registry.contract import covers
from tests.support.loop import Signals, eventually, run
from tests.support.proxy import Proxy
from tests.support.zookeeper import ZooKeeperServer, connected, expire


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    """A server of this module's own, for tests that count its watches."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def root() -> str:
    return f"/watches-{uuid.uuid4().hex}"


def watch_count(server: ZooKeeperServer) -> int:
    return int(server.four_letter("mntr")["zk_watch_count"])


def has_more_resets(count: int, calls: list[Any]) -> bool:
    return calls.count(None) > count


class TestInterruptions:
    @pytest.mark.parametrize("how", ["cut", "expired"])
    def test_tree_watches_are_set_again_and_say_that_anything_may_have_changed(self, how: str, zookeeper: str, root: str) -> None:
        async def story() -> None:
            seen, deep, states = Signals(), Signals(), Signals()
            with Proxy(zookeeper) as proxy:
                async with connected(zookeeper) as other, connected(proxy.address) as registry:
                    registry.on_session(states.add)
                    await other.commit([Create(root), Create(f"{root}/a")])
                    await registry.watch_tree(root, seen.add)
                    await registry.watch_tree(f"{root}/a", deep.add)
                    for _ in range(3):
                        told = seen.all.count(None), deep.all.count(None)
                        if how == "cut":
                            proxy.cut()
                        else:
                            await expire(registry, zookeeper)
                        await seen.until(partial(has_more_resets, told[0]))
                        await deep.until(partial(has_more_resets, told[1]))
                        assert states.all[-1] is SessionState.CONNECTED
                        await other.commit([SetData(f"{root}/a", b"")])
                        await seen.until(lambda calls: calls[-1] == {f"{root}/a"})
                        await deep.until(lambda calls: calls[-1] == {f"{root}/a"})

        run(story())

    def test_nothing_is_lost_between_the_new_connection_and_the_first_look(self, zookeeper: str, root: str) -> None:
        """Whoever reads when CONNECTED is told, sees or is told of everything that others do meanwhile."""

        async def story() -> None:
            known = Signals()
            looking: list[asyncio.Future[None]] = []
            written: list[str] = []

            async def look() -> None:
                with suppress(RegistryUnavailable):  # interrupted again: the next connection begins another look
                    tell(frozenset(await registry.tree(root)))

            def tell(paths: frozenset[str] | None) -> None:
                for path in paths or ():
                    known.add(path)

            def begin(state: SessionState) -> None:
                if state is SessionState.CONNECTED:
                    looking.append(asyncio.ensure_future(look()))

            async def write(times: int) -> None:
                for _ in range(times):
                    written.append(f"{root}/{len(written):05d}")
                    await other.commit([Create(written[-1])])

            with Proxy(zookeeper) as proxy:
                async with connected(zookeeper) as other, connected(proxy.address) as registry:
                    await other.commit([Create(root)])
                    registry.on_session(begin)
                    await registry.watch_tree(root, tell)
                    for count in range(1, 4):
                        await write(20)
                        proxy.cut()
                        while len(looking) < count:
                            await write(1)
                        await write(20)
                    await known.until(lambda paths: set(written) <= set(paths))
                    await asyncio.gather(*looking)

        run(story())

    def test_one_shot_watches_fire_at_an_interruption(self, zookeeper: str, root: str) -> None:
        async def story() -> None:
            fired = Signals()
            with Proxy(zookeeper) as proxy:
                async with connected(zookeeper) as other, connected(proxy.address) as registry:
                    await registry.commit([Create(root)])
                    await registry.read_and_watch(root, lambda: fired.add("node"))
                    await registry.read_and_watch(f"{root}/missing", lambda: fired.add("missing"))
                    await registry.watch_tree(f"{root}/tree", lambda _: None)
                    await registry.read_and_watch(f"{root}/tree/below", lambda: fired.add("covered"))
                    proxy.cut()
                    await fired.until(lambda seen: sorted(seen) == ["covered", "missing", "node"])
                    await eventually(lambda: registry.state is SessionState.CONNECTED)
                    await registry.watch_tree(root, lambda _: fired.add("tree"))
                    await other.commit([SetData(root, b""), Create(f"{root}/missing"), Create(f"{root}/tree")])
                    await fired.until(lambda seen: "tree" in seen)
                    assert len(fired.all) == 3 + fired.all.count("tree")

        run(story())

    def test_a_watch_that_could_not_be_set_does_not_exist(self, zookeeper: str, root: str) -> None:
        """B11: the caller is told, and may ask again; nothing is left of the first attempt."""

        async def story() -> None:
            first, second = Signals(), Signals()
            with Proxy(zookeeper) as proxy:
                async with connected(zookeeper) as other, connected(proxy.address) as registry:
                    proxy.black_hole(to_server=False)
                    attempts = [
                        asyncio.ensure_future(registry.watch_tree(root, first.add)),
                        asyncio.ensure_future(registry.read_and_watch(f"{root}-node", lambda: first.add("node"))),
                    ]
                    await asyncio.sleep(0)
                    proxy.cut()
                    for attempt in attempts:
                        with pytest.raises(RegistryUnavailable):
                            await attempt
                    proxy.restore()
                    await eventually(lambda: registry.state is SessionState.CONNECTED)
                    await registry.watch_tree(root, second.add)
                    await other.commit([Create(root), Create(f"{root}-node")])
                    await second.until(covers(root))
                    assert first.all == []

        run(story())


class TestServerFaults:
    """ZooKeeper 3.8.0: a one-shot watch on the root of a recursive watch ends the recursive watch, and nobody is told."""

    @pytest.mark.parametrize("order", ["tree first", "node first", "at once"])
    def test_a_one_shot_watch_does_not_end_a_tree_watch(self, order: str, zookeeper: str, root: str) -> None:
        async def story() -> None:
            seen, once = Signals(), Signals()
            async with connected(zookeeper) as other, connected(zookeeper) as registry:
                await other.commit([Create(root)])
                await registry.sync()
                watch_tree = registry.watch_tree(root, seen.add)
                watch_node = registry.read_and_watch(root, lambda: once.add("changed"))
                if order == "at once":
                    await asyncio.gather(watch_tree, watch_node)
                elif order == "tree first":
                    await watch_tree
                    await watch_node
                else:
                    await watch_node
                    await watch_tree
                for number in range(3):
                    await other.commit([SetData(root, b"")])
                    await seen.until(covers(root))
                    assert once.all == ["changed"]
                    await other.commit([Create(f"{root}/{number}")])
                    await seen.until(covers(f"{root}/{number}"))
                    seen.all.clear()
                    once.all.clear()
                    assert await registry.read_and_watch(root, lambda: once.add("changed")) is not None

        run(story())

    def test_children_changed_is_no_change_of_the_node(self, zookeeper: str, root: str) -> None:
        """ZooKeeper 3.8.0 sends it to a recursive watch when the client also has a child watch inside."""

        async def story() -> None:
            seen = Signals()
            async with connected(zookeeper) as other, connected(zookeeper) as registry:
                await other.commit([Create(root)])
                await registry.sync()
                await registry.watch_tree(root, seen.add)
                link = registry._link
                assert link is not None
                path = root.encode()
                child_watch = Request(GET_CHILDREN, len(path).to_bytes(4, "big") + path + b"\1", lambda *_: None)
                await link.ask(child_watch, None, path=root)
                await other.commit([Create(f"{root}/child")])
                await seen.until(covers(f"{root}/child"))
                await registry.sync()
                assert set().union(*seen.all) == {f"{root}/child"}

        run(story())


class TestClosing:
    def test_the_server_forgets_closed_watches(self, server: ZooKeeperServer, root: str) -> None:
        """N1: watches must not pile up on the server."""

        async def story() -> None:
            async with connected(server.address) as registry:
                before = watch_count(server)
                for _ in range(100):
                    watches = [await registry.watch_tree(f"{root}/{name}", lambda _: None) for name in ("a", "a", "a/b")]
                    for watch in watches:
                        watch.close()
                await registry.sync()
                assert watch_count(server) == before

        run(story())

    def test_closing_one_leaves_the_others(self, zookeeper: str, root: str) -> None:
        async def story() -> None:
            outer, inner, same = Signals(), Signals(), Signals()
            async with connected(zookeeper) as other, connected(zookeeper) as registry:
                watches = [
                    await registry.watch_tree(root, outer.add),
                    await registry.watch_tree(f"{root}/a", inner.add),
                    await registry.watch_tree(f"{root}/a", same.add),
                ]
                await other.commit([Create(root), Create(f"{root}/a")])
                await same.until(covers(f"{root}/a"))
                watches[1].close()
                await other.commit([Create(f"{root}/a/1")])
                await same.until(covers(f"{root}/a/1"))
                watches[2].close()
                await other.commit([Create(f"{root}/a/2")])
                await outer.until(covers(f"{root}/a/2"))
                again = Signals()
                await registry.watch_tree(f"{root}/a", again.add)
                watches[0].close()
                await other.commit([Create(f"{root}/a/3")])
                await again.until(covers(f"{root}/a/3"))
                await registry.sync()
                assert [covers(f"{root}/a/{n}")(calls.all) for calls, n in ((inner, 1), (same, 2), (outer, 3))] == [False] * 3

        run(story())

    def test_a_one_shot_watch_that_relied_on_it_fires(self, zookeeper: str, root: str) -> None:
        async def story() -> None:
            fired = Signals()
            async with connected(zookeeper) as registry:
                outer = await registry.watch_tree(root, lambda _: None)
                inner = await registry.watch_tree(f"{root}/a", lambda _: None)
                await registry.read_and_watch(f"{root}/a/b", lambda: fired.add("b"))
                inner.close()
                assert fired.all == []
                reading = asyncio.ensure_future(registry.read_and_watch(f"{root}/c", lambda: fired.add("c")))
                await asyncio.sleep(0)
                outer.close()
                assert fired.all == ["b"]
                await reading
                assert fired.all == ["b", "c"]

        run(story())


class TestListeners:
    def test_changes_of_one_turn_of_the_loop_are_told_in_one_call(self, zookeeper: str, root: str) -> None:
        async def story() -> None:
            outer, inner = Signals(), Signals()
            async with connected(zookeeper) as registry:
                await registry.watch_tree(root, outer.add)
                await registry.watch_tree(f"{root}/a", inner.add)
                link = registry._link
                assert link is not None
                for name in ("a", "a/b", "c", "a/b"):
                    link.changed(CREATED, f"{root}/{name}")
                link.changed(CHANGED, f"{root}x/a")
                await outer.until(bool)
                assert outer.all == [{f"{root}/a", f"{root}/a/b", f"{root}/c"}]
                assert inner.all == [{f"{root}/a", f"{root}/a/b"}]

        run(story())

    def test_one_that_raises_keeps_no_other_from_being_called(
        self, zookeeper: str, root: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(*_: object) -> None:
            raise RuntimeError("a broken listener")

        async def story() -> None:
            seen, once, states = Signals(), Signals(), Signals()
            with Proxy(zookeeper) as proxy:
                async with connected(proxy.address) as registry:
                    for listener in (broken, states.add):
                        registry.on_session(listener)
                    for listener in (broken, seen.add):
                        await registry.watch_tree(f"{root}/t", listener)
                    for called in (broken, lambda: once.add("fired")):
                        await registry.read_and_watch(root, called)
                    await registry.commit([Create(root), Create(f"{root}/t")])
                    await seen.until(covers(f"{root}/t"))
                    await once.until(lambda calls: calls == ["fired"])
                    proxy.cut()
                    await states.until(lambda calls: calls == [SessionState.SUSPENDED, SessionState.CONNECTED])

        run(story())
        assert caplog.text.count("RuntimeError: a broken listener") >= 4

    def test_the_root_of_all_can_be_watched(self, zookeeper: str, root: str) -> None:
        async def story() -> None:
            seen = Signals()
            async with connected(zookeeper) as registry:
                await registry.watch_tree("/", seen.add)
                await registry.commit([Create(root), Create(f"{root}/a")])
                await seen.until(covers(root, f"{root}/a"))
                await registry.commit([Delete(f"{root}/a"), Delete(root)])

        run(story())


def test_ten_thousand_changes_reach_a_watch(server: ZooKeeperServer, root: str) -> None:
    async def write(registry: ZooKeeperRegistry) -> None:
        for start in range(0, 10_000, 500):
            await registry.commit([Create(f"{root}/{number}") for number in range(start, start + 500)])

    async def story() -> None:
        seen = Signals()
        told: set[str] = set()
        reading: list[asyncio.Future[None]] = []

        async def read() -> None:
            tell(frozenset(await registry.tree(root)) - {root})

        def tell(paths: frozenset[str] | None) -> None:
            if paths is None:  # on a machine that is busy enough, the connection may be given up meanwhile
                reading.append(asyncio.ensure_future(read()))
            told.update(paths or ())
            seen.add(len(told))

        async with connected(server.address) as other, connected(server.address, session_timeout=10) as registry:
            await other.commit([Create(root)])
            await registry.watch_tree(root, tell)
            await write(other)
            await seen.until(lambda counts: counts[-1] == 10_000, 30)
            await asyncio.gather(*reading)

    run(story(), 60)
