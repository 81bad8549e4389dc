"""ElasticJob's kinds of job, as classes: each has an `execute` of its own and reads its settings from the job's `props`.

| kind | class | what is written by the user |
|---|---|---|
| simple | `ejpy.ShardedJob` | `execute` |
| dataflow | `DataflowJob`, `AsyncDataflowJob` | `fetch_data` and `process_data` |
| script | `ScriptJob` | nothing: `props` name a command |
| HTTP | `HttpJob` | nothing: `props` name an address |

`validate(props)` of each class says what is wrong with the `props` that it reads, one line for each problem.
"""

from ejpy.errors import HttpFailed, ScriptFailed
from ejpy.jobs.dataflow import AsyncDataflowJob, DataflowJob
from ejpy.jobs.http import HttpJob
from ejpy.jobs.script import ScriptJob

__all__ = ["AsyncDataflowJob", "DataflowJob", "HttpFailed", "HttpJob", "ScriptFailed", "ScriptJob"]
