"""An example that can be checked: count Python's own standard library, in parts, and compare with counting it alone.

Each sharding item counts the lines and words of its share of the `.py` files and digests their contents. Every number is
combined by addition (the digests modulo 2**256), so neither order nor number of parts matters: the sum over all items of
one fire must equal what `count_all` finds in a single process, to the last bit, whatever happened to the workers in between.

It shows what an ejpy job does to survive a crash or a pause of its worker:

* *Which part is mine* follows from the item alone (`item_of`): every worker draws the same line, in every process.
* *Checkpoint*: every so many files the item saves how far it is and its sums; a later attempt of the same fire goes on from
  there. A checkpoint made on another list of files (another Python on another machine) is not used.
* *Stop when told*: `raise_if_cancelled` between two files.
* *Fencing*: the result of an item is one row, made with token 0 before the work. It is written by a single statement that
  asks for a smaller token in the row, so a paused attempt that wakes up late cannot overwrite its successor's result.

`python -m ejpy.examples.stdlib_count --db FILE --compare` prints both totals and whether they are equal.

The job's parameter is a JSON object: `db` (path of the SQLite file; without it the environment variable EJPY_STDLIB_COUNT_DB),
`checkpoint_every` (files, default 200), `delay_per_file_ms` (default 0; to make it slow enough to watch or to disturb).
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sqlite3
import sysconfig
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ejpy.errors import StaleAttempt
from ejpy.job import ShardContext, ShardedJob

NOT_OF_PYTHON = frozenset({"site-packages", "dist-packages", "__pycache__"})
DIGEST_MODULUS = 2**256


# ---- counting ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over some files. `a + b` is the tally of both sets of files."""

    files: int = 0
    lines: int = 0
    words: int = 0
    digest: int = 0
    """Sum of the files' SHA-256 (of relative path and content) modulo 2**256."""

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.files + other.files,
            self.lines + other.lines,
            self.words + other.words,
            (self.digest + other.digest) % DIGEST_MODULUS,
        )

    def __str__(self) -> str:
        return f"{self.files} files, {self.lines} lines, {self.words} words, digest {self.digest:064x}"

    def as_row(self) -> tuple[int, int, int, str]:
        """For JSON and SQL, which have no integers of 256 bits."""
        return self.files, self.lines, self.words, f"{self.digest:064x}"

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Tally:
        files, lines, words, digest = row
        return cls(files, lines, words, int(digest, 16))


def standard_library() -> Path:
    """Where this Python keeps its standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(root: Path) -> list[str]:
    """Paths, relative to `root` and sorted, of all `.py` files below it that belong to Python itself."""
    found = []
    for directory, subdirectories, names in os.walk(root):
        subdirectories[:] = [name for name in subdirectories if name not in NOT_OF_PYTHON]
        found += [(Path(directory) / name).relative_to(root).as_posix() for name in names if name.endswith(".py")]
    return sorted(found)


def item_of(relative: str, total_items: int) -> int:
    """The sharding item that a file belongs to. CRC-32, since Python's own hash of a string differs between processes."""
    return zlib.crc32(relative.encode()) % total_items


def tally_of(root: Path, relative: str) -> Tally:
    """Count one file."""
    content = (root / relative).read_bytes()
    digest = hashlib.sha256(relative.encode() + b"\0" + content).digest()
    return Tally(1, len(content.splitlines()), len(content.split()), int.from_bytes(digest, "big"))


def count_all() -> Tally:
    """Count the whole standard library in this process: what the parts must add up to."""
    root = standard_library()
    return sum((tally_of(root, relative) for relative in source_files(root)), Tally())


# ---- results: one row for each item of a fire -------------------------------------------------------------------

SCHEMA = """
CREATE TABLE IF NOT EXISTS parts (
    fire TEXT NOT NULL, item INTEGER NOT NULL, total_items INTEGER NOT NULL,
    token INTEGER NOT NULL, attempt INTEGER, worker TEXT,
    files INTEGER, lines INTEGER, words INTEGER, digest TEXT,
    PRIMARY KEY (fire, item))
"""


