"""Becoming a job's leader, and ceasing to be.

The leader's node is the leadership; the latch is a short mutex around making it. Whoever makes it also writes the job's term
node, in the same transaction; each decision of a leader carries the version that its own term left there, so that a leader
that was paused, or whose node was removed, changes nothing once somebody else was elected.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence

from ejpy.coordination.paths import JobPaths
from ejpy.errors import GuardFailed, GuardFailure, RegistryError
from ejpy.logs import fields
from ejpy.registry.base import Check, Create, Delete, Operation, SetData
from ejpy.registry.latch import LeaderLatch
from ejpy.scheduler.host import Host
from ejpy.scheduler.term import SETTLE_SECONDS, Term

ELECTION_TIMEOUT_SECONDS = 30.0
"""How long to stand in line for the latch before looking again whether there is a leader now."""


class Election:
    """See the module's text. All methods on the control loop; the coroutines are deeds of a leadership, one at a time."""

    def __init__(
        self, host: Host, paths: JobPaths, again: Callable[[], None], log: logging.LoggerAdapter[logging.Logger]
    ) -> None:
        self.term: Term | None = None
        """While this worker leads."""
        self._host = host
        self._paths = paths
        self._again = again
        self._log = log
        self._latch = LeaderLatch(host.registry, paths.latch, new_uuid=host.new_uuid)

    def close(self) -> None:
        self.term = None
        self._latch.close()

    async def stand(self) -> bool:
        """Stand for election. Whether to look again at once."""
        try:
            hold = await self._latch.acquire(ELECTION_TIMEOUT_SECONDS)
            if hold is None:
                await self._say_who_is_in_front()
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

    async def resume(self) -> bool:
        """The leader's node is ours, and we do not know of it: the reply was lost. The term node tells whether it counts."""
        try:
            leader, term = await self._host.registry.read([self._paths.leader, self._paths.term])
        except RegistryError as error:
            self._log.info("leadership not confirmed: %s", error)
            return False
        if leader is None or leader.session_id != self._host.registry.session_id:
            return True
        if term is not None and term.data == self.term_document():
            self._begin_term(leader.session_id, term.version)
            return True
        return await self.abdicate()

    async def abdicate(self, also: Sequence[Operation] = ()) -> bool:
        """Give the leadership up, and do `also` with it. Whether to look again at once."""
        try:
            resignation = self.resignation() or await self._resignation_without_term()
            self.term = None
            if not resignation:
                return False  # the copy of the tree is late
            await self._host.group.commit([*resignation, *also], not_after=self._host.registry.lease_until)
            self._log.info("gave up the leadership")
        except GuardFailed as error:
            self._log.debug("leadership given up already: %s", error)
            return False
        except RegistryError as error:
            self._log.info("leadership not given up: %s", error)
            return False
        return True

    async def _resignation_without_term(self) -> list[Operation]:
        """A successor writes the term node in the transaction that makes him the leader."""
        leader, term = await self._host.registry.read([self._paths.leader, self._paths.term])
        if leader is None or term is None or leader.session_id != self._host.registry.session_id:
            return []
        return [SetData(self._paths.term, term.data, term.version), Delete(self._paths.leader)]

    async def confirm(self, term: Term) -> None:
        """After a guard failed: if the term node was written by somebody else, the term is over; otherwise learn its version
        again."""
        try:
            [node] = await self._host.registry.read([self._paths.term])
        except RegistryError as error:
            self._log.info("term not read: %s", error)
            return
        if node is not None and node.data == self.term_document():
            term.version = node.version
        else:
            self._log.warning("another leader was elected")
            self.term = None

    def resignation(self) -> list[Operation]:
        """What gives the leadership up, if this worker has it; guarded, so that it never removes a successor's node."""
        if self.term is None:
            return []
        return [SetData(self._paths.term, self.term_document(), self.term.version), Delete(self._paths.leader)]

    def term_document(self) -> bytes:
        session = self._host.registry.session_id
        return json.dumps({"leader": self._host.instance_id, "session": session}, separators=(",", ":")).encode()

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
            SetData(p.term, self.term_document()) if term else Create(p.term, self.term_document()),
        ]
        try:
            committed = await self._host.group.commit(operations, not_after=registry.lease_until)
        except GuardFailed as error:
            foreign = error.failure is GuardFailure.NOT_EMPTY
            self._log.log(logging.WARNING if foreign else logging.INFO, "election: a condition did not hold: %s", error)
            return False
        self._begin_term(session_id, committed.versions[-1]).wrote([p.leader], committed.revision, self._host.clock.monotonic())
        asyncio.get_running_loop().call_later(SETTLE_SECONDS, self._again)
        return True

    def _begin_term(self, session_id: int | None, version: int) -> Term:
        self.term = Term(session_id, version)
        self._log.info("is the leader", extra=fields(term=version))
        return self.term

    async def _say_who_is_in_front(self) -> None:
        """Nobody holds a latch for so long: whoever stands first does not take the leadership, and blocks everybody."""
        [leader] = await self._host.registry.read([self._paths.leader])
        if leader is not None:
            return
        first = await self._latch.first()
        if first is not None:
            path, session_id = first
            self._log.warning(
                "no leader for %g s: %s of session %#x stands first in the latch, and does not take the leadership;"
                " end that session, or remove the node",
                ELECTION_TIMEOUT_SECONDS,
                path,
                session_id or 0,
            )
