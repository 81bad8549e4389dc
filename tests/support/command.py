"""The `ejpy` command, as a test runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EJPY = str(Path(sys.executable).with_name("ejpy"))


def environment(**further: str) -> dict[str, str]:
    """This process's, without its own EJPY_… variables; the tests' own job classes can be imported."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("EJPY_")}
    return {**inherited, "PYTHONPATH": str(ROOT), **further}


def run_ejpy(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a command of ejpy to its end, within `timeout` seconds (subprocess.TimeoutExpired)."""
    return subprocess.run([EJPY, *arguments], env=environment(), capture_output=True, text=True, timeout=timeout, check=False)
