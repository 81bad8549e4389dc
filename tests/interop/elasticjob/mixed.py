"""One job with workers of ElasticJob and of ejpy, on a real ZooKeeper server.

    with MixedJob(installation, server.address, tmp_path, items=4) as mixed:
        java = mixed.java("j")
        python = mixed.python("p")
        mixed.wait_until_shared(4, java, python)

Each worker has an IPv4 address of its own, so that an operator can name its server. The bodies of both languages record what
they do in the same file (`tests.support.jobs`).

A leader of ElasticJob forgets who joins while it shares items out, until somebody else comes or goes. So while one leads, a
test waits until the items are shared before the next worker joins, and does not count on the share of a second worker of
ElasticJob, whose joining takes two steps.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from ejpy.config.document import to_document
from ejpy.config.model import JobConfig
from ejpy.coordination.view import JobView
from ejpy.registry.base import Create
from tests.interop.java import Conversation, java
from tests.support.fleet import SESSION_SECONDS, Fleet, job, zookeeper_url
from tests.support.jobs import RECORD_VARIABLE, Execution
from tests.support.waiting import PATIENCE_SECONDS, wait_until
from tests.support.workers import ROOT, WorkerProcess

JOB = "mixed"
JARS_VARIABLE = "EJPY_ELASTICJOB_JARS"
JARS = ROOT / "var" / "elasticjob"
"""Where `scripts/interop` puts ElasticJob and what it needs."""
MISSING = ROOT / "var" / "elasticjob.missing"
"""Where it says why it could not, if so."""

_SOURCES = ("RecordingExecutor", "ElasticJobWorker", "Console")
_SERVICE = "org.apache.shardingsphere.elasticjob.executor.item.impl.TypedJobItemExecutor"


@dataclass(frozen=True)
class Installation:
    """ElasticJob, and the programs of the tests compiled against it."""

    classpath: str

    @classmethod
    def compiled(cls, directory: Path) -> Installation:
        """Compile the programs into this directory. Fails the test if ElasticJob or a JDK is missing; skips it if ElasticJob
        was looked for in vain."""
        jars = Path(os.environ.get(JARS_VARIABLE) or JARS)
        if not list(jars.glob("elasticjob-lite-core-*.jar")):
            if jars == JARS and MISSING.exists():
                pytest.skip(f"no ElasticJob: {MISSING.read_text().strip()}")
            pytest.fail(f"ElasticJob is needed in {jars}: run scripts/interop, or name its jars' directory: {JARS_VARIABLE}")
        java("")
        sources = [str(Path(__file__).with_name(f"{name}.java")) for name in _SOURCES]
        subprocess.run(["javac", "-d", str(directory), "-cp", f"{jars}/*", *sources], check=True)
        services = directory / "META-INF" / "services"
        services.mkdir(parents=True)
        (services / _SERVICE).write_text(_SOURCES[0])
        return cls(f"{directory}:{jars}/*")

    def command(self, program: str, *arguments: str) -> list[str]:
        """The command that runs one of the programs."""
        logging = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
        return [*java(self.classpath, logging), program, *arguments]


class JavaWorker(Conversation):
    """A worker of ElasticJob."""

    ip = ""
    id = ""

    def kill9(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """Shut it down in ElasticJob's own way."""
        assert self.end(PATIENCE_SECONDS) == 0, self.log


