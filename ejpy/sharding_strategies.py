"""Sharding strategies of one's own: what they are, and which class a name stands for.

ejpy's own names are `ShardingStrategyName`. Any other name is one of an entry point in the group `ejpy.sharding_strategies`, or
`module:Class`. Only the leader of a job needs the class: a worker that cannot load it runs its items and does not lead the job.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ejpy.config.model import ShardingStrategyName
from ejpy.entry_points import class_named, class_of, entry_points, named
from ejpy.errors import ConfigError
from ejpy.wording import closest, one_line, shown

GROUP = "ejpy.sharding_strategies"
"""The group of entry points: name → a subclass of ShardingStrategy."""


@dataclass(frozen=True, slots=True)
class ShardingInstance:
    """A worker process that can be given items."""

    instance_id: str
    """`{ip}@-@{pid}.{random}`; of Java workers `{ip}@-@{pid}`."""
    ip: str


class ShardingStrategy(ABC):
    """Subclass it and define `assign`. It is made without arguments, in a thread, once for each job of a worker that names it,
    and anew when the job names another; it is asked only while that worker leads the job."""

    @abstractmethod
    def assign(
        self, job_name: str, sharding_total_count: int, instances: Sequence[ShardingInstance], current: Mapping[int, str]
    ) -> Mapping[int, str]:
        """The `instance_id` for every item from 0 to `sharding_total_count` - 1, among `instances`.

        `instances`: at least one, sorted by id, descending (as ElasticJob's strategies get them). `current`: who has which item
        now; items without owner are missing, and an owner may be gone. Called in a thread on the job's leader, whenever the
        instances or the count are others than before; what it returns stays in force until then, even if it would return
        something else for another `current`. If it raises, or what it returns is not as said above, the assignment stays as it
        is, the log tells of it, and it is called again after some seconds.
        """


def strategy_class(name: str) -> type[ShardingStrategy]:
    """The class that `name` stands for: with a colon `module:Class`, otherwise the name of an entry point, in any case.

    Raises ConfigError with one problem: unknown (with a close name), provided twice, or a class that cannot be used.
    """
    if ":" in name:
        return class_named(name.strip(), ShardingStrategy)
    point = named(GROUP, name.strip().upper(), same=lambda provided, wanted: provided.upper() == wanted)
    if point is None:
        known = [*(own.value for own in ShardingStrategyName), *dict.fromkeys(other.name for other in entry_points(GROUP))]
        near = closest(name, known)
        meant = f"; did you mean {near}? allowed" if near else "; allowed"
        raise ConfigError([f"{shown(name)} is not allowed{meant}: {one_line(', '.join(known))}, or module:Class"])
    return class_of(point, ShardingStrategy)


def checked(assigned: object, sharding_total_count: int, instances: Sequence[ShardingInstance]) -> dict[int, str]:
    """What `ShardingStrategy.assign` returned, if it is as it must be. Raises ValueError."""
    if not isinstance(assigned, Mapping):
        raise ValueError(f"it returned {shown(assigned)}, not a mapping of items to instance ids")
    ids = {instance.instance_id for instance in instances}
    if missing := [item for item in range(sharding_total_count) if item not in assigned]:
        raise ValueError(f"item {missing[0]} is missing in what it returned")
    for item, instance_id in assigned.items():
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < sharding_total_count:
            raise ValueError(f"it returned {shown(item)}, which is no item; items are 0 to {sharding_total_count - 1}")
        if not isinstance(instance_id, str) or instance_id not in ids:
            raise ValueError(f"it gave item {item} to {shown(instance_id)}, which is not among the instances")
    return dict(assigned)
