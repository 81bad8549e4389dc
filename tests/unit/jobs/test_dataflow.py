"""Fetch and process: once or streaming, told to stop, asked for elsewhere, failing, with plain methods and with coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import pytest

from ejpy.config.classes import executor_for
from ejpy.errors import ConfigError, JobCancelled
from ejpy.job import ShardContext
from ejpy.jobs import AsyncDataflowJob, DataflowJob
from ejpy.terms import Executor
from tests.unit.jobs.contexts import KindContextForTest

STREAMING = {"streaming.process": "true"}
Hook = Callable[[], None]


def nothing() -> None:
    pass


class Flow:
    """What both jobs below do: fetches come from a list, an exception in it is raised, and hooks run in either step."""

    def __init__(self, *fetches: Any, in_fetch: Hook = nothing, in_process: Hook = nothing) -> None:
        self.fetches: Iterator[Any] = iter(fetches)
        self.in_fetch = in_fetch
        self.in_process = in_process
        self.fetched = 0
        self.processed: list[Any] = []

    def fetch(self) -> Any:
        self.in_fetch()
        self.fetched += 1
        result = next(self.fetches)
        if isinstance(result, Exception):
            raise result
        return result

    def process(self, data: Any) -> None:
        self.in_process()
        self.processed.append(data)


class Plain(DataflowJob[str]):
    def __init__(self, flow: Flow) -> None:
        self.flow = flow

    def fetch_data(self, shard_ctx: ShardContext) -> Sequence[str] | None:
        data: Sequence[str] | None = self.flow.fetch()
        return data

    def process_data(self, shard_ctx: ShardContext, data: Sequence[str]) -> None:
        self.flow.process(data)


class Awaiting(AsyncDataflowJob[str]):
    def __init__(self, flow: Flow) -> None:
        self.flow = flow

    async def fetch_data(self, shard_ctx: ShardContext) -> Sequence[str] | None:
        data: Sequence[str] | None = self.flow.fetch()
        return data

    async def process_data(self, shard_ctx: ShardContext, data: Sequence[str]) -> None:
        await asyncio.sleep(0)
        self.flow.process(data)


Execute = Callable[[Flow, KindContextForTest], None]


@pytest.fixture(params=["plain", "coroutines"])
def execute(request: pytest.FixtureRequest) -> Execute:
    if request.param == "plain":
        return lambda flow, context: Plain(flow).execute(context)
    return lambda flow, context: asyncio.run(Awaiting(flow).execute(context))


def test_once_fetches_and_processes_once(execute: Execute) -> None:
    flow = Flow(["a", "b"], ["c"])
    execute(flow, KindContextForTest())
    assert (flow.fetched, flow.processed) == (1, [["a", "b"]])


@pytest.mark.parametrize("end", [None, [], ()])
def test_a_stream_goes_on_until_nothing_is_fetched(execute: Execute, end: Any) -> None:
    """Also when it was started by a trigger (L2)."""
    batches = [["1"], ["2"], ["3"], ["4"], ["5"]]
    flow = Flow(*batches, end)
    execute(flow, KindContextForTest(STREAMING))
    assert (flow.fetched, flow.processed) == (6, batches)


@pytest.mark.parametrize("props", [{}, STREAMING, {"streaming.process": "False"}])
@pytest.mark.parametrize("none", [None, [], ()])
def test_nothing_is_never_processed(execute: Execute, none: Any, props: dict[str, str]) -> None:
    """L4."""
    flow = Flow(none)
    execute(flow, KindContextForTest(props))
    assert (flow.fetched, flow.processed) == (1, [])


def test_an_exception_in_the_fetch_ends_the_stream_and_is_its_failure(execute: Execute) -> None:
    """L4."""
    flow = Flow(["a"], KeyError("gone"), ["b"])
    with pytest.raises(KeyError, match="gone"):
        execute(flow, KindContextForTest(STREAMING))
    assert (flow.fetched, flow.processed) == (2, [["a"]])


def test_an_exception_in_the_processing_ends_the_stream_and_the_next_fire_begins_anew(execute: Execute) -> None:
    """L4."""
    flow = Flow(["a"], ["b"], None)

    def fail_once() -> None:
        flow.in_process = nothing
        raise ValueError("bad row")

    flow.in_process = fail_once
    with pytest.raises(ValueError, match="bad row"):
        execute(flow, KindContextForTest(STREAMING))
    assert flow.fetched == 1
    execute(flow, KindContextForTest(STREAMING))
    assert flow.processed == [["b"]]


@pytest.mark.parametrize("props", [{}, STREAMING])
def test_nothing_is_fetched_when_it_was_told_to_stop_before(execute: Execute, props: dict[str, str]) -> None:
    flow, context = Flow(["a"]), KindContextForTest(props)
    context.cancel()
    with pytest.raises(JobCancelled):
        execute(flow, context)
    assert flow.fetched == 0


@pytest.mark.parametrize("step", ["in_fetch", "in_process"])
def test_a_stream_that_is_told_to_stop_processes_what_it_has_and_is_cancelled(execute: Execute, step: str) -> None:
    """L3; in ElasticJob a shutdown does not end a stream."""
    context = KindContextForTest(STREAMING)
    flow = Flow(["a"], ["b"], **{step: context.cancel})
    with pytest.raises(JobCancelled):
        execute(flow, context)
    assert (flow.fetched, flow.processed) == (1, [["a"]])


def test_what_is_done_once_and_was_told_to_stop_meanwhile_has_finished_its_work(execute: Execute) -> None:
    context = KindContextForTest()
    flow = Flow(["a"], in_fetch=context.cancel)
    execute(flow, context)
    assert flow.processed == [["a"]]


def test_a_stream_ends_well_when_another_worker_waits_for_the_item(execute: Execute) -> None:
    """L3: a new worker gets its share within one batch."""
    context = KindContextForTest(STREAMING)

    def assigned_elsewhere() -> None:
        context.hand_off()

    flow = Flow(["a"], ["b"], in_fetch=assigned_elsewhere)
    execute(flow, context)
    assert (flow.fetched, flow.processed) == (1, [["a"]])


class Rows:
    """As arrays and tables of numerical libraries: it has a length, and its truth is an error."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __bool__(self) -> bool:
        raise ValueError("the truth of several elements is ambiguous")


