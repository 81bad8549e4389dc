"""The body of the golden job: it ends at once, unless the test holds its item."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ejpy.job import ShardContext, ShardedJob

HOLD_VARIABLE = "EJPY_TEST_HOLD"


class HeldJob(ShardedJob):
    """Ends as soon as there is no file named like its item in the directory that the environment names.

    Meanwhile there is another one, `{item}.entered`, which stays if its process is killed.
    """

    def execute(self, shard_ctx: ShardContext) -> None:
        hold = Path(os.environ[HOLD_VARIABLE]) / str(shard_ctx.sharding_item)
        entered = hold.with_suffix(".entered")
        entered.touch()
        try:
            while hold.exists():
                shard_ctx.raise_if_cancelled()
                time.sleep(0.01)
        finally:
            entered.unlink(missing_ok=True)
