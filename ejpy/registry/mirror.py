"""TreeMirror: a copy of a subtree in memory that follows the registry.

A watch says only where to look again; what is then read is the truth. So a hint that comes late, twice, or merged with others
changes nothing, and the order of hints does not matter.

    start ──► arm the watch ──► read all ──► FRESH ──hint──► read the hinted paths at once ──► FRESH
                                   ▲           │
                                   │           └─ interruption, or a read that failed ──► STALE
                                   └──── "anything may have changed" (None) after the interruption ◄──┘

* The watch is armed before the tree is read: what changes in between is hinted at, and read once more.
* There is never more than one read under way for a mirror. Hints that come meanwhile are gathered, and lead to one more.
* A STALE copy is what was true some time ago. It is kept, since old knowledge is better than none for showing, but decisions
  that must not be wrong look at `fresh`.
* A failed read keeps its paths and is repeated when the session is CONNECTED again; or, if it failed on a connection that is
  up, after a pause that grows.

At rest a mirror is an entry in the registry's watches: no task, no timer, no thread. The reads of many mirrors go out side by
side; how many are under way is the registry's concern.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from math import inf
from types import MappingProxyType

from ejpy.errors import AccessDenied, RegistryError
from ejpy.registry.base import Node, Registry, SessionState, TreeWatch, ancestors, parent_of

logger = logging.getLogger("ejpy.registry.mirror")

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0
"""Bounds of the growing pause after a failed read on a connection that is up."""

MirrorListener = Callable[["frozenset[str] | None"], None]
_Reading = asyncio.Task["dict[str, Node | None]"]


class TreeMirror:
    """A copy of `root` and everything below it.

    `on_change(paths)` is called on the loop, after the copy changed, with the paths whose nodes are other than before
    (created, changed, deleted). `on_change(None)` is called after the copy became fresh: look at everything.
    """

    def __init__(self, registry: Registry, root: str, on_change: MirrorListener) -> None:
        self.root = root
        self.nodes: Mapping[str, Node]
        """The copy, by path; a live view. A node stands in it only together with its ancestors from `root` on."""
        self._registry = registry
        self._on_change = on_change
        self._copy: dict[str, Node] = {}
        self.nodes = MappingProxyType(self._copy)
        self._watch: TreeWatch | None = None
        self._unsubscribe: Callable[[], None] = lambda: None
        self._fresh = False
        self._hint_due = False
        """The connection was interrupted, and the hint that makes up for it has not come yet."""
        self._wanted: set[str] = set()
        self._all_wanted = False
        self._reading: _Reading | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._failed_reads = 0
        self._closed = False

    @property
    def fresh(self) -> bool:
        """Whether the copy follows the registry: False from an interruption (or a failed read) until it was read anew."""
        return self._fresh and self._registry.state is SessionState.CONNECTED

    async def start(self) -> None:
        """Arm the watch and read the tree for the first time; `on_change(None)` is called for it, too. Call it once.

        Raises what the registry raises (RegistryUnavailable, SessionExpired, AccessDenied); the mirror is closed then.
        """
        self._unsubscribe = self._registry.on_session(self._session_changed)
        try:
            self._watch = await self._registry.watch_tree(self.root, self._hinted)
            self._all_wanted = True
            reading = self._reading = self._read()
            await asyncio.wait({reading})
            reading.result()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Follow no more; `on_change` is not called afterwards. The copy stays as it is, and is not fresh. Idempotent."""
        self._closed = True
        self._fresh = False
        self._unsubscribe()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._reading is not None:
            self._reading.cancel()
        self._cancel_retry()

    # -- what wakes it --

    def _hinted(self, paths: frozenset[str] | None) -> None:
        if paths is None:
            self._all_wanted = True
            self._hint_due = False
        else:
            self._wanted |= paths
        self._read_if_wanted()

    def _session_changed(self, state: SessionState) -> None:
        self._cancel_retry()
        if state is SessionState.CONNECTED:
            self._read_if_wanted()
        else:
            self._fresh = False
            self._hint_due = True

    # -- reading --

    def _read_if_wanted(self) -> None:
        if not self._all_wanted and not self._wanted:
            return
        if self._closed or self._reading is not None or self._retry is not None:
            return
        if self._registry.state is SessionState.CONNECTED:
            self._reading = self._read()

    def _read(self) -> _Reading:
        """Begin one read of all that is wanted."""
        everything, self._all_wanted = self._all_wanted, False
        wanted, self._wanted = self._wanted, set()
        if not everything:
            wanted |= {above for path in wanted for above in self._from_root(path) if above not in self._copy}
        reading = asyncio.get_running_loop().create_task(self._fetch(None if everything else sorted(wanted)))
        reading.add_done_callback(lambda reading: self._was_read(reading, everything, wanted))
        return reading

    async def _fetch(self, paths: list[str] | None) -> dict[str, Node | None]:
        if paths is None:
            return dict(await self._registry.tree(self.root))
        return dict(zip(paths, await self._registry.read(paths), strict=True))

    def _was_read(self, reading: _Reading, everything: bool, wanted: set[str]) -> None:
        self._reading = None
        if self._closed or reading.cancelled():
            return
        error = reading.exception()
        if error is not None:
            self._all_wanted |= everything
            self._wanted |= wanted
            self._read_failed(error)
            return
        self._failed_reads = 0
        changed = self._replace(reading.result()) if everything else self._update(reading.result())
        was_fresh = self._fresh
        self._fresh = not self._hint_due and not self._all_wanted
        self._read_if_wanted()
        if self._fresh and not was_fresh:
            self._on_change(None)
        elif changed:
            self._on_change(frozenset(changed))

    def _read_failed(self, error: BaseException) -> None:
        self._fresh = False
        self._failed_reads += 1
        pause = min(FIRST_RETRY_SECONDS * 2 ** min(self._failed_reads - 1, 16), LAST_RETRY_SECONDS)
        # Without a connection the next CONNECTED begins the read again and drops this timer; with one, the timer does.
        self._retry = asyncio.get_running_loop().call_later(pause, self._retry_now)
        if not isinstance(error, RegistryError):
            raise error
        log = logger.warning if isinstance(error, AccessDenied) else logger.info
        log("mirror of %s: not fresh, a read failed: %s", self.root, error)

    def _retry_now(self) -> None:
        self._retry = None
        self._read_if_wanted()

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # -- the copy --

    def _replace(self, found: Mapping[str, Node | None]) -> set[str]:
        """Make the whole copy what was found. Returns the paths that are other than before."""
        before = dict(self._copy)
        self._copy.clear()
        self._update(found)
        return {path for path in before.keys() | self._copy.keys() if before.get(path) != self._copy.get(path)}

    def _update(self, found: Mapping[str, Node | None]) -> set[str]:
        """Take over what was found at some paths. Returns the paths that are other than before."""
        changed: set[str] = set()
        for path in sorted(found):  # parents before children
            node, before = found[path], self._copy.get(path)
            if node == before:
                continue
            if node is not None and path != self.root and parent_of(path) not in self._copy:
                # A read of many paths is no snapshot: the parent was gone when it was read, and is back.
                self._wanted.add(path)
                continue
            if node is None:
                changed |= self._drop_below(path)
                del self._copy[path]
            else:
                if before is not None and node.created_revision != before.created_revision:
                    # It was away. What is older than it went with it; what is not was read after it had come back.
                    changed |= self._drop_below(path, older_than=node.created_revision)
                self._copy[path] = node
            changed.add(path)
        return changed

    def _drop_below(self, path: str, older_than: float = inf) -> set[str]:
        start = path.rstrip("/") + "/"
        below = {
            other
            for other, node in self._copy.items()
            if other.startswith(start) and other != path and node.created_revision < older_than
        }
        for other in below:
            del self._copy[other]
        return below

    def _from_root(self, path: str) -> Iterable[str]:
        """The ancestors of `path` from `root` down."""
        start = self.root.rstrip("/") + "/"
        if path != self.root:
            yield self.root
            yield from (above for above in ancestors(path) if above.startswith(start))
