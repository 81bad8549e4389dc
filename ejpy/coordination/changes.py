"""Under which schedule and item count an instant is due, when an operator changes them.

The configuration in force at an instant decides: what passed before a change is due under the former schedule and count,
what comes after it under the new ones. So the items of one fire are all told one count, whoever runs them and whenever he
heard of the change. An item that the count of that time did not include has nothing due then.

When a change was made is read off the configuration's node, whose time of modification (by the registry's clock) is that of
its *last* write, whatever that changed. A worker remembers each change of schedule or count that it has seen, so that a
later write of something else does not move it. One that was started, or cut off, since knows the last write only, and takes
the change for later than it was; this concerns only items that nobody has looked at between the two writes, such as those that
ran all the while.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from ejpy.coordination.ledger import Basis, Entry

KEPT = 16
"""Changes that a worker remembers."""


@dataclass(frozen=True, slots=True)
class InForce:
    """A schedule and item count, and since when they count."""

    basis: Basis
    since: datetime


Changes = tuple[InForce, ...]
"""What a worker knows to have been in force, the oldest first; the last is in force now."""


def learn(known: Changes, basis: Basis, written: datetime, now: datetime) -> Changes:
    """`known`, and what a configuration says that was written at `written` (the registry's clock) and is read at `now`.

    A registry whose clock is ahead moves nothing into the future.
    """
    if known and known[-1].basis == basis:
        return known
    since = min(written, now)
    return (*known, InForce(basis, max(since, known[-1].since) if known else since))[-KEPT:]


def next_change(known: Changes, entry: Entry) -> InForce | None:
    """What came into force after what the entry was last accounted under; None if that is still in force."""
    after = [place + 1 for place, in_force in enumerate(known) if in_force.basis == entry.basis]
    if not after:
        return known[0]
    open_until = [place for place in after if place == len(known) or known[place].since > entry.accounted_until]
    place = open_until[0] if open_until else after[-1]
    return known[place] if place < len(known) else None


def begins(known: Changes, item: int, now: datetime, grace: timedelta) -> InForce:
    """Since when, and under what, an item is due that its leader adds at `now`: since the change that brought it, so that it
    takes part in the first fire after that. Without one, or if it is older than `grace`, the item starts at its next fire."""
    brought = [after for before, after in pairwise(known) if not before.basis.includes(item) and after.basis.includes(item)]
    if brought and known[-1].basis.includes(item) and now - brought[-1].since <= grace:
        return brought[-1]
    return InForce(known[-1].basis, now)
