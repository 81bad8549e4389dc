"""Make a virtual environment fit to run ejpy from this checkout, and print the path of its Python.

    python3 scripts/environment.py [EXTRA ...]

The active virtual environment is used, otherwise `.venv` in the checkout. ejpy is installed into it in editable form, with
the named extras of setup.cfg. A stamp in the environment says what it was installed from, so that a second call has nothing
to do. States: no environment → made; broken, or made by a Python too old or gone → made anew; stamp missing or other than
the packaging files → installed; stamp up to date → untouched.

Two terminals may call this at the same time: one lock (freed by the system when its holder dies) lets one work and the
other find it done. A stamp is written after the installation, so that one broken off half-way is repeated.

Only the standard library is used here: nothing is installed yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OLDEST = (3, 10)
ROOT = Path(__file__).resolve().parent.parent
STAMP = "ejpy-installed.json"
LINES_OF_PIP = 15


def say(text: str) -> None:
    """Tell a person; standard output is kept for the result."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`; says so when another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another terminal is setting up the virtual environment; waiting for it.")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def works(python: Path) -> bool:
    """Whether `python` starts, is recent enough and has pip."""
    probe = f"import sys, pip; sys.exit(sys.version_info < {OLDEST!r})"
    try:
        return subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def fingerprint() -> str:
    """What an installation depends on: the packaging files, and where the checkout is."""
    digest = hashlib.sha256(os.fsencode(ROOT))
    for name in ("setup.cfg", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def installed(stamp: Path) -> tuple[str, set[str]]:
    """The fingerprint and the extras that a stamp tells of; ("", set()) without a readable one."""
    try:
        content = json.loads(stamp.read_text())
        return str(content["fingerprint"]), set(content["extras"])
    except (OSError, ValueError, KeyError, TypeError):
        return "", set()


def install(python: Path, extras: set[str], log: Path) -> None:
    """Install the checkout. On failure, ends the program with the last lines of what pip said."""
    target = f"{ROOT}[{','.join(sorted(extras))}]" if extras else str(ROOT)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--editable", target]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    log.write_bytes(ended.stdout)
    if ended.returncode != 0:
        tail = ended.stdout.decode(errors="replace").splitlines()[-LINES_OF_PIP:]
        raise SystemExit(
            "\n".join([*tail, f"pip could not install ejpy (all it said is in {log}). Is the package index reachable from here?"])
        )


def ready_python(extras: set[str]) -> Path:
    """The Python of an environment that has ejpy from this checkout and `extras`."""
    active = os.environ.get("VIRTUAL_ENV")
    home = Path(active) if active else ROOT / ".venv"
    python, stamp = home / "bin" / "python", home / STAMP
    with one_at_a_time(ROOT / "var" / "environment.lock"):
        if not works(python):
            if active:
                raise SystemExit(
                    f"The active virtual environment {active} has no pip, or no Python {OLDEST[0]}.{OLDEST[1]} or later."
                    " Leave it (deactivate), and .venv is made instead."
                )
            say(f"Making the virtual environment {home} with Python {sys.version.split()[0]}.")
            venv.create(home, clear=True, symlinks=True, with_pip=True)
        wanted, (was, had) = fingerprint(), installed(stamp)
        if was != wanted or not extras <= had:
            say(f"Installing ejpy into {home}; about a minute, this once.")
            extras = extras | had
            stamp.unlink(missing_ok=True)
            install(python, extras, ROOT / "var" / "install.log")
            stamp.write_text(json.dumps({"fingerprint": wanted, "extras": sorted(extras)}))
    return python


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{ready_python(set(sys.argv[1:]))}\n")
    except KeyboardInterrupt:
        say("Interrupted; the next call does it anew.")
        raise SystemExit(130) from None
