"""What a command says: rows, as a table for people or as JSON for machines, and errors, one line each.

Whatever comes from a registry or a file may steer a terminal (colours, titles, a cleared screen). So what is for people is
printed with everything unprintable escaped; JSON escapes it by itself.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Container, Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from ejpy.errors import RegistryError, RegistryUnreachable
from ejpy.wording import one_line

EXIT_USAGE = 2
"""Something is wrong with the configuration or the arguments; nothing was done."""
EXIT_FAILED = 1
"""The registry could not be reached, or the thing asked for does not exist."""


_C1 = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
"""What steers a terminal and JSON lets pass: DEL, and the controls of ISO 8859. They can stand in texts only."""


class Failure(click.ClickException):
    """Ends a command with one line an error, without a stack trace."""

    exit_code = EXIT_FAILED

    def show(self, file: Any = None) -> None:
        for line in self.message.split("\n"):
            click.echo(one_line(line), file=file or sys.stderr, err=True)


class Refusal(Failure):
    """The same, where the configuration or the arguments are at fault."""

    exit_code = EXIT_USAGE


def say(text: str, *, err: bool = False) -> None:
    """Print one line for people."""
    click.echo(one_line(text), err=err)


def print_rows(rows: Sequence[Any], columns: Sequence[str], output: str, *, if_any: Container[str] = ()) -> None:
    """Print rows (instances of one dataclass, whose fields are `columns`) as a table or as a JSON array.

    A table leaves out those of the columns `if_any` that have no value in any row.
    """
    plain = [{column: _plain(getattr(row, column)) for column in columns} for row in rows]
    if output == "json":
        click.echo(json.dumps(plain, indent=2, ensure_ascii=False).translate(_C1))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown = [column for column in columns if column not in if_any or any(row[column] is not None for row in plain)]
    for column in shown:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in plain:
        table.add_row(*(_shown(row[column]) for column in shown))
    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False, markup=False, emoji=False, soft_wrap=False).print(table)


def why_unreachable(error: RegistryError) -> str:
    """The error's text; of a file, which is not running anywhere, what to do about a file."""
    if isinstance(error, RegistryUnreachable) and error.address.startswith("sqlite:"):
        return (
            f"registry {error.address}: {error.cause}; give the path of the workers' file: a worker makes it when it starts, but "
            "not its directory"
        )
    return str(error)


def columns_of(row_type: type[Any]) -> list[str]:
    return [field.name for field in dataclasses.fields(row_type)]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    return value.value if isinstance(value, Enum) else value


def _shown(value: Any) -> str:
    return "–" if value is None else one_line(str(value))
