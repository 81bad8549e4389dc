"""The latch of ejpy and Curator's own, in one line: never two holders, everybody's turn comes, and no node stays behind.

Contenders of a JVM and of two Python processes, each with a session of its own, go for the same latch at the same time. That
there is one holder is not theirs to say: whoever owns the latch makes one and the same node, which fails if it is there. Some
of them give up in the line, some lose their session as holders. Now and then the latch's directories are gone before a round,
as when the server has removed the empty containers that Curator makes, and all who arrive make them at once.

`EJPY_LATCH_ROUNDS` sets how many rounds are played, `EJPY_LATCH_SEED` by whose dice.
"""

from __future__ import annotations

import os
import queue
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from ejpy.errors import GuardFailed
from ejpy.registry.base import Create, Delete, Node, ancestors
from tests.interop.java import Conversation, debian_classpath, java, next_line
from tests.support.observer import Observer
from tests.support.waiting import wait_until
from tests.support.workers import ROOT
from tests.support.zookeeper import ZooKeeperServer

ROUNDS = int(os.environ.get("EJPY_LATCH_ROUNDS", "200"))
SEED = int(os.environ.get("EJPY_LATCH_SEED", "20261130"))
ROUNDS_OF_A_DIRECTORY = 4
JOB = "/interop"
LATCH = f"{JOB}/leader/election/latch"
HOLDER = f"{JOB}/holder"

PATIENCE_SECONDS = 60.0
PROGRAM = Path(__file__).parent / "LatchContenders.java"
PACKAGE = "libcurator-recipes-java"
JARS = (
    *("curator-client", "curator-framework", "curator-recipes"),
    *("zookeeper", "zookeeper-jute", "guava", "slf4j-api", "slf4j-simple"),
)
JAVA = ("java-1", "java-2", "java-3", "java-4")
PYTHON = (("python-1", "python-2"), ("python-3", "python-4"))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ZooKeeperServer() as server:
        yield server.address


class Arena:
    """The programs, and the tree as a third party sees it."""

    def __init__(self, address: str, directory: Path) -> None:
        self.observer = Observer(address)
        self._said: queue.Queue[str | None] = queue.Queue()
        self._stack = ExitStack()
        quiet = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)
        curator = [*java(debian_classpath(PACKAGE, JARS), quiet), str(PROGRAM), address]
        ejpy = [sys.executable, "-m", "tests.interop.curator.contenders", address]
        environment = {"PYTHONPATH": str(ROOT)}
        self.programs = [Conversation(curator, directory / "java.log", said=self._said)]
        self.programs += [
            Conversation(ejpy, directory / f"python-{i}.log", env=environment, said=self._said) for i in range(len(PYTHON))
        ]
        self._program_of = dict.fromkeys(JAVA, self.programs[0])
        for program, names in zip(self.programs[1:], PYTHON, strict=True):
            self._program_of |= dict.fromkeys(names, program)

    def __enter__(self) -> Arena:
        self._stack.enter_context(self.observer)
        for program in self.programs:
            self._stack.enter_context(program)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def names(self) -> list[str]:
        return list(self._program_of)

    def play(self, how: dict[str, tuple[int, str]]) -> dict[str, str]:
        """One round: all of these go for the latch, with this patience (milliseconds) and in this way; their answers."""
        for name, (patience, way) in how.items():
            self._program_of[name].say(f"{name} {LATCH} {HOLDER} {patience} {way}")
        answers: dict[str, str] = {}
        for _ in how:
            name, _, verdict = next_line(self._said, PATIENCE_SECONDS, self._logs).partition(" ")
            assert name not in answers, f"{name} answered twice"
            assert verdict in ("held", "left"), f"{name}: {verdict}; those before it: {answers}; in line: {self._children(LATCH)}"
            answers[name] = verdict
        return answers

    def remove_directories(self) -> None:
        """Remove what lies between the job and the contenders, who have gone; one that went early may leave a node late."""
        wait_until(self._directories_removed, PATIENCE_SECONDS, f"{LATCH} and what is above it is removed")

    def _directories_removed(self) -> bool:
        paths = [path for path in (*ancestors(LATCH), LATCH) if path != JOB]
        changes = [Delete(path) for path, node in zip(paths, self._read(paths), strict=True) if node is not None]
        try:
            if changes:
                self.observer.ask(lambda registry: registry.commit(changes[::-1]))
        except GuardFailed:
            return False
        return True

    def wait_until_empty(self) -> None:
        """Wait until nobody's node is in the latch's directory."""
        wait_until(lambda: not self._children(LATCH), PATIENCE_SECONDS, f"no node stays in {LATCH}")

    def holder(self) -> Node | None:
        [node] = self._read([HOLDER])
        return node

    def _children(self, path: str) -> list[str]:
        [names] = self.observer.ask(lambda registry: registry.children([path]))
        return names or []

    def _read(self, paths: list[str]) -> list[Node | None]:
        return self.observer.ask(lambda registry: registry.read(paths))

    def _logs(self) -> str:
        return "\n".join(program.log[-2000:] for program in self.programs)


@pytest.fixture(scope="module")
def arena(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    with Arena(address, tmp_path_factory.mktemp("curator")) as arena:
        arena.observer.ask(lambda registry: registry.commit([Create(JOB)]))
        yield arena


def test_one_holder_at_a_time_and_everybodys_turn_comes(arena: Arena) -> None:
    random = Random(SEED)
    seen: Counter[tuple[str, str]] = Counter()
    for number in range(ROUNDS):
        if number % ROUNDS_OF_A_DIRECTORY == 0:
            arena.remove_directories()
        how = {name: (some_patience(random), some_way(random)) for name in random.sample(arena.names, len(arena.names))}
        answers = arena.play(how)
        left = {name for name, verdict in answers.items() if verdict == "left"}
        assert left <= {name for name, (patience, _) in how.items() if patience}, f"round {number}: {answers}"
        arena.wait_until_empty()
        assert arena.holder() is None
        for name, (_, way) in how.items():
            seen[name.partition("-")[0], "left" if name in left else way] += 1
    print(f"\n{ROUNDS} rounds: " + ", ".join(f"{kind} {what}: {count}" for (kind, what), count in sorted(seen.items())))
    # What the rounds are to show did happen, in both languages.
    assert min(seen[kind, what] for kind in ("java", "python") for what in ("releases", "dies", "left")) >= ROUNDS // 10


def some_patience(random: Random) -> int:
    """In milliseconds; 0: without end."""
    return random.choice([0, 0, 0, random.randint(1, 60)])


def some_way(random: Random) -> str:
    return random.choice(["releases"] * 7 + ["dies"])
