"""The nodes that contenders for a latch left behind when they gave up, let go, or were cut off: deleted until the registry
confirms that they are gone, now or when the connection is back, whoever still waits for it or not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ejpy.errors import AccessDenied, RegistryError
from ejpy.registry.base import Registry, SessionState
from ejpy.registry.latch_line import Candidacy

logger = logging.getLogger("ejpy.registry.latch")

FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 5.0
"""Bounds of the growing pause after a failure on a connection that is up."""


def pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return float(min(FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 16), LAST_RETRY_SECONDS))


class LeftOver:
    """See the module's text. `path` is the latch's; `swept` is called when nothing is left."""

    def __init__(self, registry: Registry, path: str, swept: Callable[[], None]) -> None:
        self._registry = registry
        self._path = path
        self._tell_swept = swept
        self._candidacies: dict[Candidacy, None] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return bool(self._candidacies)

    def add(self, candidacy: Candidacy) -> None:
        """See to it that the candidacy's node goes."""
        self._candidacies[candidacy] = None
        self.sweep_soon()

    async def gone(self, candidacy: Candidacy) -> None:
        """Wait until its node is gone, or until that cannot be confirmed for now."""
        while candidacy in self._candidacies and self._sweeping is not None:
            await asyncio.wait({self._sweeping})

    def sweep_soon(self) -> None:
        """Begin, if there is a connection."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sweeping is None and self._candidacies and self._registry.state is SessionState.CONNECTED:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
            self._sweeping.add_done_callback(self._swept)

    async def _sweep(self) -> None:
        """Try once to delete each of what is left over. Raises the last RegistryError, if there was one."""
        tried: set[Candidacy] = set()
        failure: RegistryError | None = None
        try:
            while todo := [candidacy for candidacy in self._candidacies if candidacy not in tried]:
                tried.add(todo[0])
                try:
                    await todo[0].withdraw()
                except RegistryError as error:
                    failure = error
                else:
                    del self._candidacies[todo[0]]
        finally:
            self._sweeping = None  # in the same step as the last look: what is left later begins another sweep
        if failure is not None:
            raise failure
        self._failures = 0
        if not self._candidacies:
            self._tell_swept()

    def _swept(self, sweep: asyncio.Task[None]) -> None:
        error = None if sweep.cancelled() else sweep.exception()
        if error is None:
            return
        if not isinstance(error, RegistryError):
            raise error
        self._failures += 1
        log = logger.warning if isinstance(error, AccessDenied) else logger.info
        log("latch %s: a node that is left over cannot be deleted yet: %s", self._path, error)
        # Without a connection the next CONNECTED starts it again; with one, this timer does.
        self._timer = asyncio.get_running_loop().call_later(pause(self._failures), self.sweep_soon)
