"""The watches of one connection to a tree that is kept here: who is told of which path.

A watch is made first, and armed when its request is done with: a request that fails, or whose caller has gone, leaves none
behind, and what changed before a watch was armed is not told to it. Arming a watch that was closed meanwhile does nothing.

Listeners are called in a later turn of the loop, never within the turn of the change. A tree's listener is told of all that
changes until then in one call. While the connection is interrupted nothing is heard of, so whoever waits for one node is told
when it breaks, and whoever watches a tree when it is back, that anything may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from ejpy.registry.base import TreeListener, TreeWatch, ancestors

Watch = TypeVar("Watch")
Deliver = Callable[[Callable[[], None]], None]
"""Has a callback called in a later turn of the loop."""


class Watches:
    """All watches of one connection."""

    def __init__(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._trees = _ByPath[MergingTreeWatch]()
        self._one_shots = _ByPath[OneShot]()

    def tree(self, root: str, listener: TreeListener) -> MergingTreeWatch:
        """A watch of `root` and everything below it, not armed yet."""
        return MergingTreeWatch(root, listener, self._deliver, self._trees)

    def one_shot(self, path: str, listener: Callable[[], None]) -> OneShot:
        """A watch of one node that calls once, not armed yet."""
        return OneShot(path, listener, self._one_shots)

    def changed(self, paths: frozenset[str] | None) -> None:
        """Tell whom it concerns that the nodes at `paths` changed; None: anything may have changed."""
        if paths is None:
            self.resumed()
            self.interrupted()
            return
        told: dict[MergingTreeWatch, set[str]] = {}
        for path in sorted(paths):
            for one_shot in self._one_shots.take(path):
                self._deliver(one_shot.call)
            for root in ["/", *ancestors(path), *([path] if path != "/" else [])]:
                for watch in self._trees.at(root):
                    told.setdefault(watch, set()).add(path)
        for watch, changed in told.items():
            watch.tell(changed)

    def interrupted(self) -> None:
        """The connection broke: whoever waits for one node is told now, since the change may not be."""
        for one_shot in self._one_shots.take_all():
            self._deliver(one_shot.call)

    def resumed(self) -> None:
        """The connection is back: whoever watches a tree may have missed anything."""
        for watch in self._trees.all():
            watch.tell(None)

    def close(self) -> None:
        """No listener is called afterwards."""
        for watch in self._trees.take_all():
            watch.close()
        for one_shot in self._one_shots.take_all():
            one_shot.close()


class MergingTreeWatch(TreeWatch):
    """A listener that is told, in one call, of all that changed below a path since its last call."""

    def __init__(self, root: str, listener: TreeListener, deliver: Deliver, armed: _ByPath[MergingTreeWatch]) -> None:
        self._root = root
        self._listener: TreeListener | None = listener
        self._deliver = deliver
        self._armed = armed
        self._gathered: set[str] | None = set()
        self._scheduled = False

    def arm(self) -> None:
        if self._listener is not None:
            self._armed.add(self._root, self)

    def tell(self, paths: set[str] | None) -> None:
        self._gathered = None if paths is None or self._gathered is None else self._gathered | paths
        if not self._scheduled:
            self._scheduled = True
            self._deliver(self._call)

    def close(self) -> None:
        self._listener = None
        self._armed.discard(self._root, self)

    def _call(self) -> None:
        gathered, self._gathered, self._scheduled = self._gathered, set(), False
        if self._listener is not None:
            self._listener(None if gathered is None else frozenset(gathered))


class OneShot:
    """A listener that is called at most once."""

    def __init__(self, path: str, listener: Callable[[], None], armed: _ByPath[OneShot]) -> None:
        self._path = path
        self._listener: Callable[[], None] | None = listener
        self._armed = armed

    def arm(self) -> None:
        if self._listener is not None:
            self._armed.add(self._path, self)

    def close(self) -> None:
        self._listener = None
        self._armed.discard(self._path, self)

    def call(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()


class _ByPath(Generic[Watch]):
    """Armed watches by their path, in the order in which they were armed."""

    def __init__(self) -> None:
        self._watches: dict[str, dict[Watch, None]] = {}

    def add(self, path: str, watch: Watch) -> None:
        self._watches.setdefault(path, {})[watch] = None

    def discard(self, path: str, watch: Watch) -> None:
        of_path = self._watches.get(path, {})
        of_path.pop(watch, None)
        if not of_path:
            self._watches.pop(path, None)

    def at(self, path: str) -> Iterable[Watch]:
        return self._watches.get(path, ())

    def all(self) -> list[Watch]:
        return [watch for of_path in self._watches.values() for watch in of_path]

    def take(self, path: str) -> Iterable[Watch]:
        """Those at `path`, which are armed no longer."""
        return self._watches.pop(path, ())

    def take_all(self) -> list[Watch]:
        taken = self.all()
        self._watches.clear()
        return taken
