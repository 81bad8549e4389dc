"""How a program that is not Python is told of an attempt.

ElasticJob hands a script one argument, and a web server one header, with a JSON text of the sharding context. It is written
here as Gson does for ElasticJob 3: the same keys in the same order, no key for what is missing, and `= & ' < >` escaped. What
ElasticJob does not know (scheduled time, token, attempt …) goes beside it, so that the JSON stays ElasticJob's.
"""

from __future__ import annotations

import json

from ejpy.job import ShardContext
from ejpy.logs import plain

# Gson's defaults: safe inside of HTML, and without the two line separators that JavaScript does not take.
_GSON_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "=&'<>\u2028\u2029"}


def sharding_context_json(shard_ctx: ShardContext, *, ascii_only: bool) -> str:
    """ElasticJob's JSON of the sharding context, as Gson writes it. `ascii_only` escapes all that a header cannot hold."""
    values = {
        "jobName": shard_ctx.job_name,
        "taskId": shard_ctx.task_id,
        "shardingTotalCount": shard_ctx.sharding_total_count,
        "jobParameter": shard_ctx.job_parameter,
        "shardingItem": shard_ctx.sharding_item,
        "shardingParameter": shard_ctx.sharding_parameter,
    }
    given = {key: value for key, value in values.items() if value is not None}
    # None of the escaped characters is part of JSON's own syntax, so they stand in texts only.
    return json.dumps(given, ensure_ascii=ascii_only, separators=(",", ":")).translate(_GSON_ESCAPES)


def beyond_elasticjob(shard_ctx: ShardContext) -> dict[str, str]:
    """What only ejpy knows of an attempt, as texts: `SCHEDULED_TIME` (ISO 8601, UTC), `ATTEMPT`, `REASON`, `FENCING_TOKEN`,
    `IDEMPOTENCY_KEY`."""
    return {
        "SCHEDULED_TIME": str(plain(shard_ctx.scheduled_time)),
        "ATTEMPT": str(shard_ctx.attempt),
        "REASON": shard_ctx.reason.value,
        "FENCING_TOKEN": str(shard_ctx.fencing_token),
        "IDEMPOTENCY_KEY": shard_ctx.idempotency_key,
    }
