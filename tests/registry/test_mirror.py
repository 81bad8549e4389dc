"""TreeMirror: the copy follows the registry, says so when it does not, and tells exactly what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from random import Random
from typing import TypeVar

import pytest

from ejpy.errors import AccessDenied, GuardFailed, OutcomeUnknown, RegistryError, RegistryUnavailable
from ejpy.registry.base import Create, Delete, Node, Operation, SetData, TreeListener, TreeWatch, parent_of
from ejpy.registry.memory import MemoryRegistry, MemoryStore
from ejpy.registry.mirror import LAST_RETRY_SECONDS, TreeMirror
from ejpy.testing.network import Trouble, UnreliableRegistry
from ejpy.testing.virtual_loop import LoopClock, VirtualLoop, run_virtual

T = TypeVar("T")
ROUND_TRIP = 0.001
TREE = [Create("/r"), Create("/r/a", b"1"), Create("/r/a/x"), Create("/r/b"), Create("/other")]
Changes = list["frozenset[str] | None"]


class CountingRegistry(MemoryRegistry):
    """Notes what is read and when; a request takes `ROUND_TRIP` seconds there and back; reads can be made to fail."""

    def __init__(self, store: MemoryStore, clock: LoopClock) -> None:
        super().__init__(store, clock=clock, session_timeout=1000)
        self.reads: list[tuple[float, list[str] | None]] = []
        self.under_way = 0
        self.most_under_way = 0
        self.refuse_reads: RegistryError | None = None

    async def read(self, paths: Sequence[str], *, timeout: float | None = None) -> list[Node | None]:
        with _Counted(self, list(paths)):
            return await super().read(paths, timeout=timeout)

    async def tree(self, root: str, *, timeout: float | None = None) -> dict[str, Node]:
        with _Counted(self, None):
            return await super().tree(root, timeout=timeout)

    async def _transport(self, apply: Callable[[], T]) -> T:
        await asyncio.sleep(ROUND_TRIP / 2)
        result = apply()
        await asyncio.sleep(ROUND_TRIP / 2)
        return result


class _Counted:
    def __init__(self, registry: CountingRegistry, paths: list[str] | None) -> None:
        self._registry = registry
        registry.reads.append((asyncio.get_running_loop().time(), paths))

    def __enter__(self) -> None:
        self._registry.under_way += 1
        self._registry.most_under_way = max(self._registry.most_under_way, self._registry.under_way)
        if self._registry.refuse_reads is not None:
            self._registry.under_way -= 1
            raise self._registry.refuse_reads

    def __exit__(self, *_: object) -> None:
        self._registry.under_way -= 1


class Bench:
    """A store that another worker writes to, and a mirror of /r."""

    def __init__(self, loop: VirtualLoop, root: str, registry: type[CountingRegistry]) -> None:
        clock = LoopClock(loop)
        self.store = MemoryStore(clock)
        self.registry = registry(self.store, clock)
        self.changes: Changes = []
        self.mirror = TreeMirror(self.registry, root, self.changes.append)

    async def settle(self) -> None:
        """Let what is under way come to rest."""
        await asyncio.sleep(20 * ROUND_TRIP)

    def write(self, *operations: Operation) -> None:
        self.store.commit(0, operations)

    def is_fresh(self) -> bool:
        return self.mirror.fresh

    def is_current(self) -> bool:
        return dict(self.mirror.nodes) == self.store.tree(self.mirror.root)


async def bench(loop: VirtualLoop, root: str = "/r", registry: type[CountingRegistry] = CountingRegistry) -> Bench:
    b = Bench(loop, root, registry)
    b.write(*TREE)
    await b.registry.start(1)
    return b


async def started(loop: VirtualLoop, root: str = "/r", registry: type[CountingRegistry] = CountingRegistry) -> Bench:
    b = await bench(loop, root, registry)
    await b.mirror.start()
    b.changes.clear()
    b.registry.reads.clear()
    return b


def test_start_reads_the_tree_and_says_so() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        assert not b.is_fresh()
        await b.mirror.start()
        assert b.is_fresh()
        assert b.is_current()
        assert sorted(b.mirror.nodes) == ["/r", "/r/a", "/r/a/x", "/r/b"]
        assert b.changes == [None]

    run_virtual(main)


def test_what_changes_between_arming_the_watch_and_reading_is_not_missed() -> None:
    class ChangesDuringRead(CountingRegistry):
        async def tree(self, root: str, *, timeout: float | None = None) -> dict[str, Node]:
            found = await super().tree(root, timeout=timeout)
            self._store.commit(0, [SetData("/r/b", b"changed after it was read")])
            return found

    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, registry=ChangesDuringRead)
        await b.mirror.start()
        await b.settle()
        assert b.is_current()
        assert b.changes == [None, frozenset({"/r/b"})]

    run_virtual(main)


def test_a_change_is_read_and_told_once() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        b.write(SetData("/r/a", b"2"), Create("/r/c"), Delete("/r/b"), SetData("/other", b"not below the root"))
        await b.settle()
        assert b.is_current()
        assert b.changes == [frozenset({"/r/a", "/r/c", "/r/b"})]
        assert [paths for _, paths in b.registry.reads] == [["/r/a", "/r/b", "/r/c"]]

    run_virtual(main)


def test_hints_that_come_during_a_read_share_the_next_one() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        for i in range(50):
            b.write(Create(f"/r/b/{i:02d}"))
            await asyncio.sleep(ROUND_TRIP / 60)
        await b.settle()
        assert b.is_current()
        assert len(b.registry.reads) == 2
        assert b.registry.most_under_way == 1
        assert sum(len(paths or []) for _, paths in b.registry.reads) == 50

    run_virtual(main)


def test_nothing_is_told_when_nothing_changed() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        b.write(Create("/r/c"))
        b.write(Delete("/r/c"))
        await b.settle()
        assert len(b.registry.reads) == 1
        assert b.changes == []

    run_virtual(main)


def test_a_node_made_anew_with_the_same_data_and_version_is_a_change() -> None:
    """ElasticJob's cache compares versions only, and misses it."""

    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        b.write(Delete("/r/b"), Create("/r/b"))
        await b.settle()
        assert b.changes == [frozenset({"/r/b"})]
        assert b.is_current()

    run_virtual(main)


