"""The line that contenders for a latch stand in: which nodes of its directory count, in which order, and one contender's own.

Guards against a node that nobody knows of. A lost reply of the create leaves one that blocks everybody for the life of the
session; the uuid in its name tells it: what may exist is looked for before another node is made, and before all is well.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

from ejpy.errors import GuardFailed, GuardFailure, OutcomeUnknown
from ejpy.registry.base import Delete, Registry

MARK = "latch-"
"""What stands before the sequence number, and what Curator sorts by."""

_NUMBERED = re.compile(MARK + r"-?[0-9]+")
"""A registry's sequence numbers are ten digits, until they overflow; then they are negative."""


def latch_order(name: str) -> str:
    """The key by which Curator sorts the children of a latch: what follows the last `latch-`, else the whole name."""
    return name.rpartition(MARK)[2]


def in_line(names: Iterable[str]) -> list[str]:
    """The nodes that contend, the first in line first. Others (Curator would wait for them, too) belong to nobody who could
    take the latch, and nobody would ever remove them; whoever passes over them excludes those who do not all the same."""
    return sorted((name for name in names if _NUMBERED.fullmatch(name[max(name.rfind(MARK), 0) :])), key=latch_order)


class Candidacy:
    """One node in the line: to be made, made, or perhaps made."""

    def __init__(self, registry: Registry, path: str, uuid: str) -> None:
        self.session_id = registry.session_id
        self.node_path: str | None = None
        self.has_doubles = False
        """A request to make the node went without reply: there may be, or come, more than one."""
        self._registry = registry
        self._path = path
        self._name_start = f"_c_{uuid}-"
        self._creating: asyncio.Task[str] | None = None

    async def enter(self) -> None:
        """Make the node, or find the one that an earlier call made without hearing of it.

        Cancelling the call does not cancel the request: `withdraw` waits for its outcome.
        """
        if self.has_doubles:
            made = await self._find()
            if made:
                self.node_path = made[0]
                return
        create = self._registry.create_sequential(f"{self._path}/{self._name_start}{MARK}", b"", ephemeral=True)
        creating = asyncio.get_running_loop().create_task(create)
        creating.add_done_callback(self._note_outcome)
        self._creating = creating
        await asyncio.wait({creating})
        creating.result()

    async def withdraw(self) -> None:
        """Delete the node, wherever it is. Raises RegistryError if that is not certain; may be called again then."""
        if self._creating is not None:
            await asyncio.wait({self._creating})
        paths = [] if self.node_path is None else [self.node_path]
        if self.has_doubles:
            paths = await self._find()
        for path in paths:
            try:
                await self._registry.commit([Delete(path)])
            except GuardFailed as failed:
                if failed.failure is not GuardFailure.NO_NODE:
                    raise

    def _note_outcome(self, creating: asyncio.Task[str]) -> None:
        self._creating = None
        if creating.cancelled() or isinstance(creating.exception(), OutcomeUnknown):
            self.has_doubles = True
        elif creating.exception() is None:
            self.node_path = creating.result()

    async def _find(self) -> list[str]:
        """The paths of the nodes that carry this candidacy's uuid, the first in line first."""
        await self._registry.sync()  # a server that lags may not show yet what the lost reply would have told
        [names] = await self._registry.children([self._path])
        own = [name for name in in_line(names or []) if name.startswith(self._name_start)]
        return [f"{self._path}/{name}" for name in own]
