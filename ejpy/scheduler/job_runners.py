"""What the bodies of each job are handed to: the runner of its executor, or, for a job with listeners, one that calls them.

It is asked at every look, since an operator may change executor and listeners at any time.

    no listeners ──names──► being made, in a thread ──► attached ──other names──► attached, others being made ──► attached …

Until the first listeners of a job are made nothing is claimed here. Fires end with the listeners that they began with. A listener
that cannot be made is named in the log once, and the job runs without it: a name in the registry may be meant for others.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ejpy.attempt import Attempt
from ejpy.clock import Clock
from ejpy.config.model import JobConfig
from ejpy.deadlines import all_of
from ejpy.error_handlers import JobFailure
from ejpy.errors import ConfigError, EjpyError
from ejpy.execution.base import Ended, Execution, Runner, SaveCheckpoint
from ejpy.execution.daemon import DaemonExecutor
from ejpy.execution.runners import Runners
from ejpy.history.records import FiresNotRun, Record
from ejpy.listeners import DistributeOnceListener, Guarantee, JobListener, listener_class
from ejpy.listeners.listening import ListeningRunner
from ejpy.logs import fields
from ejpy.registry.base import Registry
from ejpy.scheduler.host import RETRY_SECONDS, JobTree
from ejpy.terms import Executor
from ejpy.wording import describe_error

logger = logging.getLogger("ejpy.listeners")

LONG_SECONDS = 30.0
"""Listeners that are not made by then are named in the log. They go on being waited for."""


@dataclass(frozen=True, slots=True)
class _Attached:
    """The listeners of one job, attached to the runner of its executor."""

    names: tuple[str, ...]
    behind: Runner
    runner: Runner
    """`behind` itself without listeners, or if none of them could be made."""


class _NotReady:
    """The runner of a job whose listeners are being made: it is full."""

    waiting = sys.maxsize

    def start(
        self,
        attempt: Attempt,
        *,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
    ) -> Execution:
        raise RuntimeError("its listeners are being made")

    async def close(self, timeout: float) -> list[Attempt]:
        return []


_NOT_READY = _NotReady()


class JobRunners:
    """See the module's text. All methods on the control loop. It is a Journal, too: it hears of fires that are not run."""

    def __init__(
        self,
        runners: Runners,
        executor_of: Callable[[JobConfig], Executor],
        *,
        registry: Registry,
        clock: Clock,
        instance_id: str,
        new_uuid: Callable[[], str],
        on_failure: Callable[[JobFailure], None],
    ) -> None:
        """`on_failure` is told what listeners raise."""
        self._runners = runners
        self._executor_of = executor_of
        self._registry = registry
        self._clock = clock
        self._instance_id = instance_id
        self._new_uuid = new_uuid
        self._on_failure = on_failure
        self._threads = DaemonExecutor()
        self._attached: dict[str, _Attached] = {}
        self._making: dict[str, asyncio.Task[None]] = {}
        self._listening: list[ListeningRunner] = []
        """Those of `_attached`, and former ones that may still have fires."""
        self._guarantees: dict[str, Guarantee] = {}
        self._excusing: set[asyncio.Task[None]] = set()

    def runner_for(self, config: JobConfig, tree: JobTree) -> Runner:
        """The runner for a job. It is asked for after every change of the job's tree, so whoever waits for one is told of it."""
        guarantee = self._guarantees.get(config.job_name)
        if guarantee is not None:
            guarantee.look()
        behind = self._runners.runner_for(self._executor_of(config))
        names = config.job_listener_types
        attached = self._attached.get(config.job_name)
        if attached is None and not names:
            return behind
        current = attached is not None and attached.names == names and attached.behind is behind
        if not current and config.job_name not in self._making:
            making = asyncio.get_running_loop().create_task(self._attach(config, behind, tree))
            self._making[config.job_name] = making
            making.add_done_callback(lambda _: self._made(config.job_name, tree))
        return attached.runner if attached is not None else _NOT_READY

    def write(self, record: Record) -> None:
        """Let nobody wait for the items of fires that are not run."""
        guarantee = self._guarantees.get(record.job_name) if isinstance(record, FiresNotRun) else None
        if guarantee is not None and isinstance(record, FiresNotRun):
            task = asyncio.get_running_loop().create_task(_excuse(guarantee, record))
            self._excusing.add(task)
            task.add_done_callback(self._excusing.discard)

    async def settled(self) -> None:
        """Wait until no listener of this worker's fires is still to be called; see `ListeningRunner.settled`."""
        await all_of([listening.settled() for listening in self._listening])

    async def close(self, timeout: float) -> list[Attempt]:
        """Close all runners, as `Runners.close` does; what listeners do at the end of `timeout` seconds is left behind."""
        closing = [asyncio.ensure_future(listening.close(timeout)) for listening in self._listening]
        left = await self._runners.close(timeout)
        await asyncio.gather(*closing)
        under_way = {*self._excusing, *self._making.values()}
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        for guarantee in self._guarantees.values():
            guarantee.close()
        self._threads.shutdown(wait=False)
        return left

    async def _attach(self, config: JobConfig, behind: Runner, tree: JobTree) -> None:
        name, names = config.job_name, config.job_listener_types
        made = asyncio.get_running_loop().run_in_executor(self._threads, _all_made, name, names)
        done, _ = await asyncio.wait({made}, timeout=LONG_SECONDS)
        if not done:
            logger.error("not made within %g s, and waited for: %s", LONG_SECONDS, ", ".join(names), extra=fields(job=name))
        listeners = await made
        self._attached[name] = _Attached(names, behind, self._listened(name, behind, listeners, tree))

    def _listened(self, job_name: str, behind: Runner, listeners: Sequence[JobListener], tree: JobTree) -> Runner:
        self._listening = [listening for listening in self._listening if not listening.idle]
        if not listeners:
            return behind
        guarantee = self._guarantees.get(job_name)
        if guarantee is None and any(isinstance(listener, DistributeOnceListener) for listener in listeners):
            guarantee = self._guarantees[job_name] = Guarantee(
                self._registry, tree.mirror.root, tree.mirror, expected=tree.enabled_items, new_uuid=self._new_uuid
            )
        listening = ListeningRunner(
            behind,
            listeners,
            loop=asyncio.get_running_loop(),
            clock=self._clock,
            threads=self._threads,
            instance_id=self._instance_id,
            on_failure=self._on_failure,
            once_for_all=guarantee,
        )
        self._listening.append(listening)
        return listening

    def _made(self, job_name: str, tree: JobTree) -> None:
        making = self._making.pop(job_name)
        if making.cancelled():
            return
        error = making.exception()
        if error is None:
            tree.look_again()
            return
        logger.error("fault while making listeners; will try again", exc_info=error, extra=fields(job=job_name))
        asyncio.get_running_loop().call_later(RETRY_SECONDS, tree.look_again)


def _all_made(job_name: str, names: Sequence[str]) -> list[JobListener]:
    """In a thread: those that can be made."""
    made = []
    about = fields(job=job_name)
    for name in names:
        try:
            made.append(listener_class(name)())
        except ConfigError as error:
            logger.error("not honoured: %s", error, extra=about)
        except BaseException as error:
            logger.error("not honoured: listener %s cannot be made: %s", name, describe_error(error), exc_info=True, extra=about)
    return made


async def _excuse(guarantee: Guarantee, record: FiresNotRun) -> None:
    try:
        await guarantee.excuse([record.item], record.until)
    except EjpyError as error:
        about = fields(job=record.job_name, item=record.item)
        logger.warning("other workers may wait for the item until their time-out: %s", error, extra=about)