def test_data_needs_a_length_and_nothing_else(execute: Execute) -> None:
    rows = Rows(2)
    flow = Flow(rows, Rows(0))
    execute(flow, KindContextForTest(STREAMING))
    assert flow.processed == [rows]


def test_a_generator_is_refused_since_it_does_not_tell_whether_it_is_empty(execute: Execute) -> None:
    flow = Flow(row for row in "ab")
    with pytest.raises(
        TypeError, match="fetch_data returned a generator; it must return a list, anything else with a length, or"
    ):
        execute(flow, KindContextForTest())


def test_bad_props_are_named_before_anything_is_fetched(execute: Execute) -> None:
    flow = Flow(["a"])
    with pytest.raises(ConfigError) as refused:
        execute(flow, KindContextForTest({"streaming.process": "yes", "streaming.proces": "true"}))
    assert refused.value.problems == (
        "job 'report': props: 'streaming.proces': unknown name; did you mean streaming.process?",
        "job 'report': props: streaming.process: 'yes' is not allowed; allowed: true, false",
    )
    assert flow.fetched == 0
    for kind in (DataflowJob, AsyncDataflowJob):
        assert kind.validate({"streaming.process": "yes"}) == [
            "props: streaming.process: 'yes' is not allowed; allowed: true, false"
        ]
        assert kind.validate({"streaming.process": "TRUE", "other": "x"}) == []


def test_plain_methods_run_in_a_thread_and_coroutines_on_the_loop() -> None:
    assert executor_for(Plain, None) is Executor.THREAD
    assert executor_for(Awaiting, None) is Executor.ASYNCIO


