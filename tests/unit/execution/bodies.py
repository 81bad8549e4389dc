"""Bodies for the tests of the runners, each once plain and once as a coroutine.

They tell the test what they do by saving checkpoints: the test's `save_checkpoint` hears of it on the control loop, whatever
the runner. The job parameter names the behaviour and, behind a space, its argument.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from ejpy.errors import EjpyError, JobCancelled
from ejpy.job import ShardContext, ShardedJob

waiting, left_waiting = threading.Event(), threading.Event()
"""Set by the coroutine `return_if_told` when it waits, and when it is over; for tests in the same process."""
variable: contextvars.ContextVar[str | None] = contextvars.ContextVar("variable", default=None)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text to be had")


class Base(BaseException):
    pass


ERRORS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError("bad\nvalue"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "BaseException": lambda: Base("base"),
    "Unprintable": Unprintable,
    "GeneratorExit": GeneratorExit,
    "StopIteration": StopIteration,
    "JobCancelled": lambda: JobCancelled("unasked"),
    "CancelledError": asyncio.CancelledError,
}


def describe(context: ShardContext) -> dict[str, Any]:
    """All that a context says, as JSON."""
    return {
        "job_name": context.job_name,
        "job_parameter": context.job_parameter,
        "sharding_total_count": context.sharding_total_count,
        "sharding_item": context.sharding_item,
        "sharding_parameter": context.sharding_parameter,
        "task_id": context.task_id,
        "scheduled_time": context.scheduled_time.isoformat(),
        "attempt": context.attempt,
        "reason": context.reason.value,
        "fencing_token": context.fencing_token,
        "idempotency_key": context.idempotency_key,
        "cancelled": context.cancelled,
        "checkpoint": context.checkpoint,
    }


def read_gate(path: str) -> None:
    """Return when the test has opened the gate (a named pipe)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.read(descriptor, 1)
    finally:
        os.close(descriptor)


def start_sleeper() -> int:
    """A process that a body leaves behind."""
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pid = sleeper.pid
    sleeper.returncode = 0  # it is nobody's to wait for here; the tests watch it
    return pid


def log_lines(context: ShardContext) -> None:
    logging.getLogger("shop").warning("sold %d", 3)
    context.log.info("through the context")


