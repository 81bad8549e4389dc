"""LeaderLatch: one holder at a time among all that contend at a path, node for node as Curator's LeaderLatch does it.

Every contender has one ephemeral sequential node below the path. They stand in line by the number that the registry gave
them; the first owns the latch, and each of the others watches only the one before it, so a departure wakes one contender.

    create node ──► list ──first──► own node is of this session? ──yes──► LatchHold ──► release: delete node
        ▲            │ ▲                       │ no: delete it
        │  own node  │ └── predecessor gone ── watch the predecessor
        └────────────┴── gone, or the session changed: a new node under a new uuid

ElasticJob uses the latch as a short mutex around "create `leader/election/instance` if it is absent", and so does ejpy: a
hold is kept for one transaction or two. A hold is worth no more than the session it was got under. Therefore the caller puts
`Check(hold.node_path)` or `Delete(hold.node_path)` into its own transaction: a holder that was paused until its session
ended then changes nothing.

What it guards against:

* A lost reply of the create leaves a node that nobody knows of, a phantom (`latch_line.py`), and so does a contender that
  gave up by time-out, cancellation or error (`latch_left_over.py`).
* A node in the directory that is no contender's would block everybody for ever. It does not count.
* Curator makes the directory as a container node, which the server removes when it is empty: it may vanish between making
  it and making the node in it, or with the node of somebody who just left. It is made again.
* After an expiry the old node may stand for a while under the old session. Curator before 5.7 took it for its own and had
  two holders; here, as in Curator 5.7, a contender claims only a node that its present session owns.

Sources: Curator `LeaderLatch`, `StandardLockInternalsSorter`, `ProtectedUtils`; protocol rules as observed with ElasticJob.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ejpy.errors import (
    GuardFailed,
    GuardFailure,
    OutcomeUnknown,
    RegistryUnavailable,
    SessionExpired,
)
from ejpy.registry.base import Create, Registry, SessionState, ancestors
from ejpy.registry.latch_left_over import LeftOver, pause
from ejpy.registry.latch_line import Candidacy, in_line

logger = logging.getLogger("ejpy.registry.latch")


class LeaderLatch:
    """The latch at `path` (not "/"), as one worker's `registry` sees it. Make one for a path and keep it.

    `new_uuid` gives a text that was never given before, without "/" and "latch-" (Curator: a random UUID); it is asked for
    each node.
    """

    def __init__(self, registry: Registry, path: str, *, new_uuid: Callable[[], str]) -> None:
        self.path = path
        self._registry = registry
        self._new_uuid = new_uuid
        self._connected: set[asyncio.Future[None]] = set()
        self._left_over = LeftOver(registry, path, self._nothing_left)
        self._closed = False
        self._unsubscribe = registry.on_session(self._session_changed)

    def close(self) -> None:
        """It is not used any more. What was left over is deleted all the same."""
        self._closed = True
        if not self._left_over:
            self._unsubscribe()

    async def first(self) -> tuple[str, int | None] | None:
        """The path of the node that stands first in line, and the session that it belongs to; None if there is none.

        Raises RegistryError.
        """
        [names] = await self._registry.children([self.path])
        for name in in_line(names or []):
            [node] = await self._registry.read([f"{self.path}/{name}"])
            if node is not None:
                return f"{self.path}/{name}", node.session_id
        return None

    async def acquire(self, timeout: float) -> LatchHold | None:
        """Stand in line for at most `timeout` seconds (> 0); None if the latch was not owned within them.

        A registry that cannot be reached is waited for within the time-out. However the call ends, also by cancellation, its
        node does not stay: it is deleted in the background, across interruptions.

        Raises AccessDenied, and GuardFailed if `path` cannot be made (below an ephemeral node).
        """
        candidacy: Candidacy | None = None

        async def contend() -> LatchHold:
            nonlocal candidacy
            failures = 0
            while True:
                await self._until_connected()
                if candidacy is not None and candidacy.session_id != self._registry.session_id:
                    self._left_over.add(candidacy)
                    candidacy = None
                if candidacy is None:
                    candidacy = Candidacy(self._registry, self.path, self._new_uuid())
                try:
                    if await self._stand_in_line(candidacy):
                        return LatchHold(self, candidacy)
                    self._left_over.add(candidacy)
                    candidacy = None
                    failures = 0
                except (RegistryUnavailable, OutcomeUnknown, SessionExpired) as error:
                    logger.info("latch %s: %s", self.path, error)
                    failures += 1
                    if self._registry.state is SessionState.CONNECTED:
                        await asyncio.sleep(pause(failures))

        contending = asyncio.get_running_loop().create_task(contend())
        contending.add_done_callback(_look_at)
        hold: LatchHold | None = None
        try:
            await asyncio.wait({contending}, timeout=timeout)
            if contending.done():
                hold = contending.result()
            return hold
        finally:
            contending.cancel()
            if hold is None and candidacy is not None:
                self._left_over.add(candidacy)

    # -- standing in line --

    async def _stand_in_line(self, candidacy: Candidacy) -> bool:
        """True when the candidacy's node is first and its own; False when it has to be given up for another."""
        while candidacy.node_path is None:
            try:
                await candidacy.enter()
            except GuardFailed as failed:
                if failed.failure is not GuardFailure.NO_NODE:
                    raise
                await self._make_directory()
        while True:
            [names] = await self._registry.children([self.path])
            line = in_line(names or [])
            own_name = candidacy.node_path.rpartition("/")[2]
            if own_name not in line:
                return False
            place = line.index(own_name)
            if place == 0:
                [node] = await self._registry.read([candidacy.node_path])
                return node is not None and node.session_id == self._registry.session_id == candidacy.session_id
            await self._until_gone(f"{self.path}/{line[place - 1]}")

    async def _make_directory(self) -> None:
        paths = [*ancestors(self.path), self.path]
        nodes = await self._registry.read(paths)
        missing = [Create(path) for path, node in zip(paths, nodes, strict=True) if node is None]
        try:
            if missing:
                await self._registry.commit(missing)
        except GuardFailed as failed:
            if failed.failure not in (GuardFailure.NODE_EXISTS, GuardFailure.NO_NODE):
                raise
            # Another contender made a part of it, or the server removed one: whatever is missing now shows at the next try.

    async def _until_gone(self, path: str) -> None:
        """Wait until there may be news of the node at `path`; return at once if there is none."""
        news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if await self._registry.read_and_watch(path, lambda: _wake(news)) is not None:
            await news

    async def _until_connected(self) -> None:
        while self._registry.state is not SessionState.CONNECTED:
            connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._connected.add(connected)
            try:
                await connected
            finally:
                self._connected.discard(connected)

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            for connected in self._connected:
                _wake(connected)
            self._left_over.sweep_soon()

    def _nothing_left(self) -> None:
        if self._closed:
            self._unsubscribe()


