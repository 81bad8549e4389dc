"""What the leader of a job does: who shall own which item, and which items can move now.

The leader compares the assignment with what the strategy wants, whenever anything changed, and moves what differs:

* an item that is idle, or whose owner is gone, moves at once;
* an item that runs on a live worker stays, and moves when it ends: the leader marks its entry, so that its owner leaves it
  idle for a moment then, and watches the entry until then.

The whole change is one transaction of the differences. Its guards: the leader's term (nobody was elected since), each
receiver's instance node (nobody is given an item who has just left), the version of each assignment, the ledger version of each
item (it did not start meanwhile), and that nobody has triggered its owner unseen. If one fails, the leader looks again.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ejpy.config.model import JobConfig, ShardingStrategyName
from ejpy.coordination import sharding
from ejpy.coordination.changes import InForce
from ejpy.coordination.ledger import Entry, new_entry
from ejpy.coordination.ledger_document import encode
from ejpy.coordination.marks import is_foreign
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView
from ejpy.registry.base import Check, Create, Delete, Node, Operation, SetData, ancestors, operation_bytes

MOST_OPERATIONS = 900
MOST_BYTES = 400 * 1024
"""What goes into one transaction of a plan: below the limits of a registry, with room for the guard of the term."""


@dataclass(frozen=True, slots=True)
class LedgerNode:
    """A ledger entry with the version that it was read at."""

    entry: Entry
    version: int


@dataclass(frozen=True, slots=True)
class Move:
    """An item and the instance that it shall go to."""

    item: int
    to: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be done now, and what has to wait."""

    batches: tuple[tuple[Operation, ...], ...]
    """Each one transaction, without the guard of the term, which depends on the one before."""
    waiting: frozenset[int]
    """Items that run on a live worker and move when they end."""
    requests: tuple[Operation, ...]
    """Ask the owners of those for the hand-over, so that they do not begin the next run at once."""
    moves: tuple[Move, ...]


Dealt = Callable[[int, list[str], Mapping[int, str]], Mapping[int, str] | None]
"""What a strategy of the user's deals: count, eligible instances (at least one), current owners → the instance for every item;
None: it has not answered yet."""


def wanted_moves(
    view: JobView, config: JobConfig, stalled: frozenset[str], now: datetime, dealt: Dealt | None = None
) -> list[Move] | None:
    """What differs from what the strategy wants; None: that is not known yet. `stalled`: instances that leave fires unclaimed
    and get nothing new. `dealt`: asked for a strategy that is not ejpy's.

    With `static_sharding` nothing does once all items are assigned, whoever comes or goes (ElasticJob's rule).
    """
    total, current = config.sharding_total_count, {item: a.instance_id for item, a in view.assigned.items()}
    if config.static_sharding and current.keys() == set(range(total)):
        return []
    eligible = [instance for instance in view.eligible() if instance not in stalled] or view.eligible()
    strategy = config.job_sharding_strategy_type
    if not isinstance(strategy, ShardingStrategyName):
        wanted = dealt(total, eligible, current) if dealt and eligible else {}
        return None if wanted is None else _differing(wanted, current)
    target = sharding.assign(strategy, config.job_name, total, eligible, current, now_ms=int(now.timestamp() * 1000))
    if strategy is ShardingStrategyName.SINGLE_SHARDING_BALANCE and total == 1:
        target |= dict.fromkeys(target, _whose_turn_it_is(view, eligible, current.get(0), target.get(0)))
    return _differing(target, current)


def _differing(target: Mapping[int, str], current: Mapping[int, str]) -> list[Move]:
    return [Move(item, to) for item, to in target.items() if current.get(item) != to]


def _whose_turn_it_is(view: JobView, eligible: list[str], current: str | None, otherwise: str | None) -> str:
    """The instance of a job's only item: one on the server whose turn it is, if there is one."""
    there = [instance for instance in sorted(eligible, reverse=True) if view.instances[instance].ip == view.next_server]
    if current in there or not there:
        return current if current in there else str(otherwise)
    return there[0]


def next_server(view: JobView, me: str) -> str | None:
    """Whose turn it is after a run here: the server of the instance after the first one of this server (ElasticJob's
    `SingleShardingJobFacade`)."""
    eligible = sorted(view.eligible(), reverse=True)
    if me not in view.instances:
        return None
    own = view.instances[me].ip
    first = next((place for place, instance in enumerate(eligible) if view.instances[instance].ip == own), None)
    return None if first is None else view.instances[eligible[(first + 1) % len(eligible)]].ip


def surplus(view: JobView, total: int) -> list[int]:
    """Items that are there and should not be."""
    return sorted(item for item in view.items if item >= total)


