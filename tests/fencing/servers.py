"""Real servers to write to: PostgreSQL, MariaDB, Redis, and an object store that speaks S3; each with a directory and a port of
its own.

The first three are Debian's (`apt-get install postgresql mariadb-server redis-server`). The object store is moto's server, which
honours the conditions of a put; it has one thread, so that looking and storing are one step in it, as they are in a store.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import OperationalError

from tests.support.waiting import wait_until

START_SECONDS = 60.0
STOP_SECONDS = 20.0
DATABASE = "ejpy_test"
HOST = "127.0.0.1"


def program(name: str, package: str, *directories: str) -> str:
    """The path of a program. Ends the test run with what to install if there is none."""
    path = shutil.which(name, path=os.pathsep.join([*directories, os.environ.get("PATH", ""), "/usr/sbin"]))
    if path is None:
        pytest.exit(f"these tests need {name}, which is not here (Debian: apt-get install {package})", returncode=4)
    return path


@contextmanager
def redis_server(*options: str) -> Iterator[int]:
    """A Redis without persistence; yields its port."""
    redis = program("redis-server", "redis-server")
    with _directory() as directory:
        port = free_port()
        command = [
            redis,
            "--port",
            str(port),
            "--bind",
            HOST,
            "--dir",
            str(directory),
            "--save",
            "",
            "--appendonly",
            "no",
            *options,
        ]
        with _running(command, directory, lambda: _answers(port)):
            yield port


@contextmanager
def postgresql() -> Iterator[str]:
    """A PostgreSQL; yields SQLAlchemy's URL of an empty database."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    initdb, server = (program(name, "postgresql", *map(str, reversed(found))) for name in ("initdb", "postgres"))
    with _directory() as directory:
        user = _unprivileged("postgres", directory)
        data, port = directory / "data", free_port()
        _run([initdb, "-D", str(data), "-U", "ejpy", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"], directory, user)
        settings = {"port": port, "listen_addresses": HOST, "unix_socket_directories": directory, "fsync": "off"}
        command = [server, "-D", str(data)] + [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        url = f"postgresql+psycopg://ejpy@{HOST}:{port}/postgres"
        with _running(command, directory, lambda: _accepts(url), user):
            yield _database(url)


@contextmanager
def mariadb() -> Iterator[str]:
    """A MariaDB; yields SQLAlchemy's URL of an empty database."""
    install, server = (program(name, "mariadb-server") for name in ("mariadb-install-db", "mariadbd"))
    with _directory() as directory:
        user = _unprivileged("mysql", directory)
        data, port = directory / "data", free_port()
        common = ["--no-defaults", f"--datadir={data}"]
        _run([install, *common, "--auth-root-authentication-method=normal", "--skip-test-db"], directory, user)
        common += [f"--port={port}", f"--bind-address={HOST}", f"--socket={directory}/socket", f"--pid-file={directory}/pid"]
        url = f"mariadb+pymysql://root@{HOST}:{port}/mysql?charset=utf8mb4"
        with _running([server, *common, "--innodb-flush-log-at-trx-commit=0"], directory, lambda: _accepts(url), user):
            yield _database(url)


@contextmanager
def object_store() -> Iterator[str]:
    """A server that speaks S3; yields the URL of its endpoint."""
    port = free_port()
    serve = (
        "from werkzeug.serving import run_simple; from moto.moto_server import werkzeug_app as w; "
        f"run_simple({HOST!r}, {port}, w.DomainDispatcherApplication(w.create_backend_app), request_handler=w.MotoRequestHandler)"
    )
    with _directory() as directory, _running([sys.executable, "-c", serve], directory, lambda: _answers(port)):
        yield f"http://{HOST}:{port}"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="ejpy-fencing-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _unprivileged(user: str, directory: Path) -> str | None:
    """Who runs a database server in `directory`: they refuse root. None: whoever runs the tests."""
    if os.geteuid() != 0:
        return None
    shutil.chown(directory, user)
    return user


def _run(command: Sequence[str], directory: Path, user: str | None) -> None:
    ended = subprocess.run(command, cwd=directory, user=user, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{command[0]} failed: {ended.stdout[-2000:]}{ended.stderr[-2000:]}"


@contextmanager
def _running(command: Sequence[str], directory: Path, serves: Callable[[], bool], user: str | None = None) -> Iterator[None]:
    log = directory / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=directory, user=user, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:

        def ready() -> bool:
            assert process.poll() is None, f"{command[0]} ended: {log.read_text(errors='replace')[-2000:]}"
            return serves()

        wait_until(ready, START_SECONDS, f"{command[0]} serves")
        yield
    finally:
        process.kill()
        process.wait(STOP_SECONDS)


def _answers(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _accepts(url: str) -> bool:
    engine = create_engine(url)
    try:
        engine.connect().close()
    except OperationalError:
        return False
    finally:
        engine.dispose()
    return True


def _database(url: str) -> str:
    """Make a database on the server of `url`; returns the URL of it."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {DATABASE}")
    engine.dispose()
    return make_url(url).set(database=DATABASE).render_as_string(hide_password=False)
