"""The in-memory registry's sessions and faults, in virtual time: leases, lost connections, lost requests, lost replies."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from ejpy.clock import Clock
from ejpy.errors import GuardFailed, OutcomeUnknown, RegistryUnavailable, RegistryUnreachable, SessionExpired
from ejpy.registry.base import Create, Delete, SessionState, SetData
from ejpy.registry.memory import MemoryRegistry, MemoryStore
from ejpy.registry.session import LEASE_MARGIN
from ejpy.testing.virtual_loop import EPOCH, LoopClock, VirtualLoop, run_virtual

T = TypeVar("T")

TIMEOUT = 6.0
CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


class Cluster:
    """A store and its clock; what every registry made here says of its session is kept with the instant of it."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.clock = LoopClock(loop)
        self.store = MemoryStore(self.clock)

    async def started(self, kind: type[MemoryRegistry] = MemoryRegistry) -> tuple[MemoryRegistry, list[SessionState]]:
        registry, states = kind(self.store, clock=self.clock, session_timeout=TIMEOUT), list[SessionState]()
        registry.on_session(states.append)
        await registry.start(TIMEOUT)
        await turns()
        return registry, states


async def turns(count: int = 10) -> None:
    """Let everything happen that needs no time."""
    for _ in range(count):
        await asyncio.sleep(0)


def story(test: Callable[[Cluster], Awaitable[None]]) -> Callable[[], None]:
    async def main(loop: VirtualLoop) -> None:
        await test(Cluster(loop))

    def run_story() -> None:
        run_virtual(main)

    run_story.__doc__ = test.__doc__
    return run_story


# ---- the session --------------------------------------------------------------------------------------------------


@story
async def test_a_connected_session_lives_on_without_any_call(cluster: Cluster) -> None:
    a, states = await cluster.started()
    first = a.session_id
    await a.commit([Create("/e", ephemeral=True)])
    for _ in range(100):
        await asyncio.sleep(TIMEOUT / 10)
        assert a.lease_until - cluster.clock.monotonic() >= TIMEOUT * (1 - LEASE_MARGIN) - TIMEOUT / 3
    assert states == [CONNECTED]
    assert a.session_id == first
    assert (await a.read(["/e"])) != [None]


@story
async def test_a_short_interruption_keeps_the_session(cluster: Cluster) -> None:
    a, states = await cluster.started()
    first, lease = a.session_id, a.lease_until
    await a.commit([Create("/e", ephemeral=True)])
    a.disconnect()
    await asyncio.sleep(TIMEOUT / 2)
    assert states == [CONNECTED, SUSPENDED]
    assert a.lease_until == lease
    a.reconnect()
    await turns()
    assert states == [CONNECTED, SUSPENDED, CONNECTED]
    assert a.session_id == first
    assert a.lease_until > lease
    assert (await a.read(["/e"])) != [None]


@story
async def test_a_long_interruption_ends_the_session_and_its_nodes(cluster: Cluster) -> None:
    a, states = await cluster.started()
    b, _ = await cluster.started()
    first = a.session_id
    await a.commit([Create("/persistent"), Create("/persistent/e", ephemeral=True)])
    told: list[frozenset[str] | None] = []
    await b.watch_tree("/persistent", told.append)
    a.disconnect()
    await asyncio.sleep(TIMEOUT - 0.01)
    assert told == []
    await asyncio.sleep(0.02)
    assert told == [frozenset({"/persistent/e"})]
    assert await b.children(["/persistent"]) == [[]]
    a.reconnect()
    await asyncio.sleep(0.001)
    assert states == [CONNECTED, SUSPENDED, LOST, CONNECTED]
    assert a.session_id not in (None, first)


@story
async def test_it_says_lost_before_the_store_could_end_the_session(cluster: Cluster) -> None:
    a, states = await cluster.started()
    b, _ = await cluster.started()
    await a.commit([Create("/e", ephemeral=True)])
    a.disconnect()
    await asyncio.sleep(a.lease_until - cluster.clock.monotonic() + 0.001)
    assert states == [CONNECTED, SUSPENDED, LOST]
    assert (await b.read(["/e"])) != [None]
    a.reconnect()
    await turns()
    assert states[3:] == [CONNECTED]
    assert (await b.read(["/e"])) != [None], "the session was revived, not replaced"


@story
async def test_an_expired_session_is_replaced_at_once(cluster: Cluster) -> None:
    a, states = await cluster.started()
    first = a.session_id
    assert first is not None
    await a.commit([Create("/e", ephemeral=True)])
    cluster.store.expire(first)
    assert a.lease_until > 0, "it cannot know yet"
    with pytest.raises((SessionExpired, RegistryUnavailable)):
        await a.commit([Create("/other")])
    await asyncio.sleep(0.001)
    assert states == [CONNECTED, SUSPENDED, LOST, CONNECTED]
    assert a.session_id not in (None, first)
    assert await a.read(["/e", "/other"]) == [None, None]
    cluster.store.expire(first)
    await asyncio.sleep(TIMEOUT)
    assert states[4:] == []


