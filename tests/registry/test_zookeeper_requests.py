"""Requests: what the outcome of a transaction is, what a missing reply means, and that none of them blocks the loop."""

from __future__ import annotations

import asyncio
import socket
import threading
import uuid
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from ejpy.errors import GuardFailed, GuardFailure, OutcomeUnknown, RegistryUnavailable, RequestTooLarge
from ejpy.registry.base import Check, Create, Delete, Operation, SessionState, SetData
from ejpy.registry.zookeeper import ZooKeeperRegistry
from ejpy.registry.zookeeper.channel import WINDOW
from ejpy.registry.zookeeper.handler import WakeUpSocket
from tests.support.loop import Signals, run
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.zookeeper import ZooKeeperServer, connected


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    """A server of this module's own, for tests that count its packets or let it stand still."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def root() -> str:
    return f"/requests-{uuid.uuid4().hex}"


class TestTransactions:
    def test_a_refused_transaction_is_an_error_that_names_the_culprit(self, zookeeper: str, root: str) -> None:
        """A4, O5: kazoo returns the errors of a transaction in a list, and raises nothing."""

        async def story() -> None:
            async with connected(zookeeper) as registry:
                await registry.commit([Create(root), Create(f"{root}/a")])
                operations: list[Operation] = [
                    SetData(root, b"1"),
                    Create(f"{root}/b"),
                    Create(f"{root}/a"),
                    Delete(f"{root}/missing"),
                ]
                with pytest.raises(GuardFailed) as raised:
                    await registry.commit(operations)
                error = raised.value
                assert (error.index, error.path, error.failure) == (2, f"{root}/a", GuardFailure.NODE_EXISTS)
                assert {path: node.version for path, node in (await registry.tree(root)).items()} == {root: 0, f"{root}/a": 0}

        run(story())

    def test_the_revision_is_the_transactions_own_whatever_it_consists_of(self, zookeeper: str, root: str) -> None:
        """Only the reply's header tells the revision of deletions and checks; others write at the same time."""

        async def write(registry: ZooKeeperRegistry, name: str) -> list[int]:
            revisions = []
            for _ in range(30):
                created = await registry.commit([Create(name), Check(root), Create(f"{name}/below")])
                node, below = await registry.read([name, f"{name}/below"])
                assert node is not None
                assert below is not None
                assert node.created_revision == below.created_revision == created.revision
                changed = await registry.commit([Check(name, 0), SetData(name, b"1", 0), Delete(f"{name}/below")])
                (node,) = await registry.read([name])
                assert node is not None
                assert node.revision == changed.revision
                checked = await registry.commit([Check(name, 1)])
                deleted = await registry.commit([Delete(name, 1)])
                revisions += [created.revision, changed.revision, checked.revision, deleted.revision]
            assert revisions == sorted(revisions)
            return revisions

        async def story() -> None:
            async with connected(zookeeper) as a, connected(zookeeper) as b:
                await a.commit([Create(root)])
                await b.sync()
                writers = [write(registry, f"{root}/{number}") for number, registry in enumerate((a, b, a, b, a))]
                revisions = [revision for own in await asyncio.gather(*writers) for revision in own]
                assert len(set(revisions)) == len(revisions)

        run(story())

    def test_one_as_large_as_allowed_is_applied_and_a_larger_one_not_sent(self, zookeeper: str, root: str) -> None:
        """O11: a request over the server's limit costs the whole client its connection."""

        async def story() -> None:
            states = Signals()
            async with connected(zookeeper, credentials=("large", "secret")) as registry:
                registry.on_session(states.add)
                await registry.commit([Create(root)])
                await registry.commit([Create(f"{root}/{number:0200d}") for number in range(1000)])
                await registry.commit([SetData(root, b"x" * (registry.max_bytes - 200))])
                too_many: list[Operation] = [Check(root)] * 1001
                for operations in (too_many, [SetData(root, b"x" * registry.max_bytes)]):
                    with pytest.raises(RequestTooLarge):
                        await registry.commit(operations)
                assert states.all == []

        run(story())

    def test_what_cannot_be_serialised_is_refused_to_its_caller_alone(self, zookeeper: str, root: str) -> None:
        """O11: an error in kazoo's thread would be the end of the client."""

        async def story() -> None:
            states = Signals()
            async with connected(zookeeper) as registry:
                registry.on_session(states.add)
                with pytest.raises(TypeError):
                    await registry.commit([Create(root, "text")])  # type: ignore[arg-type]  # that is what is tested
                await registry.commit([Create(root)])
                assert states.all == []

        run(story())


