"""Strategies: complete, disjoint, even; ElasticJob's to the item, STICKY with the fewest moves; the same in every process."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.config.model import ShardingStrategyName
from ejpy.coordination.sharding import assign, java_hash

AVG, ODEVITY = ShardingStrategyName.AVG_ALLOCATION, ShardingStrategyName.ODEVITY
ROUND_ROBIN, STICKY = ShardingStrategyName.ROUND_ROBIN, ShardingStrategyName.STICKY
BALANCE = ShardingStrategyName.SINGLE_SHARDING_BALANCE
ELASTICJOBS = (AVG, ODEVITY, ROUND_ROBIN)

A, B, C = "10.0.0.1@-@11", "10.0.0.2@-@22", "10.0.0.3@-@33"
REPOSITORY = Path(__file__).parents[3]

names = st.text(min_size=1, max_size=30)
instance_ids = st.lists(
    st.builds("10.0.0.{}@-@{}".format, st.integers(1, 20), st.integers(1, 30)), min_size=1, max_size=12, unique=True
)


def dealt(strategy: ShardingStrategyName, total: int, instances: Sequence[str], job: str = "job") -> list[list[int]]:
    """The items of each instance, in the order in which the instances are given."""
    owner_of = assign(strategy, job, total, instances, {})
    return [[item for item in range(total) if owner_of.get(item) == instance] for instance in instances]


# ---- worked examples ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "strategy", "job", "in_order"),
    [
        (9, AVG, "any", {C: [0, 1, 2], B: [3, 4, 5], A: [6, 7, 8]}),
        (8, AVG, "any", {C: [0, 1, 6], B: [2, 3, 7], A: [4, 5]}),
        (10, AVG, "any", {C: [0, 1, 2, 9], B: [3, 4, 5], A: [6, 7, 8]}),
        (2, AVG, "any", {C: [0], B: [1], A: []}),
        (8, ODEVITY, "myJob", {C: [0, 1, 6], B: [2, 3, 7], A: [4, 5]}),
        (8, ODEVITY, "test_job", {A: [0, 1, 6], B: [2, 3, 7], C: [4, 5]}),
        (8, ROUND_ROBIN, "javaSimpleJob", {A: [0, 1, 6], C: [2, 3, 7], B: [4, 5]}),
        (8, ROUND_ROBIN, "demo", {B: [0, 1, 6], A: [2, 3, 7], C: [4, 5]}),
    ],
)
def test_elasticjobs_worked_examples(
    total: int, strategy: ShardingStrategyName, job: str, in_order: Mapping[str, list[int]]
) -> None:
    assert dealt(strategy, total, list(in_order), job) == list(in_order.values())


@pytest.mark.parametrize(
    ("strategy", "job", "total", "expected"),
    [
        (AVG, "any", 9, [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        (AVG, "any", 8, [[0, 1, 6], [2, 3, 7], [4, 5]]),
        (AVG, "any", 10, [[0, 1, 2, 9], [3, 4, 5], [6, 7, 8]]),
        (AVG, "any", 2, [[0], [1], []]),
        (ODEVITY, "b", 2, [[], [1], [0]]),
        (ODEVITY, "a", 2, [[0], [1], []]),
        (ROUND_ROBIN, "a", 3, [[2], [0], [1]]),
    ],
)
def test_c2_allocation_in_listing_order(strategy: ShardingStrategyName, job: str, total: int, expected: list[list[int]]) -> None:
    """C2: allocation is complete, disjoint and stable. ElasticJob lists instances in descending order."""
    listed = ["i3", "i2", "i1"]
    assert dealt(strategy, total, listed, job) == expected
    assert dealt(strategy, total, listed[::-1], job) == expected[::-1], "the order in which instances are given counts"


@pytest.mark.parametrize("strategy", ShardingStrategyName)
def test_c2_without_instances_nothing_is_assigned_and_nothing_is_wrong(strategy: ShardingStrategyName) -> None:
    assert assign(strategy, "job", 1, [], {0: A}) == {}


def test_the_order_of_instances_is_that_of_their_texts() -> None:
    nine, ten = "10.0.0.1@-@9", "10.0.0.1@-@10"
    assert assign(AVG, "job", 2, [ten, nine], {}) == {0: nine, 1: ten}


WORKERS = ["10.42.3.17@-@1.5f0c9a2e", "10.42.5.4@-@1.c4b81d07", "10.42.5.4@-@1.09ee61b3"]
NAMES = "orders invoices stock mail users prices reports taxes carts refunds images"
DEEDS = "sync archive export import clean check notify merge count"
NINETY_NINE = [f"{name}-{deed}" for name, deed in product(NAMES.split(), DEEDS.split())]


def test_c10_many_jobs_of_one_item_are_on_one_worker_by_default_and_spread_with_round_robin() -> None:
    """C10: a hundred jobs of one item were all on one node. That is what AVG_ALLOCATION means; ROUND_ROBIN begins elsewhere
    for each name."""
    assert len(set(NINETY_NINE)) == 99

    def jobs_of_each(strategy: ShardingStrategyName) -> Counter[str]:
        return Counter(assign(strategy, job, 1, WORKERS, {})[0] for job in NINETY_NINE)

    assert jobs_of_each(AVG) == {max(WORKERS): 99}
    spread = jobs_of_each(ROUND_ROBIN)
    assert set(spread) == set(WORKERS)
    assert all(15 <= jobs <= 51 for jobs in spread.values()), spread


@pytest.mark.parametrize(
    ("job", "now_ms", "expected"),
    [
        ("a", 0, [[2], [0], [1]]),
        ("a", 1, [[1], [2], [0]]),
        ("a", 2**32, [[2], [0], [1]]),
        ("polygenelubricants", 0, [[1], [2], [0]]),
        ("polygenelubricants", -1, [[2], [0], [1]]),
    ],
)
def test_single_sharding_balance_begins_by_hash_and_clock(job: str, now_ms: int, expected: list[list[int]]) -> None:
    listed = ["i3", "i2", "i1"]
    owner_of = assign(BALANCE, job, 3, listed, {}, now_ms=now_ms)
    assert [[item for item, owner in owner_of.items() if owner == instance] for instance in listed] == expected


@given(names, st.integers(1, 30), instance_ids, st.integers(0, 2**42), st.integers(0, 2**42))
def test_single_sharding_balance_keeps_what_it_dealt(job: str, total: int, instances: list[str], before: int, now: int) -> None:
    dealt_before = assign(BALANCE, job, total, instances, {}, now_ms=before)
    assert assign(BALANCE, job, total, instances, dealt_before, now_ms=now) == dealt_before


# ---- ElasticJob's hash ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("b", 98),
        ("demo", 3079651),
        ("myJob", 104343153),
        ("test_job", -1146456432),
        ("javaSimpleJob", -694093655),
        ("polygenelubricants", -(2**31)),
        ("任务", 31 * 0x4EFB + 0x52A1),
        ("😀", 31 * 0xD83D + 0xDE00),
    ],
)
def test_java_hash(text: str, expected: int) -> None:
    """As `String.hashCode()`: over UTF-16 code units, so that a character beyond U+FFFF counts as two."""
    assert java_hash(text) == expected


@given(st.text(max_size=60), st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]))
def test_java_hash_follows_its_recurrence_in_signed_32_bits(text: str, last: str) -> None:
    wrapped = (31 * java_hash(text) + ord(last) + 2**31) % 2**32 - 2**31
    assert java_hash(text + last) == wrapped


C1_NAMES = ["polygenelubricants", "任务", "x", "长" * 500, "GydZG_", "DESIGNING WORKHOUSES"]


@pytest.mark.parametrize("job", C1_NAMES)
@pytest.mark.parametrize("strategy", ShardingStrategyName)
def test_c1_no_name_makes_an_index_negative(strategy: ShardingStrategyName, job: str) -> None:
    """C1: the hash of `polygenelubricants` is -2**31, whose absolute value is still negative in Java."""
    assert [len(items) for items in dealt(strategy, 3, ["i1", "i2", "i3"], job)] == [1, 1, 1]


def test_c1_the_same_in_every_process() -> None:
    """C1: Python's own `hash` of a text differs from process to process; a new leader would reshuffle everything."""
    script = (
        "from ejpy.coordination.sharding import assign; from ejpy.config.model import ShardingStrategyName as S; import sys;"
        "ids = {f'10.0.0.{i}@-@{i}' for i in range(7)}; current = {i: f'10.0.0.{i % 3}@-@{i % 3}' for i in {*range(23)}};"
        "print([sorted(assign(s, job, 23, [*ids], current).items()) for s in S for job in sys.argv[1:]])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script, *C1_NAMES],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(REPOSITORY), "PYTHONUTF8": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "4294967295")
    }
    assert len(outputs) == 1
    assert outputs.pop().count("(22, '10.0.0.") == len(ShardingStrategyName) * len(C1_NAMES)


