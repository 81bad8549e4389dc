"""Once for all workers: which one calls a distribute-once listener, and how long the others wait.

Each side, *started* and *completed*, goes round once for each scheduled instant. The nodes are ElasticJob's:

    guarantee/{side}/{item}    an item has come so far; persistent. Data: the instant (Java: none)
    guarantee/{side}-latch     the latch under which one worker calls the listener
    guarantee                  data, ejpy's own: the last instant of each side that is *settled*

    register own items ──► all expected items there? ──no──► wait for news ──► look again
          │                     │ yes                           │ time-out
          │                     ▼                               ▼
          │             latch, look again, call the listener ──► settle: note the instant, delete the items' nodes
          └── the instant, or a later one, is settled: over ◄────────────────┘

A round is over for everybody when its instant is settled, or when its nodes are gone: a Java worker, which knows no settled
instants, clears a round by deleting `guarantee/{side}`, and is woken when it is deleted. A time-out ends the round for all.

What it guards against, where ElasticJob's own does not:

* A wake-up that comes between looking and waiting: waiting is armed first, and every look is at the state, not at an event.
* Nodes of an earlier round, of a worker that died, and of the next round: each tells its instant.
* Items that will not come: only those that `expected` names are waited for, asked anew at every look.
* The worker whose turn it is dies or is cancelled: after some patience anybody calls the listener in its stead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf

from ejpy.errors import EjpyError, GuardFailed, OutcomeUnknown, RegistryError, RegistryUnavailable, SessionExpired
from ejpy.listeners import rounds
from ejpy.registry.base import Create, Delete, Node, Operation, Registry, SetData, in_transactions, parent_of
from ejpy.registry.latch import LeaderLatch
from ejpy.registry.mirror import TreeMirror

logger = logging.getLogger("ejpy.listeners")

PATIENCE_SECONDS = 3.0
"""How long the worker that registered last is given to take the latch, before the others do."""
RETRY_SECONDS = 1.0
GIVE_UP_SECONDS = 5.0
"""How long a fire whose time is over is held up to end the round for the others."""
_MOST_TRIES = 20
_MOST_SHOWN = 10

Once = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class _Side:
    name: str
    path: str
    latch: LeaderLatch

    def item(self, item: int) -> str:
        return f"{self.path}/{item}"


@dataclass(slots=True)
class _Round:
    side: _Side
    items: tuple[int, ...]
    instant: datetime
    deadline: float
    """By the loop's time."""
    registered: bool = False
    seen: bool = False
    """The copy of the tree has shown the own nodes."""
    complete_since: float | None = None
    missing: list[int] = field(default_factory=list)


