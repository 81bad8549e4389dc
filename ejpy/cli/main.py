"""The `ejpy` command."""

from __future__ import annotations

import click

from ejpy.cli.check import check
from ejpy.cli.look import jobs, shards
from ejpy.cli.worker import worker
from ejpy.version import __version__


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ejpy")
def main() -> None:
    """Scheduled jobs, sharded over many machines, without a central server.

    Exit codes: 0 done; 1 the registry cannot be reached, or what was asked for does not exist; 2 something is wrong with the
    configuration or the arguments, and nothing was done.
    """


for command in (worker, check, jobs, shards):
    main.add_command(command)