# ---- what holds for every strategy ------------------------------------------------------------------------------------


@given(st.sampled_from(ShardingStrategyName), names, st.integers(1, 80), instance_ids, st.data())
def test_c2_complete_disjoint_and_even(
    strategy: ShardingStrategyName, job: str, total: int, instances: list[str], data: st.DataObject
) -> None:
    current = data.draw(st.dictionaries(st.integers(0, 100), st.sampled_from([*instances, "gone"])))
    owner_of = assign(strategy, job, total, instances, current)
    assert sorted(owner_of) == list(range(total))
    assert set(owner_of.values()) <= set(instances)
    sizes = [list(owner_of.values()).count(instance) for instance in instances]
    assert max(sizes) - min(sizes) <= 1


@given(st.sampled_from(ShardingStrategyName), names, st.integers(1, 40), instance_ids, st.randoms(use_true_random=False))
def test_the_order_in_which_instances_are_seen_does_not_count(
    strategy: ShardingStrategyName, job: str, total: int, instances: list[str], random: Random
) -> None:
    current = {item: random.choice(instances) for item in range(0, total, 2)}
    shuffled = random.sample(instances, len(instances))
    assert assign(strategy, job, total, instances, current) == assign(strategy, job, total, shuffled, current)


@given(st.sampled_from(ELASTICJOBS), names, st.integers(1, 40), instance_ids)
def test_elasticjobs_strategies_do_not_look_at_who_has_what(
    strategy: ShardingStrategyName, job: str, total: int, instances: list[str]
) -> None:
    current = dict.fromkeys(range(total), instances[0])
    assert assign(strategy, job, total, instances, current) == assign(strategy, job, total, instances, {})


