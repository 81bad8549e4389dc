"""Contenders for a latch, each with a session of its own and with ejpy's LeaderLatch.

Hears and says what `LatchContenders.java` does, which tells the protocol.

    python -m tests.interop.curator.contenders ADDRESS
"""

from __future__ import annotations

import asyncio
import sys
import uuid

from ejpy.clock import SystemClock
from ejpy.errors import EjpyError, GuardFailed, GuardFailure
from ejpy.registry.base import Create, Delete
from ejpy.registry.latch import LeaderLatch
from ejpy.registry.zookeeper import ZooKeeperRegistry

FOREVER_SECONDS = 600.0


class Contender:
    """One of them; its session is opened when it is first needed, and again after it died."""

    def __init__(self, address: str, name: str) -> None:
        self._address = address
        self._name = name
        self._registry: ZooKeeperRegistry | None = None
        self._latches: dict[str, LeaderLatch] = {}

    async def contend(self, path: str, holder: str, patience_seconds: float, *, dies: bool) -> str:
        registry = await self._connected()
        latch = self._latches.setdefault(path, LeaderLatch(registry, path, new_uuid=lambda: str(uuid.uuid4())))
        hold = await latch.acquire(patience_seconds or FOREVER_SECONDS)
        if hold is None:
            return "left"
        try:
            await registry.commit([Create(holder, self._name.encode(), ephemeral=True)])
        except GuardFailed as error:
            if error.failure is not GuardFailure.NODE_EXISTS:
                raise
            return "overlap"
        await registry.children([path])
        if dies:
            await self.close()
        else:
            await registry.commit([Delete(holder)])
            await hold.release()
        return "held"

    async def close(self) -> None:
        registry, self._registry = self._registry, None
        self._latches.clear()
        if registry is not None:
            await registry.stop(10)

    async def _connected(self) -> ZooKeeperRegistry:
        if self._registry is None:
            self._registry = ZooKeeperRegistry(self._address, session_timeout=10, clock=SystemClock())
            await self._registry.start(30)
        return self._registry


async def main(address: str) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    contenders: dict[str, Contender] = {}
    answers: set[asyncio.Task[None]] = set()

    async def answer(name: str, path: str, holder: str, patience: str, how: str) -> None:
        contender = contenders.setdefault(name, Contender(address, name))
        try:
            verdict = await contender.contend(path, holder, int(patience) / 1000, dies=how == "dies")
        except (EjpyError, AssertionError) as error:
            verdict = f"failed {error!r}"
        print(name, verdict, flush=True)

    while line := (await lines.readline()).decode():
        task = loop.create_task(answer(*line.split()))
        answers.add(task)
        task.add_done_callback(answers.discard)
    await asyncio.gather(*answers)
    await asyncio.gather(*(contender.close() for contender in contenders.values()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
