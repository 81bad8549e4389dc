"""Which of ElasticJob's marks go with a ledger entry that is written: into the same transaction, so that they never disagree.

Marks are written for those who read nothing else (`marks`). Where a foreign instance is registered, a claim also proves that no
resharding is announced: it makes and removes `leader/sharding/necessary`, which fails if that is there. Whoever reshards
later finds the `running` marks of this claim. (ElasticJob leaves a gap there: between its look at the flag and its marks, others
may be given the items.)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ejpy.coordination.marks import Marks
from ejpy.coordination.paths import JobPaths
from ejpy.registry.base import Create, Delete, Operation, parent_of


def announce_resharding(paths: JobPaths, nodes: Collection[str]) -> list[Operation]:
    """Foreign instances begin nothing while this flag is there. Fails if it is already. `nodes`: paths that exist."""
    flag = paths.resharding_necessary
    parent = [] if parent_of(flag) in nodes else [Create(parent_of(flag))]
    return [*parent, Create(flag)]


@dataclass(frozen=True, slots=True)
class Marking:
    """How this worker marks what it does, at one look."""

    paths: JobPaths
    me: str
    marks: Marks
    nodes: Collection[str]
    """Paths below the job that exist."""
    write: bool
    """Somebody reads marks."""
    persistent: bool
    """`running` outlives its instance, so that the item is failed over."""
    foreign: bool
    """An instance that is no ejpy worker is registered."""
    next_server: str | None = None
    """Whose turn it is after a run here, under SINGLE_SHARDING_BALANCE."""

    def held_by_other(self, item: int) -> bool:
        """See `Marks.held_by_other`."""
        return self.marks.held_by_other(item, self.me)

    def taken(self, item: int) -> bool:
        """This worker took the item of a dead instance over."""
        mark = self.marks.failover.get(item)
        return mark is not None and mark.instance_id == self.me

    def of_claim(self, item: int, *, late: bool) -> list[Operation]:
        """With the claim of an item that no other holds. `late`: this worker has marked it as due while it ran."""
        operations: list[Operation] = []
        left = self.marks.running.get(item)
        if left is not None:
            operations.append(Delete(self.paths.item_running(item), left.version))
        if self.write:
            operations.append(self._running(item))
        if late or item in self.marks.misfire:
            operations.append(Delete(self.paths.item_misfire(item)))
        return operations

    def of_running(self, item: int) -> list[Operation]:
        """For a body that runs here without a mark; none if another's is there."""
        return [] if item in self.marks.running else [self._running(item)]

    def _running(self, item: int) -> Operation:
        return Create(self.paths.item_running(item), self.me.encode(), ephemeral=not self.persistent)

    def own_running(self) -> list[int]:
        """Items with a `running` mark in this worker's name."""
        return [item for item, mark in self.marks.running.items() if mark.instance_id == self.me]

    def of_end(self, item: int, *, marked: bool, release: bool) -> list[Operation]:
        """With the end of a body. `marked`: its claim left a `running` mark. `release`: give it up, if it was taken over."""
        operations: list[Operation] = [Delete(self.paths.item_running(item))] if marked else []
        return [*operations, *self.of_release(item), *self._pass_on()] if release else operations

    def of_release(self, item: int) -> list[Operation]:
        """Give up an item that was taken over."""
        operations: list[Operation] = []
        if self.taken(item):
            operations.append(Delete(self.paths.item_failover(item)))
        left = self.marks.failovering.get(item)
        if left is not None and left.instance_id == self.me:
            operations.append(Delete(self.paths.item_failovering(item), left.version))
        return operations

    def _pass_on(self) -> list[Operation]:
        """It is the next server's turn; the node is of the session of who ran last."""
        if self.next_server is None:
            return []
        path = self.paths.next_server
        there: list[Operation] = [Delete(path)] if path in self.nodes else []
        return [*there, Create(path, self.next_server.encode(), ephemeral=True)]

    def no_resharding(self) -> list[Operation]:
        """Fails while a resharding is announced."""
        if not self.foreign:
            return []
        return [*announce_resharding(self.paths, self.nodes), Delete(self.paths.resharding_necessary)]

    def is_mark(self, path: str) -> bool:
        """Whether a node is a mark: if a condition on it does not hold, the copy of the tree is late, not the ledger entry."""
        if path == self.paths.next_server:
            return True
        names = ("running", "failover", "failovering", "misfire")
        return path == self.paths.resharding_necessary or path.rpartition("/")[2] in names
