"""Scripts, with real processes: what they are given, what they write, how they fail, and how they and their children end."""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextvars import copy_context
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from ejpy.attempt import Attempt
from ejpy.cancellation import Cancellation
from ejpy.errors import ConfigError, JobCancelled
from ejpy.execution.body import BodyEnd, How, run_body
from ejpy.job import ShardContext
from ejpy.jobs import ScriptFailed, ScriptJob
from ejpy.jobs.output import TAIL_CHARACTERS, TAIL_LINES
from ejpy.terms import Reason
from tests.unit.jobs.contexts import PATIENCE_SECONDS, Body, KindContextForTest, Logged, logged


class Patient(ScriptJob):
    """Its grace is longer than any test waits."""

    grace_seconds = 600.0


class Impatient(ScriptJob):
    grace_seconds = 0.05


def props(command_line: str, *, shell: bool = False) -> dict[str, str]:
    return {"script.command.line": command_line, **({"script.shell": "true"} if shell else {})}


def in_shell(command_line: str) -> KindContextForTest:
    return KindContextForTest(props(command_line, shell=True))


def python(path: Path, program: str) -> KindContextForTest:
    path.write_text(program)
    return KindContextForTest(props(f"{sys.executable} {path}"))


def failure_of(context: ShardContext, job: ScriptJob | None = None) -> ScriptFailed:
    with pytest.raises(ScriptFailed) as failed:
        (job or ScriptJob()).execute(context)
    return failed.value


def begins_with(text: str) -> Callable[[str], bool]:
    return lambda line: line.startswith(text)


class Lives:
    """Processes that hold the write end of a FIFO: when the last of them is gone, the read end has ended."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def all_ended(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait until nobody holds it, having been held before."""
        poll = select.poll()
        poll.register(self._descriptor, 0)  # the hang-up is always told
        return bool(poll.poll(seconds * 1000))

    def close(self) -> None:
        os.close(self._descriptor)


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    held = Lives(tmp_path / "lives")
    yield held
    held.close()


# ---- what it is given ---------------------------------------------------------------------------------------------


def test_arguments_are_split_as_by_a_shell_and_the_context_is_the_last(log: Logged) -> None:
    """M4: `"a b"` is one argument."""
    program = "import json, sys; print(json.dumps(sys.argv[1:]))"
    context = KindContextForTest(props(f"{sys.executable} -c '{program}' \"a b\" 'c|d' '|' $HOME"), sharding_parameter="ü=1")
    ScriptJob().execute(context)
    *given, last = json.loads(log.lines[0])
    assert given == ["a b", "c|d", "|", "$HOME"]
    assert last == (
        '{"jobName":"report","taskId":"report@-@1@-@READY@-@10.0.0.7@-@4242","shardingTotalCount":3,"jobParameter":"",'
        r'"shardingItem":1,"shardingParameter":"ü\u003d1"}'
    )


def test_a_shell_is_used_when_asked_and_the_context_is_its_first_parameter(log: Logged) -> None:
    ScriptJob().execute(in_shell('echo a | tr a b; echo "$1"; echo $#'))
    assert (log.lines[0], json.loads(log.lines[1])["shardingItem"], log.lines[2]) == ("b", 1, "1")


