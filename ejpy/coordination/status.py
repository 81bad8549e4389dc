"""In which state a job and its items are, by ElasticJob's rules (`JobStatisticsAPI`, `ShardingStatisticsAPI`), so that
the command line, the console and elasticjob-ui say the same."""

from __future__ import annotations

from ejpy.coordination.ledger import Entry
from ejpy.coordination.view import JobView
from ejpy.terms import ItemStatus, JobStatus


def job_status(view: JobView) -> JobStatus:
    """CRASHED without instance; DISABLED if every server entry is; SHARDING_FLAG while an item waits for a live owner."""
    if not view.instances:
        return JobStatus.CRASHED
    if view.servers.keys() == view.disabled_servers:
        return JobStatus.DISABLED
    owners = {a.instance_id for a in view.assigned.values()}
    if not owners or not owners <= view.instances.keys():
        return JobStatus.SHARDING_FLAG
    return JobStatus.OK


def item_status(view: JobView, item: int, entry: Entry | None, *, running_mark: bool) -> ItemStatus:
    """DISABLED, RUNNING (by the ledger, or by a `running` mark), SHARDING_FLAG while its owner is not online, else PENDING."""
    if item in view.disabled_items:
        return ItemStatus.DISABLED
    if running_mark or (entry is not None and entry.running and entry.owner in view.instances):
        return ItemStatus.RUNNING
    assigned = view.assigned.get(item)
    if assigned is None or assigned.instance_id not in view.instances:
        return ItemStatus.SHARDING_FLAG
    return ItemStatus.PENDING
