"""`ejpy jobs …` and `ejpy shards …`: looking at a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from ejpy.admin import inspect
from ejpy.admin.connection import connected
from ejpy.cli import options
from ejpy.cli.output import Failure, Refusal, columns_of, print_rows, say, why_unreachable
from ejpy.errors import ConfigError, EjpyError, RegistryError
from ejpy.registry.base import Registry

Result = TypeVar("Result")


def _ask(url: str | None, connection_timeout: float, question: Callable[[Registry, str], Awaitable[Result]]) -> Result:
    """Connect, ask, disconnect. Errors end the command with one line."""
    logging.getLogger().addHandler(logging.NullHandler())  # what libraries say is repeated in the error's line
    logging.disable(logging.WARNING)
    if not url:
        raise Refusal("which registry? give --registry URL or set EJPY_REGISTRY")

    async def asked(url: str) -> Result:
        async with connected(url, timeout=connection_timeout) as (registry, namespace):
            return await question(registry, namespace)

    try:
        return asyncio.run(asked(url))
    except ConfigError as error:
        raise Refusal(str(error)) from error
    except RegistryError as error:
        raise Failure(why_unreachable(error)) from error
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

    async def question(at: Registry, namespace: str) -> tuple[list[inspect.JobRow], str]:
        return await inspect.jobs(at, namespace), f"{at.address}{namespace}"

    rows, where = _ask(registry, connection_timeout, question)
    print_rows(rows, columns_of(inspect.JobRow), output, if_any=("problem",))
    if not rows:
        say(f"there are no jobs in {where}", err=True)


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
