"""Sharding strategies of one's own: by name, and what they may return."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ejpy.errors import ConfigError
from ejpy.sharding_strategies import ShardingInstance, ShardingStrategy, checked, strategy_class

HERE = "tests.unit.test_sharding_strategies"
INSTANCES = [ShardingInstance("b", "10.0.0.2"), ShardingInstance("a", "10.0.0.1")]


class FirstTakesAll(ShardingStrategy):
    def assign(
        self, job_name: str, sharding_total_count: int, instances: Sequence[ShardingInstance], current: Mapping[int, str]
    ) -> Mapping[int, str]:
        return dict.fromkeys(range(sharding_total_count), instances[0].instance_id)


class Unwritten(ShardingStrategy):
    pass


@pytest.fixture
def provided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution that provides strategies."""
    metadata = tmp_path / "dealers-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: dealers\nVersion: 1.2\n")
    points = f"[ejpy.sharding_strategies]\nFIRST = {HERE}:FirstTakesAll\nunwritten = {HERE}:Unwritten\n"
    (metadata / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("provided")
@pytest.mark.parametrize("name", ["FIRST", "First", f"{HERE}:FirstTakesAll", f" {HERE}:FirstTakesAll "])
def test_by_entry_point_in_any_case_or_as_module_and_class(name: str) -> None:
    assert strategy_class(name) is FirstTakesAll


OWN = "AVG_ALLOCATION, ODEVITY, ROUND_ROBIN, SINGLE_SHARDING_BALANCE, STICKY"


@pytest.mark.usefixtures("provided")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "ROUNDROBIN",
            f"'ROUNDROBIN' is not allowed; did you mean ROUND_ROBIN? allowed: {OWN}, FIRST, unwritten, or module:Class",
        ),
        ("x", f"'x' is not allowed; allowed: {OWN}, FIRST, unwritten, or module:Class"),
        (
            "unwritten",
            f"entry point ejpy.sharding_strategies 'unwritten = {HERE}:Unwritten' (dealers 1.2) is abstract;"
            " it must define assign",
        ),
        ("not_there:Class", "not_there:Class cannot be loaded: ModuleNotFoundError: No module named 'not_there'"),
        ("ejpy.job:ShardedJob", "ejpy.job:ShardedJob is not a subclass of ShardingStrategy"),
    ],
)
def test_c1_what_cannot_be_used_is_one_line_that_names_it(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        strategy_class(name)
    assert list(raised.value.problems) == [expected]


def test_what_is_complete_and_among_the_instances_is_taken() -> None:
    assert checked({1: "a", 0: "b"}, 2, INSTANCES) == {0: "b", 1: "a"}


@pytest.mark.parametrize(
    ("assigned", "expected"),
    [
        (None, "it returned None, not a mapping of items to instance ids"),
        ([(0, "a")], "it returned [(0, 'a')], not a mapping of items to instance ids"),
        ({0: "a"}, "item 1 is missing in what it returned"),
        ({0: "a", 1: "b", 2: "a"}, "it returned 2, which is no item; items are 0 to 1"),
        ({0: "a", 1: "b", "1": "a"}, "it returned '1', which is no item; items are 0 to 1"),
        ({0: "a", 1: "c"}, "it gave item 1 to 'c', which is not among the instances"),
        ({0: "a", 1: None}, "it gave item 1 to None, which is not among the instances"),
        ({0: "a", 1: []}, "it gave item 1 to [], which is not among the instances"),
    ],
)
def test_what_else_it_returns_is_refused(assigned: object, expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(expected)}$"):
        checked(assigned, 2, INSTANCES)
