"""Taking over the items of dead instances, where that goes by ElasticJob's marks (`coordination.failover`).

One item at a time, by a worker that runs nothing of the job at the moment: as ElasticJob's do, so that both kinds share the work.
The item is this worker's from the transaction that marks it on, whoever it is assigned to, until its body has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from datetime import datetime

from ejpy.coordination import failover
from ejpy.coordination.ledger import Basis, Entry, new_entry
from ejpy.coordination.ledger_document import encode, read_entry
from ejpy.coordination.marks import Marks, marks_of
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import view_of
from ejpy.errors import GuardFailed, RegistryError
from ejpy.logs import fields
from ejpy.registry.base import Check, Create, Delete, Node, Operation, SessionState, SetData
from ejpy.registry.latch import LeaderLatch
from ejpy.scheduler.host import Deed, Host
from ejpy.terms import Reason

LATCH_TIMEOUT_SECONDS = 30.0


class Takeover:
    """See the module's text. All methods on the control loop."""

    def __init__(
        self, host: Host, paths: JobPaths, again: Callable[[], None], log: logging.LoggerAdapter[logging.Logger]
    ) -> None:
        self._host = host
        self._paths = paths
        self._log = log
        self._latch: LeaderLatch | None = None
        """Seldom needed, and then kept."""
        self._deed = Deed("taking over", again, log)

    def look(self, marks: Marks, basis: Basis, total: int) -> None:
        """Begin to take an item over, if one waits for that. Only called while this worker is free to run it."""
        if (
            failover.next_to_take(marks, total) is not None
            and not self._deed.under_way
            and self._host.registry.state is SessionState.CONNECTED
        ):
            self._deed.begin(self._take(basis, total))

    async def close(self) -> None:
        await self._deed.cancel()
        if self._latch is not None:
            self._latch.close()

    async def _take(self, basis: Basis, total: int) -> bool:
        if self._latch is None:
            self._latch = LeaderLatch(self._host.registry, self._paths.failover_latch, new_uuid=self._host.new_uuid)
        try:
            hold = await self._latch.acquire(LATCH_TIMEOUT_SECONDS)
            if hold is None:
                self._log.warning("the failover latch %s is held by somebody else for long", self._paths.failover_latch)
                return True
            try:
                nodes = await self._host.registry.tree(self._paths.root)
                marks, live = marks_of(nodes, self._paths), view_of(nodes, self._paths).instances
                item = failover.next_to_take(marks, total)
                if item is None:
                    return True  # others were faster
                await self._commit(item, marks, live, basis, hold.node_path)
                hold.released_in_transaction()
            finally:
                await hold.release()
        except GuardFailed as error:
            self._log.info("taking over met a change: %s", error)
            return False
        except RegistryError as error:
            self._log.info("nothing taken over: %s", error)
            return False
        return True

    async def _commit(self, item: int, marks: Marks, live: Collection[str], basis: Basis, latch_node: str) -> None:
        me, path, now = self._host.instance_id, self._paths.ledger(item), self._host.clock.now()
        [node] = await self._host.registry.read([path])
        entry = self._entry(node, path, basis, now)
        operations: list[Operation] = [Delete(latch_node), Check(self._paths.instance(me))]
        taken = entry is not None and not (entry.running and entry.owner in live)
        if entry is None or not taken:  # it runs, or nobody here may touch it
            operations.append(Delete(self._paths.failover_item(item)))
        else:
            operations += failover.take(self._paths, marks, item, me)
            if not (entry.running or entry.to_recover):  # the dead instance kept no ledger: its run has no scheduled time here
                data = encode(entry.ask(now, Reason.OWNER_LOST))
                operations.append(SetData(path, data, node.version) if node else Create(path, data))
        await self._host.group.commit(operations, not_after=self._host.registry.lease_until)
        said = "taken over from an instance that died" if taken else "not taken over: it runs, or cannot be read here"
        self._log.info(said, extra=fields(item=item))

    def _entry(self, node: Node | None, path: str, basis: Basis, now: datetime) -> Entry | None:
        if node is None:
            return new_entry(basis, now)
        reading = read_entry(node, path, basis, now)
        if reading.problem is not None:
            self._log.error("%s", reading.problem)
        return reading.entry
