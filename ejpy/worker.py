"""Worker: all jobs of one process; its session, its identity, its end.

    starting ──all jobs registered──► running ──stop()──► draining ──settled, grace over, or cancel()──► closing ──► done

Stopping takes nothing new, gives idle items to others, lets bodies run for the grace period, tells what is left then to
stop, removes this instance and (in the same transaction) its leader nodes, and closes the session, so that nobody waits for
it to expire. Each step has a deadline, so that the end comes within the grace period and `CLOSING_SECONDS`, also when the
registry does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from ejpy.attempt import Attempt
from ejpy.clock import Clock
from ejpy.config.model import JobConfig
from ejpy.deadlines import all_of, silently_within, within
from ejpy.error_handlers import ErrorHandling
from ejpy.error_handlers.failures import Failures
from ejpy.errors import ConfigError, JobConflict, OutcomeUnknown, RegistryError, RegistryUnavailable, SessionExpired
from ejpy.execution.runners import Runners
from ejpy.history.records import Journal, Journals
from ejpy.logs import fields
from ejpy.loop_watch import LoopWatch
from ejpy.registry.base import Registry, SessionState
from ejpy.registry.group import GroupCommit
from ejpy.schedule.timer import FireTimer
from ejpy.scheduler import JobScheduler
from ejpy.scheduler.host import RETRY_SECONDS, Host
from ejpy.scheduler.job_runners import JobRunners
from ejpy.terms import Executor

logger = logging.getLogger("ejpy.worker")

DRAIN_SECONDS = 2.0
CANCEL_SECONDS = 1.0
CLOSE_RUNNERS_SECONDS = 0.5
LEAVE_SECONDS = 1.0
CLOSE_REGISTRY_SECONDS = 0.5
TELL_SECONDS = 2.0
"""For the error handlers, side by side with leaving and closing the registry."""
CLOSING_SECONDS = 5.0
"""What may pass after the grace period: the sum of what is above, without draining, which is within it, and telling."""

READY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this process is to the others."""

    instance_id: str
    ip: str