class TestMissingReplies:
    def test_a_write_without_an_answer_has_an_unknown_outcome(self, zookeeper: str, root: str) -> None:
        async def story() -> None:
            with Proxy(zookeeper) as proxy:
                async with connected(zookeeper) as observer, connected(proxy.address) as registry:
                    created = Signals()
                    await observer.read_and_watch(root, lambda: created.add(True))
                    proxy.black_hole(to_server=False)
                    with pytest.raises(OutcomeUnknown):
                        await registry.commit([Create(root)], timeout=0.3)
                    await created.until(lambda seen: seen == [True])
                    with pytest.raises(OutcomeUnknown):
                        await registry.create_sequential(f"{root}/n-", timeout=0.3)
                    with pytest.raises(RegistryUnavailable):
                        await registry.read([root], timeout=0.3)
                    with pytest.raises(RegistryUnavailable):
                        await registry.tree(root, timeout=0.3)

        run(story())

    def test_a_connection_that_breaks_after_sending_leaves_it_open(self, zookeeper: str, root: str) -> None:
        async def story() -> None:
            with Proxy(zookeeper) as proxy:
                async with connected(zookeeper) as observer, connected(proxy.address) as registry:
                    created = Signals()
                    await observer.read_and_watch(root, lambda: created.add(True))
                    proxy.black_hole(to_server=False)
                    writing = asyncio.ensure_future(registry.commit([Create(root)]))
                    reading = asyncio.ensure_future(registry.read([root]))
                    watching = asyncio.ensure_future(registry.watch_tree(root, lambda _: None))
                    await created.until(lambda seen: seen == [True])
                    proxy.cut()
                    outcomes = await asyncio.gather(writing, reading, watching, return_exceptions=True)
                    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown, RegistryUnavailable, RegistryUnavailable]

        run(story())

    def test_without_a_connection_a_write_is_refused_at_once_and_never_sent(self, zookeeper: str, root: str) -> None:
        """kazoo would keep it, and send it when there is a connection again."""

        async def story() -> None:
            states = Signals()
            with Proxy(zookeeper) as proxy:
                async with connected(proxy.address) as registry:
                    registry.on_session(states.add)
                    proxy.refuse()
                    await states.until(lambda seen: seen == [SessionState.SUSPENDED])
                    for _ in range(1000):
                        with pytest.raises(RegistryUnavailable):
                            registry.commit([Create(root)]).send(None)
                    proxy.restore()
                    await states.until(lambda seen: seen[-1] is SessionState.CONNECTED)
                    await registry.sync()
                    assert await registry.read([root]) == [None]

        run(story())

    def test_a_connection_that_broke_unnoticed_takes_nothing(self, zookeeper: str, root: str) -> None:
        """The loop has not heard of it yet, kazoo has: it would keep the request for the next connection."""

        async def story() -> None:
            states = Signals()
            with Proxy(zookeeper) as proxy:
                async with connected(proxy.address) as registry:
                    registry.on_session(states.add)
                    link = registry._link
                    assert link is not None
                    proxy.refuse()
                    wait_until(lambda: not link.client.connected, 10, "kazoo has noticed")
                    assert registry.state is SessionState.CONNECTED
                    with pytest.raises(RegistryUnavailable):
                        await registry.commit([Create(root)])
                    proxy.restore()
                    await states.until(lambda seen: seen == [SessionState.SUSPENDED, SessionState.CONNECTED])
                    await registry.sync()
                    assert await registry.read([root]) == [None]

        run(story())

    def test_an_unexpected_reply_costs_a_connection_and_no_more(
        self, zookeeper: str, root: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """kazoo's thread ends when a reply is out of order, and with it everything."""

        def of_another_request(data: bytes) -> bytes:
            """The first message with another number (xid) in its header."""
            return data[:4] + b"\x7f\0\0\1" + data[8:]

        async def story() -> None:
            states = Signals()
            with Proxy(zookeeper) as proxy:
                async with connected(proxy.address) as registry:
                    registry.on_session(states.add)
                    await registry.commit([Create(root)])
                    proxy.alter(to_client=of_another_request)
                    with pytest.raises(OutcomeUnknown):
                        await registry.commit([SetData(root, b"1")])
                    proxy.restore()
                    await states.until(lambda seen: seen == [SessionState.SUSPENDED, SessionState.CONNECTED])
                    (node,) = await registry.read([root])
                    assert node is not None
                    assert node.data == b"1"

        run(story())
        assert "a message that cannot be understood" in caplog.text


class TestWindow:
    def test_a_thousand_requests_at_once(self, zookeeper: str, root: str) -> None:
        async def story() -> None:
            async with connected(zookeeper) as registry:
                await registry.commit([Create(root)])
                done = await asyncio.gather(*(registry.commit([Create(f"{root}/{number}")]) for number in range(1000)))
                revisions = [committed.revision for committed in done]
                assert revisions == sorted(revisions)
                assert len(await registry.tree(root)) == 1001

        run(story())

    def test_a_server_that_takes_nothing_does_not_block_the_loop(self, server: ZooKeeperServer, root: str) -> None:
        """kazoo blocks whoever calls it when 278 requests are unsent. Here each is so large that the connection is full."""

        async def story() -> None:
            async with connected(server.address) as registry:
                await registry.commit([Create(root)])
                server.freeze()
                rescue = threading.Timer(15, server.thaw)
                rescue.start()
                writes = [registry.commit([SetData(root, b"x" * 200_000)], timeout=0.5) for _ in range(400)]
                outcomes = await asyncio.gather(*writes, return_exceptions=True)
                assert rescue.is_alive(), "the loop was blocked until the server went on"
                rescue.cancel()
                server.thaw()
                kinds = [type(outcome) for outcome in outcomes]
                assert kinds[:WINDOW] == [OutcomeUnknown] * WINDOW
                assert kinds[WINDOW:] == [RegistryUnavailable] * (400 - WINDOW)

        run(story(), 60)

    def test_the_wake_up_socket_drops_what_does_not_fit(self) -> None:
        reader, writer = socket.socketpair()
        wake_up = WakeUpSocket(writer)
        with reader:
            sent = sum(wake_up.send(b"\0") for _ in range(10_000))
            assert WINDOW < sent < 10_000
            wake_up.close()


class TestReads:
    def test_a_large_tree_takes_one_round_trip_a_level(self, server: ZooKeeperServer, root: str) -> None:
        async def story() -> None:
            async with connected(server.address, session_timeout=10) as registry:
                jobs = [f"{root}/job-{number:03d}" for number in range(1000)]
                await registry.commit([Create(root)])
                await registry.commit([Create(job, b"configuration") for job in jobs])
                for start in range(0, 1000, 30):
                    below = [Create(f"{job}/{item}", b"data") for job in jobs[start : start + 30] for item in range(29)]
                    await registry.commit(below)
                before = int(server.four_letter("mntr")["zk_packets_received"])
                tree = await registry.tree(root, timeout=20)
                requests = int(server.four_letter("mntr")["zk_packets_received"]) - before
                assert len(tree) == 30_001
                assert tree[f"{root}/job-999/28"].data == b"data"
                # 1 + 2 + 58 requests of 500 paths each, and whatever keeps the connection alive meanwhile
                assert 61 <= requests <= 75

        run(story(), 60)

    def test_paths_of_a_request_are_bounded_in_bytes_too(self, zookeeper: str, root: str) -> None:
        async def story() -> None:
            async with connected(zookeeper) as registry:
                paths = [f"{root}/{'x' * 50_000}-{number}" for number in range(100)]
                assert await registry.read(paths) == [None] * 100

        run(story())

    def test_containers_belong_to_no_session(self, zookeeper: str, root: str) -> None:
        """Curator makes the nodes above a latch as containers, which the server keeps as ephemeral nodes of a special owner."""

        async def story() -> None:
            async with connected(zookeeper) as registry:
                await asyncio.to_thread(create_container, zookeeper, root)
                (node,) = await registry.read([root])
                assert node is not None
                assert node.session_id is None
                await registry.commit([Create(f"{root}/e", ephemeral=True), Create(f"{root}/p")])
                ephemeral, persistent = await registry.read([f"{root}/e", f"{root}/p"])
                assert ephemeral is not None
                assert persistent is not None
                assert (ephemeral.session_id, persistent.session_id) == (registry.session_id, None)

        run(story())

    def test_null_data_is_read_as_empty(self, zookeeper: str, root: str) -> None:
        """O11: Java clients can write null."""

        async def story() -> None:
            client = KazooClient(zookeeper)
            await asyncio.to_thread(client.start)
            try:
                await asyncio.to_thread(client.create, root, None)
            finally:
                await asyncio.to_thread(client.stop)
                client.close()
            async with connected(zookeeper) as registry:
                (node,) = await registry.read([root])
                assert node is not None
                assert node.data == b""

        run(story())


def create_container(address: str, path: str) -> None:
    """kazoo 2.11 knows no containers; the request is that of `create2` with another number."""
    from kazoo.protocol.serialization import Create2
    from kazoo.security import OPEN_ACL_UNSAFE

    class CreateContainer(Create2):  # type: ignore[misc]  # kazoo has no types
        type = 19

    client = KazooClient(address)
    client.start()
    try:
        result = client.handler.async_result()
        client._call(CreateContainer(path, b"", OPEN_ACL_UNSAFE, 4), result)
        result.get(timeout=5)
    finally:
        client.stop()
        client.close()
