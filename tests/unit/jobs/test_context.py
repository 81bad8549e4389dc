"""The JSON of the sharding context is ElasticJob's, to the letter."""

from __future__ import annotations

import json

from ejpy.jobs.context import beyond_elasticjob, sharding_context_json
from tests.unit.jobs.contexts import KindContextForTest


def test_keys_stand_in_elasticjobs_order_and_none_for_what_is_missing() -> None:
    context = KindContextForTest(job_parameter="p", sharding_parameter="north")
    assert sharding_context_json(context, ascii_only=False) == (
        '{"jobName":"report","taskId":"report@-@1@-@READY@-@10.0.0.7@-@4242","shardingTotalCount":3,"jobParameter":"p",'
        '"shardingItem":1,"shardingParameter":"north"}'
    )
    without = sharding_context_json(KindContextForTest(), ascii_only=False)
    assert without.endswith('"jobParameter":"","shardingItem":1}')


def test_what_gson_escapes_is_escaped() -> None:
    context = KindContextForTest(sharding_parameter="a=b&c'd<e>f\u2028g\u2029\"h\\\n\x01/ü")
    text = sharding_context_json(context, ascii_only=False)
    assert r'"a\u003db\u0026c\u0027d\u003ce\u003ef\u2028g\u2029\"h\\\n\u0001/ü"' in text
    assert json.loads(text)["shardingParameter"] == context.sharding_parameter


def test_for_a_header_it_is_ascii() -> None:
    context = KindContextForTest(sharding_parameter="北京=ü\r\nX: y")
    text = sharding_context_json(context, ascii_only=True)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text)["shardingParameter"] == context.sharding_parameter


def test_what_elasticjob_does_not_know_is_text() -> None:
    assert beyond_elasticjob(KindContextForTest()) == {
        "SCHEDULED_TIME": "2026-03-01T12:00:30Z",
        "ATTEMPT": "2",
        "REASON": "owner_lost",
        "FENCING_TOKEN": "17",
        "IDEMPOTENCY_KEY": "report/2026-03-01T12:00:30+00:00/1",
    }
