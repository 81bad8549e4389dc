"""Bodies as tasks: the default for `async def execute`.

All asyncio jobs of a process share one event loop, in a thread of its own; the control loop is another. Being told to stop is
`task.cancel()`. A body that waits but ignores its cancellation is given up as in the other runners; it stays a task.

A body that *blocks* (computes, or calls `time.sleep`) stops the loop under all the others. That cannot be prevented, but it is
seen: while bodies run, the control loop looks once a second whether the jobs' loop still turns, and says who holds it, and
where. When a body must be given up and the loop does not even take its cancellation, later bodies get a new loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from dataclasses import dataclass, field

from ejpy.cancellation import call_in_loop
from ejpy.execution.body import BodyEnd, How, run_body_async
from ejpy.execution.bounded import InProcessRunner
from ejpy.execution.daemon import DaemonExecutor
from ejpy.execution.run import Run, unexpected
from ejpy.logs import fields

log = logging.getLogger("ejpy.execution")

BLOCKED_SECONDS = 1.0
"""A loop that has not turned for so long is reported as blocked."""
_STOP_SECONDS = 1.0
"""How long tasks that were left over get to take their cancellation when the runner closes."""
_JOIN_SECONDS = 2.0


@dataclass(kw_only=True, eq=False, repr=False)
class AsyncioRunner(InProcessRunner):
    """A Runner of at most `size` tasks at once, on one event loop."""

    blocked_after: float = BLOCKED_SECONDS
    """Seconds for which the loop may not turn before it is reported as blocked."""

    _homes: dict[Run, JobLoop] = field(init=False, default_factory=dict)
    """The loop of each run that has a task, or had one when it was given up."""
    _current: JobLoop | None = field(init=False, default=None)
    """The loop for new runs."""
    _made: int = field(init=False, default=0)
    _check: asyncio.TimerHandle | None = field(init=False, default=None)

    def _launch(self, run: Run) -> None:
        if self._current is None:
            self._made += 1
            self._current = JobLoop(f"ejpy-asyncio-{self._made}", self.loop)
        home = self._homes[run] = self._current
        call_in_loop(home.loop, lambda: self._begin(run, home))
        self._watch_loop()

    def _force(self, run: Run, at_once: bool) -> None:
        home = self._homes[run]
        deaf = run in home.tasks and run not in home.was_told
        if deaf and self._current is home and len(self._abandoned) < self._most_replaced:
            self._current = None
            run.log.error("the event loop of the asyncio jobs is blocked; later jobs get a new one")
        super()._force(run, at_once)

    def _left(self, run: Run, end: BodyEnd | None) -> None:
        home = self._homes.pop(run)
        super()._left(run, end)
        if home is not self._current and home not in self._homes.values():
            home.stop()

    async def _free(self) -> None:
        if self._check is not None:
            self._check.cancel()
        homes = {*self._homes.values()} | ({self._current} if self._current is not None else set())
        for home in homes:
            home.stop()
        await asyncio.gather(*(home.stopped_within(_JOIN_SECONDS) for home in homes))

    # -- on the jobs' loop --

    def _begin(self, run: Run, home: JobLoop) -> None:
        task = run.context.run(home.loop.create_task, self._body(run))
        home.tasks[run] = task
        # Before its first step, so that its cancellation comes before any wake-up that the body asks for.
        take_back = run.cancellation.call_when_set(lambda: call_in_loop(home.loop, lambda: home.cancel(run)))

        def over(task: asyncio.Task[BodyEnd | None]) -> None:
            take_back()
            home.tasks.pop(run, None)
            told = run in home.was_told
            home.was_told.discard(run)
            # A task that is cancelled before its first step never begins: the body was not entered. One that its own body
            # cancelled in its last step counts as cancelled as well, though that body ran to its end.
            if not task.cancelled():
                end = task.result()
            elif run.entered is None:
                end = None
            else:
                end = BodyEnd(How.STOPPED) if told else BodyEnd(How.RAISED, "CancelledError: the body cancelled its own task")
            self._left_from_thread(run, end)

        task.add_done_callback(over)

    async def _body(self, run: Run) -> BodyEnd | None:
        try:
            if not self._enter(run):
                return None
            return await run_body_async(run.attempt, run.shard_context(), lambda: self.instances.of(run.attempt))
        except BaseException as error:  # noqa: BLE001 - the loop serves others, and the error is told with the end
            return unexpected(error)

    # -- watching the jobs' loop: on the control loop --

    def _watch_loop(self) -> None:
        if self._check is None and self._current is not None and self._homes:
            self._current.probe()
            self._check = self.loop.call_later(self.blocked_after, self._look_at_loop)

    def _look_at_loop(self) -> None:
        self._check = None
        home = self._current
        if home is not None:
            if home.turned:
                if home.reported:
                    home.reported = False
                    log.info("the event loop of the asyncio jobs turns again")
            elif not home.reported:
                home.reported = True
                run, where = home.holder()
                log.warning(
                    "the event loop of the asyncio jobs has not turned for %g s: %s blocks it at %s; "
                    "let blocking work run in the thread or process executor",
                    self.blocked_after,
                    f"job {run.attempt.job_name!r}, item {run.attempt.sharding_item}" if run else "a task",
                    where,
                    extra=fields(job=run.attempt.job_name, item=run.attempt.sharding_item) if run else None,
                )
        self._watch_loop()


class JobLoop:
    """An event loop in a daemon thread."""

    def __init__(self, name: str, control: asyncio.AbstractEventLoop) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(DaemonExecutor())
        self.tasks: dict[Run, asyncio.Task[BodyEnd | None]] = {}
        self.was_told: set[Run] = set()
        """Runs whose tasks have been cancelled; together with `tasks` it tells whether the loop takes orders."""
        self.turned = True
        """The last probe was answered."""
        self.reported = False
        """Somebody was told that the loop is blocked."""
        self._stopping = False
        self._control = control
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def cancel(self, run: Run) -> None:
        """On this loop: cancel a run's task."""
        task = self.tasks.get(run)
        if task is not None:
            self.was_told.add(run)
            task.cancel()

    def probe(self) -> None:
        """Ask the loop to set `turned`. A probe that is still unanswered is not repeated."""
        if self.turned:
            self.turned = False
            call_in_loop(self.loop, self._answer)

    def _answer(self) -> None:
        self.turned = True

    def holder(self) -> tuple[Run | None, str]:
        """Whose step is being executed, and in which line; from another thread, so it may just have changed."""
        task = asyncio.current_task(self.loop)
        run = next((run for run, known in list(self.tasks.items()) if known is task), None)
        frame = sys._current_frames().get(self._thread.ident or 0)
        return run, "an unknown place" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def stop(self) -> None:
        """Cancel what is left and end the thread. Returns at once; idempotent."""

        def begin() -> None:
            if not self._stopping:
                self._stopping = True
                self._last_task = self.loop.create_task(self._wind_up())

        call_in_loop(self.loop, begin)

    async def stopped_within(self, seconds: float) -> bool:
        """On the control loop: wait for the end of the thread."""
        try:
            await asyncio.wait_for(self._ended.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        self._thread.join(_JOIN_SECONDS)  # it has only its last line to run
        return True

    async def _wind_up(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_STOP_SECONDS)
        await self.loop.shutdown_asyncgens()
        self.loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # A task that a body made, not the body itself. asyncio lets these two end the loop; others need it.
                log.error("%r was raised in a task on the event loop of the asyncio jobs", error)
        self.loop.close()
        call_in_loop(self._control, self._ended.set)
