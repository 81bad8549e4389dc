"""Operations write the nodes that ElasticJob's operation API writes, and nothing else, also while others change the job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import pytest

from ejpy.admin import operations
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import instance_document
from ejpy.errors import NoSuchJob, NothingToDo
from ejpy.registry.base import Committed, Create, Delete, Operation, Registry, ancestors
from ejpy.registry.memory import MemoryRegistry, MemoryStore
from ejpy.testing.virtual_loop import LoopClock, VirtualLoop, run_virtual

NS = "/ns"
PATHS = JobPaths(NS, "job")
ONE, TWO, THREE = "10.0.0.1@-@11.aa", "10.0.0.1@-@12.ab", "10.0.0.2@-@22"
T = TypeVar("T")


class Meddling(MemoryRegistry):
    """Before its next transactions somebody else does what `meddle` holds, one piece each."""

    meddle: list[Callable[[Registry], Awaitable[object]]]

    async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
        if self.meddle:
            other = self.meddle.pop(0)
            meddle, self.meddle = self.meddle, []
            await other(self)
            self.meddle = meddle
        return await super().commit(operations, timeout=timeout)


def on_a_cluster(test: Callable[[Meddling], Awaitable[T]]) -> T:
    """Run `test` on a registry with one job: three instances on two servers, three items."""

    async def main(loop: VirtualLoop) -> T:
        clock = LoopClock(loop)
        registry = Meddling(MemoryStore(clock), clock=clock, session_timeout=10)
        registry.meddle = []
        await registry.start(5)
        await put(registry, PATHS.root, b"m:C")
        await put(registry, PATHS.config, b"cron: x\n")
        for instance in (ONE, TWO, THREE):
            ip = instance.partition("@")[0]
            await put(registry, PATHS.server(ip), b"ENABLED")
            await put(registry, PATHS.instance(instance), instance_document(instance, ip), ephemeral=True)
        for item in range(3):
            await put(registry, PATHS.item_instance(item), ONE.encode())
            await put(registry, PATHS.ledger(item), b"{}")
        try:
            return await test(registry)
        finally:
            await registry.stop(1)

    return run_virtual(main)


async def put(registry: Registry, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
    if (await registry.read([path]))[0] is not None:
        return
    above = ancestors(path)
    missing = [p for p, node in zip(above, await registry.read(above), strict=True) if node is None]
    await registry.commit([*map(Create, missing), Create(path, data, ephemeral=ephemeral)])


async def differences(registry: Registry, before: dict[str, bytes]) -> dict[str, bytes | None]:
    after = await tree(registry)
    return {
        path.removeprefix(PATHS.root): after.get(path)
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    }


async def tree(registry: Registry) -> dict[str, bytes]:
    return {path: node.data for path, node in (await registry.tree(NS)).items()}


def effect(operation: Callable[[Meddling], Awaitable[object]]) -> dict[str, bytes | None]:
    """What an operation changes in the namespace."""

    async def test(registry: Meddling) -> dict[str, bytes | None]:
        before = await tree(registry)
        await operation(registry)
        return await differences(registry, before)

    return on_a_cluster(test)


def test_a_trigger_is_a_node_for_each_instance() -> None:
    assert effect(lambda r: operations.trigger(r, NS, "job")) == {
        "/trigger": b"",
        f"/trigger/{ONE}": b"",
        f"/trigger/{TWO}": b"",
        f"/trigger/{THREE}": b"",
    }


def test_w14_a_second_trigger_never_takes_the_first_away() -> None:
    """ElasticJob's deletes the nodes and makes them anew; a worker may see neither."""

    async def test(registry: Meddling) -> None:
        told = await operations.trigger(registry, NS, "job")
        await registry.commit([Delete(PATHS.trigger(ONE))])
        [first] = await registry.read([PATHS.trigger(TWO)])
        assert await operations.trigger(registry, NS, "job") == told == [ONE, TWO, THREE]
        one, two = await registry.read([PATHS.trigger(ONE), PATHS.trigger(TWO)])
        assert one is not None
        assert two is not None
        assert first is not None
        assert two.revision > first.revision
        assert two.created_revision == first.created_revision

    on_a_cluster(test)


@pytest.mark.parametrize(
    ("ip", "changed"), [("10.0.0.1", ["10.0.0.1"]), (None, ["10.0.0.1", "10.0.0.2"]), ("10.9.9.9", ["10.9.9.9"])]
)
def test_servers_are_disabled_and_enabled(ip: str | None, changed: list[str]) -> None:
    async def both(registry: Meddling) -> None:
        before = await tree(registry)
        assert await operations.enable_server(registry, NS, "job", ip, enabled=False) == changed
        assert await differences(registry, before) == {f"/servers/{each}": b"DISABLED" for each in changed}
        assert await operations.enable_server(registry, NS, "job", ip, enabled=True) == changed
        after = await tree(registry)
        assert {after[PATHS.server(each)] for each in changed} == {b"ENABLED"}

    on_a_cluster(both)


