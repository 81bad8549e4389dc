"""Which part of ejpy knows which library. What one part owns alone can be replaced there."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ejpy

PACKAGE = Path(ejpy.__file__).parent

OWNERS = {
    "croniter": {"ejpy.schedule.unix"},
    "apscheduler": {"ejpy.schedule.timer"},
    "kazoo": {"ejpy.registry.zookeeper"},
    "sqlalchemy": {"ejpy.registry.sql", "ejpy.fencing.sql"},
}
"""F16: cron libraries were given up by their authors, and whoever used them everywhere had to look for another in a hurry. The
cron engine is one module's secret; what it must compute is in the tests of `ejpy.schedule`."""

NOT_FOR_DECISIONS = {"asyncio", "kazoo", "sqlalchemy", "socket", "subprocess", "threading", "time"}
"""`coordination` decides: it starts nothing, waits for nothing, reads no clock."""


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(("ejpy", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        yield name, ast.parse(path.read_text(encoding="utf-8"), str(path))


def imported(tree: ast.Module) -> set[str]:
    """The packages and modules of others that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_has_one_owner(library: str) -> None:
    using = {name for name, tree in modules() if library in map(top, imported(tree))}
    assert using, "nobody imports it: has it been replaced?"
    assert {
        name for name in using if not any(name == owner or name.startswith(owner + ".") for owner in OWNERS[library])
    } == set()


def test_other_parts_know_schedules_by_their_fires_only() -> None:
    """F16: nobody outside of `ejpy.schedule` knows of its dialects."""
    engine = {"ejpy.schedule.unix", "ejpy.schedule.quartz", "ejpy.schedule.quartz_fields", "ejpy.schedule.pattern"}
    using = {name for name, tree in modules() if engine & imported(tree)}
    assert using
    assert {name for name in using if not name.startswith("ejpy.schedule.")} == set()


def test_decisions_act_on_nothing() -> None:
    found = {name: set(map(top, imported(tree))) for name, tree in modules() if name.startswith("ejpy.coordination.")}
    assert len(found) > 5
    assert {name: packages & NOT_FOR_DECISIONS for name, packages in found.items() if packages & NOT_FOR_DECISIONS} == {}
    third_party = {package for packages in found.values() for package in packages} - set(sys.stdlib_module_names) - {"ejpy"}
    assert third_party == set()


def part_of(module: str) -> str:
    """The package or the module of `ejpy` itself that a module belongs to."""
    return ".".join(module.split(".")[:2])


def arrows() -> dict[str, set[str]]:
    """Which part of ejpy imports which others."""
    found: dict[str, set[str]] = {}
    for name, tree in modules():
        if name != "ejpy":
            used = {part_of(other) for other in imported(tree) if other.startswith("ejpy.")}
            found[part_of(name)] = found.get(part_of(name), set()) | used - {part_of(name)}
    return found


def test_arrows_run_one_way() -> None:
    """Whoever reads a part needs to know those below it only."""
    left = arrows()
    assert len(left) > 20
    while lowest := {part for part, used in left.items() if not used & left.keys()}:
        left = {part: used for part, used in left.items() if part not in lowest}
    assert left == {}, "these import each other"
