"""Running coroutines in tests: every one of them under a deadline, and no waiting but for a condition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 30.0
"""Far more than anything here takes: it is met only by what would never end."""


def run(coroutine: Coroutine[Any, Any, T], timeout: float = DEADLINE_SECONDS) -> T:
    """The coroutine's result, on a loop of its own. Fails if it takes longer than `timeout` seconds, or if a callback on
    the loop raised, which asyncio would only have logged."""

    async def within_deadline() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        return await asyncio.wait_for(coroutine, timeout)

    errors: list[dict[str, Any]] = []
    result = asyncio.run(within_deadline())
    assert not errors, f"raised in a callback of the loop: {errors}"
    return result


class Signals:
    """What callbacks reported, in order, and a way to wait until it is as expected.

    A callback calls `add`; a test awaits `until`, which looks again at every `add`, not at intervals.
    """

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._added = asyncio.Event()

    def add(self, *what: Any) -> None:
        self.all.append(what[0] if len(what) == 1 else what)
        self._added.set()

    async def until(self, condition: Callable[[list[Any]], bool], timeout: float = 10.0) -> None:
        """Return when `condition` holds for what was reported so far; fail after `timeout` seconds."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not condition(self.all):
            self._added.clear()
            try:
                await asyncio.wait_for(self._added.wait(), deadline - loop.time())
            except (TimeoutError, asyncio.TimeoutError):
                raise AssertionError(f"not within {timeout:g} s; reported so far: {self.all}") from None


async def eventually(condition: Callable[[], bool], timeout: float = 10.0) -> None:
    """Return when `condition` holds, for what gives no signal; fail after `timeout` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while not condition():
        assert loop.time() < deadline, f"did not come true within {timeout:g} s"
        await asyncio.sleep(0.01)
