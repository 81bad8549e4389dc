"""What is peculiar to bodies in threads of this process: the interpreter's exit, and stop functions called from bodies."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import ClassVar

import pytest

from ejpy.clock import SystemClock
from ejpy.execution.instances import JobInstances
from ejpy.execution.thread import ThreadRunner
from ejpy.job import ShardContext, ShardedJob
from ejpy.terms import Executor, Outcome
from tests.support.loop import eventually, run
from tests.unit.execution.harness import Gate, harness

HANGING_WORKER = """
import asyncio, sys
from ejpy.terms import Executor
from tests.unit.execution.harness import harness

async def main():
    async with harness(Executor(sys.argv[1]), size=1, cancel_grace=0.01, close=False) as h:
        h.start(sys.argv[2])
        await h.until_entered(0)
        left = await h.runner.close(0.1)
        for item in range(1, 50):
            await h.run("succeed", item)
        print(len(left), set(h.outcomes().values()), flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("executor", "behaviour", "given_up"),
    [("thread", "gate", 1), ("asyncio", "gate", 1), ("asyncio", "block_loop", 1), ("asyncio", "hang_in_thread", 0)],
)
def test_h2_a_hanging_body_does_not_keep_the_interpreter(executor: str, behaviour: str, given_up: int, gate: Gate) -> None:
    """H2: the process did not end, or said "cannot schedule new futures after interpreter shutdown"."""
    ended = subprocess.run(
        [sys.executable, "-c", HANGING_WORKER, executor, f"{behaviour} {gate.path}"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith(f"{given_up} ")
    assert "cannot schedule" not in ended.stderr
    if given_up:
        assert "given up: job 'shop', item 0" in ended.stderr, "the log names job and item"


def test_a_coroutine_runs_in_a_thread_and_in_a_child_process_too() -> None:
    async def scenario(executor: Executor) -> None:
        async with harness(executor, size=1, cancel_grace=600.0) as h:
            coroutine = "tests.unit.execution.bodies:Coroutine"
            await h.run("set_variable", 0, job_class=coroutine)
            execution = h.start("until_told", 1, job_class=coroutine)
            await h.until_entered(1)
            execution.cancel("a test")
            assert (await h.end_of(1)).outcome is Outcome.CANCELLED
            await h.run("hang_in_thread /dev/null", 2, job_class=coroutine)
            assert h.outcomes() == {0: Outcome.SUCCEEDED, 1: Outcome.CANCELLED, 2: Outcome.SUCCEEDED}

    for executor in (Executor.THREAD, Executor.PROCESS):
        run(scenario(executor))


def test_h5_a_body_that_stops_the_runner_from_inside_does_not_deadlock() -> None:
    """H5: shutdown was called from inside a job."""

    class Stopper(ShardedJob):
        def execute(self, context: ShardContext) -> None:
            close[0]()

    async def scenario() -> None:
        async with harness(Executor.THREAD, close=False) as h:
            loop, instances = asyncio.get_running_loop(), JobInstances()
            h.runner = ThreadRunner(loop=loop, clock=SystemClock(), instances=instances, size=1)
            close.append(lambda: asyncio.run_coroutine_threadsafe(h.runner.close(0.2), loop).result(20))
            ended = await h.run("", job_class=instances.provide(Stopper))
            assert (ended.outcome, ended.abandoned) == (Outcome.CANCELLED, True)
            await eventually(lambda: h.runner.abandoned == 0)

    close: list[Callable[[], object]] = []
    run(scenario())


def test_threads_are_made_as_needed_and_used_again() -> None:
    async def scenario() -> None:
        async with harness(Executor.THREAD, size=5) as h:
            for item in range(20):
                await h.run("succeed", item)
            assert sum(thread.name.startswith("ejpy-body") for thread in threading.enumerate()) == 1

    run(scenario())


class Held(Exception):
    made: ClassVar[weakref.WeakSet[Held]] = weakref.WeakSet()

    def __init__(self) -> None:
        self.made.add(self)


class Fails(ShardedJob):
    def execute(self, context: ShardContext) -> None:
        raise Held


def test_n4_exceptions_of_bodies_are_not_kept() -> None:
    """N4: exceptions were kept alive by cycles through their tracebacks."""

    async def scenario() -> None:
        async with harness(Executor.THREAD, size=1) as h:
            gc.disable()
            try:
                for item in range(5):
                    await h.run("", item, job_class="tests.unit.execution.test_thread:Fails")
                await h.run("succeed", 5)
                assert len(Held.made) == 0
            finally:
                gc.enable()

    run(scenario())
