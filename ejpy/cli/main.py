"""The `ejpy` command."""

from __future__ import annotations

import os
import sys
import threading

import click

from ejpy.cli.check import check
from ejpy.cli.look import jobs, shards
from ejpy.cli.worker import worker
from ejpy.version import __version__

EXIT_SECONDS = 1.0
"""How long the interpreter may take to end after a command is done."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ejpy")
def commands() -> None:
    """Scheduled jobs, sharded over many machines, without a central server.

    Exit codes: 0 done; 1 the registry cannot be reached, or what was asked for does not exist; 2 something is wrong with the
    configuration or the arguments, and nothing was done.
    """


for command in (worker, check, jobs, shards):
    commands.add_command(command)


def main() -> None:
    """Run the command, and end the process with its exit code, also if threads that a job's code started live on."""
    try:
        commands()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
        timer = threading.Timer(EXIT_SECONDS, _end, [code])
        timer.daemon = True
        timer.start()
        raise


def _end(code: int) -> None:
    sys.stdout.flush()
    os._exit(code)
