"""Child processes: killing, crashes, signals, death of the worker. Real processes throughout."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from ejpy.execution.base import Ended
from ejpy.execution.wire import attempt_from_wire, attempt_to_wire, encode, received
from ejpy.terms import Executor, Outcome
from tests.support.loop import eventually, run
from tests.support.waiting import wait_until
from tests.unit.execution.harness import Gate, harness

PROCESS = Executor.PROCESS


def is_alive(pid: int) -> bool:
    """A zombie is dead: it runs nothing any more."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


# ---- a body that does not stop --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("told_by", "outcome"), [("cancel", Outcome.CANCELLED), ("timeout", Outcome.TIMED_OUT)])
def test_a_body_that_does_not_listen_is_interrupted(
    told_by: str, outcome: Outcome, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=1, cancel_grace=0.1) as h:
            await h.run("say_pid", 1)
            execution = h.start(f"gate {gate.path}", timeout_seconds=0.1 if told_by == "timeout" else None)
            await h.until_entered(0)
            if told_by == "cancel":
                execution.cancel("a test")
            ended = await h.end_of()
            assert (ended.outcome, ended.error, ended.abandoned) == (outcome, None, False)
            await h.run("say_pid", 2)
            first, _, second = h.saved()
            assert first != second, "a child that was signalled was used again"
            await eventually(lambda: not exists(first))

    run(scenario())
    assert "interrupted: the body did not stop" in caplog.text
    assert "killed" not in caplog.text, "SIGTERM should have been enough"


def test_a_body_that_ignores_sigterm_is_killed_with_all_it_started(gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=1, cancel_grace=0.05, term_grace=0.05) as h:
            await h.run("say_pid", 0)
            (pid,) = h.saved()
            h.start(f"stubborn_gate {gate.path}", 1, timeout_seconds=0.1)
            ended = await h.end_of(1)
            assert (ended.outcome, ended.abandoned) == (Outcome.TIMED_OUT, False)
            assert not exists(pid), "a zombie was left"
            assert (await h.run("succeed", 2)).outcome is Outcome.SUCCEEDED

    run(scenario())
    assert "killed: the body did not end within" in caplog.text


def test_processes_that_a_killed_body_started_die_with_it(gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=1, cancel_grace=0.05) as h:
            execution = h.start(f"leave_processes {gate.path}")
            await h.signals.until(lambda _: h.saved() != [])
            ((child, sleeper),) = h.saved()
            assert is_alive(child)
            assert is_alive(sleeper)
            execution.cancel("a test")
            await h.end_of()
            await eventually(lambda: not is_alive(child) and not is_alive(sleeper))

    run(scenario())


def test_close_kills_what_does_not_stop_in_time(gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(PROCESS, cancel_grace=600.0, close=False) as h:
            h.start(f"leave_processes {gate.path}")
            await h.signals.until(lambda _: h.saved() != [])
            ((child, sleeper),) = h.saved()
            assert await h.runner.close(0.1) == []
            ended = await h.end_of()
            assert (ended.outcome, ended.abandoned) == (Outcome.CANCELLED, False)
            assert not exists(child)
            await eventually(lambda: not is_alive(sleeper))

    run(scenario())


def test_a_child_that_was_only_asked_to_stop_is_used_again() -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=1, cancel_grace=600.0) as h:
            await h.run("say_pid", 0)
            execution = h.start("until_told", 1)
            await h.until_entered(1)
            execution.cancel("a test")
            await h.end_of(1)
            await h.run("say_pid", 2)
            before, _, after = h.saved()
            assert before == after

    run(scenario())


# ---- a child that dies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        ("leave_with 7", "its child process exited with code 7"),
        ("leave_with 0", "its child process exited with code 0"),
        ("die_of_segfault", "its child process was killed by SIGSEGV"),
        (f"die_of {int(signal.SIGKILL)}", "its child process was killed by SIGKILL"),
        (f"die_of {int(signal.SIGABRT)}", "its child process was killed by SIGABRT"),
    ],
)
def test_a_crash_is_the_failure_of_its_attempt_and_says_how(behaviour: str, error: str) -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=1) as h:
            await h.run("say_pid", 0)
            ended = await h.run(behaviour, 1)
            assert ended == Ended(Outcome.FAILED, ended.entered, ended.ended, error)
            assert not exists(h.saved()[0]), "a zombie was left"
            assert (await h.run("succeed", 2)).outcome is Outcome.SUCCEEDED

    run(scenario())