class Worker:
    """See the module's text. Made and used on one asyncio loop."""

    def __init__(
        self,
        jobs: Sequence[JobConfig],
        registry: Registry,
        *,
        namespace: str,
        identity: Identity,
        clock: Clock,
        runners: Runners,
        error_handling: ErrorHandling,
        journal: Journal,
        executor_of: Callable[[JobConfig], Executor],
        new_uuid: Callable[[], str],
    ) -> None:
        self._registry = registry
        self._error_handling = error_handling
        failures = Failures(error_handling, self._config_of)
        self._runners = JobRunners(
            runners,
            executor_of,
            registry=registry,
            clock=clock,
            instance_id=identity.instance_id,
            new_uuid=new_uuid,
            on_failure=failures.listener_failed,
        )
        self._timer = FireTimer(clock)
        self._group = GroupCommit(registry, clock=clock, loop=asyncio.get_running_loop())
        host = Host(
            registry=registry,
            group=self._group,
            clock=clock,
            timer=self._timer,
            runner_for=self._runners.runner_for,
            namespace=namespace,
            instance_id=identity.instance_id,
            ip=identity.ip,
            new_uuid=new_uuid,
        )
        self._identity = identity
        self._configs = jobs
        journals = Journals(failures, journal, self._runners)
        self._new_scheduler: Callable[[JobConfig], JobScheduler] = lambda job: JobScheduler(host, job, journals)
        self._jobs: list[JobScheduler] = []
        self._connected = asyncio.Event()
        self._unsubscribe = registry.on_session(self._session_changed)
        self._stop = asyncio.Event()
        self._cancel = asyncio.Event()
        self._loop_watch = LoopWatch()

    def stop(self) -> None:
        """Ask for the end; a second call tells the bodies to stop at once. Returns immediately."""
        if self._stop.is_set():
            self._cancel.set()
        self._stop.set()

    async def run(self, *, connection_timeout: float, grace: float) -> None:
        """Start, run until `stop` is called, and end within `grace` + CLOSING_SECONDS after that.

        Raises RegistryUnreachable, ConfigError if no job can be run, and RegistryError if the registry has failed for good;
        nothing is left behind then.
        """
        if not await self._unless_stopped(self._registry.start(connection_timeout)):
            logger.info("stopped before the registry was reached")
            return
        try:
            self._timer.start()
            if await self._unless_stopped(self._start_jobs()):
                self._loop_watch.start()
                ready = asyncio.ensure_future(self._say_ready())
                await self._stop.wait()
                ready.cancel()
            await self._drain(grace if self._registry.failure is None else 0.0)  # no end could be recorded any more
        finally:
            failure = self._registry.failure
            await self._close()
        if failure is not None:
            raise RegistryError(str(failure))

    def _config_of(self, job_name: str) -> JobConfig | None:
        return next((job.config for job in self._jobs if job.name == job_name), None)

    @property
    def running(self) -> list[Attempt]:
        return [attempt for job in self._jobs for attempt in job.running]

    # -- starting --

    async def _unless_stopped(self, deed: Coroutine[Any, Any, None]) -> bool:
        """Do it, and give it up when told to stop meanwhile: it may be waiting for a registry that does not answer. Returns
        whether it was done."""
        doing = asyncio.ensure_future(deed)
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not doing.done():
                doing.cancel()
                await asyncio.wait({doing})
        if doing.cancelled():
            return False
        doing.result()
        return True

    async def _start_jobs(self) -> None:
        results = await asyncio.gather(*map(self._start_job, self._configs), return_exceptions=True)
        problems: list[str] = []
        for config, result in zip(self._configs, results, strict=True):
            if isinstance(result, (JobConflict, ConfigError, RegistryError)):
                problems.append(f"job '{config.job_name}' is not run here: {result}")
            elif result is not None:
                raise result
        for problem in problems:
            logger.error(problem)
        if not self._jobs:
            raise ConfigError(problems)

    async def _start_job(self, config: JobConfig) -> None:
        """Start a job, again and again while the registry is away, which it may be at any later time, too.

        Raises JobConflict, ConfigError, RegistryError: the job cannot be run here.
        """
        while True:
            job = self._new_scheduler(config)
            self._jobs.append(job)
            try:
                await job.start()
                return
            except (JobConflict, ConfigError, RegistryError) as error:
                self._jobs.remove(job)
                await job.leave()
                if not isinstance(error, (RegistryUnavailable, OutcomeUnknown, SessionExpired)):
                    raise
                logger.warning("job '%s' could not be started, trying again: %s", config.job_name, error)
            await asyncio.sleep(RETRY_SECONDS)
            await self._connected.wait()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        if self._registry.failure is not None:
            self._stop.set()  # a worker that can never run anything again must not look alive

    async def _say_ready(self) -> None:
        late = await self._not_ready_within(READY_SECONDS)
        if late:
            logger.warning("not ready after %g s, without leader or owners: %s", READY_SECONDS, ", ".join(late))
            return
        logger.info(
            "ready: %d job%s",
            len(self._jobs),
            "" if len(self._jobs) == 1 else "s",
            extra=fields(instance=self._identity.instance_id),
        )

    async def _not_ready_within(self, seconds: float) -> list[str]:
        tasks = {asyncio.ensure_future(job.ready()): job.name for job in self._jobs}
        _, late = await asyncio.wait(tasks, timeout=seconds)
        for task in late:
            task.cancel()
        return sorted(tasks[task] for task in late)

    # -- the end --

    async def _drain(self, grace: float) -> None:
        logger.info("stopping; bodies may run for %g s more, a second signal cancels them", grace)
        loop = asyncio.get_running_loop()
        until = loop.time() + grace
        self._timer.stop()
        cancelled = asyncio.ensure_future(self._cancel.wait())
        draining = asyncio.ensure_future(
            within(min(DRAIN_SECONDS, max(grace, 0.5)), "telling the others", [job.drain() for job in self._jobs])
        )
        await asyncio.wait({draining, cancelled}, return_when=asyncio.FIRST_COMPLETED)
        settled = asyncio.ensure_future(self._settled())
        await asyncio.wait({settled, cancelled}, timeout=max(0.0, until - loop.time()), return_when=asyncio.FIRST_COMPLETED)
        if not settled.done():
            why = "a second signal came" if self._cancel.is_set() else f"the grace period of {grace:g} s is over"
            for job in self._jobs:
                for attempt in job.cancel(why):
                    logger.warning("%s: told to stop: %s", why, attempt.task_id, extra=_about(attempt))
            await asyncio.wait({settled}, timeout=CANCEL_SECONDS)
        await draining
        for waiting in (settled, cancelled):
            waiting.cancel()
            await asyncio.wait({waiting})

    async def _settled(self) -> None:
        await all_of([job.settled() for job in self._jobs])
        await self._runners.settled()

    async def _close(self) -> None:
        self._timer.stop()
        self._loop_watch.stop()
        left = await self._runners.close(CLOSE_RUNNERS_SECONDS)
        await silently_within(LEAVE_SECONDS / 2, all_of(job.settled() for job in self._jobs))  # record what that ended
        for attempt in left:
            logger.error(
                "left running: %s does not stop; what it writes through ejpy is refused", attempt.task_id, extra=_about(attempt)
            )
        telling = asyncio.ensure_future(self._error_handling.close(TELL_SECONDS))
        await within(LEAVE_SECONDS, "removing this worker's nodes", (job.leave() for job in self._jobs))
        await within(LEAVE_SECONDS / 2, "ending writes", [self._group.close()])
        await self._registry.stop(CLOSE_REGISTRY_SECONDS)
        await telling
        self._unsubscribe()
        logger.info("stopped")


def _about(attempt: Attempt) -> dict[str, object]:
    return fields(job=attempt.job_name, item=attempt.sharding_item, token=attempt.fencing_token)
