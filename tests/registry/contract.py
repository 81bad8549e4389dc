"""The tests that every registry passes: each sentence of `ejpy.registry.base` has one here.

A registry's test module subclasses `RegistryContract` and overrides the fixture `new_registry`:

    class TestMemoryContract(RegistryContract):
        @pytest.fixture
        def new_registry(self) -> NewRegistry: ...

`new_registry()` gives one more registry object, not started, that shares its tree with the others of the same test and
reads the time from `SystemClock`. Every test works below a path of its own, `root`, which exists when the test begins, so
that the tree may outlive the test.

A test is a coroutine that is given `root` and as many started registries as `registries` says; they are stopped after it.
What a registry does beyond the contract (faults, time-outs, its server going away) is tested in its own module.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
import uuid
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from ejpy.clock import SystemClock
from ejpy.errors import GuardFailed, GuardFailure, RegistryError, RequestTooLarge
from ejpy.registry.base import (
    Check,
    Create,
    Delete,
    Operation,
    Registry,
    SessionState,
    SetData,
    operation_bytes,
)
from tests.support.loop import Signals, eventually, run

NewRegistry = Callable[[], Registry]


def registries(count: int) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a pytest function of a coroutine that takes `self`, `root` and `count` started registries."""

    def decorate(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        def test(self: RegistryContract, new_registry: NewRegistry, root: str) -> None:
            async def with_registries() -> None:
                opened = [new_registry() for _ in range(count)]
                try:
                    for registry in opened:
                        await registry.start(10)
                    await opened[0].commit([Create(root)])
                    for registry in opened:
                        await registry.sync()
                    await story(self, root, *opened)
                finally:
                    for registry in opened:
                        await registry.stop(10)

            run(with_registries())

        test.__name__, test.__doc__ = story.__name__, story.__doc__
        return test

    return decorate


def covers(*paths: str) -> Callable[[list[Any]], bool]:
    """Whether a tree listener was told of all `paths`, or that anything may have changed."""
    return lambda calls: any(call is None for call in calls) or set(paths) <= set().union(*calls)


def session_of(registry: Registry) -> tuple[SessionState, int | None, float]:
    return registry.state, registry.session_id, registry.lease_until


async def fails(registry: Registry, operations: list[Operation]) -> GuardFailed:
    """The GuardFailed that committing `operations` raises."""
    with pytest.raises(GuardFailed) as raised:
        await registry.commit(operations)
    return raised.value


class RegistryContract:
    @pytest.fixture
    def new_registry(self) -> NewRegistry:
        raise NotImplementedError("override the fixture new_registry")

    @pytest.fixture
    def root(self) -> str:
        return f"/contract-{uuid.uuid4().hex}"

    # -- reads --

    @registries(1)
    async def test_read_gives_the_nodes_in_the_order_asked_and_none_for_missing_ones(self, root: str, a: Registry) -> None:
        await a.commit([Create(f"{root}/{name}", name.encode()) for name in ("x", "y", "z")])
        nodes = await a.read([f"{root}/z", f"{root}/missing", f"{root}/x", f"{root}/missing/below", f"{root}/z"])
        assert [node and node.data for node in nodes] == [b"z", None, b"x", None, b"z"]
        assert await a.read([]) == []

    @registries(1)
    async def test_one_read_takes_more_paths_than_a_transaction_takes_operations(self, root: str, a: Registry) -> None:
        paths = [f"{root}/{number:04d}" for number in range(1500)]
        await a.commit([Create(path, path.encode()) for path in paths[:750]])
        await a.commit([Create(path, path.encode()) for path in paths[750:]])
        nodes = await a.read([*reversed(paths), f"{root}/missing"])
        assert [node and node.data for node in nodes] == [*(path.encode() for path in reversed(paths)), None]
        assert await a.children([root, *paths]) == [[path.rpartition("/")[2] for path in paths], *([[]] * 1500)]

    @registries(1)
    async def test_data_is_kept_byte_for_byte(self, root: str, a: Registry) -> None:
        contents = [b"", b"\0", bytes(range(256)), "Straße 报表".encode(), b"x" * 100_000]
        await a.commit([Create(f"{root}/{i}", data) for i, data in enumerate(contents)])
        assert [node and node.data for node in await a.read([f"{root}/{i}" for i in range(len(contents))])] == contents

    @registries(1)
    async def test_children_gives_sorted_names_for_each_path_and_none_for_missing_nodes(self, root: str, a: Registry) -> None:
        await a.commit([Create(f"{root}/{name}") for name in ("b", "a", "10", "9", "é", "B")])
        await a.commit([Create(f"{root}/b/below"), Create(f"{root}/b/below/deep")])
        assert await a.children([root, f"{root}/a", f"{root}/missing", f"{root}/b"]) == [
            ["10", "9", "B", "a", "b", "é"],
            [],
            None,
            ["below"],
        ]

    @registries(1)
    async def test_names_are_taken_literally(self, root: str, a: Registry) -> None:
        """Neither case nor the wildcards of any query language mix up nodes."""
        names = ["a_b", "axb", "a%b", "axyb", "AXB", "*", "[a]", "it's", 'say "x"', "back\\slash", "a b", "报表", "a.b"]
        await a.commit([Create(f"{root}/{name}", name.encode()) for name in names])
        await a.commit([Create(f"{root}/{name}/below", name.encode()) for name in names])
        for name in names:
            tree = await a.tree(f"{root}/{name}")
            assert {path: node.data for path, node in tree.items()} == {
                f"{root}/{name}": name.encode(),
                f"{root}/{name}/below": name.encode(),
            }
        assert await a.children([root]) == [sorted(names)]

    @registries(1)
    async def test_tree_gives_the_root_and_all_below_by_path(self, root: str, a: Registry) -> None:
        below = ["/t", "/t/a", "/t/a/b", "/t/a/b/c", "/t/d"]
        beside = ["/ta", "/s", "/t-", "/t0"]
        await a.commit([Create(root + path, path.encode()) for path in below + beside])
        tree = await a.tree(f"{root}/t")
        assert {path: node.data for path, node in tree.items()} == {root + path: path.encode() for path in below}
        assert tree[f"{root}/t/a"] == (await a.read([f"{root}/t/a"]))[0]
        assert list(await a.tree(f"{root}/t/d")) == [f"{root}/t/d"]

    @registries(1)
    async def test_tree_of_a_missing_root_is_empty(self, root: str, a: Registry) -> None:
        await a.commit([Create(f"{root}/t"), Create(f"{root}/t/a"), Delete(f"{root}/t/a"), Delete(f"{root}/t")])
        assert await a.tree(f"{root}/t") == {}

    @registries(1)
    async def test_the_root_of_all_exists(self, root: str, a: Registry) -> None:
        (node,) = await a.read(["/"])
        (names,) = await a.children(["/"])
        assert node is not None
        assert names is not None
        assert root[1:] in names

    @registries(2)
    async def test_sync_makes_what_others_committed_visible(self, root: str, a: Registry, b: Registry) -> None:
        for number in range(20):
            await a.commit([SetData(root, str(number).encode())])
            await b.sync()
            (node,) = await b.read([root])
            assert node is not None
            assert node.data == str(number).encode()

    # -- versions, revisions, times --

    @registries(1)
    async def test_versions_count_the_changes_of_data(self, root: str, a: Registry) -> None:
        path = f"{root}/n"
        made = await a.commit([Create(path), Check(path), SetData(path, b"1"), SetData(path, b"1"), Check(path, 2)])
        assert made.versions == (0, -1, 1, 2, -1)
        assert (await a.commit([SetData(path, b"2"), Create(f"{path}/child")])).versions == (3, 0)
        (node,) = await a.read([path])
        assert node is not None
        assert (node.data, node.version) == (b"2", 3)
        assert (await a.commit([Delete(f"{path}/child"), Delete(path, 3), Create(path)])).versions == (-1, -1, 0)
        (node,) = await a.read([path])
        assert node is not None
        assert (node.data, node.version) == (b"", 0)

    @registries(2)
    async def test_revisions_grow_with_every_transaction_and_stand_in_the_nodes(
        self, root: str, a: Registry, b: Registry
    ) -> None:
        path = f"{root}/n"
        first = await a.commit([Create(path), Create(f"{path}/child")])
        second = await b.commit([SetData(path, b"2")])
        third = await a.commit([SetData(f"{path}/child", b"3")])
        await b.sync()
        node, child = await b.read([path, f"{path}/child"])
        assert first.revision < second.revision < third.revision
        assert node is not None
        assert child is not None
        assert (node.created_revision, node.revision) == (first.revision, second.revision)
        assert (child.created_revision, child.revision) == (first.revision, third.revision)
        fourth = await b.commit([Delete(f"{path}/child"), Delete(path), Create(path)])
        (node,) = await b.read([path])
        assert node is not None
        assert third.revision < fourth.revision == node.created_revision == node.revision

    @registries(2)
    async def test_modified_is_the_time_of_the_last_change_of_data_by_the_registrys_clock(
        self, root: str, a: Registry, b: Registry
    ) -> None:
        path = f"{root}/n"
        await a.commit([Create(path)])
        (created,) = await a.read([path])
        await b.commit([SetData(path, b"1")])
        (changed,) = await b.read([path])
        await b.commit([Create(f"{path}/child")])
        await a.sync()
        (seen_by_a,) = await a.read([path])
        assert created is not None
        assert changed is not None
        assert changed == seen_by_a
        assert changed.modified.utcoffset() == timedelta(0)
        assert created.modified <= changed.modified
        assert abs(changed.modified - datetime.now(timezone.utc)) < timedelta(minutes=1)

    # -- guards --

    @pytest.mark.parametrize(
        ("operation", "failure"),
        [
            (Create("/there"), GuardFailure.NODE_EXISTS),
            (Create("/missing/below"), GuardFailure.NO_NODE),
            (Create("/ephemeral/below"), GuardFailure.EPHEMERAL_PARENT),
            (Create("/ephemeral/below", ephemeral=True), GuardFailure.EPHEMERAL_PARENT),
            (SetData("/missing", b""), GuardFailure.NO_NODE),
            (SetData("/missing", b"", 0), GuardFailure.NO_NODE),
            (SetData("/there", b"new", 0), GuardFailure.BAD_VERSION),
            (SetData("/there", b"new", 2), GuardFailure.BAD_VERSION),
            (Delete("/missing"), GuardFailure.NO_NODE),
            (Delete("/leaf", 1), GuardFailure.BAD_VERSION),
            (Delete("/there"), GuardFailure.NOT_EMPTY),
            (Delete("/there", 1), GuardFailure.NOT_EMPTY),
            (Check("/missing"), GuardFailure.NO_NODE),
            (Check("/missing", 0), GuardFailure.NO_NODE),
            (Check("/there", 0), GuardFailure.BAD_VERSION),
        ],
        ids=str,
    )
    def test_a_guard_that_fails_is_named_and_nothing_is_applied(
        self, new_registry: NewRegistry, root: str, operation: Operation, failure: GuardFailure
    ) -> None:
        failing = _below(root, operation)

        @registries(1)
        async def story(self: RegistryContract, root: str, a: Registry) -> None:
            there = f"{root}/there"
            await a.commit([Create(there), SetData(there, b"1"), Create(f"{there}/child"), Create(f"{root}/leaf")])
            await a.commit([Create(f"{root}/ephemeral", ephemeral=True)])
            before = await a.tree(root)
            alone = await fails(a, [failing])
            among = await fails(a, [SetData(root, b"x"), Create(f"{root}/new"), failing, Delete(f"{root}/leaf"), failing])
            assert (alone.index, alone.path, alone.failure) == (0, failing.path, failure)
            assert (among.index, among.path, among.failure) == (2, failing.path, failure)
            assert await a.tree(root) == before

        story(self, new_registry, root)

    @registries(1)
    async def test_guards_that_hold_let_the_transaction_pass(self, root: str, a: Registry) -> None:
        node, leaf = f"{root}/node", f"{root}/leaf"
        await a.commit([Create(node), SetData(node, b"1"), Create(leaf)])
        passed = await a.commit([Check(root), Check(node, 1), SetData(node, b"2", 1), Check(leaf, 0), Delete(leaf, 0)])
        assert passed.versions == (-1, -1, 2, -1, -1)
        assert [found and found.data for found in await a.read([node, leaf])] == [b"2", None]

    @registries(1)
    async def test_operations_see_the_effects_of_those_before_them(self, root: str, a: Registry) -> None:
        node = f"{root}/node"
        await a.commit([Create(node), Create(f"{node}/below"), SetData(f"{node}/below", b"1", 0)])
        twice = await fails(a, [Delete(f"{node}/below", 1), Delete(f"{node}/below")])
        assert (twice.index, twice.failure) == (1, GuardFailure.NO_NODE)
        again = await fails(a, [Create(f"{node}/new"), Create(f"{node}/new")])
        assert (again.index, again.failure) == (1, GuardFailure.NODE_EXISTS)
        filled = await fails(a, [Delete(f"{node}/below"), Create(f"{node}/other"), Delete(node)])
        assert (filled.index, filled.failure) == (2, GuardFailure.NOT_EMPTY)
        below = await fails(a, [Create(f"{node}/e", ephemeral=True), Create(f"{node}/e/below")])
        assert (below.index, below.failure) == (1, GuardFailure.EPHEMERAL_PARENT)
        await a.commit([Delete(f"{node}/below"), Delete(node)])
        assert await a.tree(node) == {}

    @registries(2)
    async def test_racing_writers_lose_no_increment(self, root: str, a: Registry, b: Registry) -> None:
        counter = f"{root}/counter"
        await a.commit([Create(counter, b"0")])
        await b.sync()
        won: list[tuple[int, int]] = []
        lost: list[GuardFailure] = []

        async def increment(registry: Registry, times: int) -> None:
            while times:
                (node,) = await registry.read([counter])
                assert node is not None
                try:
                    done = await registry.commit([SetData(counter, str(int(node.data) + 1).encode(), node.version)])
                except GuardFailed as error:
                    lost.append(error.failure)
                    await registry.sync()
                else:
                    won.append((done.versions[0], done.revision))
                    times -= 1

        await asyncio.gather(increment(a, 50), increment(a, 50), increment(b, 50), increment(b, 50))
        await a.sync()
        (node,) = await a.read([counter])
        assert node is not None
        assert (node.data, node.version) == (b"200", 200)
        won.sort()
        assert [version for version, _ in won] == list(range(1, 201))
        assert set(lost) <= {GuardFailure.BAD_VERSION}
        revisions = [revision for _, revision in won]
        assert revisions == sorted(set(revisions))

    @registries(1)
    async def test_calls_that_are_made_together_are_all_answered(self, root: str, a: Registry) -> None:
        done = await asyncio.gather(*(a.commit([SetData(root, b"")]) for _ in range(50)))
        assert sorted(committed.versions[0] for committed in done) == list(range(1, 51))
        assert len({committed.revision for committed in done}) == 50

    # -- size --

    @registries(1)
    async def test_a_transaction_at_the_limits_is_applied(self, root: str, a: Registry) -> None:
        full = [Create(f"{root}/{number:04d}") for number in range(a.max_operations)]
        await a.commit(full)
        (names,) = await a.children([root])
        assert names == [f"{number:04d}" for number in range(a.max_operations)]
        room = a.max_bytes - operation_bytes(SetData(root, b""))
        await a.commit([SetData(root, b"x" * room)])
        (node,) = await a.read([root])
        assert node is not None
        assert len(node.data) == room

    @registries(1)
    async def test_a_transaction_over_the_limits_is_refused_and_the_session_goes_on(self, root: str, a: Registry) -> None:
        too_many = [Create(f"{root}/{number:04d}") for number in range(a.max_operations + 1)]
        with pytest.raises(RequestTooLarge):
            await a.commit(too_many)
        room = a.max_bytes - operation_bytes(SetData(root, b""))
        with pytest.raises(RequestTooLarge):
            await a.commit([SetData(root, b"x" * (room + 1))])
        with pytest.raises(RequestTooLarge):
            await a.create_sequential(f"{root}/n-", b"x" * a.max_bytes)
        assert await a.children([root]) == [[]]
        assert a.state is SessionState.CONNECTED

    # -- paths --

    @pytest.mark.parametrize("wrong", ["", "relative", "relative/path", "//", "/trailing/", "//doubled", "/doubled//part"])
    def test_a_path_that_is_none_is_named_and_refused(self, new_registry: NewRegistry, root: str, wrong: str) -> None:
        @registries(1)
        async def story(self: RegistryContract, root: str, a: Registry) -> None:
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: a.read([root, wrong]),
                lambda: a.children([root, wrong]),
                lambda: a.tree(wrong),
                lambda: a.watch_tree(wrong, lambda _: None),
                lambda: a.read_and_watch(wrong, lambda: None),
                *(
                    lambda operation=operation: a.commit([SetData(root, b"1"), operation])
                    for operation in (Create(wrong), SetData(wrong, b""), Delete(wrong), Check(wrong))
                ),
            ]
            for call in calls:
                with pytest.raises(ValueError, match=f"^{re.escape(repr(wrong))} is no path"):
                    await call()
            for prefix in ("", "relative-", "//", f"{root}//n-"):
                with pytest.raises(ValueError, match="is no path"):
                    await a.create_sequential(prefix)
            (node,) = await a.read([root])
            assert node is not None
            assert node.version == 0
            assert await a.children([root]) == [[]]
            assert a.state is SessionState.CONNECTED

        story(self, new_registry, root)

    # -- ephemeral nodes --

    @registries(2)
    async def test_an_ephemeral_node_names_its_session(self, root: str, a: Registry, b: Registry) -> None:
        await a.commit([Create(f"{root}/a", ephemeral=True), Create(f"{root}/persistent")])
        await b.commit([Create(f"{root}/b", ephemeral=True), SetData(f"{root}/a", b"changed by b")])
        await a.sync()
        nodes = await a.read([f"{root}/a", f"{root}/b", f"{root}/persistent"])
        assert [node and node.session_id for node in nodes] == [a.session_id, b.session_id, None]
        assert a.session_id != b.session_id

    @registries(2)
    async def test_ephemeral_nodes_vanish_when_their_session_stops_and_others_are_told(
        self, root: str, a: Registry, b: Registry
    ) -> None:
        seen, gone = Signals(), Signals()
        await a.commit([Create(f"{root}/{name}", ephemeral=True) for name in ("a1", "a2")])
        await a.create_sequential(f"{root}/a-")
        await a.commit([Create(f"{root}/stays")])
        await b.commit([Create(f"{root}/b", ephemeral=True)])
        await b.watch_tree(root, seen.add)
        assert await b.read_and_watch(f"{root}/a1", lambda: gone.add("gone")) is not None
        await a.stop(10)
        await seen.until(covers(f"{root}/a1", f"{root}/a2"))
        await gone.until(lambda calls: calls == ["gone"])
        await b.sync()
        assert await b.children([root]) == [["b", "stays"]]
        await b.commit([Create(f"{root}/a1", ephemeral=True)])

    # -- sequential names --

    @registries(2)
    async def test_sequential_names_grow_under_one_parent_whatever_is_deleted(self, root: str, a: Registry, b: Registry) -> None:
        paths = []
        for registry, prefix in [(a, "lock-"), (b, "lock-"), (a, "other-"), (b, ""), (a, "lock-")]:
            path = await registry.create_sequential(f"{root}/{prefix}", prefix.encode())
            digits = path.removeprefix(f"{root}/{prefix}")
            assert len(digits) == 10
            assert digits.isdecimal()
            paths.append(path)
            await registry.commit([Delete(path)])
        numbers = [int(path[-10:]) for path in paths]
        assert numbers == sorted(set(numbers))

    @registries(1)
    async def test_sequential_nodes_are_ephemeral_unless_asked_otherwise(self, root: str, a: Registry) -> None:
        ephemeral = await a.create_sequential(f"{root}/n-", b"data")
        persistent = await a.create_sequential(f"{root}/n-", ephemeral=False)
        first, second = await a.read([ephemeral, persistent])
        assert first is not None
        assert second is not None
        assert (first.data, first.session_id, first.version) == (b"data", a.session_id, 0)
        assert (second.data, second.session_id) == (b"", None)
        assert second.created_revision > first.created_revision

    @registries(2)
    async def test_sequential_names_are_unique_among_racing_sessions(self, root: str, a: Registry, b: Registry) -> None:
        paths = await asyncio.gather(*(registry.create_sequential(f"{root}/n-") for registry in [a, b] * 20))
        assert len(set(paths)) == 40
        await a.sync()
        assert await a.children([root]) == [sorted(path.rpartition("/")[2] for path in paths)]

    @registries(1)
    async def test_a_sequential_node_needs_its_parent(self, root: str, a: Registry) -> None:
        with pytest.raises(GuardFailed) as raised:
            await a.create_sequential(f"{root}/missing/n-")
        assert raised.value.failure is GuardFailure.NO_NODE

    # -- tree watches --

    @registries(2)
    async def test_a_tree_watch_is_told_of_what_is_created_changed_and_deleted(self, root: str, a: Registry, b: Registry) -> None:
        for watcher in (a, b):
            top, deep = f"{root}/top", f"{root}/top/x/y/z"
            seen = Signals()
            await watcher.watch_tree(f"{root}/top", seen.add)
            steps: list[tuple[list[Operation], set[str]]] = [
                ([Create(top)], {top}),
                ([Create(f"{top}/x"), Create(f"{top}/x/y"), Create(deep)], {f"{top}/x", f"{top}/x/y", deep}),
                ([SetData(deep, b"1")], {deep}),
                ([SetData(top, b"1"), Check(deep)], {top}),
                ([Delete(deep), Delete(f"{top}/x/y"), Delete(f"{top}/x")], {f"{top}/x", f"{top}/x/y", deep}),
                ([Delete(top)], {top}),
                ([Create(top)], {top}),
                ([Create(f"{top}/e", ephemeral=True)], {f"{top}/e"}),
                ([Delete(f"{top}/e"), Delete(top)], {top, f"{top}/e"}),
            ]
            for operations, told in steps:
                seen.all.clear()
                await a.commit(operations)
                await seen.until(covers(*told))

    @registries(2)
    async def test_a_tree_watch_is_told_of_its_own_tree_only(self, root: str, a: Registry, b: Registry) -> None:
        seen = Signals()
        await a.commit([Create(f"{root}/t"), Create(f"{root}/t/x")])
        await b.watch_tree(f"{root}/t", seen.add)
        await a.commit([Create(f"{root}/ta"), Create(f"{root}/s"), SetData(root, b"1"), Create(f"{root}/ta/x")])
        await a.commit([SetData(f"{root}/t/x", b"1")])
        await seen.until(covers(f"{root}/t/x"))
        assert set().union(*(call for call in seen.all if call is not None)) <= {f"{root}/t", f"{root}/t/x"}

    @registries(2)
    async def test_no_change_is_lost_to_a_tree_watch_however_fast_they_come(self, root: str, a: Registry, b: Registry) -> None:
        seen = Signals()
        await b.watch_tree(root, seen.add)
        paths = [f"{root}/{number}" for number in range(200)]
        await asyncio.gather(*(a.commit([Create(path)]) for path in paths))
        await seen.until(covers(*paths))

    @registries(2)
    async def test_a_closed_tree_watch_is_not_called(self, root: str, a: Registry, b: Registry) -> None:
        closed, open_one = Signals(), Signals()
        watch = await b.watch_tree(root, closed.add)
        await b.watch_tree(root, open_one.add)
        await a.commit([Create(f"{root}/1")])
        await closed.until(covers(f"{root}/1"))
        watch.close()
        watch.close()
        closed.all.clear()
        await a.commit([Create(f"{root}/2")])
        await open_one.until(covers(f"{root}/1", f"{root}/2"))
        await b.sync()
        assert closed.all == []

    @registries(2)
    async def test_what_a_tree_watch_told_of_can_be_read(self, root: str, a: Registry, b: Registry) -> None:
        """The hint does not come before the change: reading on it, without sync, finds at least that change."""
        found = Signals()

        async def look() -> None:
            (node,) = await b.read([f"{root}/n"])
            found.add(node and node.data)

        tasks = []
        await b.watch_tree(f"{root}/n", lambda _: tasks.append(asyncio.ensure_future(look())))
        await a.commit([Create(f"{root}/n", b"0")])
        await found.until(lambda data: b"0" in data)
        await a.commit([SetData(f"{root}/n", b"1")])
        await found.until(lambda data: b"1" in data)
        await asyncio.gather(*tasks)
        assert None not in found.all

    # -- watches of one node --

    @registries(2)
    async def test_read_and_watch_gives_the_node_and_calls_once(self, root: str, a: Registry, b: Registry) -> None:
        called, tree = Signals(), Signals()
        await b.watch_tree(root, tree.add)
        node = await b.read_and_watch(root, lambda: called.add("changed"))
        assert [node] == await b.read([root])
        await a.commit([SetData(root, b"1")])
        await called.until(lambda calls: calls == ["changed"])
        await a.commit([SetData(root, b"2"), Create(f"{root}/fence")])
        await tree.until(covers(f"{root}/fence"))
        await b.sync()
        assert called.all == ["changed"]

    @registries(2)
    async def test_read_and_watch_of_a_missing_node_calls_when_it_is_created(self, root: str, a: Registry, b: Registry) -> None:
        called = Signals()
        assert await b.read_and_watch(f"{root}/n", lambda: called.add("created")) is None
        assert called.all == []
        await a.commit([Create(f"{root}/n", ephemeral=True)])
        await called.until(lambda calls: calls == ["created"])

    @registries(2)
    async def test_read_and_watch_calls_when_the_node_is_deleted(self, root: str, a: Registry, b: Registry) -> None:
        called = Signals()
        await a.commit([Create(f"{root}/n")])
        await b.sync()
        assert await b.read_and_watch(f"{root}/n", lambda: called.add("first")) is not None
        assert await b.read_and_watch(f"{root}/n", lambda: called.add("second")) is not None
        await a.commit([Delete(f"{root}/n")])
        await called.until(lambda calls: sorted(calls) == ["first", "second"])

    @registries(2)
    async def test_read_and_watch_is_not_called_for_children(self, root: str, a: Registry, b: Registry) -> None:
        called, tree = Signals(), Signals()
        await b.watch_tree(root, tree.add)
        await b.read_and_watch(root, lambda: called.add("changed"))
        await a.commit([Create(f"{root}/child"), SetData(f"{root}/child", b"1")])
        await tree.until(covers(f"{root}/child"))
        await b.sync()
        assert called.all == []

    # -- the loop --

    @registries(2)
    async def test_callbacks_come_on_the_loop_and_may_call_the_registry(self, root: str, a: Registry, b: Registry) -> None:
        here = (threading.get_ident(), asyncio.get_running_loop())
        called = Signals()

        def listener(*_: object) -> None:
            assert (threading.get_ident(), asyncio.get_running_loop()) == here
            tasks.append(asyncio.ensure_future(read()))

        async def read() -> None:
            called.add(len(await b.read([root])))

        tasks: list[asyncio.Future[None]] = []
        b.on_session(listener)
        await b.watch_tree(root, listener)
        await b.read_and_watch(root, listener)
        await a.commit([SetData(root, b"1")])
        await called.until(lambda calls: len(calls) >= 2)
        await asyncio.gather(*tasks)

    @registries(1)
    async def test_a_cancelled_call_leaves_the_registry_usable(self, root: str, a: Registry) -> None:
        calls = [asyncio.ensure_future(a.commit([SetData(root, b"1")])) for _ in range(10)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        before = await a.read([root])
        done = await a.commit([SetData(root, b"2")])
        assert before[0] is not None
        assert done.versions == (before[0].version + 1,)

    # -- session --

    def test_before_its_start_a_registry_has_no_session(self, new_registry: NewRegistry) -> None:
        async def story() -> None:
            registry = new_registry()
            assert session_of(registry) == (SessionState.LOST, None, -math.inf)
            with pytest.raises(RegistryError):
                await registry.read(["/"])
            await registry.stop(1)

        run(story())

    def test_the_states_of_a_session_are_told_to_its_listeners(self, new_registry: NewRegistry) -> None:
        async def story() -> None:
            registry, told, told_too = new_registry(), Signals(), Signals()
            registry.on_session(told.add)
            registry.on_session(told_too.add)
            await registry.start(10)
            assert session_of(registry)[0] is SessionState.CONNECTED
            await told.until(lambda states: states == [SessionState.CONNECTED])
            await registry.stop(10)
            assert session_of(registry)[0] is SessionState.LOST
            await told.until(lambda states: states == [SessionState.CONNECTED, SessionState.LOST])
            await told_too.until(lambda states: states == told.all)

        run(story())

    def test_a_listener_that_is_taken_back_is_told_no_more_and_no_other_with_it(self, new_registry: NewRegistry) -> None:
        """The same function twice is two listeners; one that is taken back hears nothing that was under way to it."""

        async def story() -> None:
            registry, told, kept = new_registry(), Signals(), Signals()
            take_back = registry.on_session(told.add)
            registry.on_session(told.add)
            registry.on_session(kept.add)
            await registry.start(10)
            take_back()
            take_back()
            await kept.until(lambda states: states == [SessionState.CONNECTED])
            assert told.all.count(SessionState.CONNECTED) <= 2
            before = len(told.all)
            await registry.stop(10)
            await kept.until(lambda states: states == [SessionState.CONNECTED, SessionState.LOST])
            await told.until(lambda states: len(states) > before)
            assert told.all[before:] == [SessionState.LOST]

        run(story())

    @registries(1)
    async def test_the_lease_runs_for_the_session_timeout_at_most(self, root: str, a: Registry) -> None:
        clock = SystemClock()
        await a.sync()
        lease, now = a.lease_until, clock.monotonic()
        assert now < lease < now + a.session_timeout_seconds
        assert session_of(a) == (SessionState.CONNECTED, a.session_id, lease)
        assert isinstance(a.session_id, int)
        await a.stop(10)
        assert session_of(a) == (SessionState.LOST, None, -math.inf)

    @registries(2)
    async def test_the_lease_is_renewed_without_any_call(self, root: str, a: Registry, b: Registry) -> None:
        begun = a.lease_until
        await eventually(lambda: a.lease_until > begun)
        assert a.state is SessionState.CONNECTED

    @registries(1)
    async def test_every_call_after_stop_is_refused(self, root: str, a: Registry) -> None:
        await a.stop(10)
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: a.read([root]),
            lambda: a.children([root]),
            lambda: a.tree(root),
            a.sync,
            lambda: a.commit([SetData(root, b"1")]),
            lambda: a.create_sequential(f"{root}/n-"),
            lambda: a.watch_tree(root, lambda _: None),
            lambda: a.read_and_watch(root, lambda: None),
        ]
        for call in calls:
            with pytest.raises(RegistryError):
                await call()
        await a.stop(10)

    @registries(2)
    async def test_no_watch_calls_after_stop(self, root: str, a: Registry, b: Registry) -> None:
        stopped, running = Signals(), Signals()
        await a.watch_tree(root, stopped.add)
        await a.read_and_watch(root, lambda: stopped.add("node"))
        await b.watch_tree(root, running.add)
        await a.stop(10)
        stopped.all.clear()
        await b.commit([SetData(root, b"1")])
        await running.until(covers(root))
        await b.sync()
        assert stopped.all == []

    @registries(1)
    async def test_its_address_can_be_named(self, root: str, a: Registry) -> None:
        assert a.address


def _below(root: str, operation: Operation) -> Operation:
    path = root + operation.path
    if isinstance(operation, Create):
        return Create(path, operation.data, operation.ephemeral)
    if isinstance(operation, SetData):
        return SetData(path, operation.data, operation.version)
    return type(operation)(path, operation.version)
