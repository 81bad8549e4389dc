"""The sharding items of one job that concern this worker: those assigned to it, and those whose bodies run here.

    unknown ──read──► idle ──claim──► body here ──ends──► ended ──recorded──► idle
       ▲                                                     │
       └──── a write lost its race, or its outcome is unknown ┘

Each look works out what there is to do and does one round of it: read the entries that are not known, or write what ended and
what was decided in one transaction, and start the bodies whose claims were granted. Then it is looked at again.

Guards: every write carries the version that was read. A claim is not sent, and a body not entered, once the session could
have expired. A claim whose reply was lost is read back, never repeated: if it was granted, its body is run. The end of a body
is recorded only while the entry still carries its token; otherwise a newer attempt exists, and this one has lost its say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any

from ejpy.coordination import claims
from ejpy.coordination.claims import Claim, Situation, Step, Wait
from ejpy.coordination.ledger import BrokenEntry, Entry, NewerEntry, decode, encode, new_entry
from ejpy.coordination.paths import JobPaths
from ejpy.errors import AccessDenied, GuardFailed, GuardFailure, OutcomeUnknown, RegistryError, RequestTooLarge
from ejpy.execution.base import Attempt, Ended
from ejpy.history.records import AttemptEnded, AttemptStarted, FiresNotRun, Journal
from ejpy.logs import fields
from ejpy.registry.base import Check, Create, Node, Operation, SessionState, SetData, ancestors, in_transactions, operation_bytes
from ejpy.scheduler import checkpoints
from ejpy.scheduler.host import RETRY_SECONDS, Deed, Host
from ejpy.scheduler.item import Change, Item, Look, NotStarted, end_of, granted, takes_over

CLAIM_AHEAD = 256
"""While so many attempts wait for a place in the pool nothing new is claimed: another worker may be free."""

GATHER_ENDS_SECONDS = 0.05
"""How long the first item that ends waits for the others of its fire, so that their ends share a transaction."""


class Items:
    """See the module's text. All methods on the control loop."""

    def __init__(
        self,
        host: Host,
        paths: JobPaths,
        journal: Journal,
        again: Callable[[], None],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._host = host
        self._paths = paths
        self._journal = journal
        self._again = again
        self._log = log
        self._items: dict[int, Item] = {}
        self._round = Deed("claiming and recording", again, log)
        self._gathering: asyncio.TimerHandle | None = None
        self._waking: asyncio.TimerHandle | None = None
        self._settled: list[asyncio.Future[None]] = []

    # -- events --

    def assign(self, numbers: Iterable[int], now: datetime) -> None:
        """These items, and no others, are assigned to this worker."""
        mine = set(numbers)
        for number in mine:
            item = self._items.setdefault(number, Item(number))
            item.held_since = item.held_since or now
        for item in self._items.values():
            if item.number not in mine:
                item.held_since = None

    def session_lost(self) -> None:
        """Others may take over from now on: tell the bodies to stop."""
        for item in self._items.values():
            if item.execution is not None:
                item.execution.cancel("the session with the registry may have expired")

    def session_renewed(self, now: datetime) -> None:
        """After a loss: whatever was known may be wrong, and no fire in between could have been run here."""
        for item in self._items.values():
            item.entry = None
            item.watched = False
            if item.held_since is not None:
                item.held_since = now

    def withdraw_waiting(self) -> None:
        """Give back what was claimed and not entered."""
        for item in self._items.values():
            if item.execution is not None:
                item.execution.withdraw()

    def cancel_all(self, why: str) -> list[Attempt]:
        running = [item.execution for item in self._items.values() if item.execution is not None]
        for execution in running:
            execution.cancel(why)
        return [execution.attempt for execution in running]

    async def save_checkpoint(self, attempt: Attempt, value: Any) -> None:
        """Write a checkpoint into the item's entry. Raises StaleAttempt, RegistryError."""
        await checkpoints.save(self._host, self._paths, self._items.get(attempt.sharding_item), attempt, value)

    @property
    def running(self) -> list[Attempt]:
        """Attempts whose bodies were started here and whose ends are not settled."""
        return [item.execution.attempt for item in self._items.values() if item.execution is not None]

    async def settled(self) -> None:
        """Wait until no body runs here and every end is recorded."""
        while self.running or self._round.under_way:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(waiter)
            await waiter

    async def close(self) -> None:
        for timer in (self._gathering, self._waking):
            if timer is not None:
                timer.cancel()
        await self._round.cancel()

    # -- the look --

    def look(self, look: Look) -> None:
        """Begin what there is to do, if nothing is under way."""
        if self._round.under_way or self._host.registry.state is not SessionState.CONNECTED:
            return
        self._forget_others()
        unread = [item for item in self._items.values() if item.entry is None]
        if unread:
            self._round.begin(self._read_round(unread, look))
            return
        changes, watches = self._todo(look)
        if changes or watches:
            self._round.begin(self._write_round(changes, watches, look))
        else:
            self._wake_settled()

    def _todo(self, look: Look) -> tuple[list[Change], list[Item]]:
        changes: list[Change] = []
        watches: list[Item] = []
        saturated = look.runner.waiting >= CLAIM_AHEAD
        for item in self._items.values():
            entry = item.entry
            if entry is None:
                continue
            if item.execution is not None:
                if item.ended is not None and self._gathering is None:
                    changes.append(Change(item, end_of(entry, item.ended, look.situation.policy.failover)))
            elif item.doubt is not None:
                doubt, item.doubt = item.doubt, None
                if granted(entry, doubt.entry):  # also if the item is not assigned to this worker any more
                    self._start(item, look, doubt.session_id)
                else:
                    self._again()
            elif item.blocked or item.held_since is None or not look.may_claim:
                continue
            elif item.version is None:
                changes.append(Change(item, entry))
            else:
                step = self._decide(item, entry, item.held_since, look)
                if isinstance(step, Wait):
                    if not item.watched:
                        watches.append(item)
                        if step.until is not None:
                            self._again_in((step.until - look.situation.now).total_seconds())
                elif isinstance(step, Claim):
                    rest = item.rest_until - asyncio.get_running_loop().time()
                    if saturated or rest > 0:
                        self._again_in(RETRY_SECONDS if saturated else rest)
                    else:
                        changes.append(Change(item, step.entry, claim=True, session_id=self._host.registry.session_id))
                elif step is not None:
                    changes.append(Change(item, step.entry))
        return changes, watches

    def _decide(self, item: Item, entry: Entry, held_since: datetime, look: Look) -> Step:
        """One item whose entry nobody thought of must not stop the others."""
        try:
            return claims.decide(entry, look.situation, held_since=held_since, enabled=look.enabled(item.number))
        except (ValueError, OverflowError) as error:
            self._log.error("the ledger entry makes no sense, the item rests: %s", error, extra=fields(item=item.number))
            item.blocked = True
            return None

    def _again_in(self, seconds: float) -> None:
        """Look again at the latest then; one timer, whoever asks."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, seconds)
        if self._waking is None or when < self._waking.when():
            if self._waking is not None:
                self._waking.cancel()
            self._waking = loop.call_at(when, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._again()

    # -- rounds --

    async def _read_round(self, items: list[Item], look: Look) -> bool:
        try:
            await self._read(items, look.situation)
        except RegistryError as error:
            self._log.info("ledger not read: %s", error)
            return False
        return True

    async def _write_round(self, changes: list[Change], watches: list[Item], look: Look) -> bool:
        try:
            changes = await self._without_living_owners(changes)
            written = await self._write(changes, look) if changes else True
            await asyncio.gather(*(self._watch(item, look) for item in watches))
        except RegistryError as error:
            self._log.info("not done: %s", error)
            return False
        return written

    async def _write(self, changes: list[Change], look: Look) -> bool:
        """Write what fits into one transaction. False: not now. Raises RegistryError if it was certainly not applied."""
        operations = self._fitting([self._operation(change) for change in changes])
        changes = changes[: len(operations)]  # the rest is for the next round
        before = [change.item.entry for change in changes]
        if any(change.claim for change in changes):
            operations.append(Check(self._paths.instance(self._host.instance_id)))
            if look.config_version is not None:  # a worker that has not heard of a new item count must not use the old one
                operations.append(Check(self._paths.config, look.config_version))
        try:
            committed = await self._host.group.commit(operations, not_after=self._host.registry.lease_until)
        except (AccessDenied, RequestTooLarge) as error:
            return await self._write_one_by_one(changes, look, error)
        except GuardFailed as error:
            self._log.info("a condition did not hold, looking again: %s", error)
            for change in changes:
                change.item.entry = None
            if error.path in (self._paths.instance(self._host.instance_id), self._paths.config):
                return False  # the copy of the tree will show in a moment what has become of that
            if error.failure is GuardFailure.NO_NODE:
                await self._restore_ledger_root()
            return True
        except OutcomeUnknown as error:
            self._log.warning("outcome of a write unknown, reading it back: %s", error)
            for change in changes:
                change.item.entry = None
                if change.claim:
                    change.item.doubt = change
            return True
        claimed: list[Change] = []
        for change, entry, version in zip(changes, before, committed.versions, strict=False):  # a check may follow
            self._applied(change, entry, version, committed.revision)
            if change.claim:
                claimed.append(change)
            elif change.item.execution is not None:
                self._settle(change.item, recorded=True)
        for change in claimed:
            self._start(change.item, look, change.session_id)
        return True

    async def _write_one_by_one(self, changes: list[Change], look: Look, error: RegistryError) -> bool:
        """One of them cannot be written; the others shall be."""
        if len(changes) > 1:
            for change in changes:
                await self._write([change], look)
        else:
            self._log.error("cannot be written, the item rests: %s", error, extra=fields(item=changes[0].item.number))
            changes[0].item.blocked = True
        return True

    async def _restore_ledger_root(self) -> None:
        """Somebody removed an entry, or the node that all of them are below."""
        paths = [*ancestors(self._paths.term), self._paths.term]
        nodes = await self._host.registry.read(paths)
        missing: list[Operation] = [Create(path) for path, node in zip(paths, nodes, strict=True) if node is None]
        if missing:
            self._log.error("the ledger was removed while the job runs: its items start anew at their next fires")
            await self._host.group.commit([Check(self._paths.instance(self._host.instance_id)), *missing])

    async def _without_living_owners(self, changes: list[Change]) -> list[Change]:
        """Leave out what would take a running item from an owner who is alive after all.

        The copy of the tree may be a moment older than the ledger entry that was read. A claim's transaction holds only while
        its owner's instance node exists, so a read that follows on that of the entry shows the node, or its owner is gone.
        """
        me = self._host.instance_id
        taken = {c.item.number: c.item.entry.owner for c in changes if takes_over(c) and c.item.entry is not None}
        owners = [owner for owner in dict.fromkeys(taken.values()) if owner is not None and owner != me]
        if not owners:
            return changes
        nodes = await self._host.registry.read([self._paths.instance(owner) for owner in owners])
        alive = {owner for owner, node in zip(owners, nodes, strict=True) if node is not None and node.session_id is not None}
        return [change for change in changes if taken.get(change.item.number) not in alive]

    def _fitting(self, operations: list[Operation]) -> list[Operation]:
        """As many of the first as fit into one transaction with the checks of a claim."""
        registry = self._host.registry
        checks = (Check(self._paths.instance(self._host.instance_id)), Check(self._paths.config))
        check = sum(map(operation_bytes, checks))
        most = registry.max_operations - len(checks)
        return in_transactions(([o] for o in operations), max_operations=most, max_bytes=registry.max_bytes - check)[0]

    def _operation(self, change: Change) -> Operation:
        path, data = self._paths.ledger(change.item.number), encode(change.entry)
        return Create(path, data) if change.item.version is None else SetData(path, data, change.item.version)

    def _applied(self, change: Change, before: Entry | None, version: int, revision: int) -> None:
        item = change.item
        item.entry = replace(change.entry, token=revision) if change.claim else change.entry
        item.version = version
        if before is not None and change.entry.not_run != before.not_run:
            last = change.entry.not_run[-1]
            extended = before.not_run and before.not_run[-1].after == last.after
            after = before.not_run[-1].until if extended else last.after
            self._journal.write(FiresNotRun(self._paths.job, item.number, after, last.until, last.why, self._host.instance_id))

    async def _read(self, items: list[Item], situation: Situation) -> None:
        paths = [self._paths.ledger(item.number) for item in items]
        for item, path, node in zip(items, paths, await self._host.registry.read(paths), strict=True):
            self._learn(item, path, node, situation)

    def _learn(self, item: Item, path: str, node: Node | None, situation: Situation) -> None:
        if node is None:
            item.entry, item.version = new_entry(situation.basis, situation.now), None
        else:
            item.version = node.version
            item.blocked = False
            try:
                item.entry = decode(node.data, node.revision, path)
            except NewerEntry as error:
                self._log.error("%s", error, extra=fields(item=item.number))
                item.entry = new_entry(situation.basis, situation.now)
                item.blocked = True
            except BrokenEntry as error:
                self._log.error("%s; the item starts anew at its next fire", error, extra=fields(item=item.number))
                item.entry = new_entry(situation.basis, situation.now)
        if item.execution is not None and item.entry.token != item.execution.attempt.fencing_token:
            item.superseded = True
            item.execution.cancel("a newer attempt exists")
            if item.ended is not None:
                self._settle(item, recorded=False)

    async def _watch(self, item: Item, look: Look) -> None:
        def changed() -> None:
            item.watched = False
            item.entry = None
            self._again()

        path = self._paths.ledger(item.number)
        item.watched = True  # before the read: its event may come before its reply
        try:
            node = await self._host.registry.read_and_watch(path, changed)
        except RegistryError:
            item.watched = False
            raise
        if item.watched:
            self._learn(item, path, node, look.situation)

    # -- bodies --

    def _start(self, item: Item, look: Look, session_id: int | None) -> None:
        """Start the body of a claim that was made in the session `session_id`. If that is over, others may have seen its owner
        die: then the body is not entered, and the claim is given back."""
        entry, registry, clock = item.entry, self._host.registry, self._host.clock
        assert entry is not None
        assert entry.token is not None
        item.superseded = False
        item.ended = None

        def may_enter() -> bool:
            return registry.session_id == session_id and clock.monotonic() < registry.lease_until

        attempt = look.attempt_of(item.number, entry, entry.token)
        self._journal.write(AttemptStarted(attempt, self._host.instance_id))
        try:
            item.execution = look.runner.start(
                attempt, may_enter=may_enter, save_checkpoint=self.save_checkpoint, on_ended=self._on_ended
            )
        except (OSError, RuntimeError) as error:  # no thread, no process to be had: the fire is given back, and tried again
            self._log.error("cannot start a body: %s", error, extra=fields(item=item.number))
            item.execution = NotStarted(attempt)
            item.ended = Ended(None, None, clock.now())
            if self._gathering is None:
                self._gathering = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._ends_gathered)

    def _on_ended(self, attempt: Attempt, ended: Ended) -> None:
        item = self._items.get(attempt.sharding_item)
        if item is None or item.execution is None or item.execution.attempt is not attempt:
            self._log.error("an attempt ended that is not known here: %s", attempt)
            return
        item.ended = ended
        if ended.outcome is None:
            item.rest_until = asyncio.get_running_loop().time() + RETRY_SECONDS
        unmonitored = item.entry is not None and not item.entry.running and ended.outcome is not None
        if item.superseded or unmonitored:
            self._settle(item, recorded=not item.superseded)
        others = any(i.execution is not None and i.ended is None for i in self._items.values())
        if not others:
            self._ends_gathered()
        elif self._gathering is None and item.ended is not None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_ENDS_SECONDS, self._ends_gathered)

    def _ends_gathered(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._again()

    def _settle(self, item: Item, *, recorded: bool) -> None:
        assert item.execution is not None
        assert item.ended is not None
        self._journal.write(AttemptEnded(item.execution.attempt, self._host.instance_id, item.ended, recorded))
        item.execution = item.ended = None
        item.superseded = False

    def _forget_others(self) -> None:
        """Not while a round is under way, which may be about to start a body."""
        for item in list(self._items.values()):
            if item.held_since is None and item.execution is None and item.doubt is None:
                del self._items[item.number]

    def _wake_settled(self) -> None:
        if not self.running:
            waiters, self._settled = self._settled, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
