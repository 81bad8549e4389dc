"""The registry inside one process: the twin that unit tests and the simulation run on.

`MemoryStore` is what a cluster shares (the server), `MemoryRegistry` one worker's connection and session. There are no
threads and no randomness; time comes from the clock that is passed in, timers and later turns from the running loop. Under
a loop with virtual time the same calls give the same history.

It keeps sessions as a real one does, so that it fails as a real one does. The client renews its lease by a request every
third of the session time-out; a request that is not answered makes it SUSPENDED; the lease running out on the local clock
makes it LOST, whatever the store thinks; the store ends a session that it has not heard of for the session time-out.

Faults are plain methods: `MemoryRegistry.disconnect` and `reconnect` pull and plug the cable, `MemoryStore.expire` ends a
session. Finer ones are had by a subclass: every request goes through `_transport`, every event through `_deliver`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ejpy.clock import Clock
from ejpy.errors import (
    GuardFailed,
    OutcomeUnknown,
    RegistryError,
    RegistryUnavailable,
    RegistryUnreachable,
    SessionExpired,
)
from ejpy.registry.base import Node, SessionState, check_path
from ejpy.registry.leased import LeasedRegistry
from ejpy.registry.memory_store import MemoryStore
from ejpy.registry.transaction import Transaction

__all__ = ["MemoryRegistry", "MemoryStore"]

logger = logging.getLogger("ejpy.registry.memory")

T = TypeVar("T")


class MemoryRegistry(LeasedRegistry):
    """One worker's connection to a `MemoryStore`, with a session of `session_timeout` seconds.

    `clock` is the worker's own: its `monotonic` dates the lease. It may differ from the store's, but must go as fast.
    """

    def __init__(self, store: MemoryStore, *, clock: Clock, session_timeout: float) -> None:
        super().__init__(clock=clock, session_timeout=session_timeout)
        self._store = store
        self._started = False
        self._plugged = True
        self._session_ended = False
        """The store said so, and there is no new one yet."""
        self._in_flight: dict[asyncio.Task[Any], None] = {}
        self._keeping: asyncio.Task[None] | None = None
        self._keep_timer: asyncio.TimerHandle | None = None

    # -- hooks for faults --

    async def _transport(self, apply: Callable[[], T]) -> T:
        """Carry one request to the store and its reply back; `apply` is what the store does, and raises what it replies.

        A subclass loses a request by raising RegistryUnavailable, or by waiting for ever, without calling `apply`; it loses
        a reply by raising OutcomeUnknown after calling it; it delays by awaiting before or after. It is cancelled when the
        request's deadline passes or the connection breaks.
        """
        return apply()

    def disconnect(self) -> None:
        """Pull the cable: SUSPENDED; what is under way gets no reply, what is asked is refused, until `reconnect`."""
        self._plugged = False
        self._suspend()

    def reconnect(self) -> None:
        """Plug the cable in again: CONNECTED soon, with the old session if it still lives, or else with a new one."""
        self._plugged = True
        if self._started:
            self._keep_later(0)

    # -- life and session --

    @property
    def address(self) -> str:
        return "memory://"

    async def start(self, timeout: float) -> None:
        if self._started:
            return
        if not self._plugged:
            raise RegistryUnreachable(self.address, "disconnected")
        self._started = True
        try:
            await self._open_session(timeout)
        except RegistryError as error:
            self._started = False
            raise RegistryUnreachable(self.address, str(error)) from error
        except asyncio.CancelledError:
            self._started = False
            raise
        self._store.subscribe(self, self._on_changed)
        self._become_connected()

    async def stop(self, timeout: float) -> None:
        if not self._started:
            return
        self._started = False
        self._cancel_keeping()
        self._session.stop_timer()
        session_id = self._session.id
        try:
            if self._session.state is SessionState.CONNECTED and session_id is not None:
                await self._exchange(lambda: self._store.close_session(session_id), timeout, writes=True)
        except RegistryError as error:
            logger.warning("session %s could not be closed and ends by its lease: %s", session_id, error)
        finally:
            self._break_requests()
            self._store.unsubscribe(self)
            self._watches.close()
            self._session.close()

    # -- reads --

    async def read(self, paths: Sequence[str], *, timeout: float | None = None) -> list[Node | None]:
        paths = list(map(check_path, paths))
        return await self._request(lambda _: list(map(self._store.read, paths)), timeout, writes=False)

    async def children(self, paths: Sequence[str], *, timeout: float | None = None) -> list[list[str] | None]:
        paths = list(map(check_path, paths))
        return await self._request(lambda _: list(map(self._store.children, paths)), timeout, writes=False)

    async def tree(self, root: str, *, timeout: float | None = None) -> dict[str, Node]:
        check_path(root)
        return await self._request(lambda _: self._store.tree(root), timeout, writes=False)

    async def sync(self, *, timeout: float | None = None) -> None:
        await self._request(lambda _: None, timeout, writes=False)

    # -- writes and watches --

    async def _write(self, paths: Sequence[str], change: Callable[[Transaction], T], timeout: float | None) -> T:
        return await self._request(lambda session_id: self._store.write(session_id, change), timeout, writes=True)

    async def _read_and_arm(self, path: str, arm: Callable[[], None], timeout: float | None) -> Node | None:
        def apply(_: int) -> Node | None:
            arm()
            return self._store.read(path)

        return await self._request(apply, timeout, writes=False)

    def _on_changed(self, paths: frozenset[str]) -> None:
        if self._session.state is SessionState.CONNECTED:  # what is missed otherwise is made up for when it is CONNECTED again
            self._watches.changed(paths)

    # -- requests --

    async def _request(self, apply: Callable[[int], T], timeout: float | None, *, writes: bool) -> T:
        """Have the store do `apply` under the current session, whenever the request arrives there."""
        session_id = self._session.id
        if not self._started or self._session.state is not SessionState.CONNECTED or session_id is None:
            raise RegistryUnavailable(f"registry {self.address}: not connected (session {self._session.state.value})")

        def apply_in_session() -> T:
            self._store.touch(session_id)
            return apply(session_id)

        limit = self._session.timeout if timeout is None else timeout
        return await self._exchange(apply_in_session, limit, writes=writes)

    async def _exchange(self, apply: Callable[[], T], timeout: float, *, writes: bool) -> T:
        session_id, sent = self._session.id, self._clock.monotonic()
        left = False

        async def carry() -> T:
            nonlocal left
            left = True
            return await self._transport(apply)

        task = asyncio.get_running_loop().create_task(carry())
        self._in_flight[task] = None
        try:
            await asyncio.wait({task}, timeout=timeout)
            if not left:
                raise RegistryUnavailable(f"registry {self.address}: the connection broke before the request was sent")
            if not task.done() or task.cancelled():
                raise OutcomeUnknown(f"registry {self.address}: no reply within {timeout:g} s, or the connection broke")
            result = task.result()
        except GuardFailed:
            self._answered(session_id, sent)
            raise
        except SessionExpired:
            self._end_session(session_id)
            raise
        except OutcomeUnknown as error:
            if writes:
                raise
            raise RegistryUnavailable(str(error)) from error
        finally:
            self._in_flight.pop(task, None)
            task.cancel()
        self._answered(session_id, sent)
        return result

    def _break_requests(self) -> None:
        for task in list(self._in_flight):
            task.cancel()

    # -- keeping the session --

    async def _open_session(self, timeout: float) -> None:
        sent = self._clock.monotonic()

        def apply() -> int:
            opened = self._store.open_session(self._session.timeout, lambda: self._deliver(lambda: self._end_session(opened)))
            return opened

        session_id = await self._exchange(apply, timeout, writes=False)
        self._session.opened(session_id)
        self._session_ended = False
        self._answered(session_id, sent)

    async def _keep(self) -> None:
        """Renew the lease; get a new session for one that has ended; try again soon if there is no reply."""
        timeout = self._session.timeout / 3
        try:
            if self._session_ended or self._session.id is None:
                await self._open_session(timeout)
            else:
                session_id = self._session.id
                await self._exchange(lambda: self._store.touch(session_id), timeout, writes=False)
        except SessionExpired:
            pass  # `_end_session` has asked for a new one already
        except RegistryUnavailable:
            self._suspend()
        else:
            if self._session.state is SessionState.CONNECTED:
                self._keep_later(self._session.timeout / 3)
            else:
                self._become_connected()

    def _keep_later(self, seconds: float) -> None:
        self._cancel_keeping()
        self._keep_timer = asyncio.get_running_loop().call_later(seconds, self._begin_keeping)

    def _begin_keeping(self) -> None:
        self._cancel_keeping()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    def _answered(self, session_id: int | None, sent: float) -> None:
        """A request that was sent at `sent` under `session_id` was answered: proof that the session lives."""
        if session_id is not None and session_id == self._session.id and not self._session_ended and self._started:
            self._session.renewed(sent)

    def _end_session(self, session_id: int | None) -> None:
        """The store says that the session has ended."""
        if not self._started or not self._plugged or session_id != self._session.id or self._session_ended:
            return
        self._session_ended = True
        self._session.ended()
        self._keep_later(0)

    def _suspend(self) -> None:
        """The connection is broken: nothing under way is answered, no event comes."""
        if not self._started:
            return
        self._cancel_keeping()
        self._break_requests()
        self._break_off()
        if self._plugged:
            self._keep_later(self._session.timeout / 6)

    def _cancel_keeping(self) -> None:
        if self._keep_timer is not None:
            self._keep_timer.cancel()
            self._keep_timer = None
        if self._keeping is not None and self._keeping is not asyncio.current_task():
            self._keeping.cancel()
            self._keeping = None

    def _become_connected(self) -> None:
        self._go_on()
        self._keep_later(self._session.timeout / 3)
