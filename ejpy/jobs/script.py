"""Script jobs: any command, run for each sharding item. Exit code 0 is success.

    props:
      script.command.line: /opt/report/run.sh --mode "end of day"

The command line is split into arguments as a shell would split it, with quotes and backslashes, but no shell is started: `|`,
`>`, `&&`, `$HOME` mean nothing, and the first three are refused unless they are quoted. With `script.shell: "true"` it goes to
`/bin/sh -c`.

The command gets one argument more, ElasticJob's JSON of the sharding context (for a shell's command line this is `"$1"`), and
environment variables for what ElasticJob does not know: EJPY_SCHEDULED_TIME, EJPY_ATTEMPT, EJPY_REASON, EJPY_FENCING_TOKEN,
EJPY_IDEMPOTENCY_KEY. Its standard input is empty. What it writes goes to the job's log, line by line, and the last lines into
the message of a failure. A script that writes faster than the log takes it waits.

Being told to stop, it gets SIGTERM, and SIGKILL `grace_seconds` later, with all of its process group. Children that it leaves
behind when it exits by itself live on; nobody reads what they write. See `process_group` for what can go wrong there.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ejpy.clock import SystemClock
from ejpy.errors import ScriptFailed
from ejpy.job import ShardContext, ShardedJob
from ejpy.jobs.context import beyond_elasticjob, sharding_context_json
from ejpy.jobs.output import Lines, Tail
from ejpy.jobs.process_group import Exit, ProcessGroup, Unkillable
from ejpy.jobs.props import PropsReader, problems_of, settings_of
from ejpy.wording import shown

COMMAND_LINE = "script.command.line"
SHELL = "script.shell"
_FOR_A_SHELL = frozenset({"|", "||", "&&", "&", ">", ">>", "<", "<<", "2>", "2>>", "2>&1", ">&2", "&>"})


@dataclass(frozen=True, slots=True)
class ScriptSettings:
    """What the props say: the beginning of the argument list; the JSON is the rest."""

    arguments: Sequence[str]


class ScriptJob(ShardedJob):
    """Runs a command for each item: `type: SCRIPT`."""

    grace_seconds: float = 3.0
    """From SIGTERM to SIGKILL. Shorter than the time after which a body that does not stop is given up."""

    @staticmethod
    def validate(props: Mapping[str, str]) -> list[str]:
        """What is wrong with `props`, one line for each problem. Whether the command exists is seen only where it is run."""
        return problems_of(props, _settings)

    def execute(self, shard_ctx: ShardContext, /) -> None:
        """Raises ScriptFailed, ConfigError for bad props, and JobCancelled if it was told to stop before the script's end."""
        settings = settings_of(shard_ctx, _settings)
        shard_ctx.raise_if_cancelled()
        lines, tail = Lines(), Tail()

        def take(data: bytes, final: bool = False) -> None:
            for line in lines.feed(data, final=final):
                shard_ctx.log.info("%s", line)
                tail.add(line)

        try:
            group = ProcessGroup(
                [*settings.arguments, sharding_context_json(shard_ctx, ascii_only=False)],
                environment={**os.environ, **{f"EJPY_{name}": text for name, text in beyond_elasticjob(shard_ctx).items()}},
                clock=SystemClock(),
                grace_seconds=self.grace_seconds,
                log=shard_ctx.log,
            )
        except (OSError, ValueError) as error:
            raise ScriptFailed(f"{shown(settings.arguments[0])} could not be started: {error}") from error
        try:
            with group:
                take_back = shard_ctx.call_when_cancelled(group.tell)
                try:
                    end = group.run(take)
                finally:
                    take_back()
                take(b"", final=True)
        except Unkillable as error:
            raise ScriptFailed(str(error), last_lines=tail.lines) from error
        if end.stopped:
            shard_ctx.raise_if_cancelled()
        if end.code != 0:
            raise ScriptFailed(_how(end), exit_code=end.code, last_lines=tail.lines)


def _how(end: Exit) -> str:
    if end.code is None:
        return "its exit code is unknown: something in the worker's process reaps all children"
    if end.code > 0:
        return f"exit code {end.code}"
    try:
        name = signal.Signals(-end.code).name
    except ValueError:
        name = f"signal {-end.code}"
    return f"killed by {name}"


def _settings(reader: PropsReader) -> ScriptSettings | None:
    reader.refuse_unknown("script.", [COMMAND_LINE, SHELL])
    shell = reader.boolean(SHELL, default=False)
    line = reader.text(COMMAND_LINE)
    if line is None or not line.strip():
        reader.missing(COMMAND_LINE, "it must be a command, such as /opt/report/run.sh --daily")
    elif "\0" in line:
        reader.problem(COMMAND_LINE, "holds a NUL character, which no command can")
    elif shell:
        # The name after the command line is what the shell calls itself in its messages; "$1" is what follows.
        return ScriptSettings(["/bin/sh", "-c", line, "sh"])
    else:
        return _split(reader, line)
    return None


def _split(reader: PropsReader, line: str) -> ScriptSettings | None:
    try:
        arguments = shlex.split(line)
    except ValueError as error:
        reader.problem(COMMAND_LINE, f"{shown(line)} cannot be split into arguments: {str(error).lower()}")
        return None
    meant_for_a_shell = next((argument for argument in _as_written(line) if argument in _FOR_A_SHELL), None)
    if meant_for_a_shell is not None:
        reader.problem(
            COMMAND_LINE,
            f"{shown(meant_for_a_shell)} is for a shell, and none is started; set {SHELL}: 'true', or quote it to pass it on",
        )
        return None
    if not arguments[0]:
        reader.problem(COMMAND_LINE, f"{shown(line)} names no command")
        return None
    return ScriptSettings(arguments)


def _as_written(line: str) -> Sequence[str]:
    """The arguments with their quotes, so that a quoted `'|'` is told from a bare one; none if that is beyond this reading."""
    try:
        return shlex.split(line, posix=False)
    except ValueError:  # a quote after a backslash, which this way of reading takes for an end
        return ()