def test_the_environment_says_what_elasticjob_does_not_know(log: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THE_WORKER", "kept")
    names = ["SCHEDULED_TIME", "ATTEMPT", "REASON", "FENCING_TOKEN", "IDEMPOTENCY_KEY"]
    ScriptJob().execute(in_shell("; ".join(f"echo $EJPY_{name}" for name in names) + "; echo $OF_THE_WORKER"))
    key = "report/2026-03-01T12:00:30+00:00/1"
    assert log.lines == ["2026-03-01T12:00:30Z", "2", "owner_lost", "17", key, "kept"]


def test_its_input_is_empty_and_it_leads_a_session_of_its_own(log: Logged) -> None:
    program = "import os, sys; print(repr(sys.stdin.read()), os.getsid(0) == os.getpid() == os.getpgrp())"
    ScriptJob().execute(KindContextForTest(props(f'{sys.executable} -c "{program}"')))
    assert log.lines == ["'' True"]


# ---- success and failure ------------------------------------------------------------------------------------------


def test_both_outputs_are_logged_line_by_line_in_order(log: Logged) -> None:
    ScriptJob().execute(in_shell("echo one; echo two >&2; printf 'three\\n\\nfour'"))
    assert log.lines == ["one", "two", "three", "", "four"]


def test_an_exit_code_is_a_failure_that_shows_the_last_lines(log: Logged) -> None:
    """J14: the reason of a failure was cut off or lost. Histories keep the beginning of a message."""
    failed = failure_of(in_shell("seq 1 100; echo disk is full >&2; exit 3"))
    assert failed.exit_code == 3
    assert failed.last_lines == (*(str(number) for number in range(82, 101)), "disk is full")
    assert len(failed.last_lines) == TAIL_LINES
    assert str(failed).startswith("exit code 3: disk is full\nlast lines of its output:\n82\n83\n")
    assert str(failed).endswith("\n100\ndisk is full")
    assert log.lines[0] == "1"


def test_its_failure_is_told_in_a_headline_and_its_last_lines_without_frames_of_python(log: Logged) -> None:
    """The same lines stood in the headline, in the message under the frames, and in the log."""
    instant = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
    attempt = Attempt("report", "", "", 3, 1, None, "t", instant, 1, Reason.SCHEDULED, 7, None, None)

    def end_of(command_line: str) -> BodyEnd:
        return copy_context().run(run_body, attempt, in_shell(command_line), Cancellation(), ScriptJob)

    assert end_of("echo one; echo two; exit 3") == BodyEnd(
        How.RAISED, "ScriptFailed: exit code 3: two", "last lines of its output:\none\ntwo"
    )
    assert end_of("echo one; exit 3") == BodyEnd(How.RAISED, "ScriptFailed: exit code 3: one")


@pytest.mark.parametrize(
    ("command_line", "message"),
    [("exit 7", "exit code 7"), ("echo; exit 7", "exit code 7"), ("echo no; exit 7", "exit code 7: no")],
)
def test_a_failure_says_no_more_than_there_is(log: Logged, command_line: str, message: str) -> None:
    assert str(failure_of(in_shell(command_line))) == message


def test_the_message_is_bounded(log: Logged) -> None:
    failed = failure_of(in_shell("head -c 100000 /dev/zero | tr '\\0' x; exit 1"))
    assert len(str(failed)) < TAIL_CHARACTERS + 500


def test_a_signal_is_a_failure_that_is_named(log: Logged) -> None:
    failed = failure_of(in_shell("kill -SEGV $$"))
    assert (failed.exit_code, str(failed)) == (-signal.SIGSEGV, "killed by SIGSEGV")


@pytest.mark.parametrize(("mode", "said"), [(None, os.strerror(errno.ENOENT)), (0o644, os.strerror(errno.EACCES))])
def test_what_cannot_be_started_is_a_failure_that_says_why(tmp_path: Path, mode: int | None, said: str) -> None:
    script = tmp_path / "run.sh"
    if mode is not None:
        script.write_text("#!/bin/sh\n")
        script.chmod(mode)
    failed = failure_of(KindContextForTest(props(str(script))))
    assert "could not be started" in str(failed)
    assert said in str(failed)
    assert failed.exit_code is None


def test_a_context_that_is_too_long_for_an_argument_is_a_failure_and_not_a_crash() -> None:
    failed = failure_of(KindContextForTest(props("true"), job_parameter="x" * 3_000_000))
    assert os.strerror(errno.E2BIG) in str(failed)


def test_nothing_is_left_behind(log: Logged) -> None:
    """N1, N3: threads and descriptors."""
    context = in_shell("echo out; exit 0")
    ScriptJob().execute(context)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(10):
        ScriptJob().execute(context)
        failure_of(in_shell("exit 1"))
        failure_of(KindContextForTest(props("/not/there")))
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    assert context.requests == 0


# ---- output -------------------------------------------------------------------------------------------------------


class Counting(Logged):
    """Keeps the number of characters only."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.characters += len(record.getMessage())


@pytest.mark.parametrize("byte", ["x", "\\n"])
def test_output_of_any_size_does_not_fill_the_memory(byte: str) -> None:
    """Neither as one endless line nor as lines with nothing in them."""
    size = 32 * 1024 * 1024 if byte == "x" else 16 * 1024
    with logged(handler=Counting()) as counting:
        assert isinstance(counting, Counting)
        tracemalloc.start()
        try:
            failure_of(in_shell(f"head -c {size} /dev/zero | tr '\\0' '{byte}'; exit 1"))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert counting.characters == (size if byte == "x" else 0)
    assert peak < 4 * 1024 * 1024


def test_a_log_that_fails_ends_the_script_and_not_in_silence(lives: Lives) -> None:
    class Failing(Logged):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the log's disk is full")

    with logged(handler=Failing()), pytest.raises(OSError, match="disk is full"):
        ScriptJob().execute(in_shell(f"exec 9> {lives.path}; echo x; sleep 600"))
    assert lives.all_ended()


def test_a_script_that_closes_its_output_is_still_waited_for_at_no_cost(log: Logged) -> None:
    """The ended pipe is always readable, and must not be looked at any more."""
    reads: list[str] = []

    def count(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function is os.read:
            reads.append(event)

    sys.setprofile(count)
    try:
        failed = failure_of(in_shell("echo closing; exec >&- 2>&-; sleep 0.2; exit 5"))
    finally:
        sys.setprofile(None)
    assert failed.exit_code == 5
    assert 0 < len(reads) < 10


# ---- children that outlive it ---------------------------------------------------------------------------------------


def test_a_child_that_outlives_it_and_holds_the_output_is_not_waited_for_and_not_killed(log: Logged, tmp_path: Path) -> None:
    gate, answer = tmp_path / "gate", tmp_path / "answer"
    os.mkfifo(gate)
    os.mkfifo(answer)
    gate_end, answer_end = os.open(gate, os.O_RDWR), os.open(answer, os.O_RDWR)
    ScriptJob().execute(in_shell(f"(read x < {gate}; echo alive > {answer}) & echo done"))
    assert log.lines == ["done"]
    os.write(gate_end, b"go on\n")
    assert select.select([answer_end], [], [], PATIENCE_SECONDS)[0]
    for descriptor in (gate_end, answer_end):
        os.close(descriptor)


def test_what_was_written_before_the_exit_is_read_and_an_endless_child_is_not(log: Logged) -> None:
    """The pipe is full when the script exits, and its child keeps it so."""
    ScriptJob().execute(in_shell("echo first; (while echo more; do :; done) & exit 0"))
    assert log.lines[0] == "first"


# ---- being told to stop ---------------------------------------------------------------------------------------------


def test_it_gets_sigterm_and_can_tidy_up(log: Logged, tmp_path: Path) -> None:
    program = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: (print("tidied"), sys.exit(0)))
print("ready", flush=True)
while True:
    signal.pause()
"""
    context = python(tmp_path / "script.py", program)
    body = Body(lambda: Patient().execute(context))
    log.wait_for(begins_with("ready"))
    context.cancel()
    assert isinstance(body.ended(), JobCancelled)
    assert log.lines == ["ready", "tidied"]


def test_children_have_their_grace_when_the_script_itself_is_gone_and_their_output_elsewhere(
    log: Logged, tmp_path: Path, lives: Lives
) -> None:
    """A shell that waits for a command dies of SIGTERM at once; the command has still to tidy up."""
    kept = tmp_path / "kept"
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    tidy = (
        f"trap 'read x < {gate}; echo tidied > {kept}; exit' TERM; exec 9> {lives.path}; echo > {gate}; while :; do sleep 1; done"
    )
    (tmp_path / "child.sh").write_text(tidy)
    context = in_shell(f"/bin/sh {tmp_path}/child.sh > /dev/null 2>&1; echo not reached")
    body = Body(lambda: Patient().execute(context))
    gate.read_text()
    context.cancel()
    gate.write_text("go on\n")
    assert isinstance(body.ended(), JobCancelled)
    assert kept.read_text() == "tidied\n"
    assert log.lines == []


def test_who_does_not_listen_is_killed_after_the_grace_with_the_whole_group(log: Logged, lives: Lives) -> None:
    context = in_shell(f"trap '' TERM; exec 9> {lives.path}; (sleep 600) & echo ready; sleep 600; sleep 600")
    body = Body(lambda: Impatient().execute(context))
    log.wait_for(begins_with("ready"))
    context.cancel()
    assert isinstance(body.ended(), JobCancelled)
    assert lives.all_ended()
    assert log.lines == ["ready", "killed: the script did not end within 0.05 s of SIGTERM"]


def test_a_child_outside_of_the_group_that_holds_everything_does_not_hang_it(log: Logged, tmp_path: Path) -> None:
    program = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
    context = in_shell(f'{sys.executable} -c "{program}" & echo ready; wait')
    body = Body(lambda: Impatient().execute(context))
    child = int(log.wait_for(str.isdigit))
    context.cancel()
    assert isinstance(body.ended(), JobCancelled)
    os.kill(child, signal.SIGKILL)


def test_a_flood_does_not_keep_it_from_being_stopped() -> None:
    with logged(handler=Logged()) as flooded:
        context = in_shell("trap '' TERM; yes")
        body = Body(lambda: Impatient().execute(context))
        flooded.wait_for(begins_with("y"))
        context.cancel()
        assert isinstance(body.ended(), JobCancelled)


def test_nothing_is_started_when_it_was_told_before() -> None:
    context = KindContextForTest(props("/not/there"))
    context.cancel()
    with pytest.raises(JobCancelled):
        ScriptJob().execute(context)


def test_one_that_had_exited_is_judged_by_its_exit_code() -> None:
    """Told to stop while its last output is being logged."""
    context = in_shell("echo $$; exit 4")

    class Slow(Logged):
        def emit(self, record: logging.LogRecord) -> None:
            os.waitid(os.P_PID, int(record.getMessage()), os.WEXITED | os.WNOWAIT)
            context.cancel()

    with logged(handler=Slow()):
        assert failure_of(context).exit_code == 4


@pytest.fixture
def reaping() -> Iterator[None]:
    """The system reaps all children, as some servers ask it to."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("reaping")
def test_an_exit_code_that_somebody_else_took_is_not_taken_for_success(log: Logged) -> None:
    failed = failure_of(in_shell("echo x; exit 3"))
    assert str(failed) == "its exit code is unknown: something in the worker's process reaps all children: x"


@pytest.mark.usefixtures("reaping")
def test_one_that_somebody_else_reaps_can_be_stopped(log: Logged, lives: Lives) -> None:
    context = in_shell(f"exec 9> {lives.path}; echo ready; sleep 600; sleep 600")
    body = Body(lambda: Patient().execute(context))
    log.wait_for(begins_with("ready"))
    context.cancel()
    assert isinstance(body.ended(), JobCancelled)
    assert lives.all_ended()


WORKER = """
import logging, sys
from ejpy.jobs import ScriptJob
from tests.unit.jobs.contexts import KindContextForTest
logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
ScriptJob().execute(KindContextForTest({"script.command.line": sys.argv[1], "script.shell": "true"}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems leave the script running")
def test_a_script_dies_with_its_worker(lives: Lives) -> None:
    """Its item may be running elsewhere by then. All of it: the shell, and what it started."""
    command = f"trap '' TERM HUP; exec 9> {lives.path}; sleep 600 & echo ready; sleep 600; sleep 600"
    with subprocess.Popen([sys.executable, "-c", WORKER, command], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        worker.kill()
    assert lives.all_ended()


# ---- props ----------------------------------------------------------------------------------------------------------

MISSING = "script.command.line: is missing; it must be a command, such as /opt/report/run.sh --daily"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        # G8: ElasticJob says so only when the job fires.
        ({}, MISSING),
        (props(" "), MISSING),
        (props("echo 'a"), "script.command.line: 'echo 'a' cannot be split into arguments: no closing quotation"),
        # M4: a shell's signs where there is no shell.
        (
            props("ls > /tmp/x"),
            "script.command.line: '>' is for a shell, and none is started; set script.shell: 'true', or quote it to pass it on",
        ),
        (props('"" a'), "script.command.line: '\"\" a' names no command"),
        (props("a\0b"), "script.command.line: holds a NUL character, which no command can"),
        ({**props("ls"), "script.shell": "1"}, "script.shell: '1' is not allowed; allowed: true, false"),
        ({**props("ls"), "script.comand.line": "ls"}, "'script.comand.line': unknown name; did you mean script.command.line?"),
        ({**props("ls"), "script.x": ""}, "'script.x': unknown name; known are script.command.line, script.shell"),
    ],
)
def test_bad_props_are_named_in_one_line(given: dict[str, str], problem: str) -> None:
    assert ScriptJob.validate(given) == [f"props: {problem}"]
    with pytest.raises(ConfigError) as refused:
        ScriptJob().execute(KindContextForTest(given))
    assert refused.value.problems == (f"job 'report': props: {problem}",)


@pytest.mark.parametrize(
    "line", ["ls", "awk -F '|' \">\" x", "find . -exec rm {} ;", 'echo "a\\"b" c', "C=1 ls", "x a>b", "grep a|b x"]
)
def test_good_props(line: str) -> None:
    assert ScriptJob.validate({**props(line), "other": "x"}) == []


def test_a_shell_takes_any_line() -> None:
    assert ScriptJob.validate(props("a | b > 'c", shell=True)) == []
