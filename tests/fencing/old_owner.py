"""An attempt that is paused at the worst moment: a process of its own, which stops itself there, as a SIGSTOP from outside would.

`OldOwner` starts it and returns when it is stopped; `wake` lets it go on and tells how its write ended. What it does is a
function of this module, by its name: it reads, calls `pause`, and writes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import boto3
import redis
from sqlalchemy import create_engine, select, update
from sqlalchemy.exc import SQLAlchemyError

from ejpy.errors import EjpyError
from ejpy.fencing.files import write_file
from ejpy.fencing.redis import set_value
from ejpy.fencing.s3 import put_object
from ejpy.fencing.sql import guard, update_fenced
from tests.fencing.tables import RESOURCE, reports
from tests.support.waiting import PATIENCE_SECONDS, wait_until

ROOT = Path(__file__).parents[2]
OLD = "written by the old owner"


class OldOwner:
    """A process that writes with `token`, paused before it does. Use it as a context manager."""

    def __init__(self, what: str, place: str, token: int) -> None:
        command = [sys.executable, "-W", "error", "-m", "tests.fencing.old_owner", what, place, str(token)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            wait_until(self._stopped, PATIENCE_SECONDS, "the old owner is paused")
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def wake(self) -> str:
        """Let it go on; returns "written", or the name of the error that its write ended with."""
        self._process.send_signal(signal.SIGCONT)
        output, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
        outcome: str = json.loads(output)
        return outcome

    def _stopped(self) -> bool:
        state = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT)
        assert state is None or state.si_code == os.CLD_STOPPED, "the old owner ended before it was paused"
        return state is not None

    def __enter__(self) -> OldOwner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()


def pause(**_: Any) -> None:
    """Stop, until somebody says SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


# ---- what it does -----------------------------------------------------------------------------------------------


def guard_after_reading(url: str, token: int) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(select(reports.c.body)).all()
    pause()
    with engine.begin() as connection:
        guard(connection, RESOURCE, token)
        connection.execute(update(reports).values(body=OLD))


def commit_after_guarding(url: str, token: int) -> None:
    with create_engine(url).begin() as connection:
        guard(connection, RESOURCE, token)
        connection.execute(update(reports).values(body=OLD))
        pause()


def update_after_reading(url: str, token: int) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(select(reports.c.body)).all()
    pause()
    with engine.begin() as connection:
        update_fenced(connection, update(reports).where(reports.c.id == 1).values(body=OLD), reports.c.fencing_token, token)


def file_while_drafting(path: str, token: int) -> None:
    def parts() -> Iterator[bytes]:
        yield OLD[:7].encode()
        pause()
        yield OLD[7:].encode()

    write_file(path, parts(), token)


def file_before_renaming(path: str, token: int) -> None:
    _at_rename_to(path)
    write_file(path, OLD.encode(), token)


def _at_rename_to(path: str) -> None:
    """Have this process pause when it is about to rename something to `path`."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and os.fspath(arguments[1]) == path:
            pause()

    sys.addaudithook(hook)


def redis_after_reading(port: str, token: int) -> None:
    client = redis.Redis(port=int(port))
    client.get("report")
    pause()
    set_value(client, "report", OLD, token)


def s3_between_looking_and_putting(endpoint: str, token: int) -> None:
    client = s3_client(endpoint)
    client.meta.events.register_first("before-call.s3.PutObject", pause)
    put_object(client, "bucket", "report", f"{OLD} {token}".encode(), token)


def s3_client(endpoint: str) -> Any:
    return boto3.client(
        "s3", endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )


if __name__ == "__main__":
    try:
        globals()[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    except (EjpyError, SQLAlchemyError) as error:
        print(json.dumps(type(error).__name__))
    else:
        print(json.dumps("written"))
