"""What the session is worth: the lease, the states, and that both hold when servers, connections or the worker stand still."""

from __future__ import annotations

import asyncio
import json
import operator
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ejpy.clock import SystemClock
from ejpy.errors import RegistryError, RegistryUnavailable
from ejpy.registry.base import Create, SessionState, SetData
from ejpy.registry.zookeeper import ZooKeeperRegistry
from ejpy.registry.zookeeper.client import Client, Handover
from ejpy.registry.zookeeper.guard import LEASE_SHARE, SessionGuard
from tests.support.loop import Signals, eventually, run
from tests.support.proxy import Proxy
from tests.support.zookeeper import ZooKeeperServer, connected, expire, leftovers

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    """A server with short ticks, for session time-outs of 0.4 to 4 seconds."""
    with ZooKeeperServer(tick_time=200) as server:
        yield server


@pytest.fixture
def path() -> str:
    return f"/session-{uuid.uuid4().hex}"


async def use(registry: ZooKeeperRegistry, path: str) -> None:
    """Send a request every few milliseconds, whatever becomes of it, until cancelled."""
    while True:
        with suppress(RegistryError):
            await registry.commit([SetData(path, b"")], timeout=0.2)
        await asyncio.sleep(0.02)


class TestLease:
    @pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
    def test_it_is_over_before_others_see_the_ephemeral_nodes_vanish(
        self, busy: bool, server: ZooKeeperServer, path: str
    ) -> None:
        """O2, and the black hole: kazoo never reports a lost session during a partition, and while its client is busy not
        even a suspended one."""

        async def story() -> None:
            events = Signals()
            with Proxy(server.address) as proxy:
                async with connected(server.address) as observer, connected(proxy.address, session_timeout=3) as registry:
                    registry.on_session(events.add)
                    await registry.commit([Create(path, ephemeral=True)])
                    assert await observer.read_and_watch(path, lambda: events.add("vanished")) is not None
                    using = asyncio.ensure_future(use(registry, f"{path}-missing")) if busy else None
                    proxy.black_hole()
                    await events.until(lambda seen: "vanished" in seen, 15)
                    if using is not None:
                        using.cancel()
                    assert events.all == [SUSPENDED, LOST, "vanished"]
                    old = registry.session_id
                    proxy.restore()
                    await events.until(lambda seen: seen[-1] is CONNECTED, 15)
                    assert registry.session_id != old

        run(story(), 60)

    def test_a_session_that_the_server_kept_is_connected_again(self, server: ZooKeeperServer, path: str) -> None:
        """Only the answers are lost: the server hears the client all the time, and keeps the session."""

        async def story() -> None:
            states = Signals()
            with Proxy(server.address) as proxy:
                async with connected(proxy.address, session_timeout=4) as registry:
                    registry.on_session(states.add)
                    await registry.commit([Create(path, ephemeral=True)])
                    session_id = registry.session_id
                    proxy.black_hole(to_server=False)
                    await states.until(lambda seen: seen == [SUSPENDED, LOST])
                    proxy.restore()
                    await states.until(lambda seen: seen == [SUSPENDED, LOST, CONNECTED])
                    assert registry.session_id == session_id
                    (node,) = await registry.read([path])
                    assert node is not None
                    assert node.session_id == session_id

        run(story(), 60)

    def test_it_moves_with_proof_only(self, server: ZooKeeperServer) -> None:
        async def story() -> None:
            clock = SystemClock()
            with Proxy(server.address) as proxy:
                async with connected(proxy.address, session_timeout=4) as registry:
                    begun = registry.lease_until
                    await eventually(lambda: registry.lease_until > begun)
                    proxy.black_hole(to_server=False)
                    await registry_is(registry, SUSPENDED)
                    proven, now = registry.lease_until, clock.monotonic()
                    assert now < proven < now + 4 * (0.9 - 1 / 6)
                    await registry_is(registry, LOST)
                    assert registry.lease_until == proven
                    assert clock.monotonic() >= proven

        run(story(), 60)

    def test_a_pause_of_the_whole_process_ends_it(self, server: ZooKeeperServer, path: str) -> None:
        """The first thing that a worker sees after a pause is that its lease is over, before any connection says so."""

        async def wait_for_end(observer: ZooKeeperRegistry) -> None:
            gone = Signals()
            assert await observer.read_and_watch(path, lambda: gone.add("gone")) is not None
            worker.send_signal(signal.SIGSTOP)
            await gone.until(lambda seen: seen == ["gone"], 15)

        async def story() -> None:
            async with connected(server.address) as observer:
                await wait_for_end(observer)

        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        with subprocess.Popen(
            [sys.executable, "-c", PAUSED_WORKER, server.address, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as worker:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
            try:
                run(story())
            finally:
                worker.send_signal(signal.SIGCONT)
            told, _ = worker.communicate(timeout=20)
        first, last = map(json.loads, told.splitlines())
        assert first == {"state": "lost", "write": "RegistryUnavailable"}
        assert last == {"state": "connected", "write": "applied"}

    def test_a_slow_server_is_no_dead_server(self, server: ZooKeeperServer) -> None:
        async def story() -> None:
            states = Signals()
            with Proxy(server.address) as proxy:
                async with connected(proxy.address, session_timeout=4) as registry:
                    registry.on_session(states.add)
                    proxy.delay(0.2)
                    await registry.sync()
                    for _ in range(3):
                        begun = registry.lease_until
                        await eventually(partial(is_later, registry, begun))
                        # counted from when the probe was sent, and not from when its answer came
                        assert registry.lease_until <= SystemClock().monotonic() + 4 * (0.9 - 1 / 6) - 2 * 0.2
                    assert states.all == []

        run(story())


PAUSED_WORKER = """
import asyncio, json, sys
from ejpy.clock import SystemClock
from ejpy.errors import RegistryError
from ejpy.registry.base import Create, SessionState
from ejpy.registry.zookeeper import ZooKeeperRegistry

async def write(registry, path):
    try:
        await registry.commit([Create(path, ephemeral=True)])
    except RegistryError as error:
        return type(error).__name__
    return "applied"

async def tell(registry, path):
    print(json.dumps({"state": registry.state.value, "write": await write(registry, path)}), flush=True)

async def main(address, path):
    clock = SystemClock()
    registry = ZooKeeperRegistry(address, session_timeout=2, clock=clock)
    await registry.start(10)
    await registry.commit([Create(path, ephemeral=True)])
    print("ready", flush=True)
    last = clock.monotonic()
    while (now := clock.monotonic()) - last < 1.5:
        last = now
        await asyncio.sleep(0.001)
    await tell(registry, path + "-first")
    connected = asyncio.Event()
    registry.on_session(lambda state: connected.set() if state is SessionState.CONNECTED else connected.clear())
    if registry.state is not SessionState.CONNECTED:
        await connected.wait()
    await tell(registry, path + "-last")
    await registry.stop(5)

asyncio.run(main(*sys.argv[1:]))
"""


async def registry_is(registry: ZooKeeperRegistry, state: SessionState) -> None:
    """Wait until the registry says that it is in this state."""
    told = Signals()
    registry.on_session(told.add)
    if registry.state is not state:
        await told.until(lambda states: state in states, 15)


def is_later(registry: ZooKeeperRegistry, lease: float) -> bool:
    return registry.lease_until > lease


def test_a_lease_belongs_to_its_session() -> None:
    """What an earlier session was worth does not count for the next."""

    async def story() -> None:
        now = SystemClock().monotonic()
        loop = asyncio.get_running_loop()
        guard = SessionGuard(loop, SystemClock(), 100, probe=lambda _: None, cut=lambda _: None, notify=states.add)
        guard.established(1, 100, now)
        assert guard.lease_until == now + LEASE_SHARE * 100
        guard.established(2, 10, now - 1)
        assert (guard.session_id, guard.lease_until) == (2, now - 1 + LEASE_SHARE * 10)
        guard.established(2, 10, now - 2)
        assert guard.lease_until == now - 1 + LEASE_SHARE * 10
        guard.forget()
        assert states.all == [CONNECTED, LOST]

    states = Signals()
    run(story())


class TestServerOutages:
    def test_a_restarted_server_finds_the_same_session(self, path: str) -> None:
        """B1: a registry that was away for long, and back with its data, needs no restart of the worker."""

        async def story(server: ZooKeeperServer) -> None:
            states, tree = Signals(), Signals()
            async with connected(server.address, session_timeout=4) as registry:
                registry.on_session(states.add)
                await registry.commit([Create(path, ephemeral=True)])
                await registry.watch_tree(path, tree.add)
                session_id = registry.session_id
                server.kill()
                await states.until(lambda seen: seen == [SUSPENDED, LOST], 15)
                for _ in range(3):
                    with pytest.raises(RegistryUnavailable):
                        await registry.read([path])
                server.start()
                await states.until(lambda seen: seen[-1] is CONNECTED, 15)
                assert registry.session_id == session_id
                await tree.until(lambda seen: None in seen)
                (node,) = await registry.read([path])
                assert node is not None
                assert node.session_id == session_id

        with ZooKeeperServer(tick_time=200) as server:
            run(story(server), 60)

    def test_a_frozen_server(self, path: str) -> None:
        """Its kernel still takes connections and requests; nobody answers."""

        async def story(server: ZooKeeperServer) -> None:
            states = Signals()
            async with connected(server.address, session_timeout=2) as registry:
                registry.on_session(states.add)
                using = asyncio.ensure_future(use(registry, path))
                server.freeze()
                await states.until(lambda seen: seen == [SUSPENDED, LOST], 15)
                server.thaw()
                await states.until(lambda seen: seen[-1] is CONNECTED, 15)
                using.cancel()
                await registry.commit([Create(path)])
                await registry.sync()

        with ZooKeeperServer(tick_time=200) as server:
            run(story(server), 60)

    def test_a_short_interruption_is_no_loss(self, server: ZooKeeperServer) -> None:
        async def story() -> None:
            states = Signals()
            with Proxy(server.address) as proxy:
                async with connected(proxy.address, session_timeout=4) as registry:
                    registry.on_session(states.add)
                    session_id = registry.session_id
                    for count in range(1, 6):
                        proxy.cut()
                        await states.until(partial(operator.eq, [SUSPENDED, CONNECTED] * count))
                    assert registry.session_id == session_id
                    await registry.sync()

        run(story())


class TestExpiry:
    def test_five_times_in_a_row_and_then_stop(self, server: ZooKeeperServer, path: str) -> None:
        """B5: calls from kazoo's listeners would hang the client; `stop` must end all the same."""

        async def story() -> None:
            before = leftovers()
            states = Signals()
            registry = ZooKeeperRegistry(server.address, session_timeout=4, clock=SystemClock())
            registry.on_session(states.add)
            await registry.start(10)
            sessions = {registry.session_id}
            for _ in range(5):
                await registry.commit([Create(path, ephemeral=True)])
                await expire(registry, server.address)
                sessions.add(registry.session_id)
                assert await registry.read([path]) == [None]
            assert len(sessions) == 6
            assert states.all.count(LOST) == 5
            await asyncio.wait_for(registry.stop(5), 8)
            assert leftovers() == before

        run(story(), 60)

    def test_nothing_sent_under_one_session_is_applied_under_the_next(self, server: ZooKeeperServer, path: str) -> None:
        """Writers write the session they believe in; what survives the expiries must have been right."""

        applied = Signals()

        async def write(registry: ZooKeeperRegistry) -> None:
            while True:
                believed = registry.session_id
                name = f"{path}/{uuid.uuid4().hex}"
                try:
                    await registry.commit([Create(name, str(believed).encode(), ephemeral=True)])
                    applied.add(believed)
                except RegistryError:
                    await asyncio.sleep(0)

        async def story() -> None:
            async with connected(server.address, session_timeout=4) as registry:
                await registry.commit([Create(path)])
                writers = [asyncio.ensure_future(write(registry)) for _ in range(20)]
                for _ in range(5):
                    await applied.until(lambda seen: seen.count(registry.session_id) >= 50)
                    await expire(registry, server.address)
                await applied.until(lambda seen: seen.count(registry.session_id) >= 50)
                for writer in writers:
                    writer.cancel()
                await asyncio.gather(*writers, return_exceptions=True)
                tree = await registry.tree(path)
                del tree[path]
                assert {node.session_id for node in tree.values()} == {registry.session_id}
                assert {int(node.data) for node in tree.values()} == {registry.session_id}

        run(story(), 60)

    def test_a_request_for_another_session_is_not_given_to_kazoo(self, server: ZooKeeperServer) -> None:
        class Outgoing:
            def set(self, value: object) -> None:
                raise AssertionError("it was answered")

            def set_exception(self, error: Exception) -> None:
                raise AssertionError("it was sent")

        async def story() -> None:
            async with connected(server.address, session_timeout=4) as registry:
                assert registry._link is not None
                assert registry.session_id is not None
                assert not registry._link.client.send(Outgoing(), registry.session_id + 1)
                await registry.sync()

        run(story())


def test_kazoos_listener_does_nothing_but_hand_over() -> None:
    """B5, O1: a call of kazoo in its own listener hangs the client for ever."""

    class Listener:
        def connected(self, session_id: int, session_timeout: float, asked_at: float) -> None:
            told.add("connected")

        def disconnected(self) -> None:
            told.add("disconnected")

        def ended(self, state: str) -> None:
            told.add("ended")

        def changed(self, kind: int, path: str) -> None:
            told.add("changed")

    def raising(*_: object, **__: object) -> None:
        raise AssertionError("the listener called kazoo")

    async def story() -> None:
        handover = Handover(asyncio.get_running_loop())
        client = Client([("127.0.0.1", 1)], 1.0, SystemClock(), None, handover, Listener())
        (listener,) = client.state_listeners
        for name in ("_call", "stop", "close", "start", "restart", "command"):
            setattr(client, name, raising)
        thread = threading.Thread(target=lambda: [listener(state) for state in ("CONNECTED", "SUSPENDED", "LOST")])
        thread.start()
        thread.join(5)
        assert told.all == []  # handed over, and not called in that thread
        await told.until(lambda seen: seen == ["connected", "disconnected", "ended"])

    told = Signals()
    run(story())
