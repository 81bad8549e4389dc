"""Fencing of a file that is written as a whole: the newest attempt's content stays, a reader sees all of it or none.

The token lies beside the file, `.NAME.ejpy-token`, and so does a lock, `.NAME.ejpy-lock`:

    draft written and synced ──lock──► token compared ──newer: StaleAttempt
                                         │ older or equal
                                         ▼
                                       token replaced ──► draft renamed to the file ──► unlocked

Guards against

* an older attempt that wakes while it makes its draft, or before: it finds the newer token under the lock;
* one that is paused under the lock: the newer one waits for it, at most `lock_seconds`. This takes the length of two renames,
  and a process that dies loses the lock, so it is met only where a process is stopped just there. When it goes on, it
  finishes, and the newer one writes after it;
* a crash between the two renames: the token comes first. Then the file is still the earlier one and the token that of the attempt
  that died; older ones are refused, and the next attempt, or the same one, writes. The other order could leave new content
  without its token, for an older attempt to overwrite;
* a crash of the machine: content, token and directory are synced before the next step.

Why not an extended attribute of the file, which a single rename would carry along: copies, backups and several file systems
drop it without a word, and it is gone when somebody removes the file. The token beside it outlives the file.

The lock is flock(2): it keeps threads of one process apart as well, and works across machines on NFS as far as its locks do.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ejpy.fencing.tokens import Writer, refuse, stored_token, token_of

LOCK_SECONDS = 30.0
_TOKEN_BYTES = 64
"""More than a token ever takes."""


def write_file(
    path: str | os.PathLike[str], data: bytes | Iterable[bytes], writer: Writer, *, lock_seconds: float = LOCK_SECONDS
) -> None:
    """Replace the content of the file at `path`, or make it, unless a newer attempt has written it.

    The directory must exist and be writable. An existing file's permissions are kept; a symbolic link is followed. When it
    returns, the content is on disk. `data` may be parts that are made while they are written: the file is replaced after the
    last one. A process that is killed may leave its draft behind, `.NAME.….ejpy-draft`.

    Raises StaleAttempt if a newer attempt was here, UnreadableToken if the token beside the file is none, TimeoutError if another
    process held the lock for `lock_seconds`, ValueError for such a token, OSError as writing does. The file is as it was then.
    (If only the directory could not be synchronised at the end, it is the new one, and a crash of the machine may undo that.)
    """
    token = token_of(writer)
    target = Path(os.path.realpath(path))
    draft = _beside(target, f"{uuid.uuid4().hex}.ejpy-draft")
    try:
        _write(draft, data, like=target)
        with _locked(_beside(target, "ejpy-lock"), lock_seconds):
            _take(target, token, writer)
            os.replace(draft, target)
            _sync_directory(target.parent)
    finally:
        draft.unlink(missing_ok=True)


def _beside(target: Path, suffix: str) -> Path:
    return target.with_name(f".{target.name}.{suffix}")


def _take(target: Path, token: int, writer: Writer) -> None:
    """Have the token beside the file be `token`, or refuse the writer. Under the lock."""
    path = _beside(target, "ejpy-token")
    try:
        with path.open("rb") as file:
            content = file.read(_TOKEN_BYTES)
    except FileNotFoundError:
        stored = 0
    else:
        text = content.decode("ascii", errors="backslashreplace").removesuffix("\n")
        remedy = f"Write the token of the newest attempt into {path}, or remove that to begin anew"
        stored = stored_token(text, str(target), remedy)
    if stored > token:
        raise refuse(str(target), writer, stored)
    if stored < token:
        draft = _beside(target, f"{uuid.uuid4().hex}.ejpy-draft")
        try:
            _write(draft, f"{token}\n".encode(), like=path)
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        _sync_directory(path.parent)


def _write(draft: Path, data: bytes | Iterable[bytes], *, like: Path) -> None:
    """Make a synced file with the permissions of `like`, or those of any new file."""
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        with suppress(FileNotFoundError):  # a new file has what the process's umask leaves
            os.fchmod(descriptor, stat.S_IMODE(like.stat().st_mode))
        for part in [data] if isinstance(data, bytes) else data:
            file.write(part)
        file.flush()
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    """Have what was renamed in it survive a crash of the machine."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(path: Path, seconds: float) -> Iterator[None]:
    """Hold the lock. The file stays: one who removes it would let in others than those who wait."""
    file = path.open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _wait_for(file, path, seconds)
    except OSError:
        file.close()
        raise
    with file:
        yield


def _wait_for(file: IO[bytes], path: Path, seconds: float) -> None:
    """Wait for the lock in a thread, since flock knows no deadline; whoever gives up leaves it to the thread to let go."""
    turn: Future[None] = Future()

    def wait() -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if turn.set_running_or_notify_cancel():
                turn.set_exception(error)
            file.close()
            return
        if turn.set_running_or_notify_cancel():
            turn.set_result(None)
        else:
            file.close()

    threading.Thread(target=wait, name="ejpy-file-lock", daemon=True).start()
    try:
        turn.result(seconds)
    except FutureTimeoutError:
        if turn.cancel():
            raise TimeoutError(
                f"{path}: another process has held the lock for {seconds:g} s; is one stopped (state T)?"
            ) from None
        turn.result()
    except BaseException:  # told to stop while it waits, say
        if not turn.cancel():
            file.close()
        raise
