"""The `ejpy` command."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading

import click

from ejpy.cli.check import check
from ejpy.cli.look import jobs, shards
from ejpy.cli.output import EXIT_FAILED
from ejpy.cli.worker import worker
from ejpy.version import __version__

EXIT_SECONDS = 1.0
"""How long the interpreter may take to end after a command is done."""

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What writing to a stream can fail with. (click itself sees to EPIPE.)"""


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
    """Run the command, and end the process with its exit code, also if threads that a job's code started live on.

    What cannot be written to standard output is an error of one line. A standard stream that is closed counts as one that
    nobody reads.
    """
    _open_what_is_closed()
    code, trouble = 0, None
    try:
        commands()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1 if end.code else 0
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        trouble = error
    trouble = trouble or _unwritten()
    if trouble is not None:
        code = code or EXIT_FAILED
        with contextlib.suppress(OSError):
            click.echo(f"standard output cannot be written: {trouble.strerror or trouble}", err=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter would try it again
    timer = threading.Timer(EXIT_SECONDS, _end, [code])
    timer.daemon = True
    timer.start()
    sys.exit(code)


def _open_what_is_closed() -> None:
    """Open the standard streams that this process was started without.

    Otherwise the next file that is opened would get the number of one, and whoever prints would write into it: a job's script
    into the database.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: SIM115


def _unwritten() -> OSError | None:
    """Why what was printed, and is not written yet, cannot be; None if it can. A reader that is gone has had enough."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        return None
    except OSError as error:
        return error
    return None


def _end(code: int) -> None:
    os._exit(code)
