"""`ejpy jobs …` and `ejpy shards …`: looking at a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from ejpy.admin import inspect
from ejpy.cli import options
from ejpy.cli.output import Failure, Refusal, columns_of, print_rows
from ejpy.clock import SystemClock
from ejpy.config.registry_url import RegistryAddress, parse_url
from ejpy.errors import ConfigError, EjpyError, RegistryUnreachable
from ejpy.registry.base import Registry
from ejpy.registry.open import open_registry

Result = TypeVar("Result")

CLOSE_SECONDS = 1.0


def _ask(url: str | None, connection_timeout: float, question: Callable[[Registry, str], Awaitable[Result]]) -> Result:
    """Connect, ask, disconnect. Errors end the command with one line."""
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries say is repeated in the error's line
    logging.disable(logging.WARNING)
    if not url:
        raise Refusal("which registry? give --registry URL or set EJPY_REGISTRY")

    async def asked(address: RegistryAddress) -> Result:
        registry = open_registry(address, SystemClock())
        try:
            await registry.start(connection_timeout)
            return await question(registry, address.namespace)
        finally:
            await registry.stop(CLOSE_SECONDS)

    try:
        address = parse_url(url)
        if address.scheme == "sqlite" and not Path(address.location.removeprefix("sqlite:///")).exists():
            raise RegistryUnreachable(address.location, "there is no such file")
        return asyncio.run(asked(address))
    except ConfigError as error:
        raise Refusal(str(error)) from error
    except EjpyError as error:
        raise Failure(str(error)) from error


@click.group()
def jobs() -> None:
    """Look at the cluster's jobs."""


@jobs.command("list")
@options.registry_url
@options.connection_timeout
@options.output
def list_jobs(registry: str | None, connection_timeout: float, output: str) -> None:
    """List all jobs: schedule, items, instances, leader, status."""
    rows = _ask(registry, connection_timeout, inspect.jobs)
    print_rows(rows, columns_of(inspect.JobRow), output)


@click.group()
def shards() -> None:
    """Look at a job's sharding items."""


@shards.command("list")
@click.argument("job")
@options.registry_url
@options.connection_timeout
@options.output
def list_shards(job: str, registry: str | None, connection_timeout: float, output: str) -> None:
    """List the items of JOB: where each is, and what it did last."""
    rows = _ask(registry, connection_timeout, lambda r, namespace: inspect.shards(r, namespace, job))
    print_rows(rows, columns_of(inspect.ShardRow), output)
