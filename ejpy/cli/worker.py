"""`ejpy worker`: run the jobs of a file until told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import sys
import uuid
from typing import Literal

import click

from ejpy import logs
from ejpy.cli import options
from ejpy.cli.address import own_address
from ejpy.cli.check import load
from ejpy.cli.log_stream import LogStream
from ejpy.cli.output import Failure, Refusal, why_unreachable
from ejpy.clock import SystemClock
from ejpy.config.classes import executor_for, load_class
from ejpy.config.model import JobConfig
from ejpy.config.registry_url import RegistryAddress, parse_url
from ejpy.config_file.file import WorkerFile
from ejpy.error_handlers import ErrorHandling
from ejpy.errors import ConfigError, RegistryError
from ejpy.execution.runners import Runners
from ejpy.history.records import LogJournal
from ejpy.logs import fields
from ejpy.registry.open import open_registry
from ejpy.terms import Executor
from ejpy.version import __version__
from ejpy.worker import Identity, Worker

logger = logging.getLogger("ejpy.worker")

DEFAULT_REGISTRY = "sqlite:///ejpy.db"
GRACE_SECONDS = 30.0
POOL_SIZE = 32
EXIT_SECONDS = 0.5
"""How long the last lines of the log may take."""


@click.command()
@options.config_file
@options.registry_url
@options.connection_timeout
@options.option(
    "--grace",
    "grace",
    type=click.FloatRange(min=0),
    default=GRACE_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long bodies may run on after the first SIGTERM or SIGINT.",
)
@options.option("--ip", "ip", metavar="IPV4", help="This worker's own IPv4 address. [default: that of the way out of this host]")
@options.option(
    "--pool-size",
    "pool_size",
    type=click.IntRange(min=1, max=1024),
    default=POOL_SIZE,
    show_default=True,
    help="How many bodies may run at once in threads.",
)
@options.option(
    "--processes",
    "processes",
    type=click.IntRange(min=1, max=1024),
    default=os.cpu_count() or 1,
    show_default="one per processor",
    help="How many bodies may run at once in child processes.",
)
@options.log_level
@options.log_format
def worker(
    config: str,
    registry: str | None,
    connection_timeout: float,
    grace: float,
    ip: str | None,
    pool_size: int,
    processes: int,
    log_level: str,
    log_format: Literal["text", "json"],
) -> None:
    """Run the jobs of a configuration until told to stop.

    The first SIGTERM or SIGINT gives this worker's items to others and lets running bodies end within --grace; a second one
    tells them to stop.
    """
    file = load(config, registry=registry)
    url = registry or file.registry or DEFAULT_REGISTRY
    try:
        address = parse_url(url)
        own_ip = own_address(ip)
    except ConfigError as error:
        raise Refusal(str(error)) from error
    stream = LogStream(sys.stderr.fileno())
    logs.configure(log_level, log_format, stream)
    try:
        asyncio.run(
            _run(
                file,
                address,
                own_ip,
                connection_timeout=connection_timeout,
                grace=grace,
                pool_size=pool_size,
                processes=processes,
            )
        )
    except ConfigError as error:
        raise Refusal(str(error)) from error
    except RegistryError as error:
        raise Failure(why_unreachable(error)) from error
    finally:
        stream.end(EXIT_SECONDS)


async def _run(
    file: WorkerFile,
    address: RegistryAddress,
    ip: str,
    *,
    connection_timeout: float,
    grace: float,
    pool_size: int,
    processes: int,
) -> None:
    clock = SystemClock()
    executors = {job.body_class: executor_for(load_class(job.body_class), None) for job in file.jobs}

    def executor_of(job: JobConfig) -> Executor:
        return job.executor or executors[job.body_class]

    identity = Identity(f"{ip}@-@{os.getpid()}.{secrets.token_hex(4)}", ip)
    registry = open_registry(address, clock)
    worker = Worker(
        file.jobs,
        registry,
        namespace=address.namespace,
        identity=identity,
        clock=clock,
        runners=Runners(loop=asyncio.get_running_loop(), clock=clock, threads=pool_size, processes=processes),
        error_handling=ErrorHandling(clock),
        journal=LogJournal(),
        executor_of=executor_of,
        new_uuid=lambda: str(uuid.uuid4()),
    )
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    logger.info(
        "ejpy %s: %d job%s, registry %s, namespace %s",
        __version__,
        len(file.jobs),
        "" if len(file.jobs) == 1 else "s",
        registry.address,
        address.namespace,
        extra=fields(instance=identity.instance_id),
    )
    try:
        await worker.run(connection_timeout=connection_timeout, grace=grace)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):  # it is ending: a further signal must not end it otherwise
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
