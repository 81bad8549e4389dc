"""What a leader knows in its term of office, from its election to its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ejpy.coordination.neglect import Neglect
from ejpy.registry.base import Node

SETTLE_SECONDS = 5.0
ABANDONED_SECONDS = 60.0
"""A server's entry is made before its first instance, and stays while its worker is started anew."""

CONFIG_GONE_SECONDS = 10.0
"""A configuration that is missing for so long was not removed together with its job."""


@dataclass(slots=True)
class Term:
    """This worker's leadership. `version`: of the term node, after this leader's last write."""

    session_id: int | None
    version: int
    settling: dict[str, int] = field(default_factory=dict)
    """Nodes of the last commit, with the revision that the copy of the tree must show before it is judged again."""
    removed: set[str] = field(default_factory=set)
    """Nodes that the last commit removed, which it must not show."""
    settle_by: float = 0.0
    """When not to wait for that any more (monotonic): somebody may have removed a node again."""
    neglect: Neglect = field(default_factory=Neglect)
    checked: bool = False
    """Whether this leader has looked for fires left unclaimed, or will."""
    waiting: set[int] = field(default_factory=set)
    """Items whose ledger entry is watched, since they shall move and cannot: they run, or the entry is of a later ejpy."""
    resting: set[int] = field(default_factory=set)
    """Those of them whose entry is of a later ejpy, or may not be read: they stay where they are, and nobody waits for them."""
    said: set[int] = field(default_factory=set)
    """Items whose entry cannot be read, which was said."""
    tidy_from: float = 0.0
    """When to put right again what is wrong (monotonic): the last time something could not be."""
    untidy: dict[str, int] = field(default_factory=dict)
    """How often something could not be put right, by the first node of each."""
    config_gone: float | None = None
    """Since when the job has had no configuration (monotonic)."""
    without_instance: dict[str, float] = field(default_factory=dict)
    """Servers without an instance, and since when (monotonic)."""
    present: frozenset[str] = frozenset()
    """Ids of the instances that lived at the last look."""

    def see(self, instances: Iterable[str]) -> None:
        """Who lives now. If somebody has gone, the ends that are waited for may be his, and never come: look at all anew."""
        before, self.present = self.present, frozenset(instances)
        if before - self.present:
            self.waiting.clear()

    def abandoned(self, servers: Iterable[str], now: float) -> frozenset[str]:
        """Which of the servers that have no instance have had none for ABANDONED_SECONDS."""
        self.without_instance = {ip: self.without_instance.get(ip, now) for ip in servers}
        return frozenset(ip for ip, since in self.without_instance.items() if now - since >= ABANDONED_SECONDS)

    def wrote(self, paths: Iterable[str], revision: int, now: float, *, removed: Iterable[str] = ()) -> None:
        """Nodes were written, and others removed, in the transaction `revision`; the copy of the tree will show it."""
        self.settling.update(dict.fromkeys(paths, revision))
        self.removed.update(removed)
        self.settle_by = now + SETTLE_SECONDS

    def settled(self, nodes: Mapping[str, Node], now: float) -> bool:
        """The copy of the tree shows what this leader wrote last."""
        for path, revision in list(self.settling.items()):
            node = nodes.get(path)
            if node is not None and node.revision >= revision:
                del self.settling[path]
        self.removed &= nodes.keys()
        return not (self.settling or self.removed) or now >= self.settle_by