@story
async def test_an_expiry_while_disconnected_is_learnt_on_return(cluster: Cluster) -> None:
    a, states = await cluster.started()
    first = a.session_id
    assert first is not None
    a.disconnect()
    cluster.store.expire(first)
    await turns()
    assert states == [CONNECTED, SUSPENDED]
    a.reconnect()
    await asyncio.sleep(0.001)
    assert states == [CONNECTED, SUSPENDED, LOST, CONNECTED]
    assert a.session_id not in (None, first)


@story
async def test_reconnecting_at_once_reconnects_at_once(cluster: Cluster) -> None:
    a, states = await cluster.started()
    await asyncio.sleep(TIMEOUT / 3)  # a renewal is under way
    a.disconnect()
    a.reconnect()
    await asyncio.sleep(0.001)
    assert states == [CONNECTED, SUSPENDED, CONNECTED]


@story
async def test_calls_without_connection_are_refused_at_once(cluster: Cluster) -> None:
    a, _ = await cluster.started()
    a.disconnect()
    before = cluster.clock.monotonic()
    with pytest.raises(RegistryUnavailable):
        await a.commit([Create("/n")])
    with pytest.raises(RegistryUnavailable):
        await a.read(["/n"])
    assert cluster.clock.monotonic() == before


@story
async def test_a_disconnected_registry_stops_and_leaves_its_nodes_to_the_lease(cluster: Cluster) -> None:
    a, states = await cluster.started()
    b, _ = await cluster.started()
    await a.commit([Create("/e", ephemeral=True)])
    a.disconnect()
    await a.stop(1)
    await turns()
    assert states == [CONNECTED, SUSPENDED, LOST]
    assert (a.session_id, a.lease_until) == (None, -math.inf)
    assert (await b.read(["/e"])) != [None]
    await asyncio.sleep(TIMEOUT)
    assert await b.read(["/e"]) == [None]


@story
async def test_start_without_connection_fails_and_can_be_repeated(cluster: Cluster) -> None:
    a = MemoryRegistry(cluster.store, clock=cluster.clock, session_timeout=TIMEOUT)
    a.disconnect()
    with pytest.raises(RegistryUnreachable):
        await a.start(1)
    a.reconnect()
    await a.start(1)
    assert a.state is CONNECTED


@story
async def test_sessions_and_timers_are_gone_after_stop(cluster: Cluster) -> None:
    """Nothing is left on the loop: virtual time has nowhere to go, which the loop reports as an error."""
    a, _ = await cluster.started()
    await a.commit([Create("/e", ephemeral=True)])
    await a.stop(1)
    await turns()
    loop = asyncio.get_running_loop()
    timers = [timer for timer in loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]  # no public way
    assert timers == []


# ---- watches over interruptions -----------------------------------------------------------------------------------


@story
async def test_a_tree_watch_says_anything_after_an_interruption(cluster: Cluster) -> None:
    a, _ = await cluster.started()
    b, _ = await cluster.started()
    told: list[frozenset[str] | None] = []
    await a.watch_tree("/", told.append)
    a.disconnect()
    await b.commit([Create("/missed")])
    await asyncio.sleep(1)
    assert told == []
    a.reconnect()
    await turns()
    assert told == [None]
    await b.commit([Create("/seen")])
    await turns()
    assert told == [None, frozenset({"/seen"})]
    session_id = a.session_id
    assert session_id is not None
    cluster.store.expire(session_id)
    await asyncio.sleep(0.001)
    assert told[2:] == [None], "also after a new session"


@story
async def test_a_watch_of_one_node_is_called_when_the_connection_breaks(cluster: Cluster) -> None:
    a, _ = await cluster.started()
    called: list[str] = []
    await a.read_and_watch("/n", lambda: called.append("told"))
    a.disconnect()
    assert called == []
    await turns()
    assert called == ["told"]
    a.reconnect()
    await turns()
    await a.commit([Create("/n")])
    await turns()
    assert called == ["told"]


@story
async def test_changes_of_one_turn_are_told_in_one_call(cluster: Cluster) -> None:
    a, _ = await cluster.started()
    told: list[frozenset[str] | None] = []
    await a.watch_tree("/", told.append)
    session_id = a.session_id
    assert session_id is not None
    cluster.store.commit(session_id, [Create("/a")])
    cluster.store.commit(session_id, [Create("/b"), Delete("/b")])
    assert told == [], "never within the turn of the change"
    await turns()
    assert told == [frozenset({"/a", "/b"})]