class Plain(ShardedJob):
    """`def execute`."""

    def __init__(self) -> None:
        self.calls = 0

    def execute(self, context: ShardContext) -> Any:
        behaviour, _, argument = context.job_parameter.partition(" ")
        return getattr(self, behaviour)(context, argument)

    def succeed(self, context: ShardContext, argument: str) -> None:
        pass

    def return_garbage(self, context: ShardContext, argument: str) -> object:
        return object()

    def fail(self, context: ShardContext, argument: str) -> None:
        raise ERRORS[argument]()

    def say_context(self, context: ShardContext, argument: str) -> None:
        context.save_checkpoint(describe(context))

    def until_told(self, context: ShardContext, argument: str) -> None:
        context.save_checkpoint("entered")
        while not context.wait(60):
            pass
        context.raise_if_cancelled()

    def fail_at_length(self, context: ShardContext, argument: str) -> None:
        raise ValueError("x" * 100_000 + "the end")

    def until_hand_off(self, context: ShardContext, argument: str) -> None:
        context.save_checkpoint("entered")
        while not context.hand_off_wanted:
            context.wait(0.001)  # nothing wakes it: it is looked at between two steps of work

    def until_called_back(self, context: ShardContext, argument: str) -> None:
        called, event = list[str](), threading.Event()
        context.call_when_cancelled(lambda: called.append("taken back"))()
        context.call_when_cancelled(lambda: called.append("called"))
        context.call_when_cancelled(event.set)
        context.save_checkpoint("entered")
        assert event.wait(60)
        context.save_checkpoint(called)
        context.raise_if_cancelled()

    def finish_when_told(self, context: ShardContext, argument: str) -> None:
        context.save_checkpoint("entered")
        assert context.wait(60)
        context.save_checkpoint("told")

    def return_if_told(self, context: ShardContext, argument: str) -> None:
        context.save_checkpoint("entered")
        if context.wait(60):
            return
        raise AssertionError("nobody told it to stop")

    def fail_when_told(self, context: ShardContext, argument: str) -> None:
        context.save_checkpoint("entered")
        context.wait(60)
        raise ValueError("broke while stopping")

    def gate(self, context: ShardContext, argument: str) -> None:
        """Deaf until the gate is opened."""
        context.save_checkpoint("entered")
        read_gate(argument)

    def gate_then_save(self, context: ShardContext, argument: str) -> None:
        self.gate(context, argument)
        context.save_checkpoint("after the gate")

    def stubborn_gate(self, context: ShardContext, argument: str) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self.gate(context, argument)

    def checkpoints(self, context: ShardContext, argument: str) -> None:
        context.save_checkpoint({"seen": context.checkpoint})
        context.save_checkpoint({"after": context.checkpoint})

    def bad_checkpoints(self, context: ShardContext, argument: str) -> None:
        context.save_checkpoint([what_is_raised(context.save_checkpoint, bad) for bad in BAD_VALUES])

    def refused_checkpoint(self, context: ShardContext, argument: str) -> None:
        refused = what_is_raised(context.save_checkpoint, "refuse")
        context.save_checkpoint([refused, context.checkpoint])

    def set_variable(self, context: ShardContext, argument: str) -> None:
        before = variable.get()
        variable.set("left over")
        context.save_checkpoint(before)

    def count_calls(self, context: ShardContext, argument: str) -> None:
        self.calls += 1
        context.save_checkpoint(self.calls)

    def log(self, context: ShardContext, argument: str) -> None:
        log_lines(context)

    def leave_with(self, context: ShardContext, argument: str) -> None:
        os._exit(int(argument))

    def die_of(self, context: ShardContext, argument: str) -> None:
        os.kill(os.getpid(), int(argument))
        time.sleep(60)

    def die_of_segfault(self, context: ShardContext, argument: str) -> None:
        ctypes.string_at(0)

    def say_pid(self, context: ShardContext, argument: str) -> None:
        context.save_checkpoint(os.getpid())

    def say_stdin(self, context: ShardContext, argument: str) -> None:
        context.save_checkpoint(sys.stdin.read())

    def survive_sigint(self, context: ShardContext, argument: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        context.save_checkpoint("alive")

    def leave_processes(self, context: ShardContext, argument: str) -> None:
        """Start a process, say its number and ours, and be deaf."""
        context.save_checkpoint([os.getpid(), start_sleeper()])
        read_gate(argument)

    def compute_in_c(self, context: ShardContext, argument: str) -> None:
        """Hold Python's lock in foreign code, so that no other Python thread of the process runs."""
        context.save_checkpoint([os.getpid(), start_sleeper()])
        foreign, mutex = ctypes.PyDLL(None), ctypes.create_string_buffer(64)
        for _ in range(2):
            foreign.pthread_mutex_lock(mutex)  # the second one never returns, and no signal interrupts it


class Coroutine(ShardedJob):
    """`async def execute`, with the same behaviours."""

    def __init__(self) -> None:
        self.calls = 0

    async def execute(self, context: ShardContext) -> Any:
        behaviour, _, argument = context.job_parameter.partition(" ")
        return await getattr(self, behaviour)(context, argument)

    async def succeed(self, context: ShardContext, argument: str) -> None:
        pass

    async def return_garbage(self, context: ShardContext, argument: str) -> object:
        return object()

    async def fail(self, context: ShardContext, argument: str) -> None:
        raise ERRORS[argument]()

    async def say_context(self, context: ShardContext, argument: str) -> None:
        await context.save_checkpoint_async(describe(context))

    async def until_told(self, context: ShardContext, argument: str) -> None:
        await context.save_checkpoint_async("entered")
        await asyncio.Event().wait()

    async def fail_at_length(self, context: ShardContext, argument: str) -> None:
        raise ValueError("x" * 100_000 + "the end")

    async def until_hand_off(self, context: ShardContext, argument: str) -> None:
        await context.save_checkpoint_async("entered")
        while not context.hand_off_wanted:
            await context.wait_async(0.001)  # as above

    async def until_called_back(self, context: ShardContext, argument: str) -> None:
        called, event = list[str](), threading.Event()
        context.call_when_cancelled(lambda: called.append("taken back"))()
        context.call_when_cancelled(lambda: called.append("called"))
        context.call_when_cancelled(event.set)
        try:
            await context.save_checkpoint_async("entered")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert event.wait(60)
            await context.save_checkpoint_async(called)
            raise

    async def finish_when_told(self, context: ShardContext, argument: str) -> None:
        try:
            await context.save_checkpoint_async("entered")
            await context.wait_async(60)
        except asyncio.CancelledError:
            await context.save_checkpoint_async("told")

    async def return_if_told(self, context: ShardContext, argument: str) -> None:
        await context.save_checkpoint_async("entered")
        asyncio.get_running_loop().call_soon(waiting.set)
        try:
            if await context.wait_async(60):
                return
        finally:
            left_waiting.set()
        raise AssertionError("nobody told it to stop")

    async def fail_when_told(self, context: ShardContext, argument: str) -> None:
        try:
            await context.save_checkpoint_async("entered")
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("broke while stopping") from None

    async def gate(self, context: ShardContext, argument: str) -> None:
        """Deaf until the gate is opened."""
        entered = asyncio.ensure_future(context.save_checkpoint_async("entered"))
        opened = asyncio.get_running_loop().run_in_executor(None, read_gate, argument)
        while not (entered.done() and opened.done()):
            try:
                await asyncio.wait({entered, opened})
            except asyncio.CancelledError:
                continue

    async def gate_then_save(self, context: ShardContext, argument: str) -> None:
        await self.gate(context, argument)
        await context.save_checkpoint_async("after the gate")

    async def checkpoints(self, context: ShardContext, argument: str) -> None:
        await context.save_checkpoint_async({"seen": context.checkpoint})
        await context.save_checkpoint_async({"after": context.checkpoint})

    async def bad_checkpoints(self, context: ShardContext, argument: str) -> None:
        raised = []
        for bad in BAD_VALUES:
            try:
                await context.save_checkpoint_async(bad)
            except ValueError as error:
                raised.append([type(error).__name__, str(error)])
        await context.save_checkpoint_async(raised)

    async def refused_checkpoint(self, context: ShardContext, argument: str) -> None:
        try:
            await context.save_checkpoint_async("refuse")
        except EjpyError as error:
            await context.save_checkpoint_async([[type(error).__name__, str(error)], context.checkpoint])

    async def set_variable(self, context: ShardContext, argument: str) -> None:
        before = variable.get()
        variable.set("left over")
        await context.save_checkpoint_async(before)

    async def count_calls(self, context: ShardContext, argument: str) -> None:
        self.calls += 1
        await context.save_checkpoint_async(self.calls)

    async def log(self, context: ShardContext, argument: str) -> None:
        log_lines(context)

    async def block_loop(self, context: ShardContext, argument: str) -> None:
        entered = asyncio.ensure_future(context.save_checkpoint_async("entered"))
        await asyncio.sleep(0)  # it is sent, and no other callback comes between that and the block
        read_gate(argument)
        await entered

    async def hang_in_thread(self, context: ShardContext, argument: str) -> None:
        hanging = asyncio.get_running_loop().run_in_executor(None, read_gate, argument)
        await context.save_checkpoint_async("entered")
        await hanging

    async def exit_in_task(self, context: ShardContext, argument: str) -> None:
        async def leave() -> None:
            sys.exit(5)

        task = asyncio.create_task(leave())
        await asyncio.wait({task})

    async def call_blocking(self, context: ShardContext, argument: str) -> None:
        await context.save_checkpoint_async([what_is_raised(context.wait, 0), what_is_raised(context.save_checkpoint, 1)])

    async def say_thread(self, context: ShardContext, argument: str) -> None:
        await context.save_checkpoint_async(threading.current_thread().name)


class BadConstructor(ShardedJob):
    def __init__(self) -> None:
        raise ValueError("cannot be made")

    def execute(self, context: ShardContext) -> None:
        pass


class Slow(ShardedJob):
    """Takes for ever to be made."""

    def __init__(self) -> None:
        time.sleep(600)

    def execute(self, context: ShardContext) -> None:
        pass


BAD_VALUES: list[Any] = [object(), {"a": {1, 2}}, float("nan"), "x" * (100 * 1024), "\ud800"]


def what_is_raised(call: Callable[[Any], object], argument: Any) -> list[str]:
    try:
        call(argument)
    except (EjpyError, ValueError, RuntimeError) as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]
