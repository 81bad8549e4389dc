"""LeaderLatch: one holder at a time, in order, and never a node left behind, whatever the network does."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import TypeVar

import pytest
from kazoo.client import KazooClient

from ejpy.clock import SystemClock
from ejpy.errors import AccessDenied, GuardFailed, OutcomeUnknown, RegistryError
from ejpy.registry.base import Check, Committed, Create, Delete, Node, Operation, SessionListener, SetData
from ejpy.registry.latch import LatchHold, LeaderLatch
from ejpy.registry.latch_line import in_line, latch_order
from ejpy.registry.memory import MemoryRegistry, MemoryStore
from ejpy.registry.zookeeper import ZooKeeperRegistry
from ejpy.testing.network import Trouble, UnreliableRegistry
from ejpy.testing.virtual_loop import LoopClock, VirtualLoop, run_virtual
from tests.support.loop import run
from tests.support.proxy import Proxy
from tests.support.zookeeper import connected, expire_session

T = TypeVar("T")
ROUND_TRIP = 0.001
PATH = "/ns/job/leader/election/latch"


class Store(MemoryStore):
    """Knows which sessions live."""

    def __init__(self, clock: LoopClock) -> None:
        super().__init__(clock)
        self.alive: set[int] = set()

    def open_session(self, timeout: float, on_expired: Callable[[], None]) -> int:
        session_id = super().open_session(timeout, on_expired)
        self.alive.add(session_id)
        return session_id

    def close_session(self, session_id: int) -> None:
        self.alive.discard(session_id)
        super().close_session(session_id)


class Worker(MemoryRegistry):
    """A registry that counts its requests; each takes `ROUND_TRIP` seconds there and back, and replies can be lost."""

    def __init__(self, store: MemoryStore, clock: LoopClock) -> None:
        super().__init__(store, clock=clock, session_timeout=10)
        self.requests: list[str] = []
        self.losing: set[str] = set()
        """The kinds of request whose next reply is lost."""
        self.denied: set[str] = set()
        self.listening = 0
        """How many listen to its session."""

    def on_session(self, listener: SessionListener) -> Callable[[], None]:
        take_back = super().on_session(listener)
        self.listening += 1

        def taken_back() -> None:
            self.listening -= 1
            take_back()

        return taken_back

    async def children(self, paths: Sequence[str], *, timeout: float | None = None) -> list[list[str] | None]:
        self._note("children")
        return await super().children(paths, timeout=timeout)

    async def read(self, paths: Sequence[str], *, timeout: float | None = None) -> list[Node | None]:
        self._note("read")
        return await super().read(paths, timeout=timeout)

    async def read_and_watch(self, path: str, listener: Callable[[], None], *, timeout: float | None = None) -> Node | None:
        self._note("read_and_watch")
        return await super().read_and_watch(path, listener, timeout=timeout)

    async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
        self._note("commit")
        return self._lose("commit", await super().commit(operations, timeout=timeout))

    async def create_sequential(
        self, prefix: str, data: bytes = b"", *, ephemeral: bool = True, timeout: float | None = None
    ) -> str:
        self._note("create_sequential")
        path = await super().create_sequential(prefix, data, ephemeral=ephemeral, timeout=timeout)
        return self._lose("create_sequential", path)

    async def _transport(self, apply: Callable[[], T]) -> T:
        await asyncio.sleep(ROUND_TRIP / 2)
        try:
            return apply()
        finally:
            await asyncio.sleep(ROUND_TRIP / 2)

    def _note(self, request: str) -> None:
        self.requests.append(request)
        if request in self.denied:
            raise AccessDenied(f"{request}: not allowed")

    def _lose(self, request: str, reply: T) -> T:
        if request in self.losing:
            self.losing.discard(request)
            raise OutcomeUnknown(f"{request}: reply lost")
        return reply


class Bench:
    def __init__(self, loop: VirtualLoop, *, directory: bool = True) -> None:
        self.loop = loop
        self.clock = LoopClock(loop)
        self.store = Store(self.clock)
        if directory:
            self.store.commit(0, [Create(path) for path in ("/ns", "/ns/job", "/ns/job/leader", "/ns/job/leader/election", PATH)])

    async def worker(self, kind: type[Worker] = Worker) -> Worker:
        worker = kind(self.store, self.clock)
        await worker.start(5)
        return worker

    def latch(self, worker: MemoryRegistry, name: str = "u") -> LeaderLatch:
        return LeaderLatch(worker, PATH, new_uuid=uuids(name))

    def nodes(self) -> list[str]:
        return self.store.children(PATH) or []


def uuids(name: str) -> Callable[[], str]:
    numbers: Iterator[int] = count()
    return lambda: f"{name}-{next(numbers)}"


async def held(latch: LeaderLatch, timeout: float = 100) -> LatchHold:
    hold = await latch.acquire(timeout)
    assert hold is not None
    return hold


# ---- the protocol -------------------------------------------------------------------------------------------------


def test_the_node_is_as_curators() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop, directory=False)
        worker = await b.worker()
        hold = await held(b.latch(worker))
        assert re.fullmatch(PATH + r"/_c_u-0-latch-[0-9]{10}", hold.node_path)
        node = b.store.read(hold.node_path)
        assert node is not None
        assert node.data == b""
        assert node.session_id == worker.session_id == hold.session_id
        for directory in ("/ns", "/ns/job", "/ns/job/leader", "/ns/job/leader/election", PATH):
            made = b.store.read(directory)
            assert made is not None
            assert made.session_id is None
        await hold.release()
        assert b.nodes() == []

    run_virtual(main)


def test_uncontended_it_takes_four_requests() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        worker = await b.worker()
        hold = await held(b.latch(worker))
        await hold.release()
        await hold.release()
        assert worker.requests == ["create_sequential", "children", "read", "commit"]

    run_virtual(main)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("_c_7d9f-latch-0000000012", "0000000012"),
        ("latch-0000000003", "0000000003"),
        ("x-latch-y-latch-0000000001", "0000000001"),
        ("4f3c__lock__0000000007", "4f3c__lock__0000000007"),
        ("_c_7d9f-latch-", ""),
        ("_c_7d9f-latch--2147483648", "-2147483648"),
    ],
)
def test_the_order_is_curators(name: str, key: str) -> None:
    """Curator: the text after the last occurrence of `latch-`, else the whole name."""
    assert latch_order(name) == key


def test_what_is_no_node_of_a_latch_does_not_stand_in_line() -> None:
    """Whoever lets it count waits for somebody who never takes the latch."""
    contending = ["x-latch-y-latch--2147483648", "latch-0000000003", "_c_7d9f-latch-0000000012"]
    others = ["", "0", "!garbage", "_c_7d9f-latch-", "latch-0000000001.bak", "Latch-0000000000", "latch-latch", "latch-00 01"]
    assert in_line([*others, *reversed(contending)]) == contending


def test_contenders_hold_it_one_after_the_other_in_the_order_of_arrival() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        order: list[int] = []
        holders = 0

        async def contend(i: int) -> None:
            nonlocal holders
            hold = await held(b.latch(await b.worker(), f"z{9 - i}"))
            holders += 1
            assert holders == 1
            order.append(i)
            await asyncio.sleep(0.1)
            holders -= 1
            await hold.release()

        tasks = []
        for i in range(10):
            tasks.append(loop.create_task(contend(i)))
            await asyncio.sleep(ROUND_TRIP)
        await asyncio.gather(*tasks)
        assert order == list(range(10))
        assert b.nodes() == []

    run_virtual(main)


def test_a_departure_wakes_only_the_next_in_line() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        first = await held(b.latch(await b.worker()))
        workers = [await b.worker() for _ in range(20)]
        tasks = [loop.create_task(held(b.latch(worker))) for worker in workers]
        await asyncio.sleep(1)
        for worker in workers:
            worker.requests.clear()
        await first.release()
        await asyncio.sleep(1)
        assert [worker.requests for worker in workers if worker.requests] == [["children", "read"]]
        assert sum(task.done() for task in tasks) == 1

    run_virtual(main)


def test_one_that_leaves_the_middle_of_the_line_lets_nobody_pass() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        first = await held(b.latch(await b.worker()))
        middle = loop.create_task(b.latch(await b.worker()).acquire(100))
        await asyncio.sleep(0.1)
        last = loop.create_task(b.latch(await b.worker()).acquire(100))
        await asyncio.sleep(0.1)
        middle.cancel()
        await asyncio.sleep(1)
        assert not last.done()
        assert len(b.nodes()) == 2
        await first.release()
        assert await last is not None

    run_virtual(main)


@pytest.mark.parametrize("name", ["!garbage", "latch-", "0000000000", "_c_00c0ffee-latch-first"])
def test_a_node_that_is_no_contenders_blocks_nobody(name: str) -> None:
    """It sorts first, and nobody will ever remove it."""

    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        b.store.commit(0, [Create(f"{PATH}/{name}")])
        hold = await held(b.latch(await b.worker()))
        waiting = loop.create_task(held(b.latch(await b.worker())))
        await asyncio.sleep(1)
        assert not waiting.done(), "they exclude each other all the same"
        await hold.release()
        await waiting

    run_virtual(main)


def test_it_tells_who_stands_first() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        foreigner, worker = await b.worker(), await b.worker()
        latch = b.latch(worker)
        assert await latch.first() is None
        path = await foreigner.create_sequential(f"{PATH}/_c_foreign-latch-")
        b.store.commit(0, [Create(f"{PATH}/!garbage")])
        assert await latch.acquire(1) is None
        assert await latch.first() == (path, foreigner.session_id)

    run_virtual(main)


@pytest.mark.parametrize("left_over", [False, True])
def test_a_latch_that_is_closed_hears_no_more_of_the_session(left_over: bool) -> None:
    """But a node of its that is left over is deleted first, when the connection is back."""

    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        worker = await b.worker()
        latch = b.latch(worker)
        hold = await held(latch)
        assert worker.listening == 1
        if left_over:
            worker.disconnect()
            await hold.release()
            latch.close()
            assert worker.listening == 1
            worker.reconnect()
        else:
            await hold.release()
            latch.close()
        await asyncio.sleep(5)
        assert b.nodes() == []
        assert worker.listening == 0

    run_virtual(main)


@pytest.mark.parametrize(
    ("prefix", "blocks"),
    [
        ("_c_00c0ffee-0000-4000-8000-000000000000-latch-", True),  # Curator
        ("latch-", True),
        ("f1e2d3c4b5a69788__lock__", False),  # kazoo's Lock: Curator does not see it as a holder, so nor do we
    ],
)
def test_foreign_contenders_count_as_they_do_for_curator(prefix: str, blocks: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        foreigner = await b.worker()
        path = await foreigner.create_sequential(f"{PATH}/{prefix}")
        acquiring = loop.create_task(b.latch(await b.worker()).acquire(100))
        await asyncio.sleep(1)
        assert acquiring.done() is not blocks
        await foreigner.commit([Delete(path)])
        assert await acquiring is not None

    run_virtual(main)


def test_the_hold_can_be_given_up_in_the_holders_own_transaction() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        worker = await b.worker()
        hold = await held(b.latch(worker))
        await worker.commit([Create("/ns/job/leader/election/instance", b"me", ephemeral=True), Delete(hold.node_path)])
        hold.released_in_transaction()
        worker.requests.clear()
        await hold.release()
        await asyncio.sleep(1)
        assert worker.requests == []
        assert b.nodes() == []

    run_virtual(main)


def test_a_holder_whose_session_ended_can_change_nothing() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        paused = await b.worker()
        hold = await held(b.latch(paused))
        b.store.expire(hold.session_id)
        await asyncio.sleep(1)  # it has a new session by now
        assert await b.latch(await b.worker()).acquire(1) is not None
        with pytest.raises(GuardFailed):
            await paused.commit([Check(hold.node_path), SetData("/ns/job", b"stale")])
        await hold.release()

    run_virtual(main)


# ---- the directory ------------------------------------------------------------------------------------------------


def test_a_directory_that_vanishes_is_made_again() -> None:
    """Curator makes it as a container, which the server removes when it is empty."""

    class Reaped(Worker):
        reaped = 0

        async def create_sequential(
            self, prefix: str, data: bytes = b"", *, ephemeral: bool = True, timeout: float | None = None
        ) -> str:
            if self.reaped < 2:
                self.reaped += 1
                self._store.commit(0, [Delete(PATH), Delete("/ns/job/leader/election")])
            return await super().create_sequential(prefix, data, ephemeral=ephemeral, timeout=timeout)

    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        hold = await held(b.latch(await b.worker(Reaped)), timeout=1)
        assert b.nodes() == [hold.node_path.rpartition("/")[2]]

    run_virtual(main)


def test_many_first_contenders_make_the_directory_together() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop, directory=False)

        async def contend() -> None:
            hold = await held(b.latch(await b.worker()), timeout=10)
            await hold.release()

        await asyncio.gather(*(contend() for _ in range(8)))
        assert b.nodes() == []

    run_virtual(main)


def test_a_directory_that_cannot_be_made_is_an_error() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop, directory=False)
        worker = await b.worker()
        await worker.commit([Create("/ns", ephemeral=True)])
        with pytest.raises(GuardFailed):
            await b.latch(worker).acquire(10)

    run_virtual(main)


# ---- no node stays behind -----------------------------------------------------------------------------------------


def test_it_gives_up_in_time_and_leaves_no_node() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        first = await held(b.latch(await b.worker()))
        latch = b.latch(await b.worker())
        started = loop.time()
        assert await latch.acquire(3) is None
        assert loop.time() == pytest.approx(started + 3)
        await asyncio.sleep(2 * ROUND_TRIP)
        assert b.nodes() == [first.node_path.rpartition("/")[2]]

    run_virtual(main)


@pytest.mark.parametrize("contended", [False, True])
@pytest.mark.parametrize("step", range(24))
def test_cancelled_or_out_of_time_at_any_step_it_leaves_no_node(step: int, contended: bool) -> None:
    async def main(loop: VirtualLoop, cancel: bool, lose: bool) -> None:
        b = Bench(loop, directory=False)
        first = await held(b.latch(await b.worker())) if contended else None
        worker = await b.worker()
        if lose:
            worker.losing = {"create_sequential", "commit"}
        at = (step + 0.5) * ROUND_TRIP / 4
        acquiring = loop.create_task(b.latch(worker).acquire(100 if cancel else at))
        if cancel:
            await asyncio.sleep(at)
            acquiring.cancel()
            [hold] = await asyncio.gather(acquiring, return_exceptions=True)
        else:
            hold = await acquiring
        if isinstance(hold, LatchHold):
            await hold.release()
        if first is not None:
            await first.release()
        await asyncio.sleep(1)
        assert b.nodes() == []

    for cancel in (False, True):
        for lose in (False, True):
            run_virtual(lambda loop, cancel=cancel, lose=lose: main(loop, cancel, lose))  # type: ignore[misc]


def test_a_lost_reply_of_the_create_makes_no_second_node() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        worker = await b.worker()
        worker.losing = {"create_sequential"}
        hold = await held(b.latch(worker), timeout=5)
        assert worker.requests.count("create_sequential") == 1
        assert b.nodes() == [hold.node_path.rpartition("/")[2]]
        await hold.release()
        assert b.nodes() == []

    run_virtual(main)


def test_a_node_that_may_exist_is_looked_for_in_the_newest_state() -> None:
    """After a reconnection to a server that lags, the list is older than the request that was lost."""

    class Lagging(Worker):
        behind = True

        async def sync(self, *, timeout: float | None = None) -> None:
            await super().sync(timeout=timeout)
            self.behind = False

        async def children(self, paths: Sequence[str], *, timeout: float | None = None) -> list[list[str] | None]:
            names = await super().children(paths, timeout=timeout)
            return [[]] if self.behind else names

    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        worker = await b.worker(Lagging)
        worker.losing = {"create_sequential"}
        assert await b.latch(worker).acquire(5) is not None
        assert worker.requests.count("create_sequential") == 1

    run_virtual(main)


def test_a_request_that_takes_effect_late_leaves_no_phantom() -> None:
    class Late(Worker):
        late = True

        async def create_sequential(
            self, prefix: str, data: bytes = b"", *, ephemeral: bool = True, timeout: float | None = None
        ) -> str:
            if self.late:
                self.late = False
                create = super().create_sequential(prefix, data, ephemeral=ephemeral, timeout=timeout)
                asyncio.get_running_loop().call_later(0.5, lambda: tasks.append(asyncio.ensure_future(create)))
                raise OutcomeUnknown("it may still have its effect")
            return await super().create_sequential(prefix, data, ephemeral=ephemeral, timeout=timeout)

    tasks: list[asyncio.Future[str]] = []

    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        worker = await b.worker(Late)
        hold = await held(b.latch(worker), timeout=5)
        await asyncio.sleep(1)
        assert len(b.nodes()) == 2
        await worker.commit([Delete(hold.node_path)])
        hold.released_in_transaction()
        await asyncio.sleep(1)
        assert b.nodes() == []

    run_virtual(main)


def test_a_lost_reply_of_the_delete_is_followed_up() -> None:
    class Dropped(Worker):
        """Requests to delete are lost on their way."""

        dropped = 3

        async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
            if self.dropped:
                self.dropped -= 1
                raise OutcomeUnknown("no reply")
            return await super().commit(operations, timeout=timeout)

    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        hold = await held(b.latch(await b.worker(Dropped)))
        await hold.release()
        await asyncio.sleep(2)
        assert b.nodes() == []

        worker = await b.worker()
        hold = await held(b.latch(worker))
        worker.losing = {"commit"}  # applied; the repetition finds no node
        await hold.release()
        await asyncio.sleep(2)
        assert b.nodes() == []
        worker.requests.clear()
        await asyncio.sleep(100)
        assert worker.requests == []

    run_virtual(main)


def test_a_node_that_could_not_be_deleted_is_deleted_when_the_connection_is_back() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        first, second = await b.worker(), await b.worker()
        hold = await held(b.latch(first))
        acquiring = loop.create_task(b.latch(second).acquire(1))
        await asyncio.sleep(0.5)
        first.disconnect()
        second.disconnect()
        released = loop.time()
        await hold.release()
        assert loop.time() == released
        assert await acquiring is None
        assert len(b.nodes()) == 2
        first.reconnect()
        second.reconnect()
        await asyncio.sleep(4 * ROUND_TRIP)
        assert {first.session_id, second.session_id} <= b.store.alive
        assert b.nodes() == []

    run_virtual(main)


def test_a_release_that_is_cancelled_still_happens() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        hold = await held(b.latch(await b.worker()))
        releasing = loop.create_task(hold.release())
        await asyncio.sleep(ROUND_TRIP / 4)
        releasing.cancel()
        await asyncio.sleep(2 * ROUND_TRIP)
        assert b.nodes() == []

    run_virtual(main)


def test_nothing_goes_on_after_the_registry_was_stopped() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        worker = await b.worker()
        hold = await held(b.latch(worker))
        worker.disconnect()
        await hold.release()
        await worker.stop(1)
        await asyncio.sleep(100)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert b.nodes() == []

    run_virtual(main)


# ---- losing one's place -------------------------------------------------------------------------------------------


def test_a_new_session_means_a_new_node_under_a_new_uuid() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        first = await held(b.latch(await b.worker()))
        worker = await b.worker()
        acquiring = loop.create_task(b.latch(worker, "w").acquire(100))
        await asyncio.sleep(1)
        assert worker.session_id is not None
        b.store.expire(worker.session_id)
        await asyncio.sleep(1)
        assert [name.rpartition("-latch-")[0] for name in b.nodes() if "_w-" in name] == ["_c_w-1"]
        await first.release()
        hold = await acquiring
        assert hold is not None
        assert hold.session_id == worker.session_id

    run_virtual(main)


def test_an_expiry_during_the_create_costs_one_more_create() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        worker = await b.worker()
        assert worker.session_id is not None
        b.store.close_session(worker.session_id)  # the worker learns of it by its next request
        hold = await held(b.latch(worker, "w"))
        assert "_c_w-1-" in hold.node_path
        assert worker.requests.count("create_sequential") == 2

    run_virtual(main)


def test_a_short_interruption_keeps_the_place() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        first = await held(b.latch(await b.worker()))
        worker = await b.worker()
        acquiring = loop.create_task(b.latch(worker, "w").acquire(100))
        await asyncio.sleep(1)
        before = b.nodes()
        worker.disconnect()
        await first.release()  # the event is missed
        await asyncio.sleep(1)
        worker.reconnect()
        hold = await acquiring
        assert hold is not None
        assert hold.node_path.rpartition("/")[2] in before

    run_virtual(main)


def test_without_connection_it_waits_for_one_within_the_time_out() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        worker = await b.worker()
        worker.disconnect()
        assert await b.latch(worker).acquire(3) is None
        loop.call_later(2, worker.reconnect)
        assert await b.latch(worker).acquire(3) is not None

    run_virtual(main)


def test_an_own_node_that_somebody_deleted_is_made_again() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        first = await held(b.latch(await b.worker()))
        acquiring = loop.create_task(b.latch(await b.worker(), "w").acquire(100))
        await asyncio.sleep(1)
        [own] = [name for name in b.nodes() if "_w-" in name]
        b.store.commit(0, [Delete(f"{PATH}/{own}")])
        await first.release()
        hold = await acquiring
        assert hold is not None
        assert b.nodes() == [hold.node_path.rpartition("/")[2]]

    run_virtual(main)


def test_a_node_of_another_session_is_not_claimed() -> None:
    """Curator before 5.7 did so after a reconnection, and the latch had two holders."""

    class Confused(Worker):
        confused = True

        async def read(self, paths: Sequence[str], *, timeout: float | None = None) -> list[Node | None]:
            [node] = await super().read(paths, timeout=timeout)
            if self.confused and node is not None:
                self.confused = False
                return [replace(node, session_id=12345)]
            return [node]

    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        hold = await held(b.latch(await b.worker(Confused)))
        assert "_c_u-1-" in hold.node_path
        await asyncio.sleep(1)
        assert b.nodes() == [hold.node_path.rpartition("/")[2]]

    run_virtual(main)


@pytest.mark.parametrize("request_kind", ["create_sequential", "children", "read"])
def test_a_denied_request_is_raised_and_not_taken_for_a_leadership(request_kind: str) -> None:
    """RB#208: an error while getting the lock was swallowed, and the process went on as if it had it."""

    async def main(loop: VirtualLoop) -> None:
        b = Bench(loop)
        worker = await b.worker()
        worker.denied = {request_kind}
        with pytest.raises(AccessDenied, match=request_kind):
            await b.latch(worker).acquire(10)
        worker.denied = set()
        await asyncio.sleep(1)
        assert b.nodes() == []

    run_virtual(main)


