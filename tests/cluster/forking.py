"""A job whose bodies fork, as `multiprocessing` with its start method `fork` does, and what their children can do then.

The job parameter, a JSON object: `live_until` – path of a file; the child lives as long as it does not exist; `save` – true: the
child saves a checkpoint first.
"""

from __future__ import annotations

import json
import os
import time

from ejpy.job import ShardContext
from tests.support.jobs import RECORD_VARIABLE, RecordingJob, append_line


class ForkingJob(RecordingJob):
    """Leaves a child behind at each run, which leaves a line `forked` and, with `save`, one more: what came of that."""

    def execute(self, shard_ctx: ShardContext) -> None:
        child = os.fork()
        if child == 0:
            try:
                _live(shard_ctx)
            finally:
                os._exit(0)
        super().execute(shard_ctx)


def _live(shard_ctx: ShardContext) -> None:
    asked = json.loads(shard_ctx.job_parameter)
    path = os.environ[RECORD_VARIABLE] + ".forked"
    append_line(path, {"event": "forked", "pid": os.getpid(), "worker": os.getppid()})
    if asked.get("save"):
        came_of_it = "saved"
        try:
            shard_ctx.save_checkpoint("by the child")
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test wants to know
            came_of_it = type(error).__name__
        append_line(path, {"event": "saved", "pid": os.getpid(), "result": came_of_it})
    while not os.path.exists(asked["live_until"]):
        time.sleep(0.01)
