"""What all jobs of one worker process share: one session, one timer, one pool of runners, one identity."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ejpy.clock import Clock
from ejpy.config.model import JobConfig
from ejpy.errors import AccessDenied
from ejpy.execution.base import Runner
from ejpy.registry.base import Node, Registry
from ejpy.registry.group import GroupCommit
from ejpy.registry.mirror import TreeMirror
from ejpy.schedule.timer import NextAfter

RETRY_SECONDS = 1.0
"""When something failed though the registry is connected, it is looked at again after this."""


class Timer(Protocol):
    """Calls back at the instants of schedules (FireTimer, or a twin in virtual time)."""

    def set(self, name: str, next_after: NextAfter, due: Callable[[], None]) -> None: ...

    def remove(self, name: str) -> None: ...


class JobTree(Protocol):
    """What is known of a job's nodes (JobScheduler)."""

    @property
    def mirror(self) -> TreeMirror:
        """A copy of the job's tree."""
        ...

    def enabled_items(self) -> Collection[int]:
        """The items that a fire consists of now."""
        ...

    def look_again(self) -> None:
        """Something is other than before."""
        ...


@dataclass(frozen=True, slots=True)
class Host:
    """Handed to every JobScheduler of a worker."""

    registry: Registry
    group: GroupCommit
    clock: Clock
    timer: Timer
    runner_for: Callable[[JobConfig, JobTree], Runner]
    """What the bodies of a job are handed to now; asked at every look."""
    namespace: str
    instance_id: str
    """`{IPv4}@-@{pid}.{random}`: unique for each process that ever lived."""
    ip: str
    new_uuid: Callable[[], str]


async def read_allowed(registry: Registry, paths: Sequence[str]) -> tuple[list[Node | None], set[str]]:
    """As `Registry.read`; one node that may not be read leaves out itself and no other. Also the paths of such nodes. Raises
    RegistryError."""
    try:
        return await registry.read(paths), set()
    except AccessDenied:
        nodes: list[Node | None] = []
        denied: set[str] = set()
        for path in paths:
            try:
                nodes += await registry.read([path])
            except AccessDenied:
                nodes.append(None)
                denied.add(path)
        return nodes, denied


class Deed:
    """At most one task at a time; asks for another look when it ends.

    A deed that fails with an error of ours has logged it; any other error is a fault in ejpy: it is logged with its trace and
    tried again after RETRY_SECONDS, so that one fault never silences a job.
    """

    def __init__(self, name: str, again: Callable[[], None], log: logging.LoggerAdapter[logging.Logger]) -> None:
        self._name = name
        self._again = again
        self._log = log
        self._task: asyncio.Task[bool] | None = None

    @property
    def under_way(self) -> bool:
        return self._task is not None

    def begin(self, deed: Coroutine[Any, Any, bool]) -> None:
        """Run `deed`. If it returns True, look again at once; if False, after RETRY_SECONDS."""
        self._task = asyncio.get_running_loop().create_task(deed, name=self._name)
        self._task.add_done_callback(self._ended)

    async def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _ended(self, task: asyncio.Task[bool]) -> None:
        self._task = None
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._log.error("fault while %s; will try again", self._name, exc_info=error)
        if error is None and task.result():
            self._again()
        else:
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._again)
