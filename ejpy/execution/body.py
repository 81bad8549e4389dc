"""Calling a body, and saying how it ended. Whatever a body raises stops here.

`SystemExit`, `KeyboardInterrupt`, a bare `BaseException` or an exception that cannot even be printed is the failure of one
attempt; it must not reach the thread, the event loop or the child process that other bodies need. Only text leaves this
module, never the exception: exceptions hold their frames, and a scheduler that keeps them grows with every failure.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum

from ejpy.attempt import Attempt
from ejpy.cancellation import Cancellation, call_in_loop
from ejpy.errors import HttpFailed, JobCancelled, ScriptFailed
from ejpy.execution.daemon import DaemonExecutor
from ejpy.job import ShardContext, ShardedJob
from ejpy.logs import attempt_fields, current_fields
from ejpy.wording import TRACE_LENGTH, describe_error, describe_trace


class How(str, Enum):
    """How a body came to its end."""

    RETURNED = "returned"
    STOPPED = "stopped"
    """It had been told to stop, and ended for that reason."""
    RAISED = "raised"


@dataclass(frozen=True, slots=True)
class BodyEnd:
    """The end of a body; `error` is set for RAISED, and `trace`, too, if the body itself raised.

    Of a script's failure `trace` are the last lines that it wrote, if there is more than the one that `error` quotes.
    """

    how: How
    error: str | None = None
    trace: str | None = None


class Interrupted(KeyboardInterrupt):
    """Raised in the body of a child process that did not stop when it was asked. No `except Exception` catches it."""


def run_body(attempt: Attempt, context: ShardContext, cancellation: Cancellation, job: Callable[[], ShardedJob]) -> BodyEnd:
    """Run a body in the calling thread. A coroutine gets an event loop of its own, and is cancelled when told to stop.

    To be called in a `contextvars` context of the body's own: the fields for its log lines are set in it.
    """
    current_fields.set(attempt_fields(attempt))
    try:
        result = job().execute(context)
        if inspect.isawaitable(result):
            asyncio.run(_awaited(result, cancellation))
    except BaseException as error:  # noqa: BLE001 - see the module's text
        return _end_by(error, context)
    return BodyEnd(How.RETURNED)


async def run_body_async(attempt: Attempt, context: ShardContext, job: Callable[[], ShardedJob]) -> BodyEnd:
    """Run a body in the current task, whose `cancel` tells it to stop."""
    current_fields.set(attempt_fields(attempt))
    try:
        result = job().execute(context)
        if inspect.isawaitable(result):
            await result
    except BaseException as error:  # noqa: BLE001 - see the module's text
        return _end_by(error, context)
    return BodyEnd(How.RETURNED)


async def _awaited(result: Awaitable[object], cancellation: Cancellation) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(DaemonExecutor())
    task = asyncio.ensure_future(result)

    def cancel() -> None:
        call_in_loop(loop, task.cancel)

    take_back = cancellation.call_when_set(cancel)
    try:
        await task
    finally:
        take_back()


def _end_by(error: BaseException, context: ShardContext) -> BodyEnd:
    if isinstance(error, Interrupted) or (isinstance(error, (JobCancelled, asyncio.CancelledError)) and context.cancelled):
        return BodyEnd(How.STOPPED)
    if isinstance(error, (ScriptFailed, HttpFailed)):
        # A command or a server failed, not Python code: frames tell nothing, and what follows the headline is no part of it.
        headline, _, more = str(error).partition("\n")
        return BodyEnd(How.RAISED, describe_error(type(error)(headline)), more[-TRACE_LENGTH:] or None)
    return BodyEnd(How.RAISED, describe_error(error), describe_trace(error))