class OnlyTopHints(CountingRegistry):
    """Tells of the topmost changed paths only."""

    async def watch_tree(self, root: str, listener: TreeListener) -> TreeWatch:
        def listen(paths: frozenset[str] | None) -> None:
            listener(None if paths is None else frozenset(p for p in paths if parent_of(p) not in paths))

        return await super().watch_tree(root, listen)


def test_a_node_is_dropped_with_its_parent() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop, registry=OnlyTopHints)
        b.write(Create("/r/ab"), Create("/r/a/x/y"))
        await b.settle()
        b.changes.clear()
        b.write(Delete("/r/a/x/y"), Delete("/r/a/x"), Delete("/r/a"))
        await b.settle()
        assert b.is_current()
        assert b.changes == [frozenset({"/r/a", "/r/a/x", "/r/a/x/y"})]
        b.write(Create("/r/b/x"))
        await b.settle()
        b.write(Delete("/r/b/x"), Delete("/r/b"), Create("/r/b"))  # gone and back before it is read
        await b.settle()
        assert b.is_current()

    run_virtual(main)


def test_a_late_hint_of_a_node_made_anew_does_not_take_its_new_children_away() -> None:
    class ChildrenFirst(CountingRegistry):
        async def watch_tree(self, root: str, listener: TreeListener) -> TreeWatch:
            def listen(paths: frozenset[str] | None) -> None:
                for path in paths or ():
                    asyncio.get_running_loop().call_later(10 * ROUND_TRIP / path.count("/"), listener, frozenset({path}))

            return await super().watch_tree(root, listen)

    async def main(loop: VirtualLoop) -> None:
        b = await started(loop, registry=ChildrenFirst)
        b.write(Delete("/r/a/x"), Delete("/r/a"))
        b.write(Create("/r/a"), Create("/r/a/x", b"new"))
        await b.settle()
        assert b.is_current()
        assert b.changes == [frozenset({"/r/a/x"}), frozenset({"/r/a"})]

    run_virtual(main)