@story
async def test_a_watch_closed_between_a_change_and_its_telling_is_not_called(cluster: Cluster) -> None:
    a, _ = await cluster.started()
    told: list[frozenset[str] | None] = []
    watch = await a.watch_tree("/", told.append)
    session_id = a.session_id
    assert session_id is not None
    cluster.store.commit(session_id, [Create("/a")])
    watch.close()
    await turns()
    assert told == []


# ---- a transport that loses things --------------------------------------------------------------------------------


class Lossy(MemoryRegistry):
    """Does to the next request what `fault` says."""

    fault: str | None = None

    async def _transport(self, apply: Callable[[], T]) -> T:
        fault, self.fault = self.fault, None
        if fault == "request lost":
            await asyncio.Event().wait()
        if fault == "not sent":
            raise RegistryUnavailable("not sent")
        result = apply()
        if fault == "reply lost":
            await asyncio.Event().wait()
        return result


async def lossy(cluster: Cluster) -> tuple[Lossy, list[SessionState]]:
    registry, states = await cluster.started(Lossy)
    assert isinstance(registry, Lossy)
    return registry, states


@story
async def test_a_lost_request_and_a_lost_reply_look_the_same_to_a_writer(cluster: Cluster) -> None:
    a, _ = await lossy(cluster)
    b, _ = await cluster.started()
    for fault, applied in [("request lost", False), ("reply lost", True)]:
        a.fault = fault
        with pytest.raises(OutcomeUnknown):
            await a.commit([Create(f"/{fault}")], timeout=1)
        (node,) = await b.read([f"/{fault}"])
        assert (node is not None) == applied


@story
async def test_a_request_that_was_not_sent_has_no_effect(cluster: Cluster) -> None:
    a, _ = await lossy(cluster)
    a.fault = "not sent"
    with pytest.raises(RegistryUnavailable):
        await a.commit([Create("/n")])
    assert await a.read(["/n"]) == [None]


@story
async def test_a_read_without_reply_is_unavailable_at_its_deadline(cluster: Cluster) -> None:
    a, _ = await lossy(cluster)
    called: list[str] = []
    for timeout, expected in [(1.0, 1.0), (None, TIMEOUT)]:
        a.fault = "request lost"
        before = cluster.clock.monotonic()
        with pytest.raises(RegistryUnavailable):
            await a.read(["/"], timeout=timeout)
        assert cluster.clock.monotonic() == pytest.approx(before + expected)
    a.fault = "reply lost"
    with pytest.raises(RegistryUnavailable):
        await a.read_and_watch("/", lambda: called.append("told"), timeout=1)
    await a.commit([SetData("/", b"1")])
    await turns()
    assert called == [], "a watch that could not be set up is not set up"


@story
async def test_a_break_of_the_connection_ends_what_is_under_way(cluster: Cluster) -> None:
    a, _ = await lossy(cluster)
    a.fault = "request lost"
    call = asyncio.ensure_future(a.commit([Create("/n")]))
    await turns()
    before = cluster.clock.monotonic()
    a.disconnect()
    with pytest.raises(OutcomeUnknown):
        await call
    assert cluster.clock.monotonic() == before


@story
async def test_a_late_request_of_an_ended_session_is_refused_by_the_store(cluster: Cluster) -> None:
    replies: list[object] = []

    class Late(MemoryRegistry):
        """Its next request arrives after twice the session time-out, whoever still waits for it."""

        late = False

        async def _transport(self, apply: Callable[[], T]) -> T:
            if not self.late:
                return apply()
            self.late = False
            asyncio.get_running_loop().call_later(TIMEOUT * 2, self.arrive, apply)
            never: asyncio.Future[T] = asyncio.get_running_loop().create_future()
            return await never

        def arrive(self, apply: Callable[[], object]) -> None:
            try:
                replies.append(apply())
            except SessionExpired as error:
                replies.append(error)

    a, _ = await cluster.started(Late)
    assert isinstance(a, Late)
    first = a.session_id
    assert first is not None
    a.late = True
    call = asyncio.ensure_future(a.commit([Create("/n"), Create("/e", ephemeral=True)]))
    await turns()
    cluster.store.expire(first)
    with pytest.raises(OutcomeUnknown):
        await call
    await asyncio.sleep(TIMEOUT * 3)
    assert a.session_id != first
    assert [type(reply) for reply in replies] == [SessionExpired]
    assert await a.read(["/n", "/e"]) == [None, None]


