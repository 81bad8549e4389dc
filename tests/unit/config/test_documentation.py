"""The reference in docs/configuration.md tells what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ejpy.config.model import JobConfig, camel_case, field_of, file_key, write_value
from ejpy.config_file.file import NEEDED

PAGE = Path(__file__).parents[3] / "docs" / "configuration.md"

_CELL = re.compile(r"(?<!\\)\|")


def table() -> dict[str, list[str]]:
    """The rows of the key reference by key: spelling, type, default, meaning."""
    _, _, after = PAGE.read_text(encoding="utf-8").partition("|---|---|---|---|---|\n")
    rows = [line for line in after.split("\n\n")[0].splitlines() if line]
    cells = [[cell.strip() for cell in _CELL.split(row)[1:-1]] for row in rows]
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_key_is_in_the_reference_and_no_other() -> None:
    assert set(table()) == {file_key(name) for name in JobConfig.model_fields} - {"job_name"}


@pytest.mark.parametrize("key", table())
def test_the_reference_gives_spelling_and_default(key: str) -> None:
    spelling, kind, default, meaning = table()[key]
    name = field_of(key)
    assert name is not None
    assert spelling == ("–" if key == "class" else f"`{camel_case(name)}`")
    info = JobConfig.model_fields[name]
    value = info.get_default(call_default_factory=True) if not info.is_required() else None
    if key in NEEDED:
        expected = {"required"}
    elif value is None:
        expected = {"none", "the worker's", "by class"}
    elif value in ({}, ()):
        expected = {"none", "`{}`"}
    else:
        expected = {f"`{write_value(value)}`" if value != "" else "`''`"}
    assert default in expected
    assert kind
    assert meaning
