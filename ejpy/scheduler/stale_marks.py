"""`running` marks in this worker's name of what does not run here: others take the item for running, and nobody runs it.

Nobody but this worker knows that they are wrong. They are left by hand, or by a write whose reply was lost. The copy of the tree
is always a moment late, so one is removed only when it has stood for nothing for STALE_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ejpy.coordination.paths import JobPaths
from ejpy.errors import GuardFailed, RegistryError
from ejpy.registry.base import Delete
from ejpy.scheduler.host import Host
from ejpy.scheduler.item import Look

STALE_SECONDS = 5.0


class StaleMarks:
    """See the module's text. All methods on the control loop."""

    def __init__(
        self, host: Host, paths: JobPaths, again_in: Callable[[float], None], log: logging.LoggerAdapter[logging.Logger]
    ) -> None:
        self._host = host
        self._paths = paths
        self._again_in = again_in
        self._log = log
        self._since: dict[int, float] = {}
        """By item: since when its mark has been wrong, by the loop's time."""

    def look(self, look: Look, may_run: Callable[[int], bool]) -> list[int]:
        """Items whose marks are wrong. `may_run`: whether an item runs here, or may, for all that is known."""
        if not look.may_claim:  # the copy of the tree is not fresh, say
            self._since.clear()
            return []
        now = asyncio.get_running_loop().time()
        wrong = [item for item in look.marking.own_running() if not may_run(item)]
        self._since = {item: self._since.get(item, now) for item in wrong}
        if self._since:
            self._again_in(min(self._since.values()) + STALE_SECONDS - now)
        return [item for item in wrong if now - self._since[item] >= STALE_SECONDS]

    async def remove(self, items: list[int]) -> bool:
        """One by one, and only what still names this worker: marks are made anew with the same version. False: the copy of the
        tree will show what was done."""
        self._since.clear()  # one that cannot be removed rests
        for path in [self._paths.item_running(item) for item in items]:
            try:
                [node] = await self._host.registry.read([path])
                if node is not None and node.data == self._host.instance_id.encode():
                    await self._host.group.commit([Delete(path, node.version)], not_after=self._host.registry.lease_until)
                    self._log.warning("%s said that the item runs here, which it does not: removed", path)
            except GuardFailed:
                self._log.debug("%s has gone already", path)
            except RegistryError as error:
                self._log.info("%s not removed: %s", path, error)
        return False
