"""The leader's changes of the assignment: what the strategy wants is compared with what is, and what differs is moved.

Each transaction is guarded by the version that this leader's term left in the term node. Items that shall move and cannot yet,
since they run, or since their ledger entry is of a later ejpy, are watched; they are looked at again when it changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from ejpy.config.model import JobConfig
from ejpy.coordination import assignment, changes
from ejpy.coordination.assignment import LedgerNode, Move, Plan
from ejpy.coordination.changes import Changes, InForce
from ejpy.coordination.ledger import Basis, new_entry
from ejpy.coordination.ledger_document import read_entry
from ejpy.coordination.marking import announce_resharding
from ejpy.coordination.marks import Marks, foreign_instances
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView
from ejpy.errors import AccessDenied, GuardFailed, RegistryError, RequestTooLarge
from ejpy.logs import fields
from ejpy.registry.base import Create, Delete, Operation, SetData, in_transactions
from ejpy.registry.mirror import TreeMirror
from ejpy.scheduler.election import Election
from ejpy.scheduler.host import Host, read_allowed
from ejpy.scheduler.own_strategy import OwnStrategy
from ejpy.scheduler.term import SETTLE_SECONDS, Term
from ejpy.scheduler.wording import item_ranges
from ejpy.sharding_strategies import ShardingInstance

TIDY_AGAIN_SECONDS = 10.0
"""When something could not be put right, it is tried again after this."""
REFUSALS = (GuardFailed, AccessDenied, RequestTooLarge)
"""What concerns one transaction; any other error, all of them."""
SAID_AT = 3
"""What could not be put right so often is no change of a moment, and is named in the log, once."""


class Resharding:
    """See the module's text. All methods on the control loop."""

    def __init__(
        self,
        host: Host,
        paths: JobPaths,
        mirror: TreeMirror,
        election: Election,
        own_strategy: OwnStrategy,
        again: Callable[[], None],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._host = host
        self._paths = paths
        self._mirror = mirror
        self._election = election
        self._own_strategy = own_strategy
        self._conflicted = False
        """The last resharding met a change."""
        self._again = again
        self._log = log

    def wanted(self, term: Term, view: JobView, marks: Marks, config: JobConfig) -> bool:
        """Whether there is something to do now."""
        moves = self._moves(term, view, config)
        if moves is None:
            return False
        can_move = any(move.item not in term.waiting for move in moves)
        if foreign_instances(view) and moves:
            return not view.necessary or (can_move and not _held_by_foreign(view, marks, moves))
        if can_move:
            return True
        return bool(assignment.surplus(view, config.sharding_total_count) or assignment.clear_flags(self._paths, view))

    async def reshard(self, term: Term, view: JobView, marks: Marks, config: JobConfig, known: Changes, now: datetime) -> bool:
        """Do what can be done now. Whether to look again at once."""

        def begins(item: int) -> InForce:
            return changes.begins(known, item, now, config.misfire_grace)

        moves = self._moves(term, view, config)
        if moves is None:
            return False
        if foreign_instances(view) and moves and not view.necessary:
            return await self._announce(term, view)
        surplus, basis = assignment.surplus(view, config.sharding_total_count), Basis.of(config)
        try:
            ledger = await self.read_ledger(term, [move.item for move in moves], basis, now)
            resting = {move.item for move in moves if move.item not in ledger}
            movable = [move for move in moves if move.item in ledger]
            overdue, existing = frozenset(term.neglect.overdue), self._mirror.nodes
            plan = assignment.plan(
                self._paths, view, movable, ledger, begins, overdue, marks.triggers, existing, now=self._begun(now)
            )
            term.resting |= resting
            batches = [list(batch) for batch in plan.batches]
            if plan.moves and self._paths.sharding not in self._mirror.nodes:
                batches.insert(0, [Create(self._paths.sharding)])
            others: list[list[Operation]] = [[Delete(self._paths.item(item))] for item in surplus]
            if not (foreign_instances(view) and plan.waiting):
                others += filter(None, [assignment.clear_flags(self._paths, view)])
            others += ([request] for request in plan.requests)
            batches += _in_transactions(self._whole(others))
            for batch in batches:
                await self._commit(term, batch)
            await self._watch(term, (plan.waiting | resting) - term.waiting, basis, now)
        except GuardFailed as error:
            self._log.info("resharding met a change, looking again: %s", error)
            await self._election.confirm(term)
            first, self._conflicted = not self._conflicted, True
            return first  # not at once again and again: it may be no change of a moment
        except RegistryError as error:
            self._log.warning("resharding not done: %s", error)
            return False
        self._conflicted = False
        if plan.moves or surplus:
            counts = fields(moved=len(plan.moves), removed=len(surplus), running=len(plan.waiting))
            self._log.info("resharded: %s", _told(plan, surplus), extra=counts)
        term.neglect.overdue -= {move.item for move in plan.moves}
        return bool(batches)

    async def tidy(self, term: Term, groups: list[list[Operation]]) -> bool:
        """Write what a look at the tree found to be put right, each group as a whole; nodes go with all that is below them.
        Whether to look again at once.

        What cannot be put right is left for TIDY_AGAIN_SECONDS, and holds up nothing else.
        """
        left = self._whole(groups)
        refused: list[list[Operation]] = []
        try:
            for batch in _in_transactions(left):
                own, left = _groups_of(left, len(batch))
                try:
                    await self._put_right(term, batch)
                except REFUSALS as error:
                    self._log.info("putting right met a change: %s", error)
                    await self._election.confirm(term)
                    refused += await self._tidy_one_by_one(term, own)
                if self._election.term is not term:
                    return True  # somebody else leads by now
        except RegistryError as error:
            self._log.info("not put right: %s", error)
            return False
        if refused:
            term.tidy_from = self._host.clock.monotonic() + TIDY_AGAIN_SECONDS
            asyncio.get_running_loop().call_later(TIDY_AGAIN_SECONDS, self._again)
        return not refused

    async def _tidy_one_by_one(self, term: Term, groups: list[list[Operation]]) -> list[list[Operation]]:
        """One of them is refused; the others shall not wait for it. Returns those that are."""
        refused = []
        for group in groups:
            if self._election.term is not term:
                break
            try:
                await self._put_right(term, group)
            except REFUSALS as error:
                refused.append(group)
                times = term.untidy[group[0].path] = term.untidy.get(group[0].path, 0) + 1
                self._log.log(logging.WARNING if times == SAID_AT else logging.DEBUG, "cannot be put right: %s", error)
                await self._election.confirm(term)
        return refused

    async def _put_right(self, term: Term, operations: list[Operation]) -> None:
        await self._commit(term, operations)
        self._log.info("put right: %s", ", ".join(operation.path for operation in operations[:10]))

    def _whole(self, groups: list[list[Operation]]) -> list[list[Operation]]:
        return assignment.with_descendants(groups, self._mirror.nodes)

    async def _announce(self, term: Term, view: JobView) -> bool:
        """Foreign instances begin nothing while this flag is there, and the leader waits for what has begun."""
        return await self.tidy(term, [self.announcement(view)])

    def _begun(self, now: datetime) -> datetime:
        """Since when foreign instances have begun nothing any more."""
        flag = self._mirror.nodes.get(self._paths.resharding_necessary)
        return now if flag is None else min(now, flag.modified)

    def announcement(self, view: JobView) -> list[Operation]:
        """What tells foreign instances that the next leader will reshard; they do not see it by themselves."""
        if view.necessary or not foreign_instances(view):
            return []
        return announce_resharding(self._paths, self._mirror.nodes)

    async def read_ledger(self, term: Term, items: list[int], basis: Basis, now: datetime) -> dict[int, LedgerNode | None]:
        """The entries of `items`; those of a later ejpy, and those that may not be read, are left out. Raises RegistryError."""
        nodes, denied = await read_allowed(self._host.registry, [self._paths.ledger(item) for item in items])
        found: dict[int, LedgerNode | None] = {}
        for item, node in zip(items, nodes, strict=True):
            if self._paths.ledger(item) in denied:
                continue  # its owner has said it
            if node is None:
                found[item] = None
                continue
            reading = read_entry(node, self._paths.ledger(item), basis, now)
            if reading.entry is not None:
                found[item] = LedgerNode(reading.entry, node.version)
            if reading.problem is not None and item not in term.said:
                term.said.add(item)
                self._log.error("%s", reading.problem, extra=fields(item=item))
        return found

    def _moves(self, term: Term, view: JobView, config: JobConfig) -> list[Move] | None:
        def dealt(total: int, eligible: list[str], current: Mapping[int, str]) -> Mapping[int, str] | None:
            instances = [ShardingInstance(id, view.instances[id].ip) for id in eligible]
            return self._own_strategy.dealt(config.job_name, total, instances, current)

        stalled = term.neglect.stalled_at(self._host.clock.monotonic())
        moves = assignment.wanted_moves(view, config, stalled, self._host.clock.now(), dealt)
        return None if moves is None else [move for move in moves if move.item not in term.resting]

    async def _commit(self, term: Term, batch: list[Operation]) -> None:
        guard = SetData(self._paths.term, self._election.term_document(), term.version)
        committed = await self._host.group.commit([guard, *batch], not_after=self._host.registry.lease_until)
        term.version = committed.versions[0]
        written = [operation.path for operation in batch if isinstance(operation, (Create, SetData))]
        removed = [operation.path for operation in batch if isinstance(operation, Delete)]
        below = [path for path in written if path.startswith(self._paths.root + "/") and path not in removed]
        term.wrote(below, committed.revision, self._host.clock.monotonic(), removed=removed)
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._again)

    async def _watch(self, term: Term, items: Iterable[int], basis: Basis, now: datetime) -> None:
        for item in items:

            def changed(item: int = item) -> None:
                term.waiting.discard(item)
                term.resting.discard(item)
                self._again()

            path = self._paths.ledger(item)
            term.waiting.add(item)  # before the read: its event may come before its reply
            try:
                node = await self._host.registry.read_and_watch(path, changed)
            except AccessDenied:
                continue  # it rests until this term ends
            except RegistryError:
                term.waiting.discard(item)
                raise
            entry = new_entry(basis, now) if node is None else read_entry(node, path, basis, now).entry
            if entry is not None and not entry.running:
                changed()  # it can be moved now