class MixedJob:
    """See the module's text. Everything it started is killed at the end of the `with` block."""

    def __init__(
        self,
        installation: Installation,
        address: str,
        directory: Path,
        *,
        items: int = 4,
        settings: Mapping[str, Any] | None = None,
        **behaviour: Any,
    ) -> None:
        """`settings` are further keys of the job; `behaviour` is what its bodies do (see `tests.support.jobs`)."""
        self.items = items
        self.fleet = Fleet(zookeeper_url(address), directory)
        self._address = address
        self._installation = installation
        self._directory = directory
        zone = {"time_zone": "GMT+00:00"}  # ElasticJob knows no other form
        self._job = job(items=items, settings={**zone, **(settings or {})}, **behaviour)
        self._file = self.fleet.write("jobs.yml", {JOB: self._job})
        self._hosts = count(1)
        self._stack = ExitStack()

    def __enter__(self) -> MixedJob:
        self._stack.enter_context(self.fleet)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    # -- workers --

    def java(self, name: str) -> JavaWorker:
        """Start a worker of ElasticJob, and wait until it is registered and scheduled."""
        document = self._directory / "config.yaml"
        document.write_bytes(to_document(JobConfig.model_validate({"job_name": JOB, **self._job})))
        ip = self._ip()
        arguments = (self._address, self.fleet.namespace[1:], f"{SESSION_SECONDS * 1000:.0f}", ip, self._job["class"])
        worker = JavaWorker(
            self._installation.command("ElasticJobWorker", *arguments, str(document)),
            self._directory / f"{name}.log",
            env={RECORD_VARIABLE: str(self.fleet.record)},
        )
        self._stack.enter_context(worker)
        worker.ip = ip
        worker.id = worker.hear(PATIENCE_SECONDS).removeprefix("ready ")
        return worker

    def python(self, name: str) -> WorkerProcess:
        """Start a worker of ejpy, and wait until it is registered."""
        [worker] = self.fleet.launch(self._file, name, options=("--ip", self._ip()))
        self.wait_until_there(worker)
        return worker

    def _ip(self) -> str:
        return f"10.9.0.{next(self._hosts)}"

    def trigger(self, *workers: JavaWorker | WorkerProcess) -> None:
        """Have these run their items at once, as `Console.do("trigger")` does for all."""
        paths = self.fleet.paths(JOB)
        parent = [] if paths.triggers in self.fleet.nodes(JOB) else [Create(paths.triggers)]
        self.fleet.change(*parent, *(Create(paths.trigger(worker.id)) for worker in workers))

    @contextmanager
    def console(self) -> Iterator[Console]:
        """ElasticJob's own API for operators."""
        command = self._installation.command("Console", self._address, self.fleet.namespace[1:])
        with Conversation(command, self._directory / "console.log") as program:
            assert program.hear(PATIENCE_SECONDS) == "ready"
            yield Console(program)

    # -- the tree --

    def view(self) -> JobView:
        return self.fleet.view(JOB)

    def owners(self) -> dict[int, str]:
        return self.fleet.owners(JOB)

    def wait_until_there(self, worker: WorkerProcess) -> None:
        wait_until(lambda: worker.id in self.view().instances, PATIENCE_SECONDS, f"{worker.name} is registered")

    def wait_until_leads(self, *workers: JavaWorker | WorkerProcess) -> str:
        """Wait until one of these is the leader; its id."""
        ids = {worker.id for worker in workers}

        def leader() -> str | None:
            found = self.view().leader
            return found if found in ids else None

        return wait_until(leader, PATIENCE_SECONDS, f"one of {ids} leads")

    def wait_until_shared(self, *workers: JavaWorker | WorkerProcess) -> dict[int, str]:
        """Wait until these, and nobody else, have the items, spread evenly, and no flag is up; the owners."""
        ids = {worker.id for worker in workers}

        def shared() -> dict[int, str] | None:
            view = self.view()
            owners = {item: one.instance_id for item, one in view.assigned.items()}
            counts = Counter(owners.values())
            even = counts.keys() == ids and max(counts.values()) - min(counts.values()) <= 1
            settled = not view.necessary and not view.processing
            return owners if even and settled and owners.keys() == set(range(self.items)) else None

        return wait_until(shared, PATIENCE_SECONDS, f"{self.items} items are spread over {ids}")

    # -- what was run --

    def wait_for_fires(self, number: int, after: datetime | None = None) -> list[datetime]:
        return self.fleet.wait_for_fires(JOB, number, items=self.items, after=after)

    def runs(self, after: datetime | None = None) -> list[Execution]:
        return [run for run in self.fleet.runs(JOB) if after is None or run.scheduled_time > after]

    def wait_for_runs(self, number: int, *, unended: int = 0) -> list[Execution]:
        """Wait until there have been so many runs in all, and all but `unended` have ended; in the order of their begin."""

        def ended() -> list[Execution] | None:
            runs = sorted(self.runs(), key=lambda run: run.start)
            return runs if len(runs) >= number and sum(run.end is None for run in runs) == unended else None

        return wait_until(ended, PATIENCE_SECONDS, f"{number} runs")

    def twice(self, after: datetime | None = None) -> list[list[Execution]]:
        """The runs of each fire and item that was run more than once.

        ElasticJob makes up for a fire that it missed right after the next one and under the time of that, so two runs by one of
        its workers do not count.
        """
        ours = {worker.pid for worker in self.fleet.workers}
        fires = self.fleet.fires(JOB, after)
        several = [runs for by_item in fires.values() for runs in by_item.values() if len(runs) > 1]
        return [runs for runs in several if len(pids := {run.pid for run in runs}) > 1 or pids & ours]


class Console:
    """What an operator of ElasticJob does and sees."""

    def __init__(self, program: Conversation) -> None:
        self._program = program

    def do(self, *words: str) -> None:
        """`trigger`; or `disable`, `enable`, `shutdown` and the address of a server."""
        self._program.say(" ".join((words[0], JOB, *words[1:])))
        assert self._program.hear(PATIENCE_SECONDS) == "done"

    def job(self) -> dict[str, Any]:
        """What elasticjob-ui shows of the job."""
        self._program.say(f"job {JOB}")
        shown: dict[str, Any] = json.loads(self._program.hear(PATIENCE_SECONDS))
        return shown

    def items(self) -> dict[int, dict[str, Any]]:
        """What elasticjob-ui shows of the items."""
        self._program.say(f"items {JOB}")
        return {row["item"]: row for row in json.loads(self._program.hear(PATIENCE_SECONDS))}


def overlapping(runs: list[Execution]) -> list[tuple[Execution, Execution]]:
    """Pairs of runs of one item of which the later began before the earlier had ended."""
    pairs = []
    last: dict[int, Execution] = {}
    for run in sorted(runs, key=lambda run: run.start):
        before = last.get(run.item)
        if before is not None and (before.end is None or run.start < before.end):
            pairs.append((before, run))
        last[run.item] = run
    return pairs
