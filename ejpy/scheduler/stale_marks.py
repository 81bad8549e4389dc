"""`running` marks in this worker's name of what does not run here: others take the item for running, and nobody runs it.

Nobody but this worker knows that they are wrong. They are left by hand, or by a write whose reply was lost. The copy of the tree
is always a moment late, so one is removed only when it has stood for nothing for STALE_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ejpy.coordination.marking import Marking
from ejpy.errors import GuardFailed, RegistryError
from ejpy.registry.base import Operation
from ejpy.scheduler.host import Host

STALE_SECONDS = 5.0


class StaleMarks:
    """See the module's text. All methods on the control loop."""

    def __init__(self, host: Host, again_in: Callable[[float], None], log: logging.LoggerAdapter[logging.Logger]) -> None:
        self._host = host
        self._again_in = again_in
        self._log = log
        self._since: dict[int, float] = {}
        """By item: since when its mark has been wrong, by the loop's time."""

    def look(self, marking: Marking, may_run: Callable[[int], bool]) -> list[Operation]:
        """What removes the marks that are wrong. `may_run`: whether an item runs here, or may, for all that is known."""
        now = asyncio.get_running_loop().time()
        wrong = {item: removal for item, removal in marking.own_running().items() if not may_run(item)}
        self._since = {item: self._since.get(item, now) for item in wrong}
        if self._since:
            self._again_in(min(self._since.values()) + STALE_SECONDS - now)
        return [removal for item, removal in wrong.items() if now - self._since[item] >= STALE_SECONDS]

    async def remove(self, marks: list[Operation]) -> bool:
        """One by one: one that has changed is no longer meant. False: the copy of the tree will show what was done."""
        for mark in marks:
            try:
                await self._host.group.commit([mark], not_after=self._host.registry.lease_until)
                self._log.warning("%s said that the item runs here, which it does not: removed", mark.path)
            except GuardFailed:
                self._log.debug("%s has gone already", mark.path)
            except RegistryError as error:
                self._log.info("%s not removed: %s", mark.path, error)
        return False
