"""Starting and stopping: whatever is wrong with the servers, the user is told which and why, and nothing is left behind."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ejpy.clock import SystemClock
from ejpy.config.zookeeper_hosts import parse_hosts
from ejpy.errors import AccessDenied, ConfigError, RegistryError, RegistryUnavailable, RegistryUnreachable
from ejpy.registry.base import Create, SessionState
from ejpy.registry.zookeeper import ZooKeeperRegistry
from ejpy.registry.zookeeper.handler import PollHandler
from tests.support.loop import Signals, eventually, run
from tests.support.proxy import Proxy
from tests.support.zookeeper import ZooKeeperServer, connected, leftovers


def registry_at(hosts: str, *, session_timeout: float = 3.0, credentials: tuple[str, str] | None = None) -> ZooKeeperRegistry:
    return ZooKeeperRegistry(hosts, session_timeout=session_timeout, clock=SystemClock(), credentials=credentials)


def failure_of_start(
    hosts: str,
    *,
    within: float = 1.0,
    session_timeout: float = 3.0,
    credentials: tuple[str, str] | None = ("user", "secret"),
) -> RegistryError:
    """What `start` raises, in its time and two seconds, and with nothing left behind."""

    async def story() -> RegistryError:
        before = leftovers()
        registry = registry_at(hosts, session_timeout=session_timeout, credentials=credentials)
        with pytest.raises(RegistryError) as raised:
            await asyncio.wait_for(registry.start(within), within + 2)
        assert leftovers() == before
        assert registry.state is SessionState.LOST
        return raised.value

    return run(story())


@contextmanager
def listening(serve: Callable[[socket.socket], None] | None = None, *, backlog: int = 16) -> Iterator[str]:
    """Something that listens but is no ZooKeeper; without `serve` it never accepts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(backlog)

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                assert serve is not None
                serve(connection)

        thread = threading.Thread(target=accept, daemon=True)
        if serve is not None:
            thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        if serve is not None:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class TestHosts:
    def test_a_list_of_servers_is_understood(self) -> None:
        assert parse_hosts("zk1, zk2:2182,[::1]:2183,10.0.0.1:1") == [
            ("zk1", 2181),
            ("zk2", 2182),
            ("::1", 2183),
            ("10.0.0.1", 1),
        ]

    @pytest.mark.parametrize(
        ("hosts", "named"),
        [
            ("zk1:2181,", "entry 2 ('')"),
            ("", "entry 1 ('')"),
            ("zk1:2181,,zk2", "entry 2 ('')"),
            ("zk1:port", "entry 1 ('zk1:port'): the port must be a number"),
            ("zk1:0", "the port must be a number"),
            ("zk1:", "the port must be a number"),
            ("zk1:99999", "the port must be a number"),
            ("zk1:2181/jobs", "a path does not belong here"),
            ("user:secret@zk1", "credentials do not belong here"),
            ("zk 1", "blanks"),
            ("::1", "IPv6 address in brackets"),
            ("[::1", "IPv6 address in brackets"),
            (":2181", "the host name is missing"),
            ("a..b", "not a valid host name"),
            ("x" * 64, "not a valid host name"),
        ],
    )
    def test_a_wrong_one_is_named_in_one_line(self, hosts: str, named: str) -> None:
        with pytest.raises(ConfigError) as raised:
            registry_at(hosts)
        (problem,) = raised.value.problems
        assert named in problem
        assert "\n" not in problem

    def test_every_wrong_one_is_named(self) -> None:
        with pytest.raises(ConfigError) as raised:
            registry_at("zk1:x,zk2,,zk3:y")
        assert len(raised.value.problems) == 3


