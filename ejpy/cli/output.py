"""Printing rows: as a table for people, as JSON for machines."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

EXIT_USAGE = 2
"""Something is wrong with the configuration or the arguments; nothing was done."""
EXIT_FAILED = 1
"""The registry could not be reached, or the thing asked for does not exist."""


class Failure(click.ClickException):
    """Ends a command with one line an error, without a stack trace."""

    exit_code = EXIT_FAILED

    def show(self, file: Any = None) -> None:
        for line in self.message.splitlines():
            click.echo(line, file=file or sys.stderr, err=True)


class Refusal(Failure):
    """The same, where the configuration or the arguments are at fault."""

    exit_code = EXIT_USAGE


def print_rows(rows: Sequence[Any], columns: Sequence[str], output: str) -> None:
    """Print rows (instances of one dataclass, whose fields are `columns`) as a table or as a JSON array."""
    plain = [{column: _plain(getattr(row, column)) for column in columns} for row in rows]
    if output == "json":
        click.echo(json.dumps(plain, indent=2, ensure_ascii=False))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in plain:
        table.add_row(*(_shown(row[column]) for column in columns))
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False, markup=False, soft_wrap=False).print(table)


def columns_of(row_type: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(row_type)]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    return value.value if isinstance(value, Enum) else value


def _shown(value: Any) -> str:
    return "–" if value is None else str(value)
