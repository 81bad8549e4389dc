"""Fencing of a file."""

from __future__ import annotations

import fcntl
import os
import random
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ejpy.errors import StaleAttempt, UnreadableToken
from ejpy.fencing.files import write_file
from ejpy.job import ShardContext
from tests.fencing.old_owner import OLD, ROOT, OldOwner
from tests.support.waiting import PATIENCE_SECONDS, wait_until

WRITER = "import sys; from ejpy.fencing.files import write_file; write_file(sys.argv[1], sys.argv[2].encode(), int(sys.argv[2]))"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.csv"


def token_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.ejpy-token")


def names(path: Path) -> set[str]:
    return {found.name for found in path.parent.iterdir()}


BESIDE = {"report.csv", ".report.csv.ejpy-token", ".report.csv.ejpy-lock"}


def test_a_paused_old_owner_that_wakes_is_refused(path: Path) -> None:
    write_file(path, b"before", 1)
    with OldOwner("file_while_drafting", str(path), 41) as old:
        write_file(path, b"by the new owner", 57)
        assert old.wake() == "StaleAttempt"
    assert path.read_bytes() == b"by the new owner"
    assert token_file(path).read_text() == "57\n"
    assert names(path) == BESIDE


def test_nobody_writes_between_comparing_and_renaming(path: Path) -> None:
    write_file(path, b"before", 1)
    with OldOwner("file_before_renaming", str(path), 41) as old:
        with pytest.raises(TimeoutError, match=r"\.report\.csv\.ejpy-lock: another process has held the lock for 0\.05 s"):
            write_file(path, b"too early", 57, lock_seconds=0.05)
        assert path.read_bytes() == b"before"
        assert old.wake() == "written"
    assert path.read_text() == OLD
    write_file(path, b"by the new owner", 57)
    assert path.read_bytes() == b"by the new owner"
    assert names(path) == BESIDE


def test_one_that_is_killed_between_token_and_content_leaves_neither_half(path: Path) -> None:
    write_file(path, b"before", 1)
    with OldOwner("file_before_renaming", str(path), 41):
        pass  # killed at the end of this block
    assert path.read_bytes() == b"before"
    assert token_file(path).read_text() == "41\n"
    with pytest.raises(StaleAttempt):
        write_file(path, b"older", 40)
    assert path.read_bytes() == b"before"
    write_file(path, b"its next attempt", 42)
    assert path.read_bytes() == b"its next attempt"


def test_one_that_waits_goes_on_when_the_lock_is_free(path: Path) -> None:
    with path.with_name(".report.csv.ejpy-lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: write_file(path, b"at last", 5, lock_seconds=PATIENCE_SECONDS))
        waiting.start()
        wait_until(lock_waiters, PATIENCE_SECONDS, "it waits")
        assert not path.exists()
    waiting.join(PATIENCE_SECONDS)
    assert path.read_bytes() == b"at last"


def test_one_that_gave_up_waiting_holds_nothing_up(path: Path) -> None:
    with path.with_name(".report.csv.ejpy-lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError):
            write_file(path, b"given up", 5, lock_seconds=0.01)
    wait_until(lambda: not lock_waiters(), PATIENCE_SECONDS, "nobody waits any more")
    write_file(path, b"another", 4)
    assert path.read_bytes() == b"another"


def lock_waiters() -> bool:
    return any(thread.name == "ejpy-file-lock" for thread in threading.enumerate())


def test_the_first_one_makes_the_file_and_the_same_may_come_again(path: Path) -> None:
    for body in (b"first", b"again"):
        write_file(path, body, 5)
        assert path.read_bytes() == body
    assert names(path) == BESIDE


def test_a_newer_one_takes_over_and_an_older_one_is_refused(path: Path) -> None:
    write_file(path, b"by 5", ShardContext.for_test(fencing_token=5))
    write_file(path, b"by 7", 7)
    with pytest.raises(StaleAttempt, match=r"report\.csv: token 6 of test-job/.* is older than 7"):
        write_file(path, b"by 6", ShardContext.for_test(fencing_token=6))
    assert path.read_bytes() == b"by 7"
    assert names(path) == BESIDE


def test_the_guard_outlives_the_file(path: Path) -> None:
    write_file(path, b"by 7", 7)
    path.unlink()
    with pytest.raises(StaleAttempt):
        write_file(path, b"by 6", 6)
    assert not path.exists()


def test_processes_that_come_at_once_leave_the_newest(path: Path) -> None:
    tokens = random.Random(4711).sample(range(1, 100), 8)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, str(token)], cwd=ROOT, stderr=subprocess.PIPE) for token in tokens
    ]
    ended = [(writer.communicate(timeout=PATIENCE_SECONDS)[1].decode(), writer.returncode) for writer in writers]
    assert all(code == 0 or "StaleAttempt: " in said for said, code in ended)
    assert path.read_text() == str(max(tokens))
    assert token_file(path).read_text() == f"{max(tokens)}\n"


def test_threads_of_one_process_never_go_back(path: Path) -> None:
    """A thread that has just written may read an equal or a newer one's content, never an older one's."""
    went_back: list[tuple[int, int]] = []

    def write_all(tokens: list[int]) -> None:
        for token in tokens:
            try:
                write_file(path, str(token).encode(), token)
            except StaleAttempt:
                continue
            seen = int(path.read_bytes())
            if seen < token:
                went_back.append((token, seen))

    threads = [threading.Thread(target=write_all, args=(list(range(first, 200, 4)),)) for first in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert went_back == []
    assert path.read_bytes() == b"199"


@pytest.mark.parametrize("broken", [b"", b"abc", b"\xff\xfe", b"-5", b"5 5", b"007", b"9223372036854775808", b"1" * 100, b"\n5"])
def test_a_broken_token_file_lets_nobody_in(path: Path, broken: bytes) -> None:
    write_file(path, b"before", 1)
    token_file(path).write_bytes(broken)
    with pytest.raises(UnreadableToken, match=r"report\.csv: the stored fencing token is '.*'; nothing was written\. Write the"):
        write_file(path, b"after", 5)
    assert path.read_bytes() == b"before"
    assert token_file(path).read_bytes() == broken
    token_file(path).unlink()
    write_file(path, b"after", 5)
    assert path.read_bytes() == b"after"


def test_a_body_that_fails_leaves_the_file_as_it_was(path: Path) -> None:
    write_file(path, b"before", 1)

    def parts() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_file(path, parts(), 5)
    assert path.read_bytes() == b"before"
    assert token_file(path).read_text() == "1\n"
    assert names(path) == BESIDE


def test_permissions_are_those_of_the_file_or_of_any_new_one(path: Path) -> None:
    plain = path.with_name("plain")
    plain.touch()
    write_file(path, b"new", 1)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    path.chmod(0o640)
    write_file(path, b"again", 2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_link_and_its_file_have_one_guard(path: Path) -> None:
    write_file(path, b"by 7", 7)
    link = path.with_name("link")
    link.symlink_to(path.name)
    with pytest.raises(StaleAttempt):
        write_file(link, b"by 6", 6)
    write_file(link, b"by 8", 8)
    assert link.is_symlink()
    assert path.read_bytes() == b"by 8"


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "missing" / "report.csv", b"", 1)
    assert os.listdir(tmp_path) == []
