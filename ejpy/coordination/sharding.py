"""Strategies: which instance shall run which sharding item.

ElasticJob's strategies are pure functions of the job's name, the item count and the instance ids sorted in *descending*
order (protocol reference, section 4.5; `AverageAllocationJobShardingStrategy` and its siblings). They deal out blocks, so
that one worker that joins or leaves moves most items. STICKY is ejpy's own: as even, with the fewest possible moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ejpy.config.model import ShardingStrategyName


def assign(
    strategy: ShardingStrategyName,
    job_name: str,
    total: int,
    instances: Sequence[str],
    current: Mapping[int, str],
) -> dict[int, str]:
    """The instance for every item 0 … total-1; empty if there are no instances.

    `instances` are distinct ids in any order; `current` is what STICKY keeps where it can.
    """
    descending = sorted(instances, reverse=True)
    if not descending:
        return {}
    if strategy is ShardingStrategyName.STICKY:
        return _sticky(total, descending, current)
    if strategy is ShardingStrategyName.ODEVITY:
        return _average(total, descending if java_hash(job_name) % 2 else descending[::-1])
    if strategy is ShardingStrategyName.ROUND_ROBIN:
        offset = abs(java_hash(job_name)) % len(descending)
        return _average(total, descending[offset:] + descending[:offset])
    return _average(total, descending)


def java_hash(text: str) -> int:
    """`String.hashCode()` of Java: h = 31·h + UTF-16 code unit, wrapped to signed 32 bits."""
    value = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value & 0x80000000 else value


def _average(total: int, instances: Sequence[str]) -> dict[int, str]:
    """Blocks of total/n items in order, then the remainder one by one from the first instance on."""
    block = total // len(instances)
    dealt = block * len(instances)
    return {item: instances[item // block if item < dealt else item - dealt] for item in range(total)}


def _sticky(total: int, instances: Sequence[str], current: Mapping[int, str]) -> dict[int, str]:
    """Everyone keeps what it has up to its share; the rest goes to those below theirs.

    The larger shares (one more, for total mod n instances) go to those who hold most now, so that nothing moves in vain.
    """
    held: dict[str, list[int]] = {instance: [] for instance in instances}
    for item in range(total):
        owner = current.get(item)
        if owner in held:
            held[owner].append(item)
    share, larger = divmod(total, len(instances))
    by_load = sorted(instances, key=lambda instance: -len(held[instance]))
    shares = {instance: share + (rank < larger) for rank, instance in enumerate(by_load)}
    result = {item: owner for owner, items in held.items() for item in items[: shares[owner]]}
    free = (item for item in range(total) if item not in result)
    for instance in instances:
        for _ in range(shares[instance] - len(held[instance])):
            result[next(free)] = instance
    return result
