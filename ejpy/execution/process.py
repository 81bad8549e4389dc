"""Bodies in child processes: for work that computes, that must be killed when it hangs, or that may crash.

A bounded number of children is kept and used again; a child runs one body at a time.

    idle ──run──► loading ──ready, may enter──► running ──ended──► idle
                     │ may not                     │
                     └──► idle                     └──► gone: crashed, or killed by us

The class is loaded before the body may be entered, so that between the last look at the clock and the body lies nothing but
one short message. A body that does not stop within `cancel_grace` is interrupted by SIGTERM (KeyboardInterrupt in the body),
and its whole process group is killed `TERM_GRACE_SECONDS` later; such a child is not used again.

Children are started afresh, never forked from this process: its threads and connections would be dead in the child.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ejpy.execution.body import BodyEnd, How
from ejpy.execution.bounded import BoundedRunner
from ejpy.execution.child import ChildProcess
from ejpy.execution.run import Run
from ejpy.execution.wire import Message, attempt_to_wire, error_to_wire

log = logging.getLogger("ejpy.execution")

TERM_GRACE_SECONDS = 2.0
"""From SIGTERM to SIGKILL."""
UNKILLABLE_SECONDS = 5.0
"""A process that is still there so long after SIGKILL hangs in the kernel (a dead network disk, usually)."""
LOAD_SECONDS = 60.0
"""How long a child may take to start and to load a job's class."""
_EXIT_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class Place:
    """A child and the run it has."""

    child: ChildProcess
    run: Run | None = None
    number: int = 0
    """Of the child's present or last run."""
    used: bool = False
    """It was ready for a run at least once."""
    forced: bool = False
    """It was signalled, and will not be used again."""
    loading: asyncio.TimerHandle | None = None

    def loaded(self) -> None:
        if self.loading is not None:
            self.loading.cancel()
            self.loading = None


