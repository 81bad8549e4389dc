"""What a body is told of its job's `props`, wherever it runs."""

from __future__ import annotations

import json
from types import MappingProxyType

import pytest

from ejpy.execution.wire import attempt_from_wire, attempt_to_wire
from ejpy.job import ShardContext, ShardedJob
from ejpy.terms import Executor
from tests.support.loop import run
from tests.unit.execution.harness import harness

PROPS = {"script.command.line": 'echo "ä"', "n": "1.50"}


class SaysProps(ShardedJob):
    def execute(self, shard_ctx: ShardContext) -> None:
        shard_ctx.save_checkpoint(dict(shard_ctx.props))


@pytest.mark.parametrize("executor", [Executor.THREAD, Executor.PROCESS])
def test_a_body_knows_the_props_of_its_job(executor: Executor) -> None:
    async def scenario() -> list[object]:
        async with harness(executor) as h:
            await h.run("", 0, job_class="tests.unit.test_job_props:SaysProps", props=MappingProxyType(PROPS))
            await h.run("", 1, job_class="tests.unit.test_job_props:SaysProps")
            return h.saved()

    assert run(scenario()) == [PROPS, {}]


def test_props_cross_the_border_of_a_process_as_they_are() -> None:
    async def scenario() -> None:
        async with harness(Executor.THREAD) as h:
            attempt = h.attempt("", props=MappingProxyType(PROPS))
            assert attempt_from_wire(json.loads(json.dumps(attempt_to_wire(attempt)))) == attempt

    run(scenario())


def test_a_test_can_give_props_and_no_body_can_change_them() -> None:
    given = dict(PROPS)
    context = ShardContext.for_test(props=given)
    given["n"] = "2"
    assert context.props == PROPS
    with pytest.raises(TypeError):
        context.props["n"] = "3"  # type: ignore[index]  # what is tested
    assert ShardContext.for_test().props == {}
