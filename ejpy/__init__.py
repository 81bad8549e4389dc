"""ejpy: scheduled jobs, sharded over many machines, without a central server.

    from ejpy import ShardedJob, ShardContext

    class OrderSync(ShardedJob):
        def execute(self, shard_ctx: ShardContext) -> None:
            ...

Everything that a user's code needs is here. The command line tool is `ejpy`.
"""

from ejpy.errors import CronError, EjpyError, JobCancelled, StaleAttempt, UnreadableToken
from ejpy.job import ShardContext, ShardedJob
from ejpy.jobs import AsyncDataflowJob, DataflowJob, HttpJob, ScriptJob
from ejpy.schedule.cron import fire_times
from ejpy.terms import Outcome, Reason
from ejpy.version import __version__

__all__ = [
    "AsyncDataflowJob",
    "CronError",
    "DataflowJob",
    "EjpyError",
    "HttpJob",
    "JobCancelled",
    "Outcome",
    "Reason",
    "ScriptJob",
    "ShardContext",
    "ShardedJob",
    "StaleAttempt",
    "UnreadableToken",
    "__version__",
    "fire_times",
]
