"""Watches: of whole subtrees, by ZooKeeper's persistent recursive watches, and of single nodes, once.

A subtree's watch costs the server one entry, whatever is below it, and tells the path that changed, so nothing needs to be
listed again to find out. It ends with the connection. So at every new connection all of them are set again, before any
request of a caller is sent, and then their listeners are told None: anything may have changed meanwhile.

What ZooKeeper 3.8.0 does wrong, and what is done about it:

* A one-shot watch by the same client on a path that has a recursive watch ends the recursive watch silently
  (ZOOKEEPER-4466, mended in 3.9). So a node that a recursive watch covers gets no one-shot watch on the server: its
  listener is fed by the recursive watch, here.
* Where a child watch lies inside, "children changed" events come along (ZOOKEEPER-4475, mended in 3.9). They are ignored:
  the creation and deletion of a child are events of their own.

A listener that raises is logged and does not keep the others from being called.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from ejpy.errors import RegistryUnavailable
from ejpy.registry.base import Node, TreeListener, TreeWatch, ancestors
from ejpy.registry.zookeeper.channel import Channel
from ejpy.registry.zookeeper.requests import GET_DATA, add_watch, as_node, read_many, remove_watches, watch_node

log = logging.getLogger("ejpy.registry.zookeeper")

CREATED, DELETED, CHANGED = 1, 2, 3
"""ZooKeeper's numbers of the events that are looked at; 4 is "children changed"."""


class RecursiveWatch(TreeWatch):
    """One listener of one subtree."""

    def __init__(self, root: str, listener: TreeListener, on_close: Callable[[RecursiveWatch], None]) -> None:
        self.root = root
        self._listener: TreeListener | None = listener
        self._on_close = on_close

    def close(self) -> None:
        if self._listener is not None:
            self._listener = None
            self._on_close(self)

    def silence(self) -> None:
        """Closed, and nobody needs to be told."""
        self._listener = None

    def tell(self, paths: frozenset[str] | None) -> None:
        """Call the listener, unless the watch is closed."""
        if self._listener is not None:
            _call(self.root, self._listener, paths)


class Watches:
    """All watches of one registry. All methods are called on the loop.

    `on_unwatched` is called when the server refused to set a watch again: this connection is of no use then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, channel: Channel, on_unwatched: Callable[[str], None]) -> None:
        self._loop = loop
        self._channel = channel
        self._on_unwatched = on_unwatched
        self._trees: dict[str, list[RecursiveWatch]] = {}
        self._changed: dict[str, set[str]] = {}
        self._once: dict[str, list[Callable[[], None]]] = {}

    async def watch_tree(self, root: str, listener: TreeListener, timeout: float) -> RecursiveWatch:
        """Set a watch of a subtree. There is none when an error is raised."""
        watch = RecursiveWatch(root, listener, self._closed)
        # Known from the moment it is asked for: a one-shot watch that is asked for after it must not reach the server.
        self._trees.setdefault(root, []).append(watch)
        try:
            await self._channel.submit(add_watch(root), timeout, path=root)
        except BaseException:
            watch.close()
            raise
        return watch

    async def read_and_watch(self, path: str, listener: Callable[[], None], timeout: float) -> Node | None:
        """Read a node, and have `listener` called once at its next change or at an interruption.

        There is no watch when an error is raised.
        """
        reading = read_many([path], (GET_DATA,))
        if self._is_covered(path):
            requests: list[asyncio.Future[Any]] = [
                self._channel.submit(reading, timeout, path=path, on_reply=lambda _: self._arm(path, listener, covered=True))
            ]
        else:
            requests = [
                self._channel.submit(
                    watch_node(path), timeout, path=path, on_reply=lambda _: self._arm(path, listener, covered=False)
                ),
                self._channel.submit(reading, timeout, path=path),
            ]
        try:
            replies = await asyncio.gather(*requests)
            return as_node(path, replies[-1][0])
        except BaseException:
            self._disarm(path, listener)
            raise

    # -- what happens to the connection --

    def connected(self) -> None:
        """There is a new connection: set the standing watches again, then say that anything may have changed."""
        for root in self._trees:
            request = self._channel.submit(add_watch(root), None, path=root, on_reply=partial(self._set_again, root))
            request.add_done_callback(self._check_set_again)

    def interrupted(self) -> None:
        """The connection is gone, and with it every watch on the server: one-shot watches count as fired."""
        once, self._once = self._once, {}
        for path, listeners in once.items():
            for listener in listeners:
                _call(path, listener)

    def forget(self) -> None:
        """No callback comes any more; the end of the connection removes what the server knows."""
        self._once.clear()
        trees, self._trees = self._trees, {}
        for watches in trees.values():
            for watch in watches:
                watch.silence()

    def changed(self, kind: int, path: str) -> None:
        """An event came."""
        if kind not in (CREATED, DELETED, CHANGED):
            return
        for listener in self._once.pop(path, ()):
            _call(path, listener)
        for root in _lineage(path):
            if root in self._trees:
                if not self._changed:
                    self._loop.call_soon(self._tell_changes)
                self._changed.setdefault(root, set()).add(path)

    # -- inside --

    def _tell_changes(self) -> None:
        changed, self._changed = self._changed, {}
        for root, paths in changed.items():
            self._tell(root, frozenset(paths))

    def _tell(self, root: str, paths: frozenset[str] | None) -> None:
        for watch in tuple(self._trees.get(root, ())):
            watch.tell(paths)

    def _set_again(self, root: str, _: None) -> None:
        self._tell(root, None)

    def _check_set_again(self, request: asyncio.Future[None]) -> None:
        error = request.exception()
        if error is not None and not isinstance(error, RegistryUnavailable):
            log.error("a standing watch could not be set again: %s", error)
            self._on_unwatched("a standing watch could not be set again")

    def _closed(self, watch: RecursiveWatch) -> None:
        watches = self._trees[watch.root]
        watches.remove(watch)
        if watches:
            return
        del self._trees[watch.root]
        self._channel.submit(remove_watches(watch.root), None, path=watch.root).add_done_callback(_note_failure)
        for path in [path for path in self._once if watch.root in _lineage(path) and not self._is_covered(path)]:
            for listener in self._once.pop(path):
                _call(path, listener)

    def _is_covered(self, path: str) -> bool:
        return any(root in self._trees for root in _lineage(path))

    def _arm(self, path: str, listener: Callable[[], None], *, covered: bool) -> None:
        if covered and not self._is_covered(path):
            _call(path, listener)  # the recursive watch was closed meanwhile: nothing else would tell
        else:
            self._once.setdefault(path, []).append(listener)

    def _disarm(self, path: str, listener: Callable[[], None]) -> None:
        listeners = self._once.get(path, [])
        if listener in listeners:
            listeners.remove(listener)
            if not listeners:
                del self._once[path]


def _lineage(path: str) -> list[str]:
    """`path`, everything above it, and the root of all."""
    return [path, *ancestors(path), "/"] if path != "/" else ["/"]


def _call(path: str, listener: Callable[..., None], *arguments: object) -> None:
    try:
        listener(*arguments)
    except Exception:
        log.exception("a listener for %s failed", path)


def _note_failure(request: asyncio.Future[None]) -> None:
    if error := request.exception():
        log.debug("a watch could not be removed: %s", error)