def test_the_wrong_form_of_method_is_refused_when_the_class_is_made() -> None:
    async def coroutine(self: Any, *arguments: Any) -> None: ...

    def plain(self: Any, *arguments: Any) -> None: ...

    with pytest.raises(TypeError, match=r"Wrong\.process_data is a coroutine; subclass AsyncDataflowJob"):
        type("Wrong", (DataflowJob,), {"process_data": coroutine})
    with pytest.raises(TypeError, match=r"Wrong\.fetch_data is no coroutine; write `async def`, or subclass DataflowJob"):
        type("Wrong", (AsyncDataflowJob,), {"fetch_data": plain})


# ---- coroutines: being told to stop is a cancellation of the task -------------------------------------------------


class Steps(AsyncDataflowJob[str]):
    """Fetches one batch; each step waits for the test."""

    def __init__(self) -> None:
        self.fetching, self.may_fetch = asyncio.Event(), asyncio.Event()
        self.processing, self.may_process = asyncio.Event(), asyncio.Event()
        self.processed: list[Sequence[str]] = []

    async def fetch_data(self, shard_ctx: ShardContext) -> Sequence[str] | None:
        self.fetching.set()
        await self.may_fetch.wait()
        return ["a"]

    async def process_data(self, shard_ctx: ShardContext, data: Sequence[str]) -> None:
        self.processing.set()
        await self.may_process.wait()
        self.processed.append(data)


async def settled(task: asyncio.Task[Any]) -> None:
    """Let everything run that can."""
    for _ in range(10):
        await asyncio.sleep(0)
    assert not task.done()


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_fetch_is_cancelled_at_its_await() -> None:
    async def scenario() -> None:
        job, context = Steps(), KindContextForTest(STREAMING)
        task = asyncio.ensure_future(job.execute(context))
        await job.fetching.wait()
        context.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert job.processed == []

    run(scenario)


@pytest.mark.parametrize("times", [1, 3])
def test_the_processing_is_not_cancelled_and_the_stream_is_after_it(times: int) -> None:
    async def scenario() -> None:
        job, context = Steps(), KindContextForTest(STREAMING)
        job.may_fetch.set()
        task = asyncio.ensure_future(job.execute(context))
        await job.processing.wait()
        context.cancel()
        for _ in range(times):
            task.cancel()
            await settled(task)
        job.may_process.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert job.processed == [["a"]]

    run(scenario)


def test_the_processing_of_what_is_done_once_ends_well_after_a_cancellation() -> None:
    async def scenario() -> None:
        job, context = Steps(), KindContextForTest()
        job.may_fetch.set()
        task = asyncio.ensure_future(job.execute(context))
        await job.processing.wait()
        context.cancel()
        task.cancel()
        await settled(task)
        job.may_process.set()
        await task
        assert job.processed == [["a"]]

    run(scenario)


def test_a_cancellation_that_ejpy_did_not_ask_for_is_passed_on() -> None:
    """A time limit around `execute` in a user's test, for one."""

    async def scenario() -> None:
        job = Steps()
        job.may_fetch.set()
        task = asyncio.ensure_future(job.execute(KindContextForTest()))
        await job.processing.wait()
        task.cancel()
        await settled(task)
        job.may_process.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(scenario)


def test_what_the_processing_raises_is_known_rather_than_the_cancellation() -> None:
    async def scenario() -> None:
        class Failing(Steps):
            async def process_data(self, shard_ctx: ShardContext, data: Sequence[str]) -> None:
                await super().process_data(shard_ctx, data)
                raise ValueError("bad row")

        job, context = Failing(), KindContextForTest(STREAMING)
        job.may_fetch.set()
        task = asyncio.ensure_future(job.execute(context))
        await job.processing.wait()
        context.cancel()
        task.cancel()
        await settled(task)
        job.may_process.set()
        with pytest.raises(ValueError, match="bad row"):
            await task

    run(scenario)
