"""Options that several commands share. Each flag has an environment variable `EJPY_…`, shown in `--help`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

CONNECTION_TIMEOUT_SECONDS = 5.0


def option(*declarations: str, **attributes: Any) -> Callable[[Command], Command]:
    """A click option with its environment variable: `--log-level` can be given as EJPY_LOG_LEVEL."""
    name = next(d for d in declarations if d.startswith("--")).lstrip("-").upper().replace("-", "_")
    return click.option(*declarations, envvar=f"EJPY_{name}", show_envvar=True, **attributes)


config_file = option(
    "--config",
    "config",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="The YAML file that describes the jobs.",
)
registry_url = option(
    "--registry",
    "registry",
    metavar="URL",
    help="Where the cluster's state is: zookeeper://host:2181/namespace or sqlite:///file.db. Wins over the file's.",
)
connection_timeout = option(
    "--connection-timeout",
    "connection_timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=CONNECTION_TIMEOUT_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to try to reach the registry at the start.",
)
output = option(
    "-o",
    "--output",
    "output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="The form of the output.",
)
log_level = option(
    "--log-level",
    "log_level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="info",
    show_default=True,
    help="What is logged.",
)
log_format = option(
    "--log-format",
    "log_format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or one JSON object a line.",
)
