"""Owners that live and leave fires unclaimed: stopped in a debugger, saturated, their control loop kept busy.

After an instant of the schedule the leader looks, `claim_timeout` later, at the ledger of all items. An owner that left a fire
unclaimed for that long is *stalled*: it is given nothing for a while, and its idle items go to others, who catch up with the
reason `scheduled_too_long`. Costs one read for each `claim_timeout`, and none for a job that does not fire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ejpy.config.model import JobConfig
from ejpy.coordination.assignment import LedgerNode
from ejpy.coordination.claims import Schedule
from ejpy.coordination.ledger import Basis
from ejpy.coordination.marks import Marks, is_foreign
from ejpy.coordination.view import JobView


@dataclass(slots=True)
class Neglect:
    """What one leader has found, in its term."""

    stalled: dict[str, float] = field(default_factory=dict)
    """Instances, and until when (monotonic) they are given nothing."""
    overdue: set[int] = field(default_factory=set)
    """Items that were left unclaimed and have not moved yet."""

    def stalled_at(self, now: float) -> frozenset[str]:
        self.stalled = {instance: until for instance, until in self.stalled.items() if until > now}
        return frozenset(self.stalled)

    def found(self, item: int, owner: str, until: float) -> None:
        self.stalled[owner] = until
        self.overdue.add(item)


def claimable(view: JobView, marks: Marks, total: int) -> dict[int, str]:
    """Items with an owner who could claim them: an ejpy worker, and nobody else's marks say that they are not his to run."""
    return {
        item: assigned.instance_id
        for item, assigned in view.assigned.items()
        if item < total
        and item not in view.disabled_items
        and assigned.instance_id in view.instances
        and not is_foreign(assigned.instance_id)
        and not marks.held_by_other(item, assigned.instance_id)
    }


def unclaimed(
    ledger: Mapping[int, LedgerNode | None], config: JobConfig, basis: Basis, schedule: Schedule, now: datetime
) -> dict[int, datetime]:
    """Items that nobody runs, with the fire that was left unclaimed for `claim_timeout`.

    An owner that claimed or ended something lately is at work on a backlog, not stalled.
    """
    found: dict[int, datetime] = {}
    for item, node in ledger.items():
        if node is None or node.entry.running or node.entry.suspended or node.entry.basis != basis:
            continue
        due = schedule.next_after(node.entry.accounted_until)
        if due is not None and now - max(due, node.entry.claimed or due, node.entry.ended or due) >= config.claim_timeout:
            found[item] = due
    return found