def test_a_child_whose_parent_is_not_known_yet_brings_it_along() -> None:
    class OnlyDeepHints(CountingRegistry):
        async def watch_tree(self, root: str, listener: TreeListener) -> TreeWatch:
            def listen(paths: frozenset[str] | None) -> None:
                listener(None if paths is None else frozenset({max(paths, key=len)}))

            return await super().watch_tree(root, listen)

    async def main(loop: VirtualLoop) -> None:
        b = await started(loop, registry=OnlyDeepHints)
        b.write(Create("/r/n"), Create("/r/n/m"), Create("/r/n/m/leaf"))
        await b.settle()
        assert b.is_current()
        assert b.changes == [frozenset({"/r/n", "/r/n/m", "/r/n/m/leaf"})]

    run_virtual(main)


def test_a_read_that_is_no_snapshot_does_not_leave_a_node_without_parent() -> None:
    class Torn(CountingRegistry):
        """The first batch of paths is read while the nodes are away and come back."""

        torn = False

        async def read(self, paths: Sequence[str], *, timeout: float | None = None) -> list[Node | None]:
            nodes = await super().read(paths, timeout=timeout)
            if not self.torn and "/r/a" in paths:
                self.torn = True
                nodes[list(paths).index("/r/a")] = None
            return nodes

    async def main(loop: VirtualLoop) -> None:
        b = await started(loop, registry=Torn)
        b.write(SetData("/r/a/x", b"2"), SetData("/r/a", b"2"))
        await asyncio.sleep(ROUND_TRIP * 1.1)
        assert b.registry.under_way == 1
        assert sorted(b.mirror.nodes) == ["/r", "/r/b"]
        await b.settle()
        assert b.is_current()

    run_virtual(main)


@pytest.mark.parametrize("root", ["/new", "/"])
def test_the_root_may_come_and_go(root: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop, root)
        assert b.is_fresh()
        assert b.is_current()
        for operations in ([Create("/new"), Create("/new/a")], [SetData("/new/a", b"1")], [Delete("/new/a"), Delete("/new")]):
            b.write(*operations)
            await b.settle()
            assert b.is_current()
            assert b.changes[-1] == frozenset(operation.path for operation in operations)

    run_virtual(main)


def test_an_interruption_makes_it_stale_until_it_was_read_anew() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        b.registry.disconnect()
        assert not b.is_fresh()
        b.write(SetData("/r/a", b"missed"), Delete("/r/b"))
        await asyncio.sleep(10)
        assert b.registry.reads == []  # no looking again while there is nothing to ask
        assert sorted(b.mirror.nodes) == ["/r", "/r/a", "/r/a/x", "/r/b"]
        b.registry.reconnect()
        await asyncio.sleep(ROUND_TRIP * 1.1)  # the session's own round trip
        assert not b.is_fresh()
        await b.settle()
        assert b.is_fresh()
        assert b.is_current()
        assert b.changes == [None]
        assert [paths for _, paths in b.registry.reads] == [None]

    run_virtual(main)


def test_freshness_that_returns_is_told_even_if_nothing_changed() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        b.registry.disconnect()
        b.registry.reconnect()
        await b.settle()
        assert b.changes == [None]

    run_virtual(main)


@pytest.mark.parametrize("delay", [ROUND_TRIP / 2, 10 * ROUND_TRIP])
def test_what_was_left_to_read_before_an_interruption_does_not_make_it_fresh_after_it(delay: float) -> None:
    """The watch is armed again, and says so, some time after the session is CONNECTED."""

    class LateHint(CountingRegistry):
        async def watch_tree(self, root: str, listener: TreeListener) -> TreeWatch:
            def listen(paths: frozenset[str] | None) -> None:
                asyncio.get_running_loop().call_later(delay if paths is None else 0, listener, paths)

            return await super().watch_tree(root, listen)

    async def main(loop: VirtualLoop) -> None:
        b = await started(loop, registry=LateHint)
        current: list[bool] = []
        mirror = TreeMirror(b.registry, "/r", lambda paths: current.append(b.is_current()) if paths is None else None)
        b.mirror.close()
        b.mirror = mirror
        await mirror.start()
        b.write(SetData("/r/a", b"2"))
        await asyncio.sleep(ROUND_TRIP / 2)
        b.registry.disconnect()
        b.write(Delete("/r/b"))
        b.registry.reads.clear()
        b.registry.reconnect()
        await b.settle()
        assert b.is_fresh()
        assert current == [True, True]
        assert [paths for _, paths in b.registry.reads] == [["/r/a"], None]

    run_virtual(main)


