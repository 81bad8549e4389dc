"""Strategies: which instance shall run which sharding item.

ElasticJob's strategies are pure functions of the job's name, the item count and the instance ids sorted in *descending*
order (`AverageAllocationJobShardingStrategy` and its siblings). They deal out blocks, so
that one worker that joins or leaves moves most items. SINGLE_SHARDING_BALANCE starts its blocks anywhere, by the clock, and
so has to be told what it dealt before. STICKY is ejpy's own: as even, with the fewest possible moves.
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
    *,
    now_ms: int = 0,
) -> dict[int, str]:
    """The instance for every item 0 … total-1; empty if there are no instances.

    `instances` are distinct ids in any order; `current` is what STICKY keeps where it can, and SINGLE_SHARDING_BALANCE if it
    is as that strategy deals. `now_ms`: milliseconds since the epoch, which SINGLE_SHARDING_BALANCE begins by.
    """
    descending = sorted(instances, reverse=True)
    if not descending:
        return {}
    if strategy is ShardingStrategyName.STICKY:
        return _sticky(total, descending, current)
    if strategy is ShardingStrategyName.ODEVITY:
        return _average(total, descending if java_hash(job_name) % 2 else descending[::-1])
    if strategy is ShardingStrategyName.ROUND_ROBIN:
        return _average(total, _rotated(descending, abs(java_hash(job_name))))
    if strategy is ShardingStrategyName.SINGLE_SHARDING_BALANCE:
        return _balanced(job_name, total, descending, current, now_ms)
    return _average(total, descending)


def java_hash(text: str) -> int:
    """`String.hashCode()` of Java: h = 31·h + UTF-16 code unit, wrapped to signed 32 bits."""
    value = 0
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return _java_int(value)


def _java_int(value: int) -> int:
    """The low 32 bits, with their sign."""
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low & 0x80000000 else low


def _balanced(job_name: str, total: int, instances: Sequence[str], current: Mapping[int, str], now_ms: int) -> dict[int, str]:
    """ElasticJob deals anew at every sharding; here the same fleet keeps what it has."""
    first = current.get(0)
    if first in instances:
        kept = _average(total, _rotated(instances, instances.index(first)))
        if all(current.get(item) == owner for item, owner in kept.items()):
            return kept
    return _average(total, _rotated(instances, abs(_java_int(java_hash(job_name) + now_ms))))


def _rotated(instances: Sequence[str], by: int) -> list[str]:
    start = by % len(instances)
    return [*instances[start:], *instances[:start]]


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
