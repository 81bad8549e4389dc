"""Somebody who is no ejpy worker, writing a job's nodes by hand: an operator's tool, or an ElasticJob instance, step by step."""

from __future__ import annotations

from ejpy.coordination.view import ENABLED, instance_document
from ejpy.registry.base import Create, Delete, Operation, SetData, ancestors
from ejpy.testing.cluster import SimCluster


class Outsider:
    """Has a session of its own, which `die` ends."""

    def __init__(self, cluster: SimCluster, ip: str = "10.0.0.9", process: str = "4711") -> None:
        self.cluster = cluster
        self.paths = cluster.paths
        self.id = f"{ip}@-@{process}"
        self.ip = ip
        self._session = cluster.store.open_session(1e9, lambda: None)

    def do(self, *operations: Operation) -> None:
        self.cluster.store.commit(self._session, operations)

    def put(self, path: str, data: bytes | str = b"", *, ephemeral: bool = False) -> None:
        """Make a node, with the parents that are missing, or replace its data."""
        data = data.encode() if isinstance(data, str) else data
        missing: list[Operation] = [Create(above) for above in ancestors(path) if self.cluster.store.read(above) is None]
        there = self.cluster.store.read(path) is not None
        self.do(*missing, SetData(path, data) if there else Create(path, data, ephemeral=ephemeral))

    def remove(self, path: str) -> None:
        self.do(Delete(path))

    def exists(self, path: str) -> bool:
        return self.cluster.store.read(path) is not None

    def data(self, path: str) -> str | None:
        node = self.cluster.store.read(path)
        return None if node is None else node.data.decode()

    # -- as an ElasticJob instance does it --

    def join(self) -> None:
        self.put(self.paths.server(self.ip), ENABLED)
        self.put(self.paths.instance(self.id), instance_document(self.id, self.ip), ephemeral=True)

    def begin(self, item: int, *, persistent: bool = False) -> None:
        self.put(self.paths.item_running(item), self.id, ephemeral=not persistent)

    def end(self, item: int) -> None:
        self.remove(self.paths.item_running(item))

    def trigger(self) -> None:
        """For every instance, as the operation API does."""
        self.remove_tree(self.paths.triggers)
        for instance in self.cluster.view().instances:
            self.put(self.paths.trigger(instance))

    def remove_tree(self, root: str) -> None:
        for path in sorted(self.cluster.store.tree(root), reverse=True):
            self.remove(path)

    def die(self) -> None:
        self.cluster.store.expire(self._session)