@dataclass(kw_only=True, eq=False, repr=False)
class ProcessRunner(BoundedRunner):
    """A Runner of at most `size` child processes, made as they are needed and kept."""

    can_force = True

    import_paths: Sequence[str] = ()
    """Where children import from first; then come the paths of this process, then its working directory."""
    python: str = sys.executable
    term_grace: float = TERM_GRACE_SECONDS
    load_timeout: float = LOAD_SECONDS

    _search_path: list[str] = field(init=False)
    _places: dict[ChildProcess, Place] = field(init=False, default_factory=dict)
    _spare: list[Place] = field(init=False, default_factory=list)
    _of_run: dict[Run, Place] = field(init=False, default_factory=dict)
    _saves: set[asyncio.Task[None]] = field(init=False, default_factory=set)
    _numbers: Iterator[int] = field(init=False, default_factory=lambda: itertools.count(1))
    _none_left: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        super().__post_init__()
        here = os.getcwd()
        paths = [*self.import_paths, *sys.path, here]
        self._search_path = list(dict.fromkeys(os.path.abspath(path) if path else here for path in paths))

    # -- what a place is --

    def _launch(self, run: Run) -> None:
        place = self._spare.pop() if self._spare else self._new_place()
        place.run = run
        place.number = next(self._numbers)
        place.loading = self.loop.call_later(self.load_timeout, self._not_loaded, place)
        self._of_run[run] = place
        child, number = place.child, place.number
        run.cancellation.call_when_set(lambda: child.send({"type": "stop", "run": number}))
        run.hand_off.call_when_set(lambda: child.send({"type": "hand_off", "run": number}))
        child.send({"type": "run", "run": place.number, "attempt": attempt_to_wire(run.attempt)})

    def _new_place(self) -> Place:
        child = ChildProcess(
            name=f"ejpy-child-{next(self._numbers)}",
            loop=self.loop,
            python=self.python,
            search_path=self._search_path,
            on_message=self._on_message,
            on_gone=self._on_gone,
        )
        self._none_left.clear()
        place = self._places[child] = Place(child)
        return place

    def _force(self, run: Run, at_once: bool) -> None:
        place = self._of_run[run]
        place.forced = True
        if at_once:
            place.child.signal(signal.SIGKILL)
        else:
            run.log.warning("interrupted: the body did not stop within %g s; its process group gets SIGTERM", self.cancel_grace)
            place.child.signal(signal.SIGTERM)
            run.set_timer(self.loop.call_later(self.term_grace, self._kill, run, place))

    def _kill(self, run: Run, place: Place) -> None:
        run.log.warning("killed: the body did not end within %g s of SIGTERM", self.term_grace)
        place.child.signal(signal.SIGKILL)
        run.set_timer(self.loop.call_later(UNKILLABLE_SECONDS, self._abandon, run))

    async def _free(self) -> None:
        for place in self._places.values():
            if place.run is None:
                place.child.send({"type": "exit"})
            else:
                place.child.signal(signal.SIGKILL)
        children = list(self._places)
        if not await self._no_child_within(_EXIT_SECONDS):
            for child in self._places:
                child.signal(signal.SIGKILL)
            await self._no_child_within(_EXIT_SECONDS)
        for child in children:
            if child not in self._places:
                child.join(_EXIT_SECONDS)

    async def _no_child_within(self, seconds: float) -> bool:
        if not self._places:
            return True
        try:
            await asyncio.wait_for(self._none_left.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    # -- what children say --

    def _on_message(self, child: ChildProcess, message: Message) -> None:
        place = self._places.get(child)
        if place is None or place.run is None or message["run"] != place.number:
            return  # said for a run that is over
        if message["type"] == "save":
            task = self.loop.create_task(self._save(place.run, child, message))
            self._saves.add(task)
            task.add_done_callback(self._saves.discard)
        elif message["type"] == "ready":
            place.used = True
            place.loaded()
            if self._enter(place.run):
                child.send({"type": "go"})
            else:
                child.send({"type": "skip"})
                self._leave(place, None)
        else:
            self._leave(place, BodyEnd(How(message["how"]), message["error"], message["trace"]))

    async def _save(self, run: Run, child: ChildProcess, message: Message) -> None:
        error = None
        try:
            await run.save(message["value"])
        except Exception as caught:  # noqa: BLE001 - it is raised again, in the body
            error = error_to_wire(caught)
        child.send({"type": "saved", "save": message["save"], "error": error})

    def _leave(self, place: Place, end: BodyEnd | None) -> None:
        run = place.run
        assert run is not None
        place.run = None
        place.loaded()
        del self._of_run[run]
        if place.child in self._places:
            if place.forced:
                place.child.signal(signal.SIGKILL)
            else:
                self._spare.append(place)
        self._left(run, end)

    def _not_loaded(self, place: Place) -> None:
        place.forced = True
        log.error("a child process was not ready within %g s, and is killed", self.load_timeout)
        place.child.signal(signal.SIGKILL)

    def _on_gone(self, child: ChildProcess, how: str) -> None:
        place = self._places.pop(child)
        if not self._places:
            self._none_left.set()
        run = place.run
        if run is None:
            if place in self._spare:
                self._spare.remove(place)
            if not place.forced and self._closing is None:
                log.warning("an idle child process %s; another one is started when it is needed", how)
        elif run.entered is not None:
            self._leave(place, self._end_of_killed(place, run, how))
        elif place.used and not place.forced and run.told is None:
            # It died while it was idle, and the run was sent to a child that was not there any more.
            place.loaded()
            self._launch(run)
        else:
            error = f"its child process {how} before the job's class was loaded"
            if self._enter(run):
                self._leave(place, BodyEnd(How.RAISED, error))
            else:
                self._leave(place, None)

    def _end_of_killed(self, place: Place, run: Run, how: str) -> BodyEnd:
        if place.forced and run.told is not None:
            return BodyEnd(How.STOPPED)
        return BodyEnd(How.RAISED, f"its child process {how}")
