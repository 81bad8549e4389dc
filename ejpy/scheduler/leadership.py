"""Leading a job: election, abdication, resharding, and the watch for owners that leave fires unclaimed.

    follower ──no leader, own server enabled──► latch ──► leader ──own server disabled, or draining──► follower
                                                            └──session lost, node removed──► follower

The leader's node is the leadership; the latch is a short mutex around making it. Whoever makes it also writes the job's term
node, in the same transaction; each decision of a leader carries the version that its own term left there, so that a leader
that was paused, or whose node was removed, changes nothing once somebody else was elected.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from ejpy.config.model import JobConfig
from ejpy.coordination import assignment, neglect
from ejpy.coordination.assignment import LedgerNode, Move
from ejpy.coordination.claims import Schedule
from ejpy.coordination.ledger import Basis, BrokenEntry, decode, new_entry
from ejpy.coordination.neglect import Neglect
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView, view_of
from ejpy.errors import GuardFailed, GuardFailure, RegistryError
from ejpy.logs import fields
from ejpy.registry.base import Check, Create, Delete, Node, Operation, SessionState, SetData, in_transactions
from ejpy.registry.latch import LeaderLatch
from ejpy.registry.mirror import TreeMirror
from ejpy.scheduler.host import RETRY_SECONDS, Deed, Host

ELECTION_TIMEOUT_SECONDS = 30.0
"""How long to stand in line for the latch before looking again whether there is a leader now."""

SETTLE_SECONDS = 5.0


@dataclass(slots=True)
class _Term:
    """This worker's leadership. `version`: of the term node, after this leader's last write."""

    session_id: int | None
    version: int
    settling: dict[str, int] = field(default_factory=dict)
    """Nodes of the last commit, with the revision that the copy of the tree must show before it is judged again."""
    settle_by: float = 0.0
    """When not to wait for that any more (monotonic): somebody may have removed a node again."""
    neglect: Neglect = field(default_factory=Neglect)
    checked: bool = False
    """Whether this leader has looked for fires left unclaimed, or will."""
    waiting: set[int] = field(default_factory=set)
    """Items whose ledger entry is watched, since they run and shall move."""
    present: frozenset[str] = frozenset()
    """Ids of the instances that lived at the last look."""

    def see(self, instances: Iterable[str]) -> None:
        """Who lives now. If somebody has gone, the ends that are waited for may be his, and never come: look at all anew."""
        before, self.present = self.present, frozenset(instances)
        if before - self.present:
            self.waiting.clear()


class Leadership:
    """See the module's text. All methods on the control loop."""

    def __init__(
        self,
        host: Host,
        paths: JobPaths,
        mirror: TreeMirror,
        again: Callable[[], None],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._host = host
        self._paths = paths
        self._mirror = mirror
        self._again = again
        self._log = log
        self._latch = LeaderLatch(host.registry, paths.latch, new_uuid=host.new_uuid)
        self._deed = Deed("leading", again, log)
        self._term: _Term | None = None
        self._check: asyncio.TimerHandle | None = None

    def leads(self, view: JobView) -> bool:
        """By the job's tree, this worker is the leader in its present session."""
        mine = view.leader == self._host.instance_id
        return mine and view.leader_session == self._host.registry.session_id

    def look(self, view: JobView, config: JobConfig, schedule: Schedule | None, now: datetime, *, willing: bool) -> None:
        """Begin what there is to do, if nothing is under way. `willing`: this worker may lead."""
        if self._deed.under_way or self._host.registry.state is not SessionState.CONNECTED:
            return
        leads = self.leads(view)
        if self._term is not None and not leads:
            if not self._settled(self._term):
                return  # just elected: the copy of the tree does not show it yet
            self._log.info("no longer the leader", extra=fields(leader=view.leader))
            self._end_term()
        if leads and not willing:
            self._deed.begin(self._abdicate())
        elif view.leader is None and willing:
            self._deed.begin(self._elect())
        elif leads and self._term is None:
            self._deed.begin(self._resume())
        elif leads and self._term is not None and self._settled(self._term):
            self._term.see(view.instances)
            if schedule is not None and not self._term.checked:
                self._term.checked = True
                self.fired(view, config, schedule)  # the leader before may not have come to it
            moves = self._moves(view, config, self._term)
            surplus = assignment.surplus(view, config.sharding_total_count)
            flags = assignment.clear_flags(self._paths, view)
            if surplus or flags or any(move.item not in self._term.waiting for move in moves):
                self._deed.begin(self._reshard(self._term, view, config, moves, surplus, flags, now))

    def fired(self, view: JobView, config: JobConfig, schedule: Schedule) -> None:
        """A scheduled instant came: see after `claim_timeout` that everybody claimed it."""
        if self._term is not None and self._check is None:
            delay = config.claim_timeout.total_seconds()
            self._check = asyncio.get_running_loop().call_later(delay, self._begin_check, config, schedule)

    async def close(self) -> None:
        self._end_term()
        await self._deed.cancel()

    def _end_term(self) -> None:
        self._term = None
        if self._check is not None:
            self._check.cancel()
            self._check = None

    # -- election --

    async def _elect(self) -> bool:
        try:
            hold = await self._latch.acquire(ELECTION_TIMEOUT_SECONDS)
            if hold is None:
                return True
            try:
                if not await self._take_leadership(hold.node_path):
                    return False
                hold.released_in_transaction()
            finally:
                await hold.release()
        except RegistryError as error:
            self._log.info("election: %s", error)
            return False
        return True

    async def _take_leadership(self, latch_node: str) -> bool:
        registry, p = self._host.registry, self._paths
        session_id = registry.session_id
        leader, term = await registry.read([p.leader, p.term])
        if leader is not None and leader.session_id is not None:
            return False
        operations: list[Operation] = [Delete(p.leader, leader.version)] if leader is not None else []
        operations += [
            Check(p.instance(self._host.instance_id)),
            Create(p.leader, self._host.instance_id.encode(), ephemeral=True),
            Delete(latch_node),
            SetData(p.term, self._term_document()) if term else Create(p.term, self._term_document()),
        ]
        try:
            committed = await self._host.group.commit(operations, not_after=registry.lease_until)
        except GuardFailed as error:
            foreign = error.failure is GuardFailure.NOT_EMPTY
            self._log.log(logging.WARNING if foreign else logging.INFO, "election: a condition did not hold: %s", error)
            return False
        term_begun = self._begin_term(session_id, committed.versions[-1])
        self._settle(term_begun, [p.leader], committed.revision)
        return True

    def _begin_term(self, session_id: int | None, version: int) -> _Term:
        self._term = _Term(session_id, version)
        self._log.info("is the leader", extra=fields(term=version))
        return self._term

    def _term_document(self) -> bytes:
        session = self._host.registry.session_id
        return json.dumps({"leader": self._host.instance_id, "session": session}, separators=(",", ":")).encode()

    async def _resume(self) -> bool:
        """The leader's node is ours, and we do not know of it: the reply was lost. The term node tells whether it counts."""
        try:
            leader, term = await self._host.registry.read([self._paths.leader, self._paths.term])
        except RegistryError as error:
            self._log.info("leadership not confirmed: %s", error)
            return False
        if leader is None or leader.session_id != self._host.registry.session_id:
            return True
        if term is not None and term.data == self._term_document():
            self._begin_term(leader.session_id, term.version)
            return True
        return await self._abdicate()

    def resignation(self) -> list[Operation]:
        """What gives the leadership up, if this worker has it; guarded, so that it never removes a successor's node."""
        if self._term is None:
            return []
        return [SetData(self._paths.term, self._term_document(), self._term.version), Delete(self._paths.leader)]

    async def _abdicate(self) -> bool:
        operations = self.resignation() or [Delete(self._paths.leader)]  # without a term: the node was just read, and is ours
        self._end_term()
        try:
            await self._host.group.commit(operations, not_after=self._host.registry.lease_until)
            self._log.info("gave up the leadership")
        except GuardFailed:
            return True
        except RegistryError as error:
            self._log.info("leadership not given up: %s", error)
            return False
        return True

    # -- resharding --

    def _settle(self, term: _Term, paths: Iterable[str], revision: int) -> None:
        term.settling.update(dict.fromkeys(paths, revision))
        term.settle_by = self._host.clock.monotonic() + SETTLE_SECONDS
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._again)

    def _settled(self, term: _Term) -> bool:
        """The copy of the tree shows what this leader wrote last."""
        for path, revision in list(term.settling.items()):
            node = self._mirror.nodes.get(path)
            if node is not None and node.revision >= revision:
                del term.settling[path]
        return not term.settling or self._host.clock.monotonic() >= term.settle_by

    def _moves(self, view: JobView, config: JobConfig, term: _Term) -> list[Move]:
        stalled = term.neglect.stalled_at(self._host.clock.monotonic())
        return assignment.wanted_moves(
            view,
            config.job_sharding_strategy_type,
            config.job_name,
            config.sharding_total_count,
            stalled,
        )

    async def _reshard(
        self,
        term: _Term,
        view: JobView,
        config: JobConfig,
        moves: list[Move],
        surplus: list[int],
        flags: list[Operation],
        now: datetime,
    ) -> bool:
        basis = Basis.of(config)
        try:
            ledger = await self._read_ledger([move.item for move in moves], basis, now)
            plan = assignment.plan(self._paths, view, moves, ledger, basis, now, frozenset(term.neglect.overdue))
            batches = [list(batch) for batch in plan.batches]
            batches += [assignment.removals(self._paths, item, self._mirror.nodes) for item in surplus]
            if moves and self._paths.sharding not in self._mirror.nodes:
                batches.insert(0, [Create(self._paths.sharding)])
            if flags:
                batches.append(flags)
            batches += in_transactions(
                ([request] for request in plan.requests),
                max_operations=assignment.MOST_OPERATIONS,
                max_bytes=assignment.MOST_BYTES,
            )
            for batch in batches:
                await self._commit(term, batch)
            await self._watch(term, plan.waiting - term.waiting)
        except GuardFailed as error:
            self._log.info("resharding met a change, looking again: %s", error)
            await self._after_conflict(term)
            return True
        except RegistryError as error:
            self._log.warning("resharding not done: %s", error)
            return False
        if plan.moves or surplus:
            self._log.info("resharded", extra=fields(moved=len(plan.moves), removed=len(surplus), running=len(plan.waiting)))
        term.neglect.overdue -= {move.item for move in plan.moves}
        return True

    async def _commit(self, term: _Term, batch: list[Operation]) -> None:
        guard = SetData(self._paths.term, self._term_document(), term.version)
        committed = await self._host.group.commit([guard, *batch], not_after=self._host.registry.lease_until)
        term.version = committed.versions[0]
        written = [operation.path for operation in batch if isinstance(operation, (Create, SetData))]
        self._settle(term, [path for path in written if path.startswith(self._paths.root + "/")], committed.revision)

    async def _after_conflict(self, term: _Term) -> None:
        """If the term node was written by somebody else, the term is over; otherwise learn its version again."""
        try:
            [node] = await self._host.registry.read([self._paths.term])
        except RegistryError as error:
            self._log.info("term not read: %s", error)
            return
        if node is not None and node.data == self._term_document():
            term.version = node.version
        else:
            self._log.warning("another leader was elected")
            self._end_term()

    async def _read_ledger(self, items: list[int], basis: Basis, now: datetime) -> dict[int, LedgerNode | None]:
        nodes = await self._host.registry.read([self._paths.ledger(item) for item in items])
        return {item: self._ledger_node(item, node, basis, now) for item, node in zip(items, nodes, strict=True)}

    def _ledger_node(self, item: int, node: Node | None, basis: Basis, now: datetime) -> LedgerNode | None:
        if node is None:
            return None
        try:
            return LedgerNode(decode(node.data, node.revision, self._paths.ledger(item)), node.version)
        except BrokenEntry as error:
            self._log.error("%s; the item starts anew at its next fire", error)
            return LedgerNode(new_entry(basis, now), node.version)

    async def _watch(self, term: _Term, items: Iterable[int]) -> None:
        for item in items:

            def ended(item: int = item) -> None:
                term.waiting.discard(item)
                self._again()

            path = self._paths.ledger(item)
            term.waiting.add(item)  # before the read: its event may come before its reply
            try:
                node = await self._host.registry.read_and_watch(path, ended)
            except RegistryError:
                term.waiting.discard(item)
                raise
            if node is None or not decode(node.data, node.revision, path).running:
                ended()

    # -- owners that do not claim --

    def _begin_check(self, config: JobConfig, schedule: Schedule) -> None:
        self._check = None
        if self._term is None:
            return
        if self._deed.under_way:
            self._check = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._begin_check, config, schedule)
        else:
            self._deed.begin(self._find_neglect(self._term, config, schedule))

    async def _find_neglect(self, term: _Term, config: JobConfig, schedule: Schedule) -> bool:
        view = view_of(self._mirror.nodes, self._paths)
        owners = neglect.claimable(view, config.sharding_total_count)
        basis, now = Basis.of(config), self._host.clock.now()
        try:
            ledger = await self._read_ledger(list(owners), basis, now)
        except RegistryError as error:
            self._log.info("ledger not checked: %s", error)
            self._check = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._begin_check, config, schedule)
            return True
        until = self._host.clock.monotonic() + 2 * config.claim_timeout.total_seconds()
        term.neglect.overdue.clear()
        for item, due in neglect.unclaimed(ledger, config, basis, schedule, now).items():
            self._log.warning("%s left the fire of %s unclaimed: its items move", owners[item], due, extra=fields(item=item))
            term.neglect.found(item, owners[item], until)
        return True
