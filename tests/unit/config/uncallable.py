"""Job classes that a worker could not run, for the tests of what is refused at the start."""

from __future__ import annotations

from ejpy.job import ShardContext, ShardedJob


class TakesNothing(ShardedJob):
    def execute(self) -> None:  # type: ignore[override]  # what is tested
        pass


class NeedsMore(ShardedJob):
    def __init__(self, address: str) -> None:
        self.address = address

    def execute(self, shard_ctx: ShardContext) -> None:
        pass
