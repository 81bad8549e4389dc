"""Guarantee: one worker calls, the others wait; no wake-up is lost, and every wait ends. In virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any

import pytest

from ejpy.errors import EjpyError
from ejpy.listeners import Guarantee
from ejpy.listeners.guarantee import PATIENCE_SECONDS
from ejpy.registry.base import Create, Delete, SetData
from ejpy.registry.memory import MemoryRegistry, MemoryStore
from ejpy.registry.mirror import TreeMirror
from ejpy.testing.network import Trouble, UnreliableRegistry
from ejpy.testing.virtual_loop import EPOCH, LoopClock, VirtualLoop, run_virtual

ROOT = "/ns/shop"
PATH = f"{ROOT}/guarantee"
TEN_MINUTES = 600.0


def fire(number: int) -> datetime:
    return EPOCH + timedelta(minutes=number)


@dataclass
class Member:
    """One worker's side of the matter."""

    cluster: Cluster
    name: str
    registry: MemoryRegistry
    mirror: TreeMirror
    guarantee: Guarantee

    async def go(self, side: str, items: set[int], number: int = 1, timeout: float | None = TEN_MINUTES) -> None:
        """Go a round of that side, and note when it is over."""

        async def once() -> None:
            self.cluster.calls.append((side, number, self.name))
            assert side not in self.cluster.calling
            self.cluster.calling.add(side)
            try:
                await asyncio.sleep(self.cluster.call_seconds)
            finally:
                self.cluster.calling.discard(side)
            if self.cluster.call_error is not None:
                raise self.cluster.call_error

        method = self.guarantee.started if side == "started" else self.guarantee.completed
        await method(items, fire(number), timeout=timeout, once=once)
        self.cluster.over.append((side, number, self.name))

    def begin(self, side: str, items: set[int], number: int = 1, timeout: float | None = TEN_MINUTES) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(self.go(side, items, number, timeout))


@dataclass
class Cluster:
    loop: VirtualLoop
    store: MemoryStore
    members: list[Member] = field(default_factory=list)
    expected: set[int] = field(default_factory=lambda: set(range(4)))
    calls: list[tuple[str, int, str]] = field(default_factory=list)
    over: list[tuple[str, int, str]] = field(default_factory=list)
    calling: set[str] = field(default_factory=set)
    call_seconds: float = 0.5
    call_error: Exception | None = None

    async def add(self, registry: MemoryRegistry | None = None) -> Member:
        name = chr(ord("a") + len(self.members))
        clock = LoopClock(self.loop)
        registry = registry or MemoryRegistry(self.store, clock=clock, session_timeout=30)
        await registry.start(10)
        members: list[Member] = []
        mirror = TreeMirror(registry, ROOT, lambda _: members[0].guarantee.look())
        numbers = itertools.count()
        guarantee = Guarantee(
            registry, ROOT, mirror, expected=lambda: self.expected, new_uuid=lambda: f"uuid-{name}-{next(numbers)}"
        )
        members.append(Member(self, name, registry, mirror, guarantee))
        await mirror.start()
        self.members.append(members[0])
        return members[0]

    async def java(self, *operations: Create | Delete | SetData) -> None:
        """What a Java worker writes, who tells no instants."""
        await self.members[0].registry.commit(operations)

    def under(self, side: str) -> list[str]:
        return self.store.children(f"{PATH}/{side}") or []

    def settled(self) -> dict[str, str]:
        node = self.store.read(PATH)
        assert node is not None
        found: dict[str, str] = json.loads(node.data)
        return found