def test_what_the_body_of_a_crashed_child_started_is_ended(gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=1, cancel_grace=600.0) as h:
            h.start(f"leave_processes {gate.path}")
            await h.signals.until(lambda _: h.saved() != [])
            ((child, sleeper),) = h.saved()
            os.kill(child, signal.SIGKILL)
            assert (await h.end_of()).outcome is Outcome.FAILED
            await eventually(lambda: not is_alive(sleeper))

    run(scenario())


def test_a_body_in_another_child_is_not_harmed_by_a_crash(gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=2, cancel_grace=600.0) as h:
            h.start(f"gate {gate.path}", 0)
            await h.until_entered(0)
            assert (await h.run("leave_with 7", 1)).outcome is Outcome.FAILED
            gate.open()
            assert (await h.end_of(0)).outcome is Outcome.SUCCEEDED

    run(scenario())


def test_an_idle_child_that_dies_is_reaped_and_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=1) as h:
            await h.run("say_pid", 0)
            (first,) = h.saved()
            os.kill(first, signal.SIGKILL)
            await eventually(lambda: "an idle child process was killed by SIGKILL" in caplog.text)
            assert not exists(first), "a zombie was left"
            assert (await h.run("say_pid", 1)).outcome is Outcome.SUCCEEDED
            assert h.saved()[1] != first

    run(scenario())


def test_a_run_that_is_given_to_a_child_just_dying_runs_in_another() -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=1) as h:
            await h.run("say_pid", 0)
            os.kill(h.saved()[0], signal.SIGKILL)
            # Started before the loop has had a chance to hear of the death.
            assert (await h.run("say_pid", 1)).outcome is Outcome.SUCCEEDED
            assert h.saved()[1] != h.saved()[0]

    run(scenario())


def test_a_python_that_cannot_be_started_fails_the_attempt(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with harness(PROCESS, python=str(tmp_path / "no-python")) as h:
            ended = await h.run("succeed")
            assert ended.outcome is Outcome.FAILED
            assert "could not be started" in (ended.error or "")

    run(scenario())


def test_a_class_that_does_not_load_in_time_fails_and_frees_the_place() -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=1, load_timeout=2.0) as h:
            ended = await h.run("succeed", 0, job_class="tests.unit.execution.bodies:Slow")
            assert ended.outcome is Outcome.FAILED
            assert "was killed by SIGKILL before the job's class was loaded" in (ended.error or "")
            assert (await h.run("succeed", 1)).outcome is Outcome.SUCCEEDED

    run(scenario())


# ---- surroundings ---------------------------------------------------------------------------------------------------


def test_a_child_ignores_sigint_and_has_no_input() -> None:
    async def scenario() -> list[Any]:
        async with harness(PROCESS) as h:
            await h.run("survive_sigint", 0)
            await h.run("say_stdin", 1)
            return h.saved()

    assert run(scenario()) == ["alive", ""]


def test_sigterm_from_elsewhere_is_a_failure_and_no_cancellation(gate: Gate) -> None:
    async def scenario() -> None:
        async with harness(PROCESS, size=1, cancel_grace=600.0) as h:
            await h.run("say_pid", 0)
            h.start(f"gate {gate.path}", 1)
            await h.until_entered(1)
            os.kill(h.saved()[0], signal.SIGTERM)
            ended = await h.end_of(1)
            assert ended.outcome is Outcome.FAILED
            assert "was sent SIGTERM, and not by ejpy" in (ended.error or "")

    run(scenario())


def test_job_classes_are_found_in_import_paths_and_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = """
from ejpy.job import ShardedJob
class Job(ShardedJob):
    def execute(self, context):
        context.save_checkpoint({!r})
"""
    for name in ("configured", "working"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"job_in_{name}.py").write_text(source.format(name))
    monkeypatch.chdir(tmp_path / "working")

    async def scenario() -> list[Any]:
        async with harness(PROCESS, size=1, import_paths=[str(tmp_path / "configured")]) as h:
            assert (await h.run("", 0, job_class="job_in_configured:Job")).error is None
            assert (await h.run("", 1, job_class="job_in_working:Job")).error is None
            return h.saved()

    assert run(scenario()) == ["configured", "working"]


