"""The bad network: each thing that can go wrong on it, and what its registry must still keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from ejpy.errors import OutcomeUnknown, RegistryError, RegistryUnavailable
from ejpy.registry.base import Create, SessionState, SetData
from ejpy.registry.memory import MemoryStore
from ejpy.testing.network import Trouble, UnreliableRegistry
from ejpy.testing.virtual_loop import LoopClock, VirtualLoop, run_virtual

SESSION = 4.0


def story(test: Callable[[UnreliableRegistry, MemoryStore, Trouble], Coroutine[Any, Any, None]]) -> None:
    async def main(loop: VirtualLoop) -> None:
        clock, trouble = LoopClock(loop), Trouble()
        store = MemoryStore(clock)
        registry = UnreliableRegistry(store, clock=clock, session_timeout=SESSION, random=Random(1), trouble=trouble)
        await registry.start(1.0)
        await test(registry, store, trouble)
        await registry.stop(1.0)

    run_virtual(main)


def state_of(registry: UnreliableRegistry) -> SessionState:
    return registry.state


def test_requests_of_one_connection_arrive_in_their_order() -> None:
    async def test(registry: UnreliableRegistry, store: MemoryStore, trouble: Trouble) -> None:
        await registry.commit([Create("/a", b"0")])
        await asyncio.gather(*(registry.commit([SetData("/a", str(n).encode(), n - 1)]) for n in range(1, 20)))
        node = store.read("/a")
        assert node is not None
        assert (node.data, node.version) == (b"19", 19)

    story(test)


def test_a_reply_that_is_lost_leaves_a_transaction_that_was_committed() -> None:
    async def test(registry: UnreliableRegistry, store: MemoryStore, trouble: Trouble) -> None:
        registry.replies_to_lose = 1
        with pytest.raises(OutcomeUnknown):
            await registry.commit([Create("/a")])
        assert store.read("/a") is not None
        await registry.commit([Create("/b")])
        assert registry.replies_to_lose == 0

    story(test)


@pytest.mark.parametrize("arrives", [True, False])
def test_a_link_that_is_cut_one_way(arrives: bool) -> None:
    """What is sent arrives or not; no reply comes, and the session is lost by the local clock in time."""

    async def test(registry: UnreliableRegistry, store: MemoryStore, trouble: Trouble) -> None:
        registry.sends, registry.hears = arrives, not arrives
        before = registry.session_id
        with pytest.raises(OutcomeUnknown):
            await registry.commit([Create("/a")])
        assert (store.read("/a") is not None) is arrives
        await asyncio.sleep(SESSION)
        assert state_of(registry) is SessionState.LOST
        assert (before in store._sessions) is arrives
        registry.sends = registry.hears = True
        await asyncio.sleep(SESSION)
        assert state_of(registry) is SessionState.CONNECTED
        assert (registry.session_id == before) is arrives

    story(test)


def test_what_was_held_back_arrives_when_the_session_is_over_and_is_refused() -> None:
    async def test(registry: UnreliableRegistry, store: MemoryStore, trouble: Trouble) -> None:
        registry.held_back_until = asyncio.get_running_loop().time() + 2 * SESSION
        with pytest.raises(RegistryError):
            await registry.commit([Create("/a")])
        await asyncio.sleep(3 * SESSION)
        assert store.read("/a") is None
        assert registry.state is SessionState.CONNECTED
        await registry.commit([Create("/b")])

    story(test)


def test_events_come_twice_and_none_is_missed() -> None:
    async def test(registry: UnreliableRegistry, store: MemoryStore, trouble: Trouble) -> None:
        told: list[frozenset[str] | None] = []
        await registry.watch_tree("/a", told.append)
        trouble.doubled_events = 1.0
        trouble.event_delay_seconds = 0.5
        store.commit(-1, [Create("/a")])
        await asyncio.sleep(2)
        assert told.count(frozenset({"/a"})) == 2

    story(test)


def test_after_lost_events_a_new_connection_says_that_anything_may_have_changed() -> None:
    async def test(registry: UnreliableRegistry, store: MemoryStore, trouble: Trouble) -> None:
        told: list[frozenset[str] | None] = []
        await registry.watch_tree("/a", told.append)
        registry.hears_events = False
        store.commit(-1, [Create("/a")])
        await asyncio.sleep(1)
        assert told == []
        registry.hears_events = True
        registry.break_connection()
        with pytest.raises(RegistryUnavailable):
            await registry.read(["/a"])
        await asyncio.sleep(1)
        assert told == [None]

    story(test)