@dataclass(frozen=True, slots=True)
class Part:
    """The result of one item of a fire, and who brought it."""

    item: int
    tally: Tally
    token: int
    attempt: int
    worker: str
    """host/process id"""


class Incomplete(Exception):
    """Items of the fire have not been counted yet."""


@contextmanager
def results(db_path: str | Path) -> Iterator[sqlite3.Connection]:
    """The file of results, made if need be; what is done inside is one transaction."""
    Path(db_path).parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(db_path, timeout=30)
    try:
        with connection:
            connection.execute(SCHEMA)
            yield connection
    finally:
        connection.close()


def reserve_part(db_path: str | Path, fire: str, item: int, total_items: int) -> None:
    """Make the item's row, with a token below every real one, so that `write_part` has something to compare with."""
    with results(db_path) as connection:
        connection.execute(
            "INSERT OR IGNORE INTO parts (fire, item, total_items, token) VALUES (?, ?, ?, 0)", (fire, item, total_items)
        )


def write_part(db_path: str | Path, fire: str, part: Part) -> None:
    """Store an item's result, unless an attempt with the same or a greater token was there first (StaleAttempt)."""
    with results(db_path) as connection:
        written = connection.execute(
            "UPDATE parts SET token = ?, attempt = ?, worker = ?, files = ?, lines = ?, words = ?, digest = ?"
            " WHERE fire = ? AND item = ? AND token < ?",
            (part.token, part.attempt, part.worker, *part.tally.as_row(), fire, part.item, part.token),
        ).rowcount
    if written == 0:
        raise StaleAttempt(f"item {part.item} of {fire}: token {part.token} is not newer than that of the stored result")


def parts(db_path: str | Path, fire: str) -> list[Part]:
    """The results of all items of a fire. Raises Incomplete while one is missing."""
    with results(db_path) as connection:
        rows = connection.execute(
            "SELECT item, token, attempt, worker, total_items, files, lines, words, digest FROM parts"
            " WHERE fire = ? AND token > 0 ORDER BY item",
            (fire,),
        ).fetchall()
    if not rows or len(rows) != rows[0][4]:
        raise Incomplete(f"{len(rows)} items of fire {fire} have been counted, of {rows[0][4] if rows else 'an unknown number'}")
    return [
        Part(item=item, tally=Tally.from_row(sums), token=token, attempt=attempt, worker=worker)
        for item, token, attempt, worker, _, *sums in rows
    ]


def total(db_path: str | Path, fire: str) -> Tally:
    """The sum over all items of a fire. Raises Incomplete while one is missing."""
    return sum((part.tally for part in parts(db_path, fire)), Tally())


def latest_complete_fire(db_path: str | Path) -> str | None:
    """The last scheduled time (ISO 8601, UTC) of which all items have been counted; None if there is none."""
    with results(db_path) as connection:
        row = connection.execute(
            "SELECT fire FROM parts WHERE token > 0 GROUP BY fire HAVING count(*) = max(total_items) ORDER BY fire DESC LIMIT 1"
        ).fetchone()
    return None if row is None else str(row[0])


# ---- the job ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Settings:
    """What the job's parameter says."""

    db_path: str
    checkpoint_every: int
    delay_per_file_ms: float

    @classmethod
    def of(cls, job_parameter: str, environment: Mapping[str, str]) -> Settings:
        """Read the parameter, a JSON object or nothing. Raises ValueError that says what is wrong with it."""
        example = 'job_parameter must be a JSON object such as {"db": "results.db"}'
        try:
            given = json.loads(job_parameter or "{}")
        except ValueError as error:
            raise ValueError(f"{example}: {error}") from None
        if not isinstance(given, dict):
            raise ValueError(example)
        unknown = set(given) - {"db", "checkpoint_every", "delay_per_file_ms"}
        if unknown:
            raise ValueError(f"job_parameter has unknown keys: {', '.join(sorted(unknown))}")
        db_path = given.get("db") or environment.get("EJPY_STDLIB_COUNT_DB")
        if not db_path:
            raise ValueError('no file for the results: set "db" in job_parameter, or EJPY_STDLIB_COUNT_DB')
        every = int(given.get("checkpoint_every", 200))
        if every < 1:
            raise ValueError(f"checkpoint_every is {every}, but must be at least 1")
        return cls(str(db_path), every, float(given.get("delay_per_file_ms", 0)))