# ---- STICKY -------------------------------------------------------------------------------------------------------------


def moves(before: Mapping[int, str], after: Mapping[int, str]) -> int:
    return sum(before.get(item) != owner for item, owner in after.items())


def fewest_moves(total: int, instances: Sequence[str], current: Mapping[int, str]) -> int:
    """By trying everything."""
    share, larger = divmod(total, len(instances))
    even = sorted([share + 1] * larger + [share] * (len(instances) - larger))
    return min(
        moves(current, dict(enumerate(owners)))
        for owners in product(instances, repeat=total)
        if sorted(owners.count(instance) for instance in instances) == even
    )


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), st.data())
def test_sticky_moves_as_few_items_as_can_be(total: int, count: int, data: st.DataObject) -> None:
    instances = ["i1", "i2", "i3"][:count]
    current = data.draw(st.dictionaries(st.integers(0, 7), st.sampled_from([*instances, "gone"])))
    assert moves(current, assign(STICKY, "job", total, instances, current)) == fewest_moves(total, instances, current)


@given(st.integers(1, 60), instance_ids, st.data())
def test_sticky_is_stable_when_nothing_changed(total: int, instances: list[str], data: st.DataObject) -> None:
    current = data.draw(st.dictionaries(st.integers(0, 70), st.sampled_from([*instances, "gone"])))
    settled = assign(STICKY, "job", total, instances, current)
    assert assign(STICKY, "job", total, instances, settled) == settled


@given(st.integers(1, 40), st.lists(st.sets(st.sampled_from([f"i{n}" for n in range(8)]), min_size=1), min_size=2, max_size=12))
def test_sticky_over_any_history_of_joins_and_leaves(total: int, memberships: list[set[str]]) -> None:
    """Items of those who left are dealt out; of those who stayed only so many move as evenness asks for."""
    history = [assign(STICKY, "job", total, sorted(memberships[0]), {})]
    for members in memberships[1:]:
        history.append(assign(STICKY, "job", total, sorted(members), history[-1]))
    for (old, new), (before, after) in zip(pairwise(memberships), pairwise(history), strict=True):
        held = Counter(before.values())
        largest = -(-total // len(new))
        orphans = sum(held[instance] for instance in old - new)
        excess = sum(max(0, held[instance] - total // len(new)) for instance in new)
        moved = moves(before, after)
        assert orphans <= moved <= orphans + excess
        if new == old:
            assert moved == 0
        elif new < old:
            assert moved == orphans, "somebody left, and an item of those who stayed moved"
        elif old < new:
            gained = sum(count for instance, count in Counter(after.values()).items() if instance not in old)
            assert moved == gained, "somebody came, and an item moved between those who were there"
        assert max(Counter(after.values()).values()) <= largest


@pytest.mark.parametrize(("before", "after"), [(3, 6), (6, 3), (5, 5)])
def test_sticky_when_the_item_count_changes_moves_only_what_must(before: int, after: int) -> None:
    instances = ["i1", "i2", "i3"]
    current = assign(STICKY, "job", before, instances, {})
    changed = assign(STICKY, "job", after, instances, current)
    kept = {item: owner for item, owner in current.items() if item < after}
    least = fewest_moves(after, instances, kept)
    assert moves(kept, changed) == least
