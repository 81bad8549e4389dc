"""JobRunners: which runner a job has, with which listeners, and what becomes of them when its configuration changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, ClassVar

import pytest

from ejpy.attempt import Attempt
from ejpy.clock import SystemClock
from ejpy.config.model import JobConfig
from ejpy.error_handlers import JobFailure
from ejpy.execution.base import Ended, Runner
from ejpy.execution.instances import name_of_class
from ejpy.execution.runners import Runners
from ejpy.history.records import FiresNotRun
from ejpy.job import ShardContext, ShardedJob
from ejpy.listeners import DistributeOnceListener, FireInfo, JobListener
from ejpy.listeners.listening import ListeningRunner
from ejpy.registry.base import Create
from ejpy.registry.memory import MemoryRegistry, MemoryStore
from ejpy.registry.mirror import TreeMirror
from ejpy.scheduler.job_runners import JobRunners
from ejpy.terms import Executor, NotRun, Outcome, Reason
from tests.support.loop import Signals, run

HERE = "tests.unit.scheduler.test_job_runners"
TEN = datetime(2026, 3, 2, 10, tzinfo=timezone.utc)


class Body(ShardedJob):
    def execute(self, shard_ctx: ShardContext) -> None:
        shard_ctx.save_checkpoint("body")
        while shard_ctx.job_parameter == "until told" and not shard_ctx.wait(60):
            pass


class First(JobListener):
    made: ClassVar[list[int]] = []
    """In which threads."""
    gate: ClassVar[threading.Event] = threading.Event()

    def __init__(self) -> None:
        assert self.gate.wait(20)
        self.made.append(threading.get_ident())


class Breaks(JobListener):
    def __init__(self) -> None:
        raise SystemExit("no such table")


class Fails(JobListener):
    def before_fire(self, fire: FireInfo) -> None:
        raise LookupError("no such table")


class Once(DistributeOnceListener):
    """Both methods do nothing."""


@pytest.fixture(autouse=True)
def made() -> list[int]:
    First.made.clear()
    First.gate.set()
    return First.made


def config(*listeners: str, **changes: Any) -> JobConfig:
    values: dict[str, Any] = {"job_name": "shop", "job_class": name_of_class(Body), "sharding_total_count": 2, **changes}
    return JobConfig(**values, job_listener_types=[f"{HERE}:{name}" if name.isidentifier() else name for name in listeners])


@dataclass
class Bench:
    """JobRunners, and the tree of one job on a registry in memory."""

    runners: JobRunners
    registry: MemoryRegistry
    mirror: TreeMirror
    looks: Signals = field(default_factory=Signals)
    happened: Signals = field(default_factory=Signals)
    failures: list[JobFailure] = field(default_factory=list)
    looked_at: JobConfig | None = None
    """Whose runner is asked for at every look."""

    def enabled_items(self) -> Sequence[int]:
        return [0, 1]

    def look_again(self) -> None:
        if self.looked_at is not None:
            self.runner_for(self.looked_at)
        self.looks.add("look")

    def runner_for(self, config: JobConfig) -> Runner:
        return self.runners.runner_for(config, self)

    async def made(self, config: JobConfig) -> Runner:
        """The runner, once the listeners are made."""
        seen = len(self.looks.all)
        self.runner_for(config)
        await self.looks.until(lambda all: len(all) > seen)
        return self.runner_for(config)

    def start(self, runner: Runner, item: int = 0, parameter: str = "") -> None:
        name = name_of_class(Body)
        attempt = Attempt("shop", name, parameter, 2, item, None, f"shop@-@{item}", TEN, 1, Reason.SCHEDULED, 7, None, None)

        async def save(attempt: Attempt, value: Any) -> None:
            self.happened.add(value)

        def ended(attempt: Attempt, ended: Ended) -> None:
            self.happened.add(ended.outcome)

        runner.start(attempt, may_enter=lambda: True, save_checkpoint=save, on_ended=ended)


@contextlib.asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    loop, clock, failures = asyncio.get_running_loop(), SystemClock(), list[JobFailure]()
    registry = MemoryRegistry(MemoryStore(clock), clock=clock, session_timeout=10)
    await registry.start(5)
    await registry.commit([Create("/ns"), Create("/ns/shop")])
    holder: list[Bench] = []
    mirror = TreeMirror(registry, "/ns/shop", lambda _: holder[0].look_again())
    runners = JobRunners(
        Runners(loop=loop, clock=clock, threads=4, processes=1),
        lambda config: config.executor or Executor.THREAD,
        registry=registry,
        clock=clock,
        instance_id="i",
        new_uuid=lambda: "0",
        on_failure=failures.append,
    )
    holder.append(Bench(runners, registry, mirror, failures=failures))
    await mirror.start()
    try:
        yield holder[0]
    finally:
        await runners.close(5)
        mirror.close()
        await registry.stop(1)


def test_a_job_without_listeners_has_the_runner_of_its_executor() -> None:
    async def scenario() -> None:
        async with bench() as b:
            thread = b.runner_for(config())
            assert thread is b.runner_for(config(job_name="other"))
            assert b.runner_for(config(executor="asyncio")) is not thread

    run(scenario())


def test_listeners_are_made_once_for_each_job_and_off_the_control_loop(made: list[int]) -> None:
    async def scenario() -> None:
        async with bench() as b:
            runner = await b.made(config("First"))
            assert isinstance(runner, ListeningRunner)
            assert b.runner_for(config("First", description="changed")) is runner
            assert len(made) == 1
            assert made[0] != threading.get_ident()
            assert await b.made(config("First", job_name="other")) is not runner
            assert len(made) == 2

    run(scenario())


def test_until_its_listeners_are_made_a_job_claims_nothing() -> None:
    async def scenario() -> None:
        async with bench() as b:
            First.gate.clear()
            runner = b.runner_for(config("First"))
            assert runner.waiting > 1_000_000, "as if it were full"
            with pytest.raises(RuntimeError, match="its listeners are being made"):
                b.start(runner)
            First.gate.set()
            await b.looks.until(lambda all: len(all) > 1)  # the first one was the mirror's
            assert b.runner_for(config("First")).waiting == 0

    run(scenario())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Breaks", f"not honoured: listener {HERE}:Breaks cannot be made: SystemExit: no such table"),
        ("com.acme.Audit", "not honoured: listener 'com.acme.Audit' is unknown"),
    ],
)
def test_a_listener_that_cannot_be_made_is_named_once_and_the_others_are_called(
    name: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with bench() as b:
            with_others = await b.made(config(name, "First"))
            assert isinstance(with_others, ListeningRunner)
            for _ in range(3):
                assert b.runner_for(config(name, "First")) is with_others
            assert await b.made(config(name, job_name="alone")) is b.runner_for(config(job_name="third"))

    run(scenario())
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [text.startswith(said) for text in told] == [True, True], "once for each of the two jobs"


def test_a_fire_ends_with_the_listeners_that_it_began_with() -> None:
    async def scenario() -> None:
        async with bench() as b:
            former = await b.made(config("First"))
            b.start(former, parameter="until told")
            await b.happened.until(lambda all: "body" in all)
            First.gate.clear()
            assert b.runner_for(config("First", "First")) is former, "as long as the new ones are being made"
            First.gate.set()
            assert await b.made(config("First", "First")) is not former
            assert await b.made(config()) is b.runner_for(config(job_name="other"))
            assert b.happened.all == ["body"]
            settled = asyncio.ensure_future(b.runners.settled())
            left = await b.runners.close(5)
            await settled
            assert (left, b.happened.all) == ([], ["body", Outcome.SUCCEEDED])

    run(scenario())


def test_what_a_listener_raises_is_told() -> None:
    async def scenario() -> None:
        async with bench() as b:
            b.start(await b.made(config("Fails")))
            await b.happened.until(lambda all: Outcome.SUCCEEDED in all)
            [failure] = b.failures
            assert (failure.job_name, failure.error) == ("shop", "before_fire of Fails: LookupError: no such table")

    run(scenario())


# ---- once for all workers -------------------------------------------------------------------------------------------


def test_whoever_waits_for_others_is_told_of_the_tree_at_every_look() -> None:
    """And an item that is recorded as not run is not waited for."""

    async def scenario() -> None:
        async with bench() as b:
            b.looked_at = config("Once")
            b.start(await b.made(b.looked_at), item=0)
            await b.looks.until(lambda _: "/ns/shop/guarantee/started/0" in b.mirror.nodes)
            assert b.happened.all == [], "item 1 has not come"
            b.runners.write(FiresNotRun("shop", 1, TEN, TEN, TEN, NotRun.MISSED, "i"))
            await b.happened.until(lambda all: len(all) == 2)
            assert b.happened.all == ["body", Outcome.SUCCEEDED]

    run(scenario())
