"""Dataflow jobs: fetch some data, process it; once for each fire, or again and again (streaming) until there is no more.

    ┌──► fetch ──data──► process ──streaming, and nobody asks for an end──┐
    │      │ None or empty  │                                             │
    │      ▼                ▼ once                                        │
    │   succeeded        succeeded                                        │
    └─────────────────────────────────────────────────────────────────────┘

What ends a stream, besides a fetch that brings nothing:

* the attempt is told to stop: it is *cancelled*, unless it has nothing left to do;
* the worker is about to end, and gives its items to others: it *succeeded*, and the stream goes on there with the next fire.
  In ElasticJob a stream is ended neither by a shutdown nor by a disabled job, and blocks both;
* an exception, of the fetch or the processing: it *failed*, and the next fire begins anew.

Data that was fetched is processed first, whatever else happens: where fetching takes it from a queue, it would be lost. Nothing
is processed that was not fetched: `process_data` is never called with None or with nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Generic, TypeGuard, TypeVar

from ejpy.job import ShardContext, ShardedJob
from ejpy.jobs.props import PropsReader, problems_of, settings_of

T = TypeVar("T")

STREAMING = "streaming.process"
_USER_METHODS = ("fetch_data", "process_data")


class _Dataflow(ShardedJob):
    """What both forms have in common."""

    @staticmethod
    def validate(props: Mapping[str, str]) -> list[str]:
        """What is wrong with `props`, one line for each problem. `streaming.process` is `true` or `false` (the default)."""
        return problems_of(props, _streaming)


class DataflowJob(_Dataflow, Generic[T]):
    """A dataflow job of plain methods. Subclass it, and write both methods."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _refuse(cls, of_coroutines=True, instead="subclass AsyncDataflowJob")

    @abstractmethod
    def fetch_data(self, shard_ctx: ShardContext, /) -> Sequence[T] | None:
        """The next data to process; None or empty if there is none."""

    @abstractmethod
    def process_data(self, shard_ctx: ShardContext, data: Sequence[T], /) -> None:
        """Process what was fetched, all of it; never None or empty."""

    def execute(self, shard_ctx: ShardContext, /) -> None:
        """Raises JobCancelled when told to stop, and whatever the two methods raise."""
        streaming = settings_of(shard_ctx, _streaming)
        shard_ctx.raise_if_cancelled()
        while _is_something(data := self.fetch_data(shard_ctx)):
            self.process_data(shard_ctx, data)
            if not _goes_on(streaming, shard_ctx):
                return


class AsyncDataflowJob(_Dataflow, Generic[T]):
    """A dataflow job of coroutines. Subclass it, and write both methods.

    Being told to stop cancels a fetch at its `await`; a fetch that is cancelled must not have taken anything. The processing
    is not cancelled: it goes on to its end, and can look at `shard_ctx.cancelled` if it wants to end early.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        _refuse(cls, of_coroutines=False, instead="write `async def`, or subclass DataflowJob")

    @abstractmethod
    async def fetch_data(self, shard_ctx: ShardContext, /) -> Sequence[T] | None:
        """The next data to process; None or empty if there is none."""

    @abstractmethod
    async def process_data(self, shard_ctx: ShardContext, data: Sequence[T], /) -> None:
        """Process what was fetched, all of it; never None or empty."""

    async def execute(self, shard_ctx: ShardContext, /) -> None:
        """Raises asyncio.CancelledError or JobCancelled when told to stop, and whatever the two methods raise."""
        streaming = settings_of(shard_ctx, _streaming)
        shard_ctx.raise_if_cancelled()
        while _is_something(data := await self.fetch_data(shard_ctx)):
            interrupted = await _to_its_end(self.process_data(shard_ctx, data))
            if interrupted is not None and (streaming or not shard_ctx.cancelled):
                raise interrupted
            if not _goes_on(streaming, shard_ctx):
                return


def _streaming(reader: PropsReader) -> bool:
    reader.refuse_unknown("streaming.", [STREAMING])
    return reader.boolean(STREAMING, default=False)


def _is_something(data: Sequence[T] | None) -> TypeGuard[Sequence[T]]:
    """Whether there is anything to process. Raises TypeError for what cannot tell, a generator for one."""
    if data is None:
        return False
    try:
        return len(data) > 0  # not its truth: an array of several elements has none
    except TypeError:
        kind = type(data).__name__
        raise TypeError(f"fetch_data returned a {kind}; it must return a list, anything else with a length, or None") from None


def _goes_on(streaming: bool, shard_ctx: ShardContext) -> bool:
    """Whether to fetch again. Raises JobCancelled if that is all that is against it."""
    if not streaming:
        return False
    shard_ctx.raise_if_cancelled()
    if shard_ctx.hand_off_wanted:
        shard_ctx.log.info("the stream ends here: the worker is about to end, and another one goes on with it")
        return False
    return True


async def _to_its_end(processing: Coroutine[Any, Any, None]) -> asyncio.CancelledError | None:
    """Await `processing` whatever happens, and give back the cancellation that came meanwhile. Raises what it raises."""
    task = asyncio.ensure_future(processing)
    interrupted: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            interrupted = error
    task.result()
    return interrupted


def _refuse(job_class: type, *, of_coroutines: bool, instead: str) -> None:
    """The wrong form of method would never be awaited, or awaited in vain: say so when the class is made."""
    for name in _USER_METHODS:
        if inspect.iscoroutinefunction(getattr(job_class, name)) is of_coroutines:
            form = "a coroutine" if of_coroutines else "no coroutine"
            raise TypeError(f"{job_class.__qualname__}.{name} is {form}; {instead}")