class TestUnreachable:
    """B8: no endless wait, and a message that names the address and the cause."""

    def test_a_name_that_does_not_resolve(self) -> None:
        error = failure_of_start("no-such-host.invalid:2181", within=2.0)
        assert isinstance(error, RegistryUnreachable)
        assert "no-such-host.invalid:2181" in str(error)
        assert "cannot be resolved" in error.cause
        assert "\n" not in str(error)

    def test_a_closed_port(self) -> None:
        address = closed_port()
        error = failure_of_start(address)
        assert isinstance(error, RegistryUnreachable)
        assert error.address == address
        assert address in error.cause
        assert "refused" in error.cause

    @pytest.mark.parametrize("session_timeout", [1.0, 30.0], ids=["attempts end before the start", "the start ends before"])
    def test_a_port_that_accepts_and_never_answers(self, session_timeout: float) -> None:
        with listening() as address:
            error = failure_of_start(address, session_timeout=session_timeout)
        assert isinstance(error, RegistryUnreachable)
        assert f"{address}: it accepts connections, but does not answer" in error.cause

    def test_a_port_that_does_not_complete_connections(self) -> None:
        with listening(backlog=0) as address, fill_backlog(address):
            error = failure_of_start(address, session_timeout=30.0)
        assert isinstance(error, RegistryUnreachable)
        assert f"{address}: it does not answer the TCP connect" in error.cause

    def test_a_server_that_drops_packets_does_not_use_up_the_session(self) -> None:
        """kazoo allows one TCP connect the whole session time-out: the next server in the list is then tried too late."""
        with listening(backlog=0) as address, fill_backlog(address):
            host, port = address.rsplit(":", 1)
            attempt = threading.Thread(target=connect_refused, args=((host, int(port)), 30.0), daemon=True)
            attempt.start()
            attempt.join(10)
            assert not attempt.is_alive()

    def test_a_port_that_closes_at_once(self) -> None:
        with listening(lambda connection: connection.close()) as address:
            error = failure_of_start(address)
        assert isinstance(error, RegistryUnreachable)
        assert address in error.cause

    def test_something_that_is_no_zookeeper(self) -> None:
        def answer(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
            connection.close()

        with listening(answer) as address:
            error = failure_of_start(address)
        assert isinstance(error, RegistryUnreachable)
        assert address in error.cause

    def test_each_server_is_named_with_its_own_cause(self) -> None:
        closed = closed_port()
        with listening() as silent:
            error = failure_of_start(f"{closed},{silent},no-such-host.invalid:2181", within=3.0)
        assert isinstance(error, RegistryUnreachable)
        for server in (closed, silent, "no-such-host.invalid:2181"):
            assert f"{server}: " in error.cause

    def test_one_server_that_answers_is_enough(self, zookeeper: str) -> None:
        async def story() -> None:
            async with connected(f"{closed_port()},{zookeeper},no-such-host.invalid:2181") as registry:
                assert await registry.children(["/"]) != [None]

        run(story())

    def test_start_may_be_called_again_after_it_failed(self, zookeeper: str) -> None:
        async def story() -> None:
            with Proxy(zookeeper) as proxy:
                proxy.refuse()
                registry = registry_at(proxy.address)
                with pytest.raises(RegistryUnreachable):
                    await registry.start(0.5)
                proxy.restore()
                await registry.start(10)
                assert registry.state is SessionState.CONNECTED
                await registry.stop(5)

        run(story())

    def test_a_cancelled_start_leaves_nothing_behind(self) -> None:
        async def story(address: str) -> None:
            before = leftovers()
            starting = asyncio.ensure_future(registry_at(address).start(30))
            await eventually(lambda: leftovers()[0] != before[0])
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            assert leftovers() == before

        with listening() as address:
            run(story(address))


def connect_refused(address: tuple[str, int], timeout: float) -> None:
    with pytest.raises(OSError, match="no answer to the TCP connect"):
        PollHandler(connect_bound_seconds=0.3).create_connection(address, timeout)


@contextmanager
def fill_backlog(address: str) -> Iterator[None]:
    """Take all the places for connections that wait to be accepted, so that further ones get no answer."""
    host, port = address.rsplit(":", 1)
    waiting: list[socket.socket] = []
    try:
        while True:
            connection = socket.socket()
            waiting.append(connection)
            connection.settimeout(0.3)
            connection.connect((host, int(port)))
            assert len(waiting) < 1000
    except TimeoutError:
        yield
    finally:
        for connection in waiting:
            connection.close()


class TestServerKinds:
    def test_a_server_before_3_6_is_refused_with_the_version_needed(self, zookeeper: str) -> None:
        def unknown_to_old_servers(data: bytes) -> bytes:
            """Make of `multiRead` a request that no server knows: it answers as an old one does to `multiRead`."""
            return data.replace(b"\0\0\0\x16\0\0\0\x04", b"\0\0\x16\x16\0\0\0\x04")

        with Proxy(zookeeper) as proxy:
            proxy.alter(to_server=unknown_to_old_servers)
            error = failure_of_start(proxy.address, within=5.0)
        assert "ZooKeeper 3.6 or later" in str(error)

    @pytest.mark.parametrize(
        ("java_properties", "credentials"),
        [
            ({"zookeeper.DigestAuthenticationProvider.enabled": "false"}, ("user", "secret")),
            ({"zookeeper.enforce.auth.enabled": "true", "zookeeper.enforce.auth.schemes": "digest"}, None),
        ],
        ids=["refused", "missing"],
    )
    def test_refused_credentials_end_the_start(
        self, java_properties: dict[str, str], credentials: tuple[str, str] | None
    ) -> None:
        """K4: kazoo gives up for good when the credentials are refused; neither `start` nor `stop` may wait for it."""
        with ZooKeeperServer(java_properties=java_properties) as server:
            error = failure_of_start(server.address, within=10.0, credentials=credentials)
        assert isinstance(error, AccessDenied)
        assert "credentials" in str(error)

    def test_the_granted_session_timeout_counts_and_a_difference_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """B9: kazoo keeps the time-out that was asked for, whatever the server made of it."""

        async def story(address: str) -> None:
            with Proxy(address) as proxy:
                states = Signals()
                registry = registry_at(proxy.address, session_timeout=60)
                registry.on_session(states.add)
                assert registry.session_timeout_seconds == 60
                await registry.start(10)
                assert registry.session_timeout_seconds == 5
                assert registry.lease_until < SystemClock().monotonic() + 5
                proxy.cut()
                await states.until(lambda seen: seen.count(SessionState.CONNECTED) == 2)
                assert registry.session_timeout_seconds == 5
                await registry.stop(5)

            async with connected(address, session_timeout=1) as registry:
                assert registry.session_timeout_seconds == 4

        with ZooKeeperServer(properties={"minSessionTimeout": 4000, "maxSessionTimeout": 5000}) as server:
            run(story(server.address))
        told = [record.getMessage() for record in caplog.records if "grants a session time-out" in record.getMessage()]
        assert [record.levelno for record in caplog.records if "grants" in record.getMessage()] == [logging.WARNING] * 2
        assert ["5 s instead of 60 s" in told[0], "4 s instead of 1 s" in told[1]] == [True, True]

    def test_neither_the_password_nor_data_is_logged(self, zookeeper: str, caplog: pytest.LogCaptureFixture) -> None:
        """K5: kazoo writes credentials and the data of nodes at DEBUG."""
        caplog.set_level(0)

        async def story() -> None:
            with Proxy(zookeeper) as proxy:
                states = Signals()
                async with connected(proxy.address, credentials=("somebody", "s3cr3t-password")) as registry:
                    registry.on_session(states.add)
                    await registry.commit([Create("/not-logged", b"s3cr3t-data", ephemeral=True)])
                    await registry.read(["/not-logged"])
                    proxy.cut()
                    await states.until(lambda seen: SessionState.CONNECTED in seen)
                    await registry.sync()

        run(story())
        assert "ZooKeeper session connected" in caplog.text
        assert "s3cr3t" not in caplog.text


class TestStop:
    """kazoo's own `stop` waits for the server, up to for ever."""

    @pytest.mark.parametrize("trouble", ["frozen", "black hole", "refusing", "cut", "silent"])
    def test_it_ends_whatever_the_server_does(self, trouble: str, zookeeper: str) -> None:
        async def story() -> None:
            before = leftovers()
            with Proxy(zookeeper) as proxy:
                with_proxy = leftovers()
                states = Signals()
                registry = registry_at(proxy.address, session_timeout=10)
                registry.on_session(states.add)
                await registry.start(10)
                unanswered = []
                if trouble in ("frozen", "black hole"):
                    proxy.black_hole(to_server=trouble == "black hole")
                    unanswered = [asyncio.ensure_future(registry.commit([Create("/x")])) for _ in range(300)]
                    await asyncio.sleep(0)
                elif trouble == "refusing":
                    proxy.refuse()
                    await states.until(lambda seen: SessionState.SUSPENDED in seen)
                elif trouble == "silent":
                    proxy.black_hole()
                    proxy.cut()
                    await states.until(lambda seen: SessionState.SUSPENDED in seen)
                else:
                    proxy.cut()
                await asyncio.wait_for(registry.stop(2), 5)
                assert registry.state is SessionState.LOST
                outcomes = await asyncio.gather(*unanswered, return_exceptions=True)
                assert all(isinstance(outcome, RegistryError) for outcome in outcomes)
                proxy.restore()
                proxy.cut()
                await eventually(lambda: leftovers() <= with_proxy)
            assert leftovers()[0] == before[0]

        run(story())

    def test_it_removes_the_ephemeral_nodes_at_once(self, zookeeper: str) -> None:
        async def story() -> None:
            async with connected(zookeeper) as observer:
                async with connected(zookeeper) as registry:
                    path = await registry.create_sequential("/stopped-")
                    await observer.sync()
                    assert await observer.read([path]) != [None]
                await observer.sync()
                assert await observer.read([path]) == [None]

        run(story())

    def test_a_hundred_registries_leave_nothing_behind(self, zookeeper: str) -> None:
        """N3: kazoo's `stop` alone leaves two descriptors."""

        async def story() -> None:
            before = leftovers()
            for _ in range(100):
                async with connected(zookeeper) as registry:
                    assert leftovers()[0] == [*before[0], "ejpy-zookeeper"]
                    await registry.sync()
            assert leftovers() == before

        run(story(), 60)

    def test_stopping_twice_at_the_same_time(self, zookeeper: str) -> None:
        async def story() -> None:
            registry = registry_at(zookeeper)
            await registry.start(10)
            await asyncio.gather(registry.stop(5), registry.stop(5))
            with pytest.raises(RegistryUnavailable):
                await registry.sync()
            await registry.start(10)
            await registry.sync()
            await registry.stop(5)

        run(story())
