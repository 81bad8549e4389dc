"""Failover by ElasticJob's marks, and what the dead leave behind.

Among ejpy workers the ledger hands an interrupted attempt on. Where marks are written (`marks`) the others must see it, and may
do it themselves, so it goes the way of ElasticJob's `FailoverService`:

    running of the dead ──leader──► leader/failover/items/{i} ──taken, under the latch──► failover, failovering of the taker
                                              ▲                                             │ ended ──► (nothing)
                                              └──────────── failovering of the dead ◄───────┘ died

Each step is one transaction guarded by the version of the mark, so that of several who see the same death one flags the item.
Whether an instance is dead is decided by its node alone: that its server was disabled before, that it died
while failing over, or that `failover` was switched in between, leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ejpy.config.model import JobConfig
from ejpy.coordination.marks import Marks, dead
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView
from ejpy.registry.base import Create, Delete, Node, Operation, SetData, ancestors


def after_deaths(
    paths: JobPaths, view: JobView, marks: Marks, config: JobConfig, nodes: Collection[str]
) -> list[list[Operation]]:
    """For each item whose instance died in mid-run: remove its marks, and flag it with `failover`. `nodes`: paths that exist."""
    running, failovering = dead(marks.running, view.instances), dead(marks.failovering, view.instances)
    groups: list[list[Operation]] = []
    parents: list[Operation] = []
    for item in sorted(running.keys() | failovering.keys()):
        group: list[Operation] = []
        if item in running:
            group.append(Delete(paths.item_running(item), running[item].version))
        if item in failovering:
            group.append(Delete(paths.item_failovering(item), failovering[item].version))
        taken = marks.failover.get(item)
        flagged = item in marks.to_fail_over or (taken is not None and taken.instance_id in view.instances)
        if config.failover and config.monitor_execution and item < config.sharding_total_count and not flagged:
            group.append(Create(paths.failover_item(item)))
            parents = _missing_above(paths, paths.failover_item(item), nodes)
        groups.append(group)
    return [parents, *groups] if parents else groups


def left_over(
    paths: JobPaths,
    view: JobView,
    marks: Marks,
    config: JobConfig,
    nodes: Mapping[str, Node],
    abandoned: Collection[str] = (),
) -> list[list[Operation]]:
    """All that the leader has to put right, in groups that belong together: what ElasticJob's reconcile sweep looks for now
    and then, and what it overlooks. `abandoned`: servers that have had no instance for long."""
    beyond = (item for item in sorted(marks.to_fail_over) if item >= config.sharding_total_count)
    single = [
        *(Delete(paths.failover_item(item)) for item in beyond),
        *switched_off(paths, marks, config),
        *orphaned_triggers(paths, view, marks, config),
        *(
            Delete(paths.item_failover(item), mark.version)
            for item, mark in sorted(dead(marks.failover, view.instances).items())
            if nodes[paths.item_failover(item)].session_id is None  # no session's end would ever remove it
        ),
        *(
            Delete(paths.server(ip), nodes[paths.server(ip)].version)
            for ip in sorted(servers_without_instance(view, config) & {*abandoned})
        ),
    ]
    groups = after_deaths(paths, view, marks, config, nodes)
    done = {operation.path for group in groups for operation in group}
    return groups + [[operation] for path, operation in {each.path: each for each in single}.items() if path not in done]


def take(paths: JobPaths, marks: Marks, item: int, me: str) -> list[Operation]:
    """Take a flagged item over; only under the failover latch, where Java workers take theirs in several steps."""
    data = me.encode()
    left = marks.failovering.get(item)
    again: Operation = (
        Create(paths.item_failovering(item), data) if left is None else SetData(paths.item_failovering(item), data, left.version)
    )
    return [Delete(paths.failover_item(item)), Create(paths.item_failover(item), data, ephemeral=True), again]


def next_to_take(marks: Marks, total: int) -> int | None:
    """The item that ElasticJob takes first: the largest, as a text."""
    there = [str(item) for item in marks.to_fail_over if item < total]
    return int(max(there)) if there else None


def switched_off(paths: JobPaths, marks: Marks, config: JobConfig) -> list[Operation]:
    """Marks that mean nothing any more once `failover`, `misfire` or `monitor_execution` is off."""
    operations: list[Operation] = []
    if not config.failover or not config.monitor_execution:
        operations += [Delete(paths.item_failover(item), mark.version) for item, mark in sorted(marks.failover.items())]
        operations += [Delete(paths.failover_item(item)) for item in sorted(marks.to_fail_over)]
    if not config.misfire:
        operations += [Delete(paths.item_misfire(item)) for item in sorted(marks.misfire)]
    if not config.monitor_execution:
        operations += [Delete(paths.item_running(item), mark.version) for item, mark in sorted(marks.running.items())]
    return operations


def orphaned_triggers(paths: JobPaths, view: JobView, marks: Marks, config: JobConfig) -> list[Operation]:
    """Triggers for instances that are gone, and whose items have moved, and taken what the trigger asked for along."""
    owners = set() if config.static_sharding else {assigned.instance_id for assigned in view.assigned.values()}
    return [Delete(paths.trigger(instance)) for instance in sorted(marks.triggers.keys() - view.instances.keys() - owners)]


def servers_without_instance(view: JobView, config: JobConfig) -> frozenset[str]:
    """Addresses whose entries stand for nobody, and are what a worker that starts there would write, or rubbish. Any other
    word is an operator's, and stays. A worker makes its entry before its instance, so only one that has been so for a while is
    abandoned."""
    present = {instance.ip for instance in view.instances.values()}
    enabled_by_order = {ip for ip, enabled in view.servers.items() if enabled and config.disabled}
    return frozenset(view.servers.keys() - present - view.disabled_servers - enabled_by_order)


def _missing_above(paths: JobPaths, path: str, nodes: Collection[str]) -> list[Operation]:
    return [Create(above) for above in ancestors(path) if above not in nodes and above.startswith(f"{paths.root}/")]
