"""Sharding strategies for real workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ejpy.sharding_strategies import ShardingInstance, ShardingStrategy


class HalfForTheFirst(ShardingStrategy):
    """The first half of the items goes to the instance with the highest id, the rest to the one with the lowest."""

    def assign(
        self, job_name: str, sharding_total_count: int, instances: Sequence[ShardingInstance], current: Mapping[int, str]
    ) -> Mapping[int, str]:
        first, last = instances[0].instance_id, instances[-1].instance_id
        return {item: first if item < sharding_total_count // 2 else last for item in range(sharding_total_count)}


class Fails(ShardingStrategy):
    def assign(
        self, job_name: str, sharding_total_count: int, instances: Sequence[ShardingInstance], current: Mapping[int, str]
    ) -> Mapping[int, str]:
        raise LookupError("the table of strategies is empty")