def test_what_is_so_already_is_not_written_again() -> None:
    async def test(registry: Meddling) -> None:
        nodes = await registry.tree(NS)
        await operations.enable_server(registry, NS, "job", enabled=True)
        await operations.enable_item(registry, NS, "job", 1, enabled=True)
        assert await registry.tree(NS) == nodes

    on_a_cluster(test)


def test_an_item_is_disabled_and_enabled() -> None:
    async def test(registry: Meddling) -> None:
        before = await tree(registry)
        for _ in range(2):
            await operations.enable_item(registry, NS, "job", 1, enabled=False)
            assert await differences(registry, before) == {"/sharding/1/disabled": b""}
        for _ in range(2):
            await operations.enable_item(registry, NS, "job", 1, enabled=True)
            assert await differences(registry, before) == {}

    on_a_cluster(test)


@pytest.mark.parametrize(
    ("which", "gone"),
    [({"ip": "10.0.0.1"}, [ONE, TWO]), ({"instance": THREE}, [THREE]), ({}, [ONE, TWO, THREE])],
    ids=["server", "instance", "all"],
)
def test_shutdown_removes_instances(which: dict[str, str], gone: list[str]) -> None:
    changed = effect(lambda r: operations.shutdown(r, NS, "job", **which))
    assert changed == {f"/instances/{instance}": None for instance in gone}


def test_removal_leaves_nothing_of_the_job_and_its_ledger() -> None:
    async def test(registry: Meddling) -> None:
        other = JobPaths(NS, "job2")
        await put(registry, other.config, b"cron: x\n")
        await put(registry, other.ledger(0), b"{}")
        await operations.remove(registry, NS, "job")
        assert await registry.tree(PATHS.root) == await registry.tree(PATHS.term) == {}
        assert None not in await registry.read([other.config, other.ledger(0)])

    on_a_cluster(test)


def test_removal_also_removes_what_a_worker_adds_meanwhile() -> None:
    async def test(registry: Meddling) -> None:
        registry.meddle = [partial(put, path=PATHS.item_running(item), data=b"x") for item in range(4)]
        await operations.remove(registry, NS, "job")
        assert await registry.tree(PATHS.root) == {}

    on_a_cluster(test)


@pytest.mark.parametrize(
    "operation",
    [
        lambda r, job: operations.trigger(r, NS, job),
        lambda r, job: operations.enable_server(r, NS, job, enabled=False),
        lambda r, job: operations.enable_item(r, NS, job, 0, enabled=False),
        lambda r, job: operations.shutdown(r, NS, job),
        lambda r, job: operations.remove(r, NS, job),
    ],
    ids=["trigger", "enable_server", "enable_item", "shutdown", "remove"],
)
def test_a_job_that_is_not_there_is_named(operation: Callable[[Registry, str], Awaitable[object]]) -> None:
    async def test(registry: Meddling) -> None:
        before = await tree(registry)
        with pytest.raises(NoSuchJob, match="nobody"):
            await operation(registry, "nobody")
        assert await tree(registry) == before

    on_a_cluster(test)


def test_what_can_have_no_effect_is_refused() -> None:
    async def test(registry: Meddling) -> None:
        with pytest.raises(NothingToDo, match=r"no item 7: it has 0, 1, 2"):
            await operations.enable_item(registry, NS, "job", 7, enabled=False)
        with pytest.raises(NothingToDo, match=r"10\.9\.9\.9"):
            await operations.shutdown(registry, NS, "job", ip="10.9.9.9")
        await operations.shutdown(registry, NS, "job")
        with pytest.raises(NothingToDo, match="start a worker"):
            await operations.trigger(registry, NS, "job")
        assert (await registry.read([PATHS.triggers])) == [None]

    on_a_cluster(test)


def test_an_operation_starts_over_when_somebody_changed_the_same_nodes() -> None:
    async def test(registry: Meddling) -> None:
        registry.meddle = [lambda r: r.commit([Delete(PATHS.instance(ONE))]), lambda r: put(r, PATHS.triggers)]
        assert await operations.shutdown(registry, NS, "job") == [TWO, THREE]
        registry.meddle = [lambda r: operations.enable_server(r, NS, "job", "10.0.0.1", enabled=False)]
        await operations.enable_server(registry, NS, "job", "10.0.0.1", enabled=False)
        assert (await tree(registry))[PATHS.server("10.0.0.1")] == b"DISABLED"

    on_a_cluster(test)
