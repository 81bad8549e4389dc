from __future__ import annotations

import asyncio
from typing import Any

from ejpy.clock import SystemClock
from ejpy.execution.instances import JobInstances, name_of_class
from ejpy.execution.runners import Runners
from ejpy.job import ShardContext, ShardedJob
from ejpy.terms import Executor, Outcome
from tests.support.loop import run
from tests.unit.execution.bodies import Coroutine, Plain
from tests.unit.execution.harness import Gate, harness


def runners(**options: Any) -> Runners:
    return Runners(loop=asyncio.get_running_loop(), clock=SystemClock(), **options)


def test_there_is_one_runner_of_each_kind_and_close_closes_all(gate: Gate) -> None:
    async def scenario() -> None:
        made = runners(threads=1, processes=1, tasks=1, cancel_grace=0.01)
        async with harness(Executor.THREAD) as h:
            for executor, job_class in ((Executor.THREAD, Plain), (Executor.ASYNCIO, Coroutine), (Executor.PROCESS, Plain)):
                h.runner = made.runner_for(executor)
                assert made.runner_for(executor) is h.runner
                assert (await h.run("succeed", list(Executor).index(executor), job_class=name_of_class(job_class))).error is None
            h.runner = made.runner_for(Executor.THREAD)
            h.start(f"gate {gate.path}", 10)
            h.start("succeed", 11)
            await h.until_entered(10)
            assert h.runner.waiting == 1
            left = await made.close(0.05)
            assert [attempt.sharding_item for attempt in left] == [10]
            assert h.runner.abandoned == 1
            assert (h.runner.waiting, h.outcomes()[11]) == (0, None)
            h.runner = made.runner_for(Executor.ASYNCIO)
            assert (await h.run("succeed", 12, job_class=name_of_class(Coroutine))).outcome is None

    run(scenario())


def test_after_close_no_kind_of_runner_takes_work() -> None:
    async def scenario() -> None:
        made = runners()
        assert await made.close(1) == []
        async with harness(Executor.THREAD) as h:
            for item, executor in enumerate(Executor):
                h.runner = made.runner_for(executor)
                assert (await h.run("succeed", item)).outcome is None

    run(scenario())


def test_runners_run_classes_that_cannot_be_imported_if_they_were_provided() -> None:
    class Local(ShardedJob):
        def execute(self, context: ShardContext) -> None:
            context.save_checkpoint("ran")

    async def scenario() -> None:
        made = runners()
        async with harness(Executor.THREAD) as h:
            h.runner = made.runner_for(Executor.THREAD)
            ended = await h.run("", job_class=made.instances.provide(Local))
            assert (ended.outcome, h.saved()) == (Outcome.SUCCEEDED, ["ran"])
            await made.close(1)

    run(scenario())


def test_instances_are_made_once_for_each_job_and_anew_after_forget() -> None:
    async def scenario() -> None:
        async with harness(Executor.THREAD) as h:
            instances = JobInstances()
            one = instances.of(h.attempt("", job_name="one"))
            assert instances.of(h.attempt("x", 3, job_name="one")) is one
            two = instances.of(h.attempt("", job_name="two"))
            assert two is not one
            instances.forget("one")
            assert instances.of(h.attempt("", job_name="one")) is not one
            assert instances.of(h.attempt("", job_name="two")) is two

    run(scenario())