# ---- everything at once -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_network_does_there_is_one_holder_and_no_orphan(seed: int) -> None:
    """Five workers take turns under lost requests and replies, cut connections, expired sessions and impatience."""

    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        clock = LoopClock(loop)
        store = Store(clock)
        trouble = Trouble(delay_seconds=0.02)
        holds: dict[LatchHold, None] = {}
        acquired = unanswered = 0
        ending = False

        async def contend(registry: UnreliableRegistry, name: str) -> None:
            nonlocal acquired, unanswered
            latch = LeaderLatch(registry, PATH, new_uuid=uuids(name))
            while not ending:
                acquiring = loop.create_task(latch.acquire(random.choice([0.05, 0.5, 5, 30])))
                if random.random() < 0.1:
                    loop.call_later(random.uniform(0, 0.5), acquiring.cancel)
                await asyncio.wait({acquiring})
                hold = None if acquiring.cancelled() else acquiring.result()
                if hold is not None:
                    acquired += 1
                    holds[hold] = None
                    assert len([each for each in holds if each.session_id in store.alive]) <= 1
                    await asyncio.sleep(random.choice([0, 0.01, 0.1, 3]))
                    leave = random.random() < 0.5
                    operations: list[Operation] = [Delete(hold.node_path) if leave else Check(hold.node_path)]
                    del holds[hold]
                    try:
                        await registry.commit([SetData("/writes", name.encode()), *operations])
                    except RegistryError as error:
                        unanswered += isinstance(error, OutcomeUnknown)
                        await hold.release()
                    else:
                        if leave:
                            hold.released_in_transaction()
                        else:
                            await hold.release()
                await asyncio.sleep(random.choice([0, 0.001, 0.05]))

        registries = []
        for _ in range(5):
            registry = UnreliableRegistry(store, clock=clock, session_timeout=2, random=random, trouble=trouble)
            await registry.start(5)
            registries.append(registry)
        await registries[0].commit([Create("/writes")])
        contending = [loop.create_task(contend(registry, f"w{i}")) for i, registry in enumerate(registries)]
        for _ in range(150):
            trouble.lost_requests = trouble.lost_replies = random.choice([0, 0, 0.05, 0.3])
            registry = random.choice(registries)
            event = random.random()
            if event < 0.3:
                registry.disconnect()
                loop.call_later(random.choice([0, 0.1, 1, 4]), registry.reconnect)
            elif event < 0.5 and registry.session_id is not None:
                store.expire(registry.session_id)
            await asyncio.sleep(random.choice([0.05, 0.5, 2]))
            for task in contending:
                assert not task.done(), task.result()
        trouble.lost_requests = trouble.lost_replies = 0
        ending = True
        await asyncio.wait(contending, timeout=60)
        for task in contending:
            task.result()
        await asyncio.sleep(20)
        assert store.children(PATH) == []
        # and it was a test: the latch was held often, replies were lost
        writes = store.read("/writes")
        assert writes is not None
        assert acquired > 50
        assert writes.version <= acquired
        assert writes.version + unanswered > 20

    run_virtual(main)