class LatchHold:
    """The latch is owned, as long as the session lives in which its node was made."""

    def __init__(self, latch: LeaderLatch, candidacy: Candidacy) -> None:
        assert candidacy.node_path is not None
        assert candidacy.session_id is not None
        self.node_path: str = candidacy.node_path
        """For `Check` or `Delete` in the holder's own transaction."""
        self.session_id: int = candidacy.session_id
        """The session that owns the node."""
        self._latch = latch
        self._candidacy: Candidacy | None = candidacy

    async def release(self) -> None:
        """Let go: delete the node. Idempotent; raises no RegistryError.

        Returns when the node is gone, or when that cannot be confirmed for now; then it is deleted in the background, at the
        latest when the connection is back. Right also after a transaction with `Delete(node_path)` whose outcome is unknown.
        """
        candidacy, self._candidacy = self._candidacy, None
        if candidacy is not None:
            self._latch._left_over.add(candidacy)
            await self._latch._left_over.gone(candidacy)

    def released_in_transaction(self) -> None:
        """The holder's own transaction deleted the node: `release` has nothing left to do."""
        candidacy, self._candidacy = self._candidacy, None
        if candidacy is not None and candidacy.has_doubles:
            self._latch._left_over.add(candidacy)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _look_at(task: asyncio.Task[LatchHold]) -> None:
    """Have asyncio not complain of an exception that came too late for the caller to see."""
    if not task.cancelled():
        task.exception()
