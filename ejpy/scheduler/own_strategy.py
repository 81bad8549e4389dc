"""A job's sharding strategy that is not ejpy's: loaded and asked in threads, since it is somebody else's code.

    no strategy of one's own ──name──► being loaded ──► usable ──instances, count──► being asked ──► dealt
                                           └──► unusable: said once; this worker does not lead the job
                                                                                         └──► failed: said; asked again later

What it dealt stays in force until the instances or the count are others. So one that deals otherwise each time moves nothing to
and fro, and one that hangs keeps nobody waiting but its job's resharding, which is said. Items of workers that are gone wait
until it answers; their fires are caught up then, as far as the job's `misfire_grace` allows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from ejpy.errors import ConfigError, EjpyError
from ejpy.execution.daemon import DaemonExecutor
from ejpy.sharding_strategies import ShardingInstance, ShardingStrategy, checked, strategy_class
from ejpy.wording import describe_error

AGAIN_SECONDS = 10.0
"""A strategy that failed is asked again after this."""
LONG_SECONDS = 30.0
"""One that has not answered by then is named in the log. It goes on being waited for."""

Result = TypeVar("Result")
Question = tuple[int, tuple[ShardingInstance, ...]]


class OwnStrategy:
    """See the module's text. All methods on the control loop."""

    def __init__(self, again: Callable[[], None], log: logging.LoggerAdapter[logging.Logger]) -> None:
        """`again` is called when there is something to look at."""
        self._again = again
        self._log = log
        self._name: str | None = None
        self._usable: bool | None = True
        self._strategy: ShardingStrategy | None = None
        self._question: Question | None = None
        """What it was asked last."""
        self._dealt: dict[int, str] | None = None
        """Its answer to that, if there is one."""
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None

    def usable(self, name: str | None) -> bool | None:
        """Whether the job can be led with the strategy `name`; None: that is not known yet. `name` is None for ejpy's own."""
        if name != self._name:
            self.close()
            self._name, self._strategy, self._question, self._dealt = name, None, None, None
            self._usable = name is None or None
            if name is not None:
                self._begin(self._load(name))
        return self._usable

    def dealt(
        self, job_name: str, total: int, instances: list[ShardingInstance], current: Mapping[int, str]
    ) -> Mapping[int, str] | None:
        """Who shall run which of `total` items; None: that is not known yet. Only while `usable`; `instances` not empty."""
        in_order = tuple(sorted(instances, key=lambda instance: instance.instance_id, reverse=True))
        if self._question != (total, in_order) and self._task is None:
            self._question, self._dealt = (total, in_order), None
            self._forget_retry()
            self._begin(self._ask(job_name, total, in_order, dict(current)))
        return self._dealt if self._question == (total, in_order) else None

    def close(self) -> None:
        """Wait for nothing any more. What runs in a thread ends by itself, or with the process."""
        self._forget_retry()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _load(self, name: str) -> None:
        try:
            self._strategy = await self._in_thread(lambda: strategy_class(name)())
            self._usable = True
        except ConfigError as error:
            self._unusable("; ".join(error.problems))
        except EjpyError as error:
            self._unusable(f"{name} cannot be made: {error}")

    def _unusable(self, why: str) -> None:
        self._usable = False
        self._log.error("job_sharding_strategy_type: %s; this worker does not lead the job", why)

    async def _ask(self, job_name: str, total: int, instances: tuple[ShardingInstance, ...], current: Mapping[int, str]) -> None:
        strategy = self._strategy
        assert strategy is not None, "it is asked once it is usable"
        try:
            self._dealt = await self._in_thread(
                lambda: checked(strategy.assign(job_name, total, list(instances), current), total, instances)
            )
        except EjpyError as error:
            said = "sharding strategy %s failed: %s; the assignment stays as it is, and it is asked again in %g s"
            self._log.error(said, self._name, error, AGAIN_SECONDS, exc_info=error)
            self._retry = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._ask_again)

    def _ask_again(self) -> None:
        self._question = self._retry = None
        self._again()

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        def called() -> Result:
            """Errors are put into words here: that calls their code, too. SystemExit and the like would end the control loop."""
            try:
                return call()
            except ConfigError:
                raise
            except BaseException as error:
                raise EjpyError(describe_error(error)) from error

        thread = DaemonExecutor()
        answer = asyncio.get_running_loop().run_in_executor(thread, called)
        thread.shutdown()
        done, _ = await asyncio.wait({answer}, timeout=LONG_SECONDS)
        if not done:
            self._log.error("sharding strategy %s has not answered within %g s, and is waited for", self._name, LONG_SECONDS)
            if self._strategy is None:  # another worker may do better
                self._usable = False
                self._again()
        return await answer

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._task = task = asyncio.get_running_loop().create_task(work)

        def ended(_: asyncio.Task[None]) -> None:
            if self._task is task:
                self._task = None
                self._again()

        task.add_done_callback(ended)

    def _forget_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