def test_an_expired_session_makes_it_stale_and_it_follows_under_the_new_one() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        assert b.registry.session_id is not None
        b.store.expire(b.registry.session_id)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not b.is_fresh()
        await b.settle()
        assert b.is_fresh()
        b.write(SetData("/r/a", b"2"))
        await b.settle()
        assert b.is_current()

    run_virtual(main)


def test_a_read_cut_off_by_an_interruption_is_made_up_for() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        b.write(SetData("/r/a", b"2"))
        await asyncio.sleep(ROUND_TRIP / 2)
        assert b.registry.under_way == 1
        b.registry.disconnect()
        await asyncio.sleep(1)
        b.registry.reconnect()
        await b.settle()
        assert b.is_fresh()
        assert b.is_current()

    run_virtual(main)


def test_a_read_that_fails_on_a_live_connection_is_repeated_with_growing_pauses() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        b.registry.refuse_reads = RegistryUnavailable("no reply")
        b.write(SetData("/r/a", b"2"))
        for _ in range(1200):
            b.write(SetData("/r/b", b"2"))  # hints do not make it ask more often
            await asyncio.sleep(0.05)
        times = [time for time, _ in b.registry.reads]
        pauses = [round(later - earlier, 3) for earlier, later in pairwise(times)]
        assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
        assert set(pauses[6:]) == {LAST_RETRY_SECONDS}
        assert not b.is_fresh()
        b.registry.refuse_reads = None
        b.changes.clear()
        await asyncio.sleep(LAST_RETRY_SECONDS)
        assert b.is_fresh()
        assert b.is_current()
        assert b.changes == [None]
        # and the next failure starts with the short pause again
        b.registry.reads.clear()
        b.registry.refuse_reads = AccessDenied("no longer allowed")
        b.write(SetData("/r/a", b"3"))
        await asyncio.sleep(0.15)
        assert len(b.registry.reads) == 2

    run_virtual(main)


def test_a_reconnection_does_not_wait_for_the_pause() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        b.registry.refuse_reads = RegistryUnavailable("no reply")
        b.write(SetData("/r/a", b"2"))
        await asyncio.sleep(11)  # the next one is seconds away
        b.registry.refuse_reads = None
        b.registry.disconnect()
        b.registry.reconnect()
        await b.settle()
        assert b.is_fresh()
        assert b.is_current()

    run_virtual(main)


def test_start_that_fails_leaves_nothing_armed() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        b.registry.refuse_reads = AccessDenied("/r: not allowed")
        with pytest.raises(AccessDenied):
            await b.mirror.start()
        b.registry.refuse_reads = None
        b.registry.reads.clear()
        b.write(SetData("/r/a", b"2"))
        await asyncio.sleep(10)
        assert b.registry.reads == []
        assert b.changes == []
        assert not b.is_fresh()

        unconnected = TreeMirror(MemoryRegistry(b.store, clock=LoopClock(loop), session_timeout=1), "/r", b.changes.append)
        with pytest.raises(RegistryUnavailable):
            await unconnected.start()

    run_virtual(main)


@pytest.mark.parametrize("when", ["at rest", "during a read", "waiting to repeat a read"])
def test_no_callback_comes_after_close(when: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await started(loop)
        if when == "during a read":
            b.write(SetData("/r/a", b"2"))
            await asyncio.sleep(ROUND_TRIP / 2)
        if when == "waiting to repeat a read":
            b.registry.refuse_reads = RegistryUnavailable("no reply")
            b.write(SetData("/r/a", b"2"))
            await asyncio.sleep(0.05)
            b.registry.refuse_reads = None
        b.mirror.close()
        b.mirror.close()
        b.registry.reads.clear()
        b.write(SetData("/r/a", b"3"))
        b.registry.disconnect()
        b.registry.reconnect()
        await asyncio.sleep(10)
        assert b.changes == []
        assert b.registry.reads == []
        assert not b.is_fresh()

    run_virtual(main)


def test_a_thousand_mirrors_cost_nothing_at_rest_and_read_side_by_side() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        b.write(*(Create(f"/r/b/{i}") for i in range(1000)))
        mirrors = [TreeMirror(b.registry, f"/r/b/{i}", b.changes.append) for i in range(1000)]
        await asyncio.gather(*(mirror.start() for mirror in mirrors))
        await b.settle()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert b.changes == [None] * 1000
        b.registry.reads.clear()
        b.registry.disconnect()
        b.registry.reconnect()
        await b.settle()
        assert all(mirror.fresh for mirror in mirrors)
        assert [paths for _, paths in b.registry.reads] == [None] * 1000
        assert len({time for time, _ in b.registry.reads}) == 1
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main)