def test_a_class_of_the_main_script_is_refused_with_a_hint() -> None:
    async def scenario() -> str | None:
        async with harness(PROCESS) as h:
            return (await h.run("succeed", job_class="__main__:Job")).error

    assert "put it into a module" in (run(scenario()) or "")


def test_children_log_at_the_levels_of_the_worker(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        async with harness(PROCESS, size=1) as h:
            await h.run("log", 0)
            logging.getLogger("shop").setLevel(logging.ERROR)  # the child is not told; it holds for its records all the same
            await h.run("log", 1)

    monkeypatch.setattr(logging.getLogger("shop"), "level", logging.NOTSET)
    run(scenario())
    assert [record.name for record in caplog.records] == ["shop", "ejpy.job.shop", "ejpy.job.shop"]
    assert caplog.records[0].process != os.getpid()
    assert caplog.records[0].funcName == "log_lines"


def test_a_large_checkpoint_crosses_both_ways() -> None:
    large = ["x" * 1000] * 95

    async def scenario() -> None:
        async with harness(PROCESS) as h:
            await h.run("checkpoints", checkpoint=large)
            assert h.saved()[0] == {"seen": large}

    run(scenario())


# ---- death of the worker --------------------------------------------------------------------------------------------

WORKER = """
import asyncio, os, sys
from ejpy.terms import Executor
from tests.unit.execution.harness import harness

async def main():
    async with harness(Executor.PROCESS, size=1, cancel_grace=600.0) as h:
        h.start(sys.argv[1])
        await h.signals.until(lambda _: h.saved() != [])
        if sys.argv[2] == "forked" and os.fork() == 0:
            os.closerange(0, 3)
            while True:
                os.read(int(sys.argv[3]), 1)
        print(*h.saved()[0], flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("behaviour", ["gate", "compute_in_c"])
def test_children_and_what_they_started_die_with_a_killed_worker(behaviour: str, gate: Gate) -> None:
    """kill -9 of the worker, while a body waits and while a body holds Python's lock in foreign code."""
    start = "leave_processes" if behaviour == "gate" else behaviour
    worker = subprocess.Popen([sys.executable, "-c", WORKER, f"{start} {gate.path}", "plain"], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        child, sleeper = (int(pid) for pid in worker.stdout.readline().split())
        assert is_alive(child)
        assert is_alive(sleeper)
    finally:
        worker.kill()
        worker.communicate()
    wait_until(lambda: not is_alive(child), 10, "the child is dead")
    wait_until(lambda: not is_alive(sleeper), 10, "what its body started is dead")


def test_children_die_with_a_killed_worker_that_has_forked(gate: Gate) -> None:
    """A process that the worker forked holds copies of its descriptors, so that no connection ends."""
    read, write = os.pipe()
    os.set_inheritable(read, True)
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, f"leave_processes {gate.path}", "forked", str(read)],
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[read],
        start_new_session=True,
    )
    group = worker.pid
    try:
        assert worker.stdout is not None
        child, sleeper = (int(pid) for pid in worker.stdout.readline().split())
        assert is_alive(child)
        worker.kill()
        worker.wait()
        wait_until(lambda: not is_alive(child), 10, "the child is dead")
        wait_until(lambda: not is_alive(sleeper), 10, "what its body started is dead")
    finally:
        os.killpg(group, signal.SIGKILL)
        worker.communicate()
        os.close(read)
        os.close(write)


def test_messages_survive_being_cut_anywhere() -> None:
    messages: list[dict[str, Any]] = [{"type": "log", "text": "北京" * count} for count in range(5)]
    data = b"".join(encode(message) for message in messages) + b"\0\0\0\x09{half"
    # Packets keep their borders, so that every byte is received alone.
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def send() -> None:
        with theirs:
            for byte in data:
                theirs.send(bytes([byte]))

    thread = threading.Thread(target=send)
    thread.start()
    with ours:
        assert list(received(ours)) == messages
    thread.join()


def test_an_attempt_crosses_unchanged() -> None:
    async def scenario() -> None:
        async with harness(Executor.THREAD) as h:
            attempt = h.attempt("x", 3, checkpoint={"a": [1, None]}, timeout_seconds=2.5)
            assert attempt_from_wire(json.loads(json.dumps(attempt_to_wire(attempt)))) == attempt

    asyncio.run(scenario())
