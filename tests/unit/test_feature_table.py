"""The table of ElasticJob's features: what it claims has a test, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "elasticjob.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::((?:Test\w+::)?test_\w+)`")
LACKING = ("not yet", "not offered")

CONFIGURATION_KEYS = [
    "cron",
    "description",
    "disabled",
    "failover",
    "jobErrorHandlerType",
    "jobExecutorServiceHandlerType",
    "jobExecutorThreadPoolSizeProviderType",
    "jobExtraConfigurations",
    "jobListenerTypes",
    "jobName",
    "jobParameter",
    "jobShardingStrategyType",
    "label",
    "maxTimeDiffSeconds",
    "misfire",
    "monitorExecution",
    "overwrite",
    "props",
    "reconcileIntervalMinutes",
    "shardingItemParameters",
    "shardingTotalCount",
    "staticSharding",
    "timeZone",
]
"""All keys of ElasticJob's configuration of a job (protocol reference, section 1.3)."""


def rows() -> list[list[str]]:
    """The cells of each row, but for headings and rules."""
    lines = PAGE.read_text().splitlines()
    rules = {number for number, line in enumerate(lines) if re.fullmatch(r"\|(-+\|)+", line)}
    heads = {number - 1 for number in rules}
    return [
        re.split(r"\s*\|\s*", line)[1:-1]
        for number, line in enumerate(lines)
        if line.startswith("|") and number not in rules | heads
    ]


@cache
def names_in(path: str) -> frozenset[str]:
    """The functions of a module, and the methods of its classes as `Class::method`."""
    body = ast.parse((ROOT / path).read_text()).body
    names = {one.name for one in body if isinstance(one, ast.FunctionDef)}
    for one in body:
        if isinstance(one, ast.ClassDef):
            names |= {f"{one.name}::{method.name}" for method in one.body if isinstance(method, ast.FunctionDef)}
    return frozenset(names)


def test_each_row_is_a_feature_a_counterpart_and_tests() -> None:
    assert len(rows()) > 80
    assert [row for row in rows() if len(row) != 3] == []


@pytest.mark.parametrize(("path", "name"), sorted(set(TEST.findall(PAGE.read_text()))))
def test_a_test_that_is_named_exists(path: str, name: str) -> None:
    assert name in names_in(path)


def test_what_has_no_test_is_said_to_be_lacking() -> None:
    for feature, counterpart, tests in rows():
        if not TEST.fullmatch(tests.partition("<br>")[0]):
            assert not tests, f"{feature}: {tests!r} names no test"
            assert counterpart.startswith(LACKING), f"{feature} has no test"


def test_tests_are_named_in_one_way_only() -> None:
    for _, _, tests in rows():
        assert [one for one in tests.split("<br>") if one and not TEST.fullmatch(one)] == []


@pytest.mark.parametrize("key", CONFIGURATION_KEYS)
def test_every_configuration_key_is_in_the_table(key: str) -> None:
    assert any(f"`{key}`" in feature for feature, _, _ in rows())