def plan(
    paths: JobPaths,
    view: JobView,
    moves: Iterable[Move],
    ledger: Mapping[int, LedgerNode | None],
    begins: Callable[[int], InForce],
    overdue: frozenset[int] = frozenset(),
    triggers: Mapping[str, Node] | None = None,
    existing: Container[str] = (),
    *,
    now: datetime,
) -> Plan:
    """Turn wanted moves into transactions.

    `ledger` holds what was read for each item that moves (None: there is no entry yet). `begins` tells since when, and under
    what, an item is due that is new. `overdue`: items that are taken from an owner that left a fire unclaimed. `triggers`: by the
    instance that they are for; an item that moves before its owner has taken note of one takes it along. `existing`: the paths
    that are known below the job.
    """
    waiting: set[int] = set()
    done: list[Move] = []
    batches = _Batches()
    requests: list[Operation] = []
    for move in moves:
        node = ledger.get(move.item)
        assigned = view.assigned.get(move.item)
        owner_lives = assigned is not None and assigned.instance_id in view.instances
        if owner_lives and node is not None and node.entry.running and node.entry.owner in view.instances:
            waiting.add(move.item)
            if not node.entry.hand_over:
                requests.append(SetData(paths.ledger(move.item), encode(node.entry.ask_for_hand_over()), node.version))
            continue
        trigger = (triggers or {}).get(assigned.instance_id) if assigned is not None else None
        changes = _move(paths, view, move, node, begins(move.item), move.item in overdue, trigger, now)
        guards: list[tuple[Operation, ...]] = [(Check(paths.instance(move.to)),)]
        if assigned is not None and trigger is None and not is_foreign(assigned.instance_id):
            guards.append(_no_trigger(paths, assigned.instance_id, existing))
        batches.add(guards, changes)
        done.append(move)
    return Plan(tuple(tuple(b) for b in batches.all), frozenset(waiting), tuple(requests), tuple(done))


class _Batches:
    """Puts the changes of each item into one transaction, with each guard once in it."""

    def __init__(self) -> None:
        self.all: list[list[Operation]] = []
        self._bytes = 0
        self._guarded: set[tuple[Operation, ...]] = set()

    def add(self, guards: list[tuple[Operation, ...]], changes: list[Operation]) -> None:
        added = [*(operation for guard in guards for operation in guard), *changes]
        size = sum(map(operation_bytes, added))
        full = not self.all or len(self.all[-1]) + len(added) > MOST_OPERATIONS or self._bytes + size > MOST_BYTES
        if full:
            self.all.append([])
            self._bytes = 0
            self._guarded.clear()
        for guard in guards:
            if guard not in self._guarded:
                self._guarded.add(guard)
                self.all[-1] += guard
        self.all[-1] += changes
        self._bytes += size


def _no_trigger(paths: JobPaths, instance_id: str, existing: Container[str]) -> tuple[Operation, ...]:
    """Fails if there is a trigger for the owner that the leader has not seen: its items would move without what that asks for,
    and the receiver may have obeyed its own already. (A transaction cannot check that a node is not there, but make and remove
    it.)"""
    node = paths.trigger(instance_id) if paths.triggers in existing else paths.triggers
    return Create(node), Delete(node)


def _move(
    paths: JobPaths,
    view: JobView,
    move: Move,
    node: LedgerNode | None,
    begins: InForce,
    overdue: bool,
    trigger: Node | None,
    now: datetime,
) -> list[Operation]:
    operations: list[Operation] = []
    data = move.to.encode()
    assigned = view.assigned.get(move.item)
    fresh = move.item not in view.items
    if fresh:
        operations.append(Create(paths.item(move.item)))
    if assigned is None:
        operations.append(Create(paths.item_instance(move.item), data))
    else:
        operations.append(SetData(paths.item_instance(move.item), data, assigned.version))
    ledger = paths.ledger(move.item)
    if node is None:
        begun = new_entry(begins.basis, begins.since)
        operations.append(Create(ledger, encode(_with_trigger(begun, trigger))))
        return operations
    entry = after = node.entry
    if fresh:  # the item existed before and exists again: nothing was due in between
        after = entry.account(begins.since) if entry.running else entry.rebase(begins.basis, begins.since)
    elif assigned is not None and is_foreign(assigned.instance_id) and not entry.running:
        after = entry.account(now)  # who keeps no ledger ran what was due while he had it
    elif overdue:
        after = entry.mark_overdue()
    elif entry.hand_over:
        after = entry.ask_for_hand_over(False)
    after = _with_trigger(after, trigger)
    if after != entry or fresh:
        operations.append(SetData(ledger, encode(after), node.version))
    else:  # its owner may be back by now, under a new session, and run it
        operations.append(Check(ledger, node.version))
    return operations


def _with_trigger(entry: Entry, trigger: Node | None) -> Entry:
    return entry if trigger is None else entry.ask_by_trigger(trigger.modified, trigger.revision)


def with_descendants(groups: Sequence[Sequence[Operation]], existing: Iterable[str]) -> list[list[Operation]]:
    """The same groups, each after the removal of all that is below the nodes that it removes (`existing`: the paths that are
    there). Nobody else knows of such nodes, and while one is there its parent cannot go."""
    group_of = {
        operation.path: number for number, group in enumerate(groups) for operation in group if isinstance(operation, Delete)
    }
    below: list[list[str]] = [[] for _ in groups]
    for path in existing:
        root = next((above for above in ancestors(path) if above in group_of), None)
        if root is not None and path not in group_of:
            below[group_of[root]].append(path)
    for paths in below:
        paths.sort(key=lambda path: -path.count("/"))
    return [[*map(Delete, paths), *group] for paths, group in zip(below, groups, strict=True)]


def clear_flags(paths: JobPaths, view: JobView) -> list[Operation]:
    """Somebody else asked for resharding (an operator's tool, a Java worker): it is done, so the flags go."""
    flags = ((paths.resharding_necessary, view.necessary), (paths.resharding_processing, view.processing))
    return [Delete(path) for path, there in flags if there]