# ---- on a real server ---------------------------------------------------------------------------------------------


def test_on_zookeeper_a_foreign_client_and_ours_stand_in_one_line(zookeeper: str) -> None:
    async def main() -> None:
        path = "/test-latch-foreign/leader/election/latch"
        async with connected(zookeeper) as worker:
            latch = LeaderLatch(worker, path, new_uuid=uuids("zk"))
            hold = await held(latch, timeout=20)
            loop = asyncio.get_running_loop()
            foreigner = KazooClient(zookeeper)
            await loop.run_in_executor(None, foreigner.start)
            try:
                create = partial(foreigner.create, f"{path}/_c_7d9f-latch-", ephemeral=True, sequence=True)
                foreign = await loop.run_in_executor(None, create)
                names = await loop.run_in_executor(None, foreigner.get_children, path)
                assert sorted(names, key=latch_order) == [hold.node_path.rpartition("/")[2], foreign.rpartition("/")[2]]
                data, stat = await loop.run_in_executor(None, foreigner.get, hold.node_path)
                assert (data, stat.ephemeralOwner) == (b"", worker.session_id)
                await hold.release()
                assert await latch.acquire(0.5) is None
                acquiring = loop.create_task(latch.acquire(20))
                await loop.run_in_executor(None, foreigner.stop)  # its session ends, and its node with it
                hold_again = await acquiring
                assert hold_again is not None
                await worker.commit([Create("/test-latch-foreign/done"), Delete(hold_again.node_path)])
                hold_again.released_in_transaction()
                assert await worker.children([path]) == [[]]
            finally:
                await loop.run_in_executor(None, foreigner.stop)
                await loop.run_in_executor(None, foreigner.close)

    run(main(), timeout=60)