@story
async def test_a_watch_that_arrives_after_its_caller_gave_up_is_not_set_up(cluster: Cluster) -> None:
    arrived: list[float] = []

    class Late(MemoryRegistry):
        """Requests arrive after two seconds, whoever still waits for them."""

        async def _transport(self, apply: Callable[[], T]) -> T:
            loop = asyncio.get_running_loop()
            reply: asyncio.Future[T] = loop.create_future()

            def arrive() -> None:
                arrived.append(loop.time())
                result = apply()
                if not reply.done():
                    reply.set_result(result)

            loop.call_later(2, arrive)
            return await reply

    a, _ = await cluster.started(Late)
    b, _ = await cluster.started()
    called: list[str] = []
    arrived.clear()
    with pytest.raises(RegistryUnavailable):
        await a.read_and_watch("/n", lambda: called.append("node"), timeout=1)
    watching = asyncio.ensure_future(a.watch_tree("/", lambda _: called.append("tree")))
    await asyncio.sleep(0.1)
    watching.cancel()
    await asyncio.wait({watching})
    await asyncio.sleep(2)
    assert len(arrived) >= 2
    await b.commit([Create("/n")])
    await turns()
    assert called == []


@story
async def test_an_unanswered_renewal_suspends_and_the_next_one_restores(cluster: Cluster) -> None:
    a, states = await lossy(cluster)
    first = a.session_id
    a.fault = "request lost"
    await asyncio.sleep(TIMEOUT * 2 / 3 + 0.001)
    assert states == [CONNECTED, SUSPENDED]
    await asyncio.sleep(TIMEOUT / 6)
    assert states == [CONNECTED, SUSPENDED, CONNECTED]
    assert a.session_id == first


@story
async def test_the_lease_counts_from_when_the_request_was_sent(cluster: Cluster) -> None:
    class Slow(MemoryRegistry):
        async def _transport(self, apply: Callable[[], T]) -> T:
            result = apply()
            await asyncio.sleep(1.5)
            return result

    a, _ = await cluster.started(Slow)
    sent = cluster.clock.monotonic()
    await a.sync()
    assert cluster.clock.monotonic() == sent + 1.5
    assert a.lease_until == pytest.approx(sent + TIMEOUT * (1 - LEASE_MARGIN))


@story
async def test_a_refused_transaction_is_an_answer_too(cluster: Cluster) -> None:
    a, _ = await cluster.started()
    await asyncio.sleep(TIMEOUT / 4)
    with pytest.raises(GuardFailed):
        await a.commit([Delete("/missing")])
    assert a.lease_until == cluster.clock.monotonic() + TIMEOUT * (1 - LEASE_MARGIN)


# ---- the store ----------------------------------------------------------------------------------------------------


@story
async def test_the_revision_counts_transactions(cluster: Cluster) -> None:
    a, _ = await cluster.started()
    begun = cluster.store.revision
    await a.commit([Create("/a"), Create("/b")])
    with pytest.raises(GuardFailed):
        await a.commit([Create("/a")])
    await a.read(["/a"])
    committed = await a.commit([SetData("/a", b"1")])
    assert committed.revision == cluster.store.revision == begun + 2
    await a.commit([Create("/e1", ephemeral=True), Create("/e2", ephemeral=True)])
    await a.stop(1)
    assert cluster.store.revision == begun + 4, "all nodes of a session go in one transaction"


@story
async def test_modified_is_by_the_stores_clock(cluster: Cluster) -> None:
    class Skewed:
        def __init__(self, clock: Clock) -> None:
            self._clock = clock

        def now(self) -> object:
            raise AssertionError("the worker's wall clock is not the registry's")

        def monotonic(self) -> float:
            return self._clock.monotonic() + 1000

    a = MemoryRegistry(cluster.store, clock=Skewed(cluster.clock), session_timeout=TIMEOUT)  # type: ignore[arg-type]
    await a.start(1)
    await asyncio.sleep(5)
    await a.commit([Create("/n")])
    (node,) = await a.read(["/n"])
    assert node is not None
    assert node.modified == EPOCH + timedelta(seconds=5)
    assert a.lease_until == pytest.approx(cluster.clock.monotonic() + 1000 + TIMEOUT * (1 - LEASE_MARGIN))


def test_the_same_story_gives_the_same_history() -> None:
    async def history(loop: VirtualLoop) -> list[object]:
        cluster, seen = Cluster(loop), list[object]()
        opened = [await cluster.started() for _ in range(3)]
        for number, (registry, _) in enumerate(opened):
            await registry.watch_tree("/", lambda paths, number=number: seen.append((number, loop.time(), paths)))  # type: ignore[misc]
        for round_number in range(20):
            registry, _ = opened[round_number % 3]
            if round_number % 5 == 4:
                registry.disconnect()
            else:
                registry.reconnect()
                await asyncio.sleep(0.5)
                seen.append(await registry.create_sequential(f"/n{round_number}-"))
            await asyncio.sleep(round_number / 3)
        return [*seen, *(states for _, states in opened), cluster.store.revision]

    assert run_virtual(history) == run_virtual(history)
