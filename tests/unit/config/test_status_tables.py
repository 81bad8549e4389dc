"""docs/operations.md explains what `ejpy jobs list` and `ejpy shards list` show."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

import pytest

from ejpy.terms import ItemStatus, JobStatus

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


def tables() -> dict[str, dict[str, str]]:
    """The tables of statuses by the command that stands before them: meaning by status, in their order."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## What the statuses mean\n")
    found = {}
    for command, rows in re.findall(r"`ejpy (\w+) list` shows [^|]*\n\n\| status \|.*\n\|[-|]+\n((?:\|.*\n)+)", section):
        cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows.splitlines()]
        found[command] = {row[0].strip("`"): row[1] for row in cells}
    return found


@pytest.mark.parametrize(("command", "statuses"), [("jobs", JobStatus), ("shards", ItemStatus)])
def test_every_status_is_explained_and_no_other(command: str, statuses: type[Enum]) -> None:
    table = tables()[command]
    assert sorted(table) == sorted(status.value for status in statuses)
    assert all(table.values())
