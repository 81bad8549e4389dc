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

* A lost reply of the create leaves a node that nobody knows of, a phantom, that blocks everybody for the life of the
  session. The uuid in the name tells it: what may exist is looked for before another node is made.
* The node of a contender that gave up (time-out, cancellation, error) would do the same. It is *left over*: it is deleted
  until the registry confirms that it is gone, now or when the connection is back, whoever still waits for it or not.
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
    AccessDenied,
    GuardFailed,
    GuardFailure,
    OutcomeUnknown,
    RegistryError,
    RegistryUnavailable,
    SessionExpired,
)
from ejpy.registry.base import Create, Delete, Registry, SessionState, ancestors

logger = logging.getLogger("ejpy.registry.latch")

MARK = "latch-"
"""What stands before the sequence number, and what Curator sorts by."""

FIRST_RETRY_SECONDS = 0.05
LAST_RETRY_SECONDS = 5.0
"""Bounds of the growing pause after a failure on a connection that is up."""


def latch_order(name: str) -> str:
    """The key by which Curator sorts the children of a latch: what follows the last `latch-`, else the whole name."""
    return name.rpartition(MARK)[2]


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
        self._left_over: dict[_Candidacy, None] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._failed_sweeps = 0
        registry.on_session(self._session_changed)

    async def acquire(self, timeout: float) -> LatchHold | None:
        """Stand in line for at most `timeout` seconds (> 0); None if the latch was not owned within them.

        A registry that cannot be reached is waited for within the time-out. However the call ends, also by cancellation, its
        node does not stay: it is deleted in the background, across interruptions.

        Raises AccessDenied, and GuardFailed if `path` cannot be made (below an ephemeral node).
        """
        candidacy: _Candidacy | None = None

        async def contend() -> LatchHold:
            nonlocal candidacy
            failures = 0
            while True:
                await self._until_connected()
                if candidacy is not None and candidacy.session_id != self._registry.session_id:
                    self._leave(candidacy)
                    candidacy = None
                if candidacy is None:
                    candidacy = _Candidacy(self._registry, self.path, self._new_uuid())
                try:
                    if await self._stand_in_line(candidacy):
                        return LatchHold(self, candidacy)
                    self._leave(candidacy)
                    candidacy = None
                    failures = 0
                except (RegistryUnavailable, OutcomeUnknown, SessionExpired) as error:
                    logger.info("latch %s: %s", self.path, error)
                    failures += 1
                    if self._registry.state is SessionState.CONNECTED:
                        await asyncio.sleep(_pause(failures))

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
                self._leave(candidacy)

    # -- standing in line --

    async def _stand_in_line(self, candidacy: _Candidacy) -> bool:
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
            line = sorted(names or [], key=latch_order)
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
            self._sweep_soon()

    # -- nodes left over --

    def _leave(self, candidacy: _Candidacy) -> None:
        """See to it that the candidacy's node goes."""
        self._left_over[candidacy] = None
        self._sweep_soon()

    async def _release(self, candidacy: _Candidacy) -> None:
        self._leave(candidacy)
        while candidacy in self._left_over and self._sweeping is not None:
            await asyncio.wait({self._sweeping})

    def _sweep_soon(self) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
            self._sweep_timer = None
        if self._sweeping is None and self._left_over and self._registry.state is SessionState.CONNECTED:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
            self._sweeping.add_done_callback(self._swept)

    async def _sweep(self) -> None:
        """Try once to delete each of what is left over. Raises the last RegistryError, if there was one."""
        tried: set[_Candidacy] = set()
        failure: RegistryError | None = None
        try:
            while todo := [candidacy for candidacy in self._left_over if candidacy not in tried]:
                tried.add(todo[0])
                try:
                    await todo[0].withdraw()
                except RegistryError as error:
                    failure = error
                else:
                    del self._left_over[todo[0]]
        finally:
            self._sweeping = None  # in the same step as the last look: what is left later begins another sweep
        if failure is not None:
            raise failure
        self._failed_sweeps = 0

    def _swept(self, sweep: asyncio.Task[None]) -> None:
        error = None if sweep.cancelled() else sweep.exception()
        if error is None:
            return
        if not isinstance(error, RegistryError):
            raise error
        self._failed_sweeps += 1
        log = logger.warning if isinstance(error, AccessDenied) else logger.info
        log("latch %s: a node that is left over cannot be deleted yet: %s", self.path, error)
        # Without a connection the next CONNECTED starts it again; with one, this timer does.
        pause = _pause(self._failed_sweeps)
        self._sweep_timer = asyncio.get_running_loop().call_later(pause, self._sweep_soon)


class LatchHold:
    """The latch is owned, as long as the session lives in which its node was made."""

    def __init__(self, latch: LeaderLatch, candidacy: _Candidacy) -> None:
        assert candidacy.node_path is not None
        assert candidacy.session_id is not None
        self.node_path: str = candidacy.node_path
        """For `Check` or `Delete` in the holder's own transaction."""
        self.session_id: int = candidacy.session_id
        """The session that owns the node."""
        self._latch = latch
        self._candidacy: _Candidacy | None = candidacy

    async def release(self) -> None:
        """Let go: delete the node. Idempotent; raises no RegistryError.

        Returns when the node is gone, or when that cannot be confirmed for now; then it is deleted in the background, at the
        latest when the connection is back. Right also after a transaction with `Delete(node_path)` whose outcome is unknown.
        """
        candidacy, self._candidacy = self._candidacy, None
        if candidacy is not None:
            await self._latch._release(candidacy)

    def released_in_transaction(self) -> None:
        """The holder's own transaction deleted the node: `release` has nothing left to do."""
        candidacy, self._candidacy = self._candidacy, None
        if candidacy is not None and candidacy.has_doubles:
            self._latch._leave(candidacy)


class _Candidacy:
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
        own = sorted((name for name in names or [] if name.startswith(self._name_start)), key=latch_order)
        return [f"{self._path}/{name}" for name in own]


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _look_at(task: asyncio.Task[LatchHold]) -> None:
    """Have asyncio not complain of an exception that came too late for the caller to see."""
    if not task.cancelled():
        task.exception()


def _pause(failures: int) -> float:
    return float(min(FIRST_RETRY_SECONDS * 2 ** min(failures - 1, 16), LAST_RETRY_SECONDS))