def _held_by_foreign(view: JobView, marks: Marks, moves: list[Move]) -> bool:
    """ElasticJob's rule: while an item runs, by its mark, nothing is moved; its end is seen in the tree."""
    running = marks.running
    return any(move.item in running and running[move.item].instance_id in view.instances for move in moves)


def _in_transactions(groups: list[list[Operation]]) -> list[list[Operation]]:
    return in_transactions(groups, max_operations=assignment.MOST_OPERATIONS, max_bytes=assignment.MOST_BYTES)


def _groups_of(groups: list[list[Operation]], operations: int) -> tuple[list[list[Operation]], list[list[Operation]]]:
    """The first groups, which have so many operations together, and the rest."""
    taken = 0
    while operations > 0:
        operations -= len(groups[taken])
        taken += 1
    return groups[:taken], groups[taken:]


def _told(plan: Plan, surplus: list[int]) -> str:
    by_receiver: dict[str, list[int]] = {}
    for move in plan.moves:
        by_receiver.setdefault(move.to, []).append(move.item)
    parts = [f"{item_ranges(items)} to {to}" for to, items in by_receiver.items()]
    if surplus:
        parts.append(f"{item_ranges(surplus)} removed")
    if plan.waiting:
        parts.append(f"{item_ranges(plan.waiting)} when they end")
    return "; ".join(parts)
