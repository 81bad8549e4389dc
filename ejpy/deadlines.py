"""Waiting for what must not be waited for without end: the steps of a shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Iterable
from typing import Any

logger = logging.getLogger("ejpy.worker")


async def all_of(deeds: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*deeds)


async def silently_within(seconds: float, deed: Coroutine[Any, Any, None]) -> None:
    """Wait for it, at most so long, without a word."""
    task = asyncio.ensure_future(deed)
    await asyncio.wait({task}, timeout=seconds)
    task.cancel()
    await asyncio.wait({task})


async def within(seconds: float, what: str, deeds: Iterable[Awaitable[None]]) -> None:
    """Wait for all, at most so long; what is late is given up and said."""
    tasks = [asyncio.ensure_future(deed) for deed in deeds]
    if not tasks:
        return
    done, late = await asyncio.wait(tasks, timeout=seconds)
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)
        logger.warning("%s: %d of %d not done within %g s, going on without", what, len(late), len(tasks), seconds)
    for task in done:
        if (error := task.exception()) is not None:
            logger.error("%s: %s", what, error, exc_info=error)
