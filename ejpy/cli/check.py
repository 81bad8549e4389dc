"""`ejpy check`: is a configuration right, and when would its jobs fire? Connects to nothing, writes nothing."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from itertools import islice

import click

from ejpy.cli import options
from ejpy.cli.output import Refusal, print_rows, say
from ejpy.clock import SystemClock
from ejpy.config.registry_url import parse_url
from ejpy.config_file.file import WorkerFile, load_file
from ejpy.errors import ConfigError
from ejpy.schedule.cron import fire_times
from ejpy.scheduler.wording import ONE_OFF

FIRES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A job, and its next fires in its own zone."""

    job: str
    cron: str | None
    """None: a one-off job, which has no fires."""
    time_zone: str | None
    sharding_total_count: int
    next_fires: list[str]


def load(path: str, *, registry: str | None) -> WorkerFile:
    """Load a configuration for a command: the working directory is importable, and every error is one line.

    `registry` is the URL from the option, if it was given; what is wrong with it is told with what is wrong with the file.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise Refusal("the working directory was removed; change to one that exists") from None
    if here not in sys.path:
        sys.path.insert(0, here)
    problems: list[str] = []
    try:
        if registry:
            parse_url(registry)
    except ConfigError as error:
        problems += error.problems
    try:
        file = load_file(path, os.environ, now=SystemClock().now())
    except ConfigError as error:
        raise Refusal("\n".join([*problems, *error.problems])) from error
    if problems:
        raise Refusal("\n".join(problems))
    for warning in file.warnings:
        say(f"warning: {warning}", err=True)
    return file


@click.command()
@options.config_file
@options.registry_url
@options.output
def check(config: str, registry: str | None, output: str) -> None:
    """Validate a configuration, and show each job's next fires in its zone. The registry's URL is read, not connected to."""
    file = load(config, registry=registry)
    now = SystemClock().now()
    rows = []
    for job in file.jobs:
        ahead = fire_times(job.cron, job.time_zone, now) if job.cron is not None else ()
        fires = [fire.isoformat(sep=" ") for fire in islice(ahead, FIRES_SHOWN)]
        rows.append(CheckRow(job.job_name, job.cron, job.time_zone, job.sharding_total_count, fires))
    if output == "json":
        print_rows(rows, ["job", "cron", "time_zone", "sharding_total_count", "next_fires"], output)
        return
    for row in rows:
        zone = f" ({row.time_zone})" if row.time_zone else ""
        items = "1 item" if row.sharding_total_count == 1 else f"{row.sharding_total_count} items"
        say(f"{row.job}: {items}, {ONE_OFF if row.cron is None else row.cron + zone}")
        for fire in row.next_fires:
            say(f"    {fire}")
    say(f"{config}: {len(rows)} job{'' if len(rows) == 1 else 's'}, no errors")
