"""Operations on a running cluster: what ElasticJob's operation API does, node by node (`JobOperateAPI`, `ShardingOperateAPI`).

Java workers and ejpy's obey the same nodes, so either side's tools steer both. Each function reads, writes in as few transactions
as fit, and starts over when somebody changed the same nodes meanwhile; so each is whole or, over the size of a transaction,
can be repeated. All raise NoSuchJob if the namespace has no such job, and RegistryError.
"""

from __future__ import annotations

from collections.abc import Callable

from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import DISABLED, ENABLED, JobView, view_of
from ejpy.errors import GuardFailed, NoSuchJob, NothingToDo, RegistryError
from ejpy.registry.base import Check, Create, Delete, Node, Operation, Registry, SetData, in_transactions, parent_of

ATTEMPTS = 20
"""How often an operation starts over because others changed the same nodes."""

Nodes = dict[str, Node]


async def trigger(registry: Registry, namespace: str, job: str) -> list[str]:
    """Have every live instance run its items of the job once, now. Returns the ids of the instances that were told.

    An item that runs at the moment runs again when it ends; several triggers until then are one. Raises NothingToDo if no
    instance is there.
    """
    paths = JobPaths(namespace, job)

    def plan(nodes: Nodes, view: JobView) -> list[Operation]:
        if not view.instances:
            raise NothingToDo(f"job '{job}' has no live instance: nobody would run it; start a worker")
        parent = [] if paths.triggers in nodes else [Create(paths.triggers)]
        told = sorted(view.instances)  # each alive when it is told: its items are looked after from then on
        return [*parent, *(op for each in told for op in (Check(paths.instance(each)), _put(nodes, paths.trigger(each), b"")))]

    return sorted((await _carry_out(registry, paths, plan)).instances)


async def enable_server(registry: Registry, namespace: str, job: str, ip: str | None = None, *, enabled: bool) -> list[str]:
    """Enable or disable a server (an address) for the job, or with `ip` None the job on all its servers; returns the addresses.

    A disabled server runs nothing of the job, keeps what runs running, and leads no more.
    """
    paths = JobPaths(namespace, job)

    def addresses(view: JobView) -> list[str]:
        return sorted(view.servers) if ip is None else [ip]

    def plan(nodes: Nodes, view: JobView) -> list[Operation]:
        if not addresses(view):
            raise NothingToDo(f"job '{job}' has no server: start a worker first")
        data = ENABLED if enabled else DISABLED
        return [
            _put(nodes, paths.server(each), data)
            for each in addresses(view)
            if paths.server(each) not in nodes or nodes[paths.server(each)].data != data
        ]

    return addresses(await _carry_out(registry, paths, plan))


async def enable_item(registry: Registry, namespace: str, job: str, item: int, *, enabled: bool) -> None:
    """Enable or disable one sharding item; it stays assigned. Raises NothingToDo if there is no such item."""
    paths = JobPaths(namespace, job)

    def plan(nodes: Nodes, view: JobView) -> list[Operation]:
        if paths.item(item) not in nodes:
            there = f"it has {', '.join(map(str, sorted(view.items)))}" if view.items else "nobody has assigned its items yet"
            raise NothingToDo(f"job '{job}' has no item {item}: {there}")
        disabled = paths.item_disabled(item)
        if enabled == (disabled not in nodes):
            return []
        return [Delete(disabled) if enabled else Create(disabled)]

    await _carry_out(registry, paths, plan)


async def shutdown(
    registry: Registry, namespace: str, job: str, *, ip: str | None = None, instance: str | None = None
) -> list[str]:
    """Have the job end on one instance, on all of one server, or (neither given) on all, until they are started again.

    Bodies are told to stop. Returns the ids of the instances. Raises NothingToDo if none is meant.
    """
    paths = JobPaths(namespace, job)
    meant: list[str] = []

    def plan(nodes: Nodes, view: JobView) -> list[Operation]:
        meant[:] = sorted(
            i.id for i in view.instances.values() if (ip is None or i.ip == ip) and (instance is None or i.id == instance)
        )
        if not meant:
            which = instance or (f"on server {ip}" if ip else "at all")
            raise NothingToDo(f"job '{job}' has no live instance {which}")
        return [Delete(paths.instance(each)) for each in meant]

    await _carry_out(registry, paths, plan)
    return meant


async def remove(registry: Registry, namespace: str, job: str) -> None:
    """Remove the job: its whole tree, then its ledger. Workers that still run it stop, and do not make it again.

    Repeat it if it fails on the way (a worker that starts at this moment may register the job anew).
    """
    paths = JobPaths(namespace, job)
    nodes = await _tree(registry, paths)
    for instance in [path for path in nodes if parent_of(path) == paths.instances]:
        await _delete(registry, [instance])  # first, as ElasticJob does: the workers understand it as an order
    for root in (paths.root, paths.term):
        for _ in range(ATTEMPTS):
            below = sorted(await registry.tree(root), key=lambda path: (-path.count("/"), path))
            if not below:
                break
            await _delete(registry, below)
        else:
            raise RegistryError(f"{root}: could not be removed in {ATTEMPTS} attempts: somebody keeps adding to it")


async def _tree(registry: Registry, paths: JobPaths) -> Nodes:
    nodes = await registry.tree(paths.root)
    if paths.config not in nodes:
        raise NoSuchJob(
            f"there is no job '{paths.job}' in {registry.address}{paths.namespace}; `ejpy jobs list` shows those that are"
        )
    return nodes


async def _carry_out(registry: Registry, paths: JobPaths, plan: Callable[[Nodes, JobView], list[Operation]]) -> JobView:
    """Read, plan, write; again if a guard failed. Returns the view that the plan was made from."""
    for _ in range(ATTEMPTS):
        nodes = await _tree(registry, paths)
        view = view_of(nodes, paths)
        try:
            for batch in _batches(registry, plan(nodes, view)):
                await registry.commit(batch)
            return view
        except GuardFailed:
            continue
    raise RegistryError(f"{paths.root}: not done in {ATTEMPTS} attempts: others keep changing it; try again")


def _batches(registry: Registry, operations: list[Operation]) -> list[list[Operation]]:
    return in_transactions(_with_their_checks(operations), max_operations=registry.max_operations, max_bytes=registry.max_bytes)


def _with_their_checks(operations: list[Operation]) -> list[list[Operation]]:
    """A check belongs to the operation that it stands before."""
    groups: list[list[Operation]] = [[]]
    for operation in operations:
        groups[-1].append(operation)
        if not isinstance(operation, Check):
            groups.append([])
    return [group for group in groups if group]


async def _delete(registry: Registry, paths: list[str]) -> None:
    """As far as they are there: what is gone already is what was wanted, and what has got children meanwhile comes next."""
    for batch in _batches(registry, [Delete(path) for path in paths]):
        try:
            await registry.commit(batch)
        except GuardFailed:
            for operation in batch:
                try:
                    await registry.commit([operation])
                except GuardFailed:
                    continue


def _put(nodes: Nodes, path: str, data: bytes) -> Operation:
    return SetData(path, data, nodes[path].version) if path in nodes else Create(path, data)
