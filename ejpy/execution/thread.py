"""Bodies in threads: the default for plain `def execute`.

A thread cannot be stopped from outside. A body that does not listen is given up after the grace, its thread with it; when the
body ends after all, the thread ends too. The threads are daemons: one that hangs does not keep the interpreter from exiting,
and there is no executor of the standard library that could refuse work during the interpreter's shutdown.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from queue import SimpleQueue

from ejpy.execution.body import BodyEnd, run_body
from ejpy.execution.bounded import InProcessRunner
from ejpy.execution.run import Run, unexpected

_JOIN_SECONDS = 2.0


@dataclass(kw_only=True, eq=False, repr=False)
class ThreadRunner(InProcessRunner):
    """A Runner of at most `size` threads, made as they are needed and kept."""

    _threads: dict[Run, _BodyThread] = field(init=False, default_factory=dict)
    """Those that have a run."""
    _spare: list[_BodyThread] = field(init=False, default_factory=list)
    _alive: set[_BodyThread] = field(init=False, default_factory=set)
    _made: int = field(init=False, default=0)

    def _launch(self, run: Run) -> None:
        if self._spare:
            thread = self._spare.pop()
        else:
            self._made += 1
            thread = _BodyThread(self, f"ejpy-body-{self._made}")
            self._alive = {known for known in self._alive if known.is_alive()} | {thread}
        self._threads[run] = thread
        thread.inbox.put(run)

    def _left(self, run: Run, end: BodyEnd | None) -> None:
        thread = self._threads.pop(run)
        self._spare.append(thread)
        super()._left(run, end)
        # More threads than places: the place of this one was replaced while its body did not stop.
        wanted = self.size - len(self._placed) if self._closing is None else 0
        while len(self._spare) > wanted:
            self._spare.pop().inbox.put(None)

    async def _free(self) -> None:
        self._spare.clear()
        ending = self._alive - {self._threads[run] for run in self._abandoned}
        for thread in ending:
            thread.inbox.put(None)
        for thread in ending:
            thread.join(_JOIN_SECONDS)  # they wait in `inbox.get`, or are about to, and end at once

    def work(self, run: Run) -> bool:
        """In a body's thread: the whole of one run. False if the control loop is gone, and the thread should go, too."""
        end: BodyEnd | None = None
        try:
            if self._enter(run):
                context = run.shard_context()
                end = run.context.run(run_body, run.attempt, context, run.cancellation, lambda: self.instances.of(run.attempt))
        except BaseException as error:  # noqa: BLE001 - the thread serves others, and the error is told with the end
            end = unexpected(error)
        return self._left_from_thread(run, end)


class _BodyThread(threading.Thread):
    """Takes runs from its inbox until it gets None."""

    def __init__(self, runner: ThreadRunner, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.inbox: SimpleQueue[Run | None] = SimpleQueue()
        self._runner = runner
        self.start()

    def run(self) -> None:
        while (run := self.inbox.get()) is not None and self._runner.work(run):
            del run  # an idle thread keeps no attempt alive
