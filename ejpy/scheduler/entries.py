"""The ledger entries of this worker's items, read and written.

Guards: every write carries the version that was read. What was decided is written only under the configuration that it was
decided by, a claim only while this instance is registered, and nothing once the session could have expired. A claim whose
reply was lost is read back, never repeated: if it was granted, its body is run. The end of a body is recorded only while the
entry still carries its token; otherwise a newer attempt exists, and this one has lost its say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import timezone

from ejpy.coordination.claims import Schedule, Situation
from ejpy.coordination.ledger import Entry, NotRunRange, new_entry
from ejpy.coordination.ledger_document import encode, read_entry
from ejpy.coordination.paths import JobPaths
from ejpy.errors import AccessDenied, GuardFailed, GuardFailure, OutcomeUnknown, RegistryError, RequestTooLarge
from ejpy.history.records import FiresNotRun, Journal
from ejpy.logs import fields
from ejpy.registry.base import Check, Create, Node, Operation, SetData, ancestors, operation_bytes
from ejpy.scheduler.bodies import Bodies
from ejpy.scheduler.host import Host, read_allowed
from ejpy.scheduler.item import Change, Item, Look, takes_over

REFUSED_SECONDS = 30.0
"""How long an item rests when the registry refuses to write its entry: rights and limits do not change by themselves."""


class Entries:
    """See the module's text. All methods on the control loop."""

    def __init__(
        self,
        host: Host,
        paths: JobPaths,
        journal: Journal,
        bodies: Bodies,
        again: Callable[[], None],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._host = host
        self._paths = paths
        self._journal = journal
        self._bodies = bodies
        self._again = again
        self._log = log

    # -- reading --

    async def read(self, items: list[Item], situation: Situation) -> None:
        """Raises RegistryError."""
        paths = [self._paths.ledger(item.number) for item in items]
        nodes, denied = await read_allowed(self._host.registry, paths)
        for item, path, node in zip(items, paths, nodes, strict=True):
            if path not in denied:
                self._learn(item, path, node, situation)
                continue
            self._log.error("its ledger entry may not be read, the item rests: %s", path, extra=fields(item=item.number))
            item.refused_until = asyncio.get_running_loop().time() + REFUSED_SECONDS

    async def watch(self, item: Item, look: Look) -> None:
        """Read the entry, and have it read again, and looked at, when it changes. Raises RegistryError."""

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

    def _learn(self, item: Item, path: str, node: Node | None, situation: Situation) -> None:
        if node is None:
            # A foreign leader makes no entry for what it assigns; it is due here from then on.
            since = item.held_since if situation.others_until is not None else None
            item.entry = new_entry(situation.basis, min(since or situation.now, situation.now))
            item.version = item.written = None
        else:
            item.version, item.written = node.version, node.modified
            reading = read_entry(node, path, situation.basis, situation.now)
            item.entry = reading.entry or new_entry(situation.basis, situation.now)
            item.blocked = reading.entry is None
            if reading.problem is not None:
                self._log.error("%s", reading.problem, extra=fields(item=item.number))
        if item.untold is not None:
            known, wanted = item.untold
            item.untold = None
            if item.entry.not_run == wanted.not_run:
                self._tell(item, known, wanted, situation)
        if item.execution is not None:
            self._compare(item, item.entry, item.execution.attempt.fencing_token)
            if item.entry.hand_over and item.execution is not None:
                item.execution.withdraw()

    def _compare(self, item: Item, entry: Entry, token: int) -> None:
        """Whether the body that runs here still has a say: no newer attempt was claimed, and nobody recorded this one's end."""
        if entry.token == token and (entry.running or not item.monitored):
            return
        own = item.ended is not None and (item.ended.outcome is None or item.ended.ended == entry.ended)
        if entry.token == token and own:  # the reply to our own record was lost
            self._bodies.settle(item, recorded=True)
        else:
            self._bodies.superseded(item)

    # -- writing --

    async def write(self, changes: list[Change], look: Look) -> bool:
        """Write what fits into one transaction, and start the bodies of claims that are granted. False: not now. Raises
        RegistryError if it was certainly not applied."""
        changes = await self._without_living_owners(changes)
        return await self._write(changes, look) if changes else True

    async def _write(self, changes: list[Change], look: Look) -> bool:
        changes = changes[: self._fitting(changes, look)]  # the rest is for the next round
        operations = [self._operation(change) for change in changes]
        before = [change.item.entry for change in changes]
        for change in changes:
            operations += change.marks
        if any(change.claim for change in changes):
            operations += look.marking.no_resharding()
            operations.append(Check(self._paths.instance(self._host.instance_id)))
        if look.config_version is not None and any(change.decided for change in changes):
            operations.append(Check(self._paths.config, look.config_version))
        try:
            committed = await self._host.group.commit(operations, not_after=self._host.registry.lease_until)
        except (AccessDenied, RequestTooLarge) as error:
            return await self._write_one_by_one(changes, look, error)
        except GuardFailed as error:
            self._log.info("a condition did not hold, looking again: %s", error)
            for change in changes:
                change.item.entry = None
            self._learn_missing_mark(changes, error)
            if error.path in (self._paths.instance(self._host.instance_id), self._paths.config) or look.marking.is_mark(
                error.path
            ):
                return False  # the copy of the tree will show in a moment what has become of that
            if error.failure is GuardFailure.NO_NODE:
                await self._restore_ledger_root()
            return True
        except OutcomeUnknown as error:
            self._log.warning("outcome of a write unknown, reading it back: %s", error)
            for change, entry in zip(changes, before, strict=True):
                change.item.entry = None
                change.item.untold = (entry, change.entry) if entry is not None else None
                if change.claim:
                    change.item.doubt = change
            return True
        claimed: list[Change] = []
        for change, entry, version in zip(changes, before, committed.versions, strict=False):  # a check may follow
            self._applied(change, entry, version, committed.revision, look)
            if change.claim:
                claimed.append(change)
            elif change.ends:
                self._bodies.settle(change.item, recorded=True)
            elif change.late:
                change.item.late = True
            elif change.marks_running:
                change.item.marked = True
        moved = await self._moved_meanwhile(claimed, look)
        for change in claimed:
            change.item.marked, change.item.late = change.marked, False
            self._bodies.start(change.item, look, change.session_id, enter=change.item.number not in moved)
        return True

    def _learn_missing_mark(self, changes: list[Change], error: GuardFailed) -> None:
        """Somebody removed a mark that was made here: the next write goes without."""
        if error.failure is GuardFailure.NO_NODE:
            for change in changes:
                if change.ends and error.path == self._paths.item_running(change.item.number):
                    change.item.marked = False
                if error.path == self._paths.item_misfire(change.item.number):
                    change.item.late = False

    async def _moved_meanwhile(self, claimed: list[Change], look: Look) -> set[int]:
        """Items that a foreign leader gave to others before they were claimed here. Where instances know no ledger, the
        assignment is all that they go by; the copy of the tree may be a moment late."""
        items = [change.item.number for change in claimed if not look.marking.taken(change.item.number)]
        if not look.marking.foreign or not items:
            return set()
        try:
            nodes = await self._host.registry.read([self._paths.item_instance(item) for item in items])
        except RegistryError as error:
            self._log.info("assignment not confirmed, the claims are given back: %s", error)
            return set(items)
        me = self._host.instance_id.encode()
        return {item for item, node in zip(items, nodes, strict=True) if node is None or node.data != me}

    async def _write_one_by_one(self, changes: list[Change], look: Look, error: RegistryError) -> bool:
        """One of them cannot be written; the others shall be."""
        if len(changes) > 1:
            for change in changes:
                await self._write([change], look)
        else:
            item = changes[0].item
            self._log.error("cannot be written, the item rests: %s", error, extra=fields(item=item.number))
            item.entry = None
            item.refused_until = asyncio.get_running_loop().time() + REFUSED_SECONDS
        return True

    async def _restore_ledger_root(self) -> None:
        """Somebody removed an entry, or the node that all of them are below."""
        paths = [*ancestors(self._paths.term), self._paths.term]
        nodes = await self._host.registry.read(paths)
        missing: list[Operation] = [Create(path) for path, node in zip(paths, nodes, strict=True) if node is None]
        if missing:
            try:
                await self._host.group.commit([Check(self._paths.instance(self._host.instance_id)), *missing])
            except GuardFailed:
                self._log.info("the ledger is gone, and so is this instance: the job is being removed")
            else:
                self._log.error("the ledger was removed while the job runs: its items start anew at their next fires")

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

    def _fitting(self, changes: list[Change], look: Look) -> int:
        """How many of the first fit into one transaction with the checks of a claim."""
        registry = self._host.registry
        checks: list[Operation] = [Check(self._paths.instance(self._host.instance_id)), Check(self._paths.config)]
        checks += look.marking.no_resharding()
        most, room = registry.max_operations - len(checks), registry.max_bytes - sum(map(operation_bytes, checks))
        fitting = 0
        for change in changes:
            group = [self._operation(change), *change.marks]
            most, room = most - len(group), room - sum(map(operation_bytes, group))
            if fitting and (most < 0 or room < 0):
                break
            fitting += 1
        return fitting

    def _operation(self, change: Change) -> Operation:
        path, data = self._paths.ledger(change.item.number), encode(change.entry)
        return Create(path, data) if change.version is None else SetData(path, data, change.version)

    def _applied(self, change: Change, before: Entry | None, version: int, revision: int, look: Look) -> None:
        item = change.item
        item.entry = replace(change.entry, token=revision) if change.claim else change.entry
        item.version, item.written = version, None
        if before is not None:
            self._tell(item, before, change.entry, look.situation)

    def _tell(self, item: Item, before: Entry, after: Entry, situation: Situation) -> None:
        """What was recorded as not run goes to the log, which keeps all of it."""
        for new in after.not_run:
            if new not in before.not_run:
                self._tell_not_run(item, before, new, situation.schedule_of(after.basis))

    def _tell_not_run(self, item: Item, before: Entry, new: NotRunRange, schedule: Schedule | None) -> None:
        after = next((r.until for r in before.not_run if r.after == new.after and r.why is new.why), new.after)
        first = schedule.next_after(after) if schedule is not None else None
        first = new.until if first is None else min(first.astimezone(timezone.utc), new.until)
        me = self._host.instance_id
        self._journal.write(FiresNotRun(self._paths.job, item.number, after, first, new.until, new.why, me))
