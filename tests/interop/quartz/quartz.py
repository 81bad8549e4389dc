"""Quartz itself, asked about many expressions in one go."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

QUARTZ_JAR = Path("/usr/share/java/quartz2.jar")
PROGRAM = Path(__file__).parent / "FireTimes.java"


class Query(NamedTuple):
    zone: str
    start: int
    """Seconds since the epoch."""
    fires: int
    expression: str


class Answer(NamedTuple):
    verdict: str
    """FIRES, or REFUSED by the parser, FAILED when computing, HANGS."""
    fires: tuple[int, ...] = ()
    ends: bool = False
    """There are no more fires than these."""


def ask_quartz(queries: Sequence[Query], *, patience_seconds: int = 60) -> list[Answer]:
    """Quartz's answers, in order. Fails the test if Java or Quartz is not installed."""
    java = shutil.which("java")
    if java is None or shutil.which("javac") is None:
        pytest.fail("Java is needed to compare with Quartz: apt-get install default-jdk-headless libquartz2-java")
    if not QUARTZ_JAR.exists():
        pytest.fail(f"{QUARTZ_JAR} is needed to compare with Quartz: apt-get install libquartz2-java")
    process = subprocess.run(
        [java, "-cp", str(QUARTZ_JAR), str(PROGRAM), str(patience_seconds)],
        input="".join(f"{query.zone}\t{query.start}\t{query.fires}\t{query.expression}\n" for query in queries),
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert len(lines) == len(queries)
    return [_answer(line) for line in lines]


def _answer(line: str) -> Answer:
    if line in ("REFUSED", "FAILED", "HANGS"):
        return Answer(line)
    words = line.split()
    return Answer("FIRES", tuple(int(word) for word in words if word != "END"), words[-1] == "END")
