"""The runners of one worker process: one for each kind of executor, made when the first job needs it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from ejpy.attempt import Attempt
from ejpy.clock import Clock
from ejpy.execution.bounded import CANCEL_GRACE_SECONDS, BoundedRunner
from ejpy.execution.instances import JobInstances
from ejpy.execution.loop import AsyncioRunner
from ejpy.execution.process import ProcessRunner
from ejpy.execution.thread import ThreadRunner
from ejpy.terms import Executor

DEFAULT_THREADS = 32
DEFAULT_TASKS = 1000


class Runners:
    """All methods are called on the control loop."""

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        threads: int = DEFAULT_THREADS,
        processes: int | None = None,
        tasks: int = DEFAULT_TASKS,
        cancel_grace: float = CANCEL_GRACE_SECONDS,
        import_paths: Sequence[str] = (),
    ) -> None:
        """`threads`, `processes` (None: one for each processor) and `tasks` bound how many bodies run at once, for each
        executor; `cancel_grace` is in seconds; `import_paths` come first where child processes look for job classes."""
        self.instances = JobInstances()
        self._loop = loop
        self._clock = clock
        self._threads = threads
        self._processes = processes if processes is not None else os.cpu_count() or 1
        self._tasks = tasks
        self._cancel_grace = cancel_grace
        self._import_paths = import_paths
        self._made: dict[Executor, BoundedRunner] = {}

    def runner_for(self, executor: Executor) -> BoundedRunner:
        """The runner of that kind; always the same. After `close`, one that ends every attempt unentered."""
        runner = self._made.get(executor)
        if runner is None:
            runner = self._made[executor] = self._make(executor)
        return runner

    async def close(self, timeout: float) -> list[Attempt]:
        """Close all runners at once; see `Runner.close`. Those of kinds that were not used yet are made, closed as they are."""
        for executor in Executor:
            self.runner_for(executor)
        left = await asyncio.gather(*(runner.close(timeout) for runner in self._made.values()))
        return [attempt for attempts in left for attempt in attempts]

    def _make(self, executor: Executor) -> BoundedRunner:
        if executor is Executor.THREAD:
            return ThreadRunner(
                loop=self._loop,
                clock=self._clock,
                instances=self.instances,
                size=self._threads,
                cancel_grace=self._cancel_grace,
            )
        if executor is Executor.ASYNCIO:
            return AsyncioRunner(
                loop=self._loop,
                clock=self._clock,
                instances=self.instances,
                size=self._tasks,
                cancel_grace=self._cancel_grace,
            )
        return ProcessRunner(
            loop=self._loop,
            clock=self._clock,
            size=self._processes,
            cancel_grace=self._cancel_grace,
            import_paths=self._import_paths,
        )
