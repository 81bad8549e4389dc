"""Bodies that take time, save checkpoints if they are told to, and do nothing else; and what an outsider sees of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from ejpy.attempt import Attempt
from ejpy.errors import RegistryError, StaleAttempt
from ejpy.execution.base import Ended, SaveCheckpoint
from ejpy.history.records import AttemptEnded, AttemptStarted, FiresNotRun, Record
from ejpy.terms import Outcome, Reason
from ejpy.testing.virtual_loop import LoopClock, Process, VirtualLoop


@dataclass(slots=True)
class Run:
    """One body that was entered."""

    worker: str
    item: int
    fire: datetime
    attempt: int
    reason: Reason
    token: int
    entered: float
    ended: float | None = None
    outcome: Outcome | None = None


@dataclass
class Evidence:
    """What happened, as an outsider sees it."""

    runs: list[Run] = field(default_factory=list)
    not_run: list[FiresNotRun] = field(default_factory=list)
    recorded: list[AttemptEnded] = field(default_factory=list)
    started: list[AttemptStarted] = field(default_factory=list)

    def write(self, record: Record) -> None:
        """As a worker's journal."""
        if isinstance(record, FiresNotRun):
            self.not_run.append(record)
        elif isinstance(record, AttemptEnded):
            self.recorded.append(record)
        elif isinstance(record, AttemptStarted):
            self.started.append(record)

    def entered(self, run: Run, attempt: Attempt, host: BodyHost) -> None:
        self.runs.append(run)

    def saved(self, run: Run, attempt: Attempt, instance_id: str, value: Any) -> None:
        """A checkpoint was accepted."""

    def left(self, run: Run, attempt: Attempt, instance_id: str) -> None:
        """A body ended."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one body behaves."""

    seconds: float
    deaf: bool = False
    """It does not listen to cancellation."""
    waits_seconds: float = 0.0
    """How long it waits for a place before it is entered."""
    checkpoint_every: float | None = None
    """Saves how many checkpoints it has come to, after each so many seconds."""
    fails: bool = False


class BodyHost(Protocol):
    """The worker that bodies run on."""

    name: str
    loop: VirtualLoop
    clock: LoopClock
    process: Process
    evidence: Evidence
    instance_id: str

    @property
    def session_id(self) -> int | None: ...


class VirtualRunner:
    """Runs bodies. `deaf` ones do not listen to cancellation; `waiting` may be set at will. `behaviour` goes before both."""

    def __init__(
        self,
        worker: BodyHost,
        seconds: Callable[[], float],
        deaf: bool,
        behaviour: Callable[[Attempt], Behaviour] | None = None,
    ) -> None:
        self._worker = worker
        self._behaviour = behaviour or (lambda attempt: Behaviour(seconds(), deaf))
        self.waiting = 0

    def start(
        self,
        attempt: Attempt,
        *,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
    ) -> VirtualExecution:
        behaviour = self._behaviour(attempt)
        return VirtualExecution(self._worker, attempt, behaviour, may_enter, save_checkpoint, on_ended)

    async def close(self, timeout: float) -> list[Attempt]:
        return []


class VirtualExecution:
    """One body."""

    def __init__(
        self,
        worker: BodyHost,
        attempt: Attempt,
        behaviour: Behaviour,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
    ) -> None:
        self.attempt = attempt
        self._worker = worker
        self._behaviour = behaviour
        self._may_enter = may_enter
        self._save = save_checkpoint
        self._on_ended = on_ended
        self._run: Run | None = None
        self._entered: datetime | None = None
        self._done = False
        self._working: asyncio.Task[None] | None = None
        if behaviour.waits_seconds:
            worker.loop.call_later(behaviour.waits_seconds, self._enter)
        else:
            worker.loop.call_soon(self._enter)

    def cancel(self, why: str) -> None:
        if not self._behaviour.deaf or self._run is None:
            self._worker.loop.call_soon(self._end, None if self._run is None else Outcome.CANCELLED)

    def withdraw(self) -> None:
        if self._run is None:
            self._worker.loop.call_soon(self._withdrawn)

    def _withdrawn(self) -> None:
        if self._run is None:
            self._end(None)

    def _enter(self) -> None:
        if self._done:
            return
        if not self._may_enter():
            self._end(None)
            return
        a, w, how = self.attempt, self._worker, self._behaviour
        self._entered = w.clock.now()
        self._run = Run(w.name, a.sharding_item, a.scheduled_time, a.attempt, a.reason, a.fencing_token, w.loop.time())
        w.evidence.entered(self._run, a, w)
        if how.checkpoint_every is None:
            w.loop.call_later(how.seconds, self._end, Outcome.FAILED if how.fails else Outcome.SUCCEEDED)
        else:
            self._working = w.loop.create_task(self._work(self._run, how.checkpoint_every))

    async def _work(self, run: Run, every: float) -> None:
        """From the last checkpoint on; each stands for `every` seconds of work."""
        done = int(self.attempt.checkpoint or 0)
        try:
            while (left := self._behaviour.seconds - done * every) > 0:
                await asyncio.sleep(min(every, left))
                done += 1
                await self._save(self.attempt, done)
                self._worker.evidence.saved(run, self.attempt, self._worker.instance_id, done)
        except (StaleAttempt, RegistryError):
            self._end(Outcome.FAILED)
        else:
            self._end(Outcome.FAILED if self._behaviour.fails else Outcome.SUCCEEDED)

    def _end(self, outcome: Outcome | None) -> None:
        if self._done:
            return
        self._done = True
        if self._working is not None and self._working is not asyncio.current_task():
            self._working.cancel()
        if self._run is not None:
            self._run.ended, self._run.outcome = self._worker.loop.time(), outcome
            self._worker.evidence.left(self._run, self.attempt, self._worker.instance_id)
        self._on_ended(self.attempt, Ended(outcome, self._entered, self._worker.clock.now()))