def cluster(members: int, story: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        made = Cluster(loop, MemoryStore(LoopClock(loop)))
        setter = MemoryRegistry(made.store, clock=LoopClock(loop), session_timeout=30)
        await setter.start(10)
        await setter.commit([Create("/ns"), Create(ROOT)])
        for _ in range(members):
            await made.add()
        await story(made)
        for member in made.members:
            member.guarantee.close()
            member.mirror.close()
            await member.registry.stop(1)
        await setter.stop(1)

    run_virtual(main)


SIDES = pytest.mark.parametrize("side", ["started", "completed"])


@SIDES
def test_the_worker_that_comes_last_calls_once_and_the_others_wait_for_it(side: str) -> None:
    async def story(c: Cluster) -> None:
        a, b, last = c.members
        waiting = [a.begin(side, {0}), b.begin(side, {1, 2})]
        await asyncio.sleep(60)
        assert c.calls == []
        assert c.under(side) == ["0", "1", "2"]
        began = c.loop.time()
        waiting.append(last.begin(side, {3}))
        await asyncio.sleep(0.4)
        assert c.calls == [(side, 1, "c")]
        assert c.over == [], "it is being called"
        await asyncio.gather(*waiting)
        assert c.loop.time() - began < PATIENCE_SECONDS
        assert c.calls == [(side, 1, "c")]
        assert len(c.over) == 3
        assert c.store.read(f"{PATH}/{side}") is None, "cleared by deleting, as Java workers do it"
        assert c.settled() == {side: fire(1).isoformat()}

    cluster(3, story)


def test_the_nodes_are_elasticjobs() -> None:
    async def story(c: Cluster) -> None:
        waiting = c.members[0].begin("started", {0, 1})
        await asyncio.sleep(1)
        assert [path for path in c.store.tree(ROOT) if path.startswith(f"{PATH}/")] == [
            f"{PATH}/started",
            f"{PATH}/started/0",
            f"{PATH}/started/1",
        ]
        c.call_seconds = 10
        last = c.members[1].begin("started", {2, 3})
        await asyncio.sleep(2)
        [latch] = c.store.children(f"{PATH}/started-latch") or []
        assert latch == "_c_uuid-b-0-latch-0000000000"
        await asyncio.gather(waiting, last)

    cluster(2, story)


@pytest.mark.parametrize("members", [1, 2, 5])
def test_every_fire_is_called_once_on_each_side_and_after_all_items(members: int) -> None:
    """Field report J16: two workers, four items, fifty fires: before-hook 50 times, after-hook 50 times, after all items."""

    async def story(c: Cluster) -> None:
        random = Random(members)
        c.expected = set(range(2 * members))
        ended: list[int] = []

        async def worker(member: Member, items: set[int]) -> None:
            for number in range(1, 51):
                await asyncio.sleep(random.uniform(0, 5))
                await member.go("started", items, number)
                assert ("started", number) in {call[:2] for call in c.calls}
                await asyncio.sleep(random.uniform(0, 5))
                assert ("completed", number) not in {call[:2] for call in c.calls}
                ended.append(number)
                await member.go("completed", items, number)
                assert ended.count(number) == members

        await asyncio.gather(*(worker(member, {2 * i, 2 * i + 1}) for i, member in enumerate(c.members)))
        assert [call[:2] for call in c.calls] == [(side, n) for n in range(1, 51) for side in ("started", "completed")]

    cluster(members, story)


def test_without_items_nothing_is_written_and_nobody_is_waited_for() -> None:
    async def story(c: Cluster) -> None:
        await c.members[0].go("started", set())
        assert c.store.read(PATH) is None

    cluster(1, story)


def test_items_that_are_disabled_are_not_waited_for_even_if_that_comes_later() -> None:
    async def story(c: Cluster) -> None:
        c.expected = {0, 1}
        waiting = c.members[0].begin("started", {0})
        await asyncio.sleep(60)
        assert c.calls == []
        c.expected = {0}
        c.members[0].guarantee.look()
        await waiting
        assert c.calls == [("started", 1, "a")]

    cluster(1, story)


def test_items_that_are_excused_are_not_waited_for() -> None:
    async def story(c: Cluster) -> None:
        waiting = c.members[0].begin("started", {0, 1, 2})
        await asyncio.sleep(60)
        await c.members[1].guarantee.excuse({3}, fire(1))
        await waiting
        assert c.calls == [("started", 1, "a")]
        assert c.under("completed") == ["3"]
        await c.members[0].go("completed", {0, 1, 2})
        assert c.calls[1:] == [("completed", 1, "a")]
        await c.members[1].guarantee.excuse({3}, fire(1))
        assert c.under("completed") == [], "the instant is settled"

    cluster(2, story)


def test_a_worker_that_is_an_instant_ahead_does_not_spoil_the_earlier_round() -> None:
    """Nothing waits for `completed`, so a worker may have ended the next fire before another has ended this one."""

    async def story(c: Cluster) -> None:
        a, b = c.members
        ahead = [a.begin("completed", {0, 1}, 1)]
        await asyncio.sleep(60)
        ahead.append(a.begin("completed", {0, 1}, 2))
        await asyncio.sleep(60)
        assert c.calls == []
        await b.go("completed", {2, 3}, 1)
        assert c.calls == [("completed", 1, "b")]
        assert not ahead[1].done()
        await b.go("completed", {2, 3}, 2)
        await asyncio.gather(*ahead)
        assert c.calls == [("completed", 1, "b"), ("completed", 2, "b")]
        assert c.store.read(f"{PATH}/completed") is None

    cluster(2, story)


# ---- time-outs ----------------------------------------------------------------------------------------------------


@SIDES
def test_a_time_out_ends_the_round_for_all_without_a_call_and_the_next_one_is_as_usual(side: str) -> None:
    async def story(c: Cluster) -> None:
        a, b = c.members
        impatient = a.begin(side, {0}, timeout=20)
        patient = b.begin(side, {1, 2}, timeout=None)
        with pytest.raises(EjpyError, match=f"not all items had {side} within 20 s: item 3 did not come"):
            await impatient
        await patient
        assert c.loop.time() < 21
        assert c.calls == []
        assert c.store.read(f"{PATH}/{side}") is None
        await asyncio.gather(a.go(side, {0, 1}, 2), b.go(side, {2, 3}, 2))
        assert len(c.calls) == 1

    cluster(2, story)


def test_one_that_comes_when_its_instant_is_settled_goes_on_at_once() -> None:
    async def story(c: Cluster) -> None:
        with pytest.raises(EjpyError):
            await c.members[0].go("started", {0}, timeout=5)
        began = c.loop.time()
        await c.members[1].go("started", {3}, timeout=None)
        await c.members[1].go("started", {3}, 0, timeout=None)
        assert c.loop.time() == began
        assert c.calls == []
        assert c.under("started") == []

    cluster(2, story)


def test_waiting_for_ever_ends_when_a_later_instant_is_settled() -> None:
    async def story(c: Cluster) -> None:
        waiting = c.members[0].begin("completed", {0}, 1, timeout=None)
        await asyncio.sleep(3600)
        assert not waiting.done()
        await c.members[1].go("completed", {0, 1, 2, 3}, 2)
        await waiting
        assert c.calls == [("completed", 2, "b")]

    cluster(2, story)


def test_the_time_out_does_not_count_the_own_call() -> None:
    async def story(c: Cluster) -> None:
        c.call_seconds = 300
        await c.members[0].go("started", {0, 1, 2, 3}, timeout=5)
        assert c.calls == [("started", 1, "a")]
        assert c.loop.time() >= 300

    cluster(1, story)


def test_an_error_of_the_call_ends_the_round_for_all() -> None:
    async def story(c: Cluster) -> None:
        c.call_error = LookupError("in the call")
        waiting = c.members[0].begin("started", {0, 1})
        await asyncio.sleep(1)
        with pytest.raises(LookupError):
            await c.members[1].go("started", {2, 3})
        await waiting
        assert len(c.calls) == 1

    cluster(2, story)


# ---- what breaks --------------------------------------------------------------------------------------------------


def test_one_that_is_cancelled_in_mid_call_settles_nothing_and_another_calls() -> None:
    """Its worker is told to end while it calls. The call has not come to its end, so it counts for nothing."""

    async def story(c: Cluster) -> None:
        a, b = c.members
        c.call_seconds = 5.0
        others = b.begin("started", {0, 1})
        await asyncio.sleep(0.5)
        calling = a.begin("started", {2, 3})
        await asyncio.sleep(1)
        assert c.calls == [("started", 1, "a")]
        calling.cancel()
        await asyncio.wait({calling})
        await others
        assert c.calls == [("started", 1, "a"), ("started", 1, "b")]

    cluster(2, story)


def test_when_the_last_one_is_cancelled_another_calls_after_some_patience() -> None:
    async def story(c: Cluster) -> None:
        waiting = [c.members[0].begin("started", {0}), c.members[1].begin("started", {1})]
        await asyncio.sleep(1)
        last = c.members[2]
        await last.registry.commit(
            [Create(f"{PATH}/started/{item}", fire(1).isoformat().encode()) for item in (2, 3)]  # and then it died
        )
        began = c.loop.time()
        await asyncio.gather(*waiting)
        assert len(c.calls) == 1
        assert PATIENCE_SECONDS <= c.loop.time() - began < PATIENCE_SECONDS + 3

    cluster(3, story)


def test_when_the_caller_dies_in_the_call_another_calls() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.members
        waiting = a.begin("started", {0, 1})
        await asyncio.sleep(1)
        c.call_seconds = 100
        dying = b.begin("started", {2, 3})
        await asyncio.sleep(1)
        assert c.calls == [("started", 1, "b")]
        b.registry.disconnect()
        c.calling.clear()
        c.call_seconds = 1
        await waiting
        assert c.calls == [("started", 1, "b"), ("started", 1, "a")]
        dying.cancel()

    cluster(2, story)


def test_leftovers_of_an_earlier_instant_do_not_count() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.members
        cancelled = a.begin("started", {0, 1}, 1)
        await asyncio.sleep(1)
        cancelled.cancel()
        waiting = b.begin("started", {2, 3}, 2)
        await asyncio.sleep(60)
        assert c.calls == []
        await a.go("started", {0, 1}, 2)
        await waiting
        assert c.calls == [("started", 2, "a")]
        assert c.store.read(f"{PATH}/started") is None

    cluster(2, story)


def test_clearing_one_round_leaves_what_has_come_for_the_next() -> None:
    """In ElasticJob the end of one round deletes what was registered for the next (protocol reference, W25)."""

    async def story(c: Cluster) -> None:
        a, b = c.members
        with_next = a.begin("completed", {3}, 2)
        await asyncio.sleep(1)
        with pytest.raises(EjpyError):
            await b.go("completed", {0}, 1, timeout=5)
        assert c.under("completed") == ["3"]
        await b.go("completed", {0, 1, 2}, 2)
        await with_next
        assert c.calls == [("completed", 2, "b")]

    cluster(2, story)


def test_a_removed_job_is_not_made_again() -> None:
    async def story(c: Cluster) -> None:
        await c.java(Delete(ROOT))
        await c.members[0].go("started", {0})
        assert c.store.read(ROOT) is None

    cluster(1, story)


def test_a_connection_that_breaks_is_waited_for() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.members
        waiting = a.begin("started", {0, 1})
        await asyncio.sleep(1)
        a.registry.disconnect()
        other = b.begin("started", {2, 3})
        await asyncio.sleep(5)
        assert not waiting.done()
        a.registry.reconnect()
        await asyncio.gather(waiting, other)
        assert c.calls == [("started", 1, "b")]

    cluster(2, story)


def test_without_a_connection_the_time_out_still_counts() -> None:
    async def story(c: Cluster) -> None:
        c.members[0].registry.disconnect()
        with pytest.raises(EjpyError, match="within 7 s"):
            await c.members[0].go("started", {0}, timeout=7)
        assert c.loop.time() < 15

    cluster(1, story)


def test_at_rest_nothing_waits_and_nothing_is_left() -> None:
    async def story(c: Cluster) -> None:
        cancelled = c.members[0].begin("started", {0})
        await asyncio.sleep(1)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        await asyncio.gather(c.members[0].go("started", {0, 1}, 2), c.members[1].go("started", {2, 3}, 2))
        assert not any(member.guarantee._waiting for member in c.members)
        assert not c.store.children(f"{PATH}/started-latch")

    cluster(2, story)


# ---- with Java workers --------------------------------------------------------------------------------------------


def test_items_of_a_java_worker_count_and_it_is_woken_by_the_deletion() -> None:
    async def story(c: Cluster) -> None:
        waiting = c.members[0].begin("started", {0, 1})
        await asyncio.sleep(1)
        await c.java(Create(f"{PATH}/started/2"), Create(f"{PATH}/started/3"))
        await waiting
        assert c.calls == [("started", 1, "a")]
        assert c.store.read(f"{PATH}/started") is None

    cluster(1, story)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_round_that_a_java_worker_clears_is_over(at_once: bool) -> None:
    """Also if it is cleared before the copy of the tree has shown the own nodes."""

    async def story(c: Cluster) -> None:
        there = asyncio.Event()
        c.store.subscribe(there, lambda paths: there.set() if f"{PATH}/started/0" in paths else None)
        waiting = c.members[0].begin("started", {0}, timeout=None)
        await there.wait()
        if not at_once:
            await asyncio.sleep(1)
        await c.java(Delete(f"{PATH}/started/0"), Delete(f"{PATH}/started"))
        await asyncio.wait_for(waiting, 30)
        assert c.calls == []

    cluster(2, story)


@pytest.mark.parametrize("data", [b"10.0.0.7", b"[]", b"{", b'{"started": 7}', b'{"started": "2026-01-01T00:00:00"}', b"\xff"])
def test_whatever_stands_in_the_parents_data_is_survived(data: bytes) -> None:
    async def story(c: Cluster) -> None:
        await c.java(Create(PATH, data), Create(f"{PATH}/started", data), Create(f"{PATH}/started/0", data))
        await c.members[0].go("started", {0, 1, 2, 3})
        assert c.calls == [("started", 1, "a")]
        assert c.settled() == {"started": fire(1).isoformat()}

    cluster(1, story)


# ---- a bad network ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_on_a_bad_network_each_side_of_each_fire_is_called_once(seed: int) -> None:
    """Requests and replies get lost, and come late; nobody dies."""

    async def story(c: Cluster) -> None:
        random = Random(seed)
        trouble = Trouble(delay_seconds=0.02)
        for _ in range(3):
            clock = LoopClock(c.loop)
            await c.add(UnreliableRegistry(c.store, clock=clock, session_timeout=30, random=random, trouble=trouble))
        c.expected = {0, 1, 2}
        trouble.lost_requests, trouble.lost_replies = 0.02, 0.05

        async def worker(member: Member, item: int) -> None:
            for number in range(1, 9):
                for side in ("started", "completed"):
                    await asyncio.sleep(random.uniform(0, 3))
                    await member.go(side, {item}, number, timeout=120)

        await asyncio.gather(*(worker(member, i) for i, member in enumerate(c.members)))
        trouble.lost_requests = trouble.lost_replies = 0.0
        assert [call[:2] for call in c.calls] == [(side, n) for n in range(1, 9) for side in ("started", "completed")]

    cluster(0, story)
