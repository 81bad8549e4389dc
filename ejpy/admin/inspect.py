"""Looking at a cluster: which jobs there are, who leads, which item is where and what it did last. Reads only."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime

from ejpy.config.document import from_document
from ejpy.config.model import JobConfig
from ejpy.coordination.ledger import Entry
from ejpy.coordination.ledger_document import decode
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.status import item_status, job_status
from ejpy.coordination.view import JobView, view_of
from ejpy.errors import BrokenEntry, ConfigError, CronError, NoSuchJob
from ejpy.registry.base import Node, Registry
from ejpy.schedule.cron import parse
from ejpy.terms import ItemStatus, JobStatus, Outcome
from ejpy.wording import one_line, shown

JOBS_AT_ONCE = 50
"""Trees that are read at the same time."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list."""

    job: str
    cron: str | None
    """As it is stored. None: a one-off job, or the stored configuration cannot be read."""
    sharding_total_count: int | None
    instances: int
    leader: str | None
    status: JobStatus
    problem: str | None
    """What is wrong with the stored configuration, in one line: it is not in force, and workers hold to the one before. None:
    nothing."""


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A sharding item: to whom it is assigned, and its newest attempt."""

    item: int
    parameter: str | None
    instance: str | None
    status: ItemStatus
    last_fire: datetime | None
    outcome: Outcome | None
    """None: it never ran, runs now, or is not monitored."""
    attempt: int | None
    fencing_token: int | None


async def jobs(registry: Registry, namespace: str) -> list[JobRow]:
    """All jobs of a namespace, sorted by name. Raises RegistryError."""
    [names] = await registry.children([namespace])
    limit = asyncio.Semaphore(JOBS_AT_ONCE)

    async def row(name: str) -> JobRow | None:
        paths = JobPaths(namespace, name)
        async with limit:
            nodes = await registry.tree(paths.root)
        if paths.config not in nodes:  # not a job, or removed at this moment
            return None
        view = view_of(nodes, paths)
        config, problem = _judged(nodes, paths)
        return JobRow(
            job=name,
            cron=config.cron if config else None,
            sharding_total_count=config.sharding_total_count if config else None,
            instances=len(view.instances),
            leader=view.leader,
            status=job_status(view),
            problem=problem,
        )

    rows = await asyncio.gather(*(row(name) for name in names or []))
    return [row for row in rows if row is not None]


async def shards(registry: Registry, namespace: str, job: str) -> list[ShardRow]:
    """All items of a job, by number. Raises NoSuchJob, RegistryError."""
    paths = JobPaths(namespace, job)
    nodes = await registry.tree(paths.root)
    if paths.config not in nodes:
        raise NoSuchJob(f"there is no job '{job}' in {registry.address}{namespace}; `ejpy jobs list` shows those that are")
    view = view_of(nodes, paths)
    config, _ = _judged(nodes, paths)
    items = range(config.sharding_total_count) if config else sorted(view.items)
    ledger = await registry.read([paths.ledger(item) for item in items])
    return [_shard_row(paths, view, config, nodes, item, node) for item, node in zip(items, ledger, strict=True)]


def _shard_row(
    paths: JobPaths, view: JobView, config: JobConfig | None, nodes: dict[str, Node], item: int, ledger: Node | None
) -> ShardRow:
    entry = _entry(ledger, paths.ledger(item))
    assigned = view.assigned.get(item)
    return ShardRow(
        item=item,
        parameter=config.sharding_item_parameters.get(item) if config else None,
        instance=assigned.instance_id if assigned else None,
        status=item_status(view, item, entry, running_mark=paths.item_running(item) in nodes),
        last_fire=entry.fire if entry else None,
        outcome=entry.outcome if entry else None,
        attempt=entry.attempt or None if entry else None,
        fencing_token=entry.token if entry else None,
    )


def _judged(nodes: dict[str, Node], paths: JobPaths) -> tuple[JobConfig | None, str | None]:
    """The stored configuration, None if it cannot be read, and what is wrong with it."""
    root, stored = nodes.get(paths.root), nodes[paths.config]
    try:
        config = from_document(stored.data, paths.job, root.data.decode("utf-8", "replace") if root else "")
    except ConfigError as error:
        return None, one_line("; ".join(problem.removeprefix(f"job {shown(paths.job)}: ") for problem in error.problems))
    try:
        if config.cron is not None:  # as its workers judged it, when it was written; their local zone is not known here
            parse(config.cron, config.time_zone or "UTC", now=stored.modified)
    except CronError as error:
        return config, one_line(str(error))
    return config, None


def _entry(node: Node | None, path: str) -> Entry | None:
    if node is None:
        return None
    try:
        return decode(node.data, node.revision, path)
    except BrokenEntry:
        return None
