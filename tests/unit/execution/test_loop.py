"""What is peculiar to bodies as tasks: one loop for all, and what blocks it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from ejpy.logs import fields_of
from ejpy.terms import Executor, Outcome
from tests.support.loop import eventually, run
from tests.unit.execution.harness import Gate, harness

ASYNCIO = Executor.ASYNCIO


def test_all_bodies_share_one_loop_that_is_not_the_control_loop() -> None:
    async def scenario() -> None:
        async with harness(ASYNCIO, size=100) as h:
            for item in range(99):
                h.start("until_told", item)
            await h.until_entered(*range(99))
            await h.run("say_thread", 99)
            assert h.saved()[-1] == "ejpy-asyncio-1"
            assert [thread.name for thread in threading.enumerate() if thread.name.startswith("ejpy-")] == ["ejpy-asyncio-1"]

    run(scenario())


def test_blocking_calls_of_the_context_are_refused_on_the_loop() -> None:
    async def scenario() -> None:
        async with harness(ASYNCIO) as h:
            await h.run("call_blocking")
            ((wait, save),) = h.saved()
            assert wait[0] == save[0] == "RuntimeError"
            assert "await wait_async()" in wait[1]
            assert "await save_checkpoint_async()" in save[1]

    run(scenario())


def test_sys_exit_in_a_task_that_a_body_made_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with harness(ASYNCIO, cancel_grace=600.0) as h:
            h.start("until_told", 0)
            await h.until_entered(0)
            await h.run("exit_in_task", 1)
            assert (await h.run("succeed", 2)).outcome is Outcome.SUCCEEDED
            assert 0 not in h.ended()

    run(scenario())
    assert "SystemExit(5) was raised in a task" in caplog.text


def test_a_body_that_blocks_the_loop_is_named_once(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with harness(ASYNCIO, blocked_after=0.05, cancel_grace=600.0) as h:
            h.start(f"block_loop {gate.path}", 3)
            await h.until_entered(3)
            h.start("succeed", 4)
            await eventually(lambda: "has not turned" in caplog.text)
            looked_again = asyncio.Event()
            asyncio.get_running_loop().call_later(0.2, looked_again.set)
            await looked_again.wait()
            assert 4 not in h.ended()
            gate.open()
            assert (await h.end_of(4)).outcome is Outcome.SUCCEEDED

    run(scenario())
    (record,) = [record for record in caplog.records if "has not turned" in record.getMessage()]
    assert "job 'shop', item 3 blocks it at " in record.getMessage()
    assert "bodies.py:" in record.getMessage()
    assert fields_of(record)["item"] == 3


def test_a_loop_that_turns_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with harness(ASYNCIO, blocked_after=0.3) as h:
            h.start("until_told")
            await h.until_entered(0)
            passed = asyncio.Event()
            asyncio.get_running_loop().call_later(1.0, passed.set)
            await passed.wait()

    run(scenario())
    assert "has not turned" not in caplog.text


def test_when_a_body_that_blocks_the_loop_is_given_up_later_ones_get_a_new_loop(gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(ASYNCIO, size=2, cancel_grace=0.05) as h:
            await h.run("say_thread", 0)
            h.start(f"block_loop {gate.path}", 1, timeout_seconds=0.05)
            ended = await h.end_of(1)
            assert (ended.outcome, ended.abandoned) == (Outcome.TIMED_OUT, True)
            await h.run("say_thread", 2)
            assert h.saved() == ["ejpy-asyncio-1", "entered", "ejpy-asyncio-2"]
            gate.open()
            await eventually(lambda: h.runner.abandoned == 0)

    run(scenario())


def test_a_deaf_body_that_does_not_block_costs_no_loop(gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(ASYNCIO, size=2, cancel_grace=0.3) as h:
            await h.run("say_thread", 0)
            assert (await h.run(f"gate {gate.path}", 1, timeout_seconds=0.05)).abandoned
            await h.run("say_thread", 2)
            assert h.saved() == ["ejpy-asyncio-1", "entered", "ejpy-asyncio-1"]
            gate.open()

    run(scenario())
