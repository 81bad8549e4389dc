"""ElasticJob's marks below a job: who runs an item, who failed it over, what missed its time, who shall run at once.

Among ejpy workers the ledger says all of this, and better. The marks are for others: Java workers of the same job, and
elasticjob-ui. So ejpy *heeds* marks always, and *writes* them only while somebody reads them: a foreign instance is
registered, or the job asks for it (`running_marks`).

    running      {id}, while the item's body runs; ephemeral, or persistent with `failover`, so that it outlives a crash
    misfire      empty; the item was running when it was due
    failover     {id} of who took the item of a dead instance over; ephemeral
    failovering  the same, persistent: so that the death of the taker is seen
    leader/failover/items/{i}   the item waits for somebody to take it over
    trigger/{id} that instance shall run its items now
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import ITEM, JobView
from ejpy.registry.base import Node


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark that names an instance."""

    instance_id: str
    version: int


@dataclass(frozen=True, slots=True)
class Marks:
    """All marks of a job, at one look."""

    running: Mapping[int, Mark] = field(default_factory=dict)
    failover: Mapping[int, Mark] = field(default_factory=dict)
    failovering: Mapping[int, Mark] = field(default_factory=dict)
    misfire: frozenset[int] = frozenset()
    to_fail_over: frozenset[int] = frozenset()
    triggers: Mapping[str, Node] = field(default_factory=dict)

    def taken_by(self, instance_id: str) -> list[int]:
        """Items that this instance took over, and has not ended."""
        return sorted(item for item, mark in self.failover.items() if mark.instance_id == instance_id)

    def held_by_other(self, item: int, me: str) -> bool:
        """Whether the marks say that this item is somebody else's matter at the moment: it runs there, it waits for being
        failed over, or it was taken over."""
        running, taken = self.running.get(item), self.failover.get(item)
        if running is not None and running.instance_id != me:
            return True
        if taken is not None:
            return taken.instance_id != me
        return item in self.to_fail_over


def is_foreign(instance_id: str) -> bool:
    """Whether an instance is no ejpy worker: it keeps no ledger, and looks at marks only.

    ejpy's ids end in a random part after a dot; ElasticJob's end with the number of the process.
    """
    return "." not in instance_id.rpartition("@-@")[2]


def foreign_instances(view: JobView) -> frozenset[str]:
    """Ids of the live instances that are no ejpy workers."""
    return frozenset(filter(is_foreign, view.instances))


def marks_of(nodes: Mapping[str, Node], paths: JobPaths) -> Marks:
    """Read a job's nodes (path → node). What cannot be understood is left out."""
    by_item: dict[str, dict[int, Mark]] = {"running": {}, "failover": {}, "failovering": {}}
    misfire: set[int] = set()
    waiting: set[int] = set()
    triggers: dict[str, Node] = {}
    start = len(paths.root) + 1
    for path, node in nodes.items():
        parts = path[start:].split("/")
        if parts[0] == "sharding" and len(parts) == 3 and ITEM.fullmatch(parts[1]):
            item = int(parts[1])
            if parts[2] in by_item:
                by_item[parts[2]][item] = Mark(node.data.decode("utf-8", "replace"), node.version)
            elif parts[2] == "misfire":
                misfire.add(item)
        elif parts[0] == "trigger" and len(parts) == 2:
            triggers[parts[1]] = node
        elif parts[:3] == ["leader", "failover", "items"] and len(parts) == 4 and ITEM.fullmatch(parts[3]):
            waiting.add(int(parts[3]))
    return Marks(
        running=by_item["running"],
        failover=by_item["failover"],
        failovering=by_item["failovering"],
        misfire=frozenset(misfire),
        to_fail_over=frozenset(waiting),
        triggers=triggers,
    )


def dead(marks: Mapping[int, Mark], live: Collection[str]) -> dict[int, Mark]:
    """Marks whose instances are gone."""
    return {item: mark for item, mark in marks.items() if mark.instance_id not in live}