class Guarantee:
    """The rounds of one job on one worker. All methods on the control loop."""

    def __init__(
        self,
        registry: Registry,
        root: str,
        mirror: TreeMirror,
        *,
        expected: Callable[[], Collection[int]],
        new_uuid: Callable[[], str],
    ) -> None:
        """`root`: the job's node. `mirror`: a copy of its tree; whoever owns it calls `look` when it changed.

        `expected`: the items that a fire consists of now, those that are disabled left out."""
        self._registry = registry
        self._mirror = mirror
        self._expected = expected
        self._path = f"{root}/guarantee"
        self._started = self._side("started", new_uuid)
        self._completed = self._side("completed", new_uuid)
        self._waiting: set[asyncio.Future[None]] = set()

    async def started(self, items: Iterable[int], instant: datetime, *, timeout: float | None, once: Once) -> None:
        """These items are about to begin; return when all others are, and `once` was called here or elsewhere.

        Returns at once if there are no items, or if the instant is settled. `timeout` seconds are for waiting, not for the
        own call of `once`; None: for ever. May be cancelled.

        Raises EjpyError when the time is over (the round is, too), AccessDenied, and what `once` raises.
        """
        await self._go_round(self._started, items, instant, timeout, once)

    async def completed(self, items: Iterable[int], instant: datetime, *, timeout: float | None, once: Once) -> None:
        """As `started`, when the items have ended."""
        await self._go_round(self._completed, items, instant, timeout, once)

    async def excuse(self, items: Iterable[int], instant: datetime) -> None:
        """These items will not be run for that instant, nor for an earlier one: let nobody wait for them.

        Not to be called while a body of theirs runs, which would count as ended. Raises RegistryError: not done."""
        for side in (self._started, self._completed):
            await self._register(_Round(side, tuple(sorted(items)), instant, inf))

    def look(self) -> None:
        """The copy of the job's tree changed, or what `expected` says."""
        waiting, self._waiting = self._waiting, set()
        for news in waiting:
            if not news.done():
                news.set_result(None)

    def close(self) -> None:
        """It is not used any more. Call it when nothing waits here."""
        self._started.latch.close()
        self._completed.latch.close()

    # -- a round --

    async def _go_round(self, side: _Side, items: Iterable[int], instant: datetime, timeout: float | None, once: Once) -> None:
        loop = asyncio.get_running_loop()
        deadline = inf if timeout is None else loop.time() + timeout
        going = _Round(side, tuple(sorted(items)), instant, deadline)
        if not going.items:
            return
        while True:
            news: asyncio.Future[None] = loop.create_future()
            self._waiting.add(news)
            try:
                try:
                    over, again_in = await self._step(going, once)
                except (RegistryUnavailable, OutcomeUnknown, SessionExpired) as error:
                    logger.info("%s: %s", side.path, error)
                    over, again_in = False, RETRY_SECONDS
                if over:
                    return
                left = going.deadline - loop.time()
                if left <= 0:
                    if going.registered:
                        await self._settle(going, GIVE_UP_SECONDS)
                    raise EjpyError(f"not all items had {side.name} within {timeout:g} s: {_some(going.missing)}")
                wait = min(left, again_in)
                await asyncio.wait({news}, timeout=None if wait == inf else wait)
            finally:
                self._waiting.discard(news)

    async def _step(self, going: _Round, once: Once) -> tuple[bool, float]:
        """One look. Whether the round is over; if not, after how many seconds to look again without news."""
        loop = asyncio.get_running_loop()
        if not going.registered:
            if not await self._register(going):
                return True, 0.0
            going.registered = True
        if not self._mirror.fresh:
            return False, inf
        nodes = self._mirror.nodes
        if await self._is_over(going, nodes):
            return True, 0.0
        going.missing = self._missing(going, nodes)
        if going.missing:
            going.complete_since = None
            return False, inf
        if going.complete_since is None:
            going.complete_since = loop.time()
        patience = 0.0 if self._was_last(going, nodes) else going.complete_since + PATIENCE_SECONDS - loop.time()
        if patience > 0:
            return False, patience
        return await self._call_once(going, once), RETRY_SECONDS

    async def _is_over(self, going: _Round, nodes: Mapping[str, Node]) -> bool:
        if self._is_settled(going, nodes.get(self._path)):
            return True
        if any(rounds.is_of(nodes.get(going.side.item(item)), going.instant) for item in going.items):
            going.seen = True
            return False
        if going.seen:
            return True
        # The copy is behind, or somebody cleared the round before it could show the nodes.
        own = await self._registry.read([going.side.item(item) for item in going.items])
        return not any(rounds.is_of(node, going.instant) for node in own)

    def _missing(self, going: _Round, nodes: Mapping[str, Node]) -> list[int]:
        wanted = {*self._expected(), *going.items}
        return sorted(item for item in wanted if not rounds.has_come(nodes.get(going.side.item(item)), going.instant))

    def _was_last(self, going: _Round, nodes: Mapping[str, Node]) -> bool:
        """Whether the item that completed the round is one of this worker."""
        items = {*self._expected(), *going.items}
        present = [(node.revision, item) for item in items if (node := nodes.get(going.side.item(item))) is not None]
        return max(present)[1] in going.items

    async def _call_once(self, going: _Round, once: Once) -> bool:
        """Whether the round is over."""
        left = going.deadline - asyncio.get_running_loop().time()
        hold = await going.side.latch.acquire(min(max(left, 0.001), self._registry.session_timeout_seconds))
        if hold is None:
            return False
        try:
            nodes = await self._registry.tree(self._path)
            if self._is_settled(going, nodes.get(self._path)) or self._missing(going, nodes):
                return False  # the copy will show it
            try:
                await once()
            except asyncio.CancelledError:
                raise  # it was not called to its end: another worker calls it
            except BaseException:
                await self._settle(going, self._registry.session_timeout_seconds)
                raise
            await self._settle(going, self._registry.session_timeout_seconds)
        finally:
            await hold.release()
        return True

    # -- writing --

    async def _register(self, going: _Round) -> bool:
        """Note that the items have come so far. False: the round is over already."""
        above = [parent_of(self._path), self._path, going.side.path]
        paths = [going.side.item(item) for item in going.items]
        for tries_left in reversed(range(_MOST_TRIES)):
            found = dict(zip([*above, *paths], await self._registry.read([*above, *paths]), strict=True))
            if found[above[0]] is None or self._is_settled(going, found[self._path]):
                return False  # a job that was removed is not made again
            operations: list[Operation] = [Create(path) for path in above if found[path] is None]
            for path in paths:
                node = found[path]
                if node is None:
                    operations.append(Create(path, rounds.item_data(going.instant)))
                elif not rounds.is_of(node, going.instant) and not rounds.is_later(node, going.instant):
                    operations.append(SetData(path, rounds.item_data(going.instant), node.version))
            try:
                await self._commit(operations)
                break
            except GuardFailed as error:  # others come and clear at the same time
                if not tries_left:
                    raise
                logger.debug("%s: looking again: %s", going.side.path, error)
        return True

    async def _settle(self, going: _Round, seconds: float) -> None:
        """The round is over for everybody. Tries for so many seconds; if it could not be written by then, that is logged."""
        try:
            await asyncio.wait_for(self._write_settled(going), seconds)
        except (RegistryError, asyncio.TimeoutError) as error:
            logger.warning("%s: the round of %s could not be cleared: %s", going.side.path, going.instant, error or "no answer")

    async def _write_settled(self, going: _Round) -> None:
        """Again and again while the registry does not answer: what was not noted would be called twice."""
        while True:
            try:
                return await self._try_to_write_settled(going)
            except (RegistryUnavailable, OutcomeUnknown, SessionExpired) as error:
                logger.info("%s: %s", going.side.path, error)
            await asyncio.sleep(RETRY_SECONDS)

    async def _try_to_write_settled(self, going: _Round) -> None:
        for tries_left in reversed(range(_MOST_TRIES)):
            nodes = await self._registry.tree(self._path)
            own = nodes.get(self._path)
            if own is None:
                return
            start = going.side.path + "/"
            items = {path: node for path, node in nodes.items() if path.startswith(start)}
            past = [Delete(path, node.version) for path, node in items.items() if not rounds.is_later(node, going.instant)]
            operations: list[Operation] = [*past]
            if not self._is_settled(going, own):
                mark = rounds.with_settled(own.data, going.side.name, going.instant)
                operations.insert(0, SetData(self._path, mark, own.version))
            # Java workers wait for this. With nodes of the next round below it, those of this one have to time out.
            if going.side.path in nodes and len(past) == len(items):
                operations.append(Delete(going.side.path))
            try:
                await self._commit(operations)
                break
            except GuardFailed as error:
                if not tries_left:
                    raise
                logger.debug("%s: looking again: %s", going.side.path, error)

    async def _commit(self, operations: list[Operation]) -> None:
        limits = {"max_operations": self._registry.max_operations, "max_bytes": self._registry.max_bytes}
        for part in in_transactions(([operation] for operation in operations), **limits):
            await self._registry.commit(part)

    # -- reading --

    def _is_settled(self, going: _Round, node: Node | None) -> bool:
        last = None if node is None else rounds.settled(node.data).get(going.side.name)
        return last is not None and last >= going.instant

    def _side(self, name: str, new_uuid: Callable[[], str]) -> _Side:
        path = f"{self._path}/{name}"
        return _Side(name, path, LeaderLatch(self._registry, f"{path}-latch", new_uuid=new_uuid))


def _some(items: list[int]) -> str:
    shown = ", ".join(map(str, items[:_MOST_SHOWN])) + (", …" if len(items) > _MOST_SHOWN else "")
    return f"item {shown} did not come" if items else "the call for all of them did not end"
