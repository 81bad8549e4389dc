"""`ejpy check`: is a configuration right, and when would its jobs fire? Connects to nothing, writes nothing."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from itertools import islice

import click

from ejpy.cli import options
from ejpy.cli.output import Refusal, print_rows
from ejpy.clock import SystemClock
from ejpy.config.file import WorkerFile, load_file
from ejpy.config.registry_url import parse_url
from ejpy.errors import ConfigError
from ejpy.schedule.cron import fire_times

FIRES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A job, and its next fires in its own zone."""

    job: str
    cron: str | None
    time_zone: str | None
    sharding_total_count: int
    next_fires: list[str]


def load(path: str, *, registry: str | None) -> WorkerFile:
    """Load a configuration for a command: the working directory is importable, and every error is one line.

    A registry URL, from the option or the file, is checked as well.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        file = load_file(path, os.environ, now=SystemClock().now())
        if url := registry or file.registry:
            parse_url(url)
    except ConfigError as error:
        raise Refusal(str(error)) from error
    for warning in file.warnings:
        click.echo(f"warning: {warning}", err=True)
    return file


@click.command()
@options.config_file
@options.output
def check(config: str, output: str) -> None:
    """Validate a configuration, and show each job's next fires in its zone."""
    file = load(config, registry=None)
    now = SystemClock().now()
    rows = []
    for job in file.jobs:
        fires = [fire.isoformat(sep=" ") for fire in islice(fire_times(job.cron or "", job.time_zone, now), FIRES_SHOWN)]
        rows.append(CheckRow(job.job_name, job.cron, job.time_zone, job.sharding_total_count, fires))
    if output == "json":
        print_rows(rows, ["job", "cron", "time_zone", "sharding_total_count", "next_fires"], output)
        return
    for row in rows:
        zone = f" ({row.time_zone})" if row.time_zone else ""
        click.echo(f"{row.job}: {row.sharding_total_count} items, {row.cron}{zone}")
        for fire in row.next_fires:
            click.echo(f"    {fire}")
    click.echo(f"{config}: {len(rows)} job{'' if len(rows) == 1 else 's'}, no errors")