@pytest.mark.parametrize("seed", range(2))
def test_on_zookeeper_there_is_one_holder_and_no_orphan_under_cuts_and_expiries(zookeeper: str, seed: int) -> None:
    async def main() -> None:
        random = Random(seed)
        path = f"/test-latch-{seed}/latch"
        clock = SystemClock()
        holds: dict[LatchHold, ZooKeeperRegistry] = {}
        acquired = 0

        def is_valid(hold: LatchHold) -> bool:
            """By the holder's own lease, which ends before the server could end the session."""
            registry = holds[hold]
            if hold.session_id in expired:
                return False  # a lease cannot know of an end that somebody else brings about
            return registry.session_id == hold.session_id and registry.lease_until > clock.monotonic()

        async def contend(registry: ZooKeeperRegistry, name: str) -> None:
            nonlocal acquired
            latch = LeaderLatch(registry, path, new_uuid=uuids(name))
            while acquired < 150:
                hold = await latch.acquire(random.choice([0.05, 1, 20]))
                if hold is None:
                    continue
                acquired += 1
                holds[hold] = registry
                assert sum(map(is_valid, holds)) <= 1
                await asyncio.sleep(random.choice([0, 0.01]))
                del holds[hold]
                await hold.release()

        async def trouble() -> None:
            while acquired < 150:
                await asyncio.sleep(random.choice([0.05, 0.2]))
                registry = random.choice(registries)
                if random.random() < 0.7:
                    await loop.run_in_executor(None, random.choice(proxies).cut)
                elif (client_id := registry.client_id) is not None and client_id[0] == registry.session_id:
                    expired.add(client_id[0])
                    await loop.run_in_executor(None, expire_session, zookeeper, client_id)

        loop = asyncio.get_running_loop()
        expired: set[int] = set()
        async with AsyncExitStack() as stack:
            proxies = [stack.enter_context(Proxy(zookeeper)) for _ in range(4)]
            registries = [await stack.enter_async_context(connected(proxy.address)) for proxy in proxies]
            troubling = loop.create_task(trouble())
            await asyncio.gather(*(contend(registry, f"w{i}") for i, registry in enumerate(registries)))
            await troubling
            observer = await stack.enter_async_context(connected(zookeeper))
            for _ in range(200):
                await observer.sync()
                [names] = await observer.children([path])
                if not names:
                    break
                await asyncio.sleep(0.05)  # nodes of sessions that were cut off are deleted at the reconnection
            assert not names
            assert all(registry.session_id is not None for registry in registries)

    run(main(), timeout=120)
