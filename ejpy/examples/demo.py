"""The smallest useful job: every item tells where and for which instant it runs.

Start one worker and read its log; start a second, and watch half of the items move there.
"""

from __future__ import annotations

import os
import socket

from ejpy.job import ShardContext, ShardedJob


class Demo(ShardedJob):
    """Logs one line for each item of a fire."""

    def execute(self, shard_ctx: ShardContext) -> None:
        shard_ctx.log.info(
            "item %d of %d, %s: runs on %s in process %d",
            shard_ctx.sharding_item,
            shard_ctx.sharding_total_count,
            shard_ctx.sharding_parameter or "no parameter",
            socket.gethostname(),
            os.getpid(),
        )