def test_an_error_in_the_callback_does_not_stop_the_mirror() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        told: Changes = []

        def fail(paths: frozenset[str] | None) -> None:
            told.append(paths)
            raise ValueError("a bug of the caller")

        mirror = TreeMirror(b.registry, "/r", fail)
        await mirror.start()
        b.write(SetData("/r/a", b"2"))
        await b.settle()
        assert told == [None, frozenset({"/r/a"})]
        assert len(loop.unseen) == 2  # reported, not swallowed
        loop.unseen.clear()

    run_virtual(main)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_the_network_does_the_copy_becomes_current_and_every_change_was_told(seed: int) -> None:
    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        clock = LoopClock(loop)
        store = MemoryStore(clock)
        trouble = Trouble(delay_seconds=0.02)
        registry = UnreliableRegistry(store, clock=clock, session_timeout=2, random=random, trouble=trouble)
        await registry.start(1)
        told: dict[str, Node] = {}
        unfounded = 0

        def on_change(paths: frozenset[str] | None) -> None:
            nonlocal unfounded
            for path in told.keys() | mirror.nodes.keys() if paths is None else paths:
                if paths is not None and told.get(path) == mirror.nodes.get(path):
                    unfounded += 1
                told.pop(path, None)
                if path in mirror.nodes:
                    told[path] = mirror.nodes[path]
            assert told == mirror.nodes
            assert all(path == "/r" or parent_of(path) in told for path in told)

        mirror = TreeMirror(registry, "/r", on_change)
        await mirror.start()
        trouble.lost_requests = trouble.lost_replies = random.choice([0, 0.05, 0.3])
        names = ["/r", "/r/a", "/r/b", "/r/a/x", "/r/a/y", "/r/a/x/1", "/s", "/r/a/x/1/z"]
        for _ in range(400):
            path = random.choice(names)
            changes: list[Operation] = [Create(path), Create(path), SetData(path, b"%d" % random.randrange(3)), Delete(path)]
            change = random.choice(changes)
            try:
                store.commit(0, [change])
            except GuardFailed:
                continue
            if random.random() < 0.03:
                registry.disconnect()
                loop.call_later(random.choice([0, 0.1, 3]), registry.reconnect)
            if random.random() < 0.02 and registry.session_id is not None:
                store.expire(registry.session_id)
            await asyncio.sleep(random.choice([0, 0.001, 0.02, 0.2]))
        trouble.lost_requests = trouble.lost_replies = 0
        await asyncio.sleep(15)
        assert mirror.fresh
        assert dict(mirror.nodes) == store.tree("/r")
        assert unfounded == 0

    run_virtual(main)


def test_an_unreliable_registry_does_lose_replies() -> None:
    """The test above is worth something only if its network is bad."""

    async def main(loop: VirtualLoop) -> None:
        clock = LoopClock(loop)
        store = MemoryStore(clock)
        trouble = Trouble()
        registry = UnreliableRegistry(store, clock=clock, session_timeout=100, random=Random(1), trouble=trouble)
        await registry.start(1)
        trouble.lost_replies = 1.0
        with pytest.raises(OutcomeUnknown):
            await registry.commit([Create("/applied")])
        assert store.read("/applied") is not None
        trouble.lost_replies, trouble.lost_requests = 0.0, 1.0
        with pytest.raises(OutcomeUnknown):
            await registry.commit([Create("/lost")])
        assert store.read("/lost") is None

    run_virtual(main)