def resume(checkpoint: Any, listing: str) -> tuple[int, Tally]:
    """How many files an earlier attempt has counted, and their tally; nothing, if it had another list of files."""
    if checkpoint is None or checkpoint["listing"] != listing:
        return 0, Tally()
    return checkpoint["counted"], Tally.from_row(checkpoint["tally"])


class StdlibCount(ShardedJob):
    """Counts this item's share of the standard library."""

    def execute(self, shard_ctx: ShardContext) -> None:
        settings = Settings.of(shard_ctx.job_parameter, os.environ)
        root, item, fire = standard_library(), shard_ctx.sharding_item, shard_ctx.scheduled_time.isoformat()
        files = [name for name in source_files(root) if item_of(name, shard_ctx.sharding_total_count) == item]
        listing = hashlib.sha256("\n".join(files).encode()).hexdigest()

        reserve_part(settings.db_path, fire, item, shard_ctx.sharding_total_count)
        begin, tally = resume(shard_ctx.checkpoint, listing)
        shard_ctx.log.info("counting from file %d of %d", begin, len(files))
        for counted, name in enumerate(files[begin:], start=begin + 1):
            shard_ctx.raise_if_cancelled()
            tally += tally_of(root, name)
            if settings.delay_per_file_ms:
                shard_ctx.wait(settings.delay_per_file_ms / 1000)
            if counted % settings.checkpoint_every == 0:
                shard_ctx.save_checkpoint({"listing": listing, "counted": counted, "tally": tally.as_row()})
                shard_ctx.log.info("checkpoint after %d files of %d", counted, len(files))

        worker = f"{socket.gethostname()}/{os.getpid()}"
        write_part(settings.db_path, fire, Part(item, tally, shard_ctx.fencing_token, shard_ctx.attempt, worker))
        shard_ctx.log.info("counted %d files, %d lines, %d words", tally.files, tally.lines, tally.words)


# ---- the comparison ---------------------------------------------------------------------------------------------


@click.command()
@click.option("--db", "db_path", required=True, envvar="EJPY_STDLIB_COUNT_DB", help="SQLite file with the results.")
@click.option("--fire", default="latest", show_default=True, help="Scheduled time (ISO 8601, UTC), or `latest` complete one.")
@click.option("--compare", is_flag=True, help="Count alone, too; exit code 1 if the totals differ.")
def main(db_path: str, fire: str, compare: bool) -> None:
    """Show what the workers counted, item by item, and in total."""
    chosen = latest_complete_fire(db_path) if fire == "latest" else fire
    if chosen is None:
        raise click.ClickException(f"{db_path} has no fire of which all items have been counted; is a worker running the job?")
    try:
        counted = parts(db_path, chosen)
    except Incomplete as incomplete:
        raise click.ClickException(str(incomplete)) from incomplete
    click.echo(f"fire {chosen}")
    for part in counted:
        click.echo(f"item {part.item}: {part.tally.files} files, by {part.worker}, attempt {part.attempt}, token {part.token}")
    together = sum((part.tally for part in counted), Tally())
    click.echo(f"together: {together}")
    if compare:
        alone = count_all()
        click.echo(f"alone:    {alone}")
        click.echo("equal" if together == alone else "DIFFERENT")
        if together != alone:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
