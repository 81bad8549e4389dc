"""The shipped examples do what they show: counted in parts is counted right, interrupted, repeated and fenced or not."""

from __future__ import annotations

import json
import logging
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ejpy.config.registry_url import parse_url
from ejpy.config_file.file import load_file
from ejpy.errors import JobCancelled, StaleAttempt
from ejpy.examples import stdlib_count
from ejpy.examples.demo import Demo
from ejpy.examples.stdlib_count import Incomplete, Part, Settings, StdlibCount, Tally
from ejpy.job import ShardContext, ShardContextForTest
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
FIRE_TIME = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)
FIRE = FIRE_TIME.isoformat()
ITEMS = 3


def attempt_at(db_path: str, item: int, *, token: int = 1, checkpoint: Any = None, **parameter: Any) -> ShardContextForTest:
    return ShardContext.for_test(
        job_parameter=json.dumps({"db": db_path, **parameter}),
        sharding_total_count=ITEMS,
        sharding_item=item,
        scheduled_time=FIRE_TIME,
        fencing_token=token,
        checkpoint=checkpoint,
    )


@pytest.fixture(scope="module")
def alone() -> Tally:
    return stdlib_count.count_all()


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The results of a complete fire."""
    db_path = str(tmp_path_factory.mktemp("counted") / "new" / "results.db")
    for item in range(ITEMS):
        StdlibCount().execute(attempt_at(db_path, item))
    return db_path


@pytest.fixture
def db_path(tmp_path: Path) -> str:
    return str(tmp_path / "results.db")


def part(token: int, item: int = 0, words: int = 7) -> Part:
    return Part(item=item, tally=Tally(1, 2, words, 2**256 - 1), token=token, attempt=1, worker="earth/1")


# ---- counting ---------------------------------------------------------------------------------------------------


def test_parts_add_up_to_what_one_process_counts(counted: str, alone: Tally) -> None:
    assert alone.files > 500
    assert stdlib_count.total(counted, FIRE) == alone
    shares = [part.tally.files for part in stdlib_count.parts(counted, FIRE)]
    assert len(shares) == ITEMS
    assert min(shares) > alone.files // ITEMS // 2


def test_digest_depends_on_content_and_path_not_on_order(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"x = 1\ny = 2\n")
    (tmp_path / "b.py").write_bytes(b"x = 1\nno newline at the end")
    a, b = (stdlib_count.tally_of(tmp_path, name) for name in ("a.py", "b.py"))
    assert (a.files, a.lines, a.words) == (1, 2, 6)
    assert (b.files, b.lines, b.words) == (1, 2, 8)
    assert a + b == b + a
    (tmp_path / "c.py").write_bytes((tmp_path / "a.py").read_bytes())
    assert stdlib_count.tally_of(tmp_path, "c.py").digest != a.digest


def test_sums_of_digests_stay_within_256_bits() -> None:
    tally = Tally(1, 2, 3, 2**256 - 1) + Tally(1, 2, 3, 2)
    assert tally == Tally(2, 4, 6, 1)
    assert Tally.from_row(json.loads(json.dumps(tally.as_row()))) == tally


def test_only_files_of_python_itself_are_listed_in_order(tmp_path: Path) -> None:
    for name in ("z.py", "b/a.py", "b/data.txt", "site-packages/no.py", "b/dist-packages/no.py", "b/__pycache__/no.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert stdlib_count.source_files(tmp_path) == ["b/a.py", "z.py"]


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_a_file_belongs_to_the_same_item_in_every_process(seed: str) -> None:
    code = "from ejpy.examples.stdlib_count import item_of; print([item_of(n, 6) for n in ('os.py', 'json/decoder.py', 'ä.py')])"
    printed = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "[5, 1, 2]"


# ---- interrupted, repeated, fenced ------------------------------------------------------------------------------


def test_a_later_attempt_goes_on_from_the_checkpoint(db_path: str, counted: str, caplog: pytest.LogCaptureFixture) -> None:
    first = attempt_at(db_path, 0, token=1, checkpoint_every=40, delay_per_file_ms=1)
    ended: list[BaseException] = []

    def run() -> None:
        try:
            StdlibCount().execute(first)
        except JobCancelled as error:
            ended.append(error)

    body = threading.Thread(target=run)
    body.start()
    wait_until(lambda: len(first.saved) >= 2, 30, "two checkpoints")
    first.cancel()
    body.join(30)
    assert ended, "the body did not stop between two files when it was told to"
    with pytest.raises(Incomplete):
        stdlib_count.total(db_path, FIRE)

    with caplog.at_level(logging.INFO):
        StdlibCount().execute(attempt_at(db_path, 0, token=2, checkpoint=first.checkpoint))
    assert f"counting from file {len(first.saved) * 40} of" in caplog.text
    for item in (1, 2):
        StdlibCount().execute(attempt_at(db_path, item))
    assert stdlib_count.total(db_path, FIRE) == stdlib_count.total(counted, FIRE)


def test_a_checkpoint_made_on_other_files_is_not_used(db_path: str, counted: str) -> None:
    foreign = {"listing": "of another Python", "counted": 50, "tally": Tally(50, 1, 1, 1).as_row()}
    StdlibCount().execute(attempt_at(db_path, 0, checkpoint=foreign))
    with sqlite3.connect(db_path) as connection:
        row = connection.execute("SELECT files, lines, words, digest FROM parts").fetchone()
    connection.close()
    assert Tally.from_row(row) == stdlib_count.parts(counted, FIRE)[0].tally


def test_an_older_attempt_cannot_overwrite_a_newer_ones_result(db_path: str) -> None:
    stdlib_count.reserve_part(db_path, FIRE, 0, 1)
    stdlib_count.write_part(db_path, FIRE, part(token=17, words=17))
    for stale in (16, 17):
        with pytest.raises(StaleAttempt, match=f"token {stale} "):
            stdlib_count.write_part(db_path, FIRE, part(token=stale, words=stale + 1000))
    assert stdlib_count.total(db_path, FIRE).words == 17
    stdlib_count.write_part(db_path, FIRE, part(token=18, words=18))
    stdlib_count.reserve_part(db_path, FIRE, 0, 1)  # what the next attempt does first must not reset the guard
    assert stdlib_count.total(db_path, FIRE).words == 18


def test_a_stale_attempt_ends_with_an_error(db_path: str) -> None:
    StdlibCount().execute(attempt_at(db_path, 0, token=9))
    with pytest.raises(StaleAttempt):
        StdlibCount().execute(attempt_at(db_path, 0, token=8))


def test_a_total_is_refused_while_items_are_missing(db_path: str) -> None:
    earlier = (FIRE_TIME - timedelta(minutes=1)).isoformat()
    assert stdlib_count.latest_complete_fire(db_path) is None
    for fire in (earlier, FIRE):
        stdlib_count.reserve_part(db_path, fire, 0, 2)
        stdlib_count.write_part(db_path, fire, part(token=1, item=0))
        stdlib_count.reserve_part(db_path, fire, 1, 2)
    with pytest.raises(Incomplete, match=r"1 items .* of 2"):
        stdlib_count.total(db_path, FIRE)
    stdlib_count.write_part(db_path, earlier, part(token=1, item=1))
    assert stdlib_count.latest_complete_fire(db_path) == earlier
    stdlib_count.write_part(db_path, FIRE, part(token=1, item=1))
    assert stdlib_count.latest_complete_fire(db_path) == FIRE


# ---- parameter and command line ---------------------------------------------------------------------------------


def test_the_parameter_names_the_file_of_results_or_the_environment_does() -> None:
    assert Settings.of('{"db": "a.db", "delay_per_file_ms": 2}', {}) == Settings("a.db", 200, 2)
    assert Settings.of("", {"EJPY_STDLIB_COUNT_DB": "b.db"}) == Settings("b.db", 200, 0)


@pytest.mark.parametrize(
    ("parameter", "complaint"),
    [
        ("", "EJPY_STDLIB_COUNT_DB"),
        ('{"db": "a.db", "delay": 1}', "unknown keys: delay"),
        ('{"db": "a.db", "checkpoint_every": 0}', "at least 1"),
        ("a.db", "JSON object"),
        ("[1]", "JSON object"),
    ],
)
def test_a_wrong_parameter_says_what_is_wrong(parameter: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Settings.of(parameter, {})


def test_the_comparison_says_equal(counted: str, alone: Tally) -> None:
    result = CliRunner().invoke(stdlib_count.main, ["--db", counted, "--compare"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-3:] == [f"together: {alone}", f"alone:    {alone}", "equal"]
    assert result.output.startswith(f"fire {FIRE}\nitem 0: ")


def test_the_comparison_finds_a_wrong_part(counted: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.db"
    wrong.write_bytes(Path(counted).read_bytes())
    with sqlite3.connect(wrong) as connection:
        connection.execute("UPDATE parts SET words = words + 1 WHERE item = 1")
    connection.close()
    result = CliRunner().invoke(stdlib_count.main, ["--db", str(wrong), "--fire", FIRE, "--compare"])
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == "DIFFERENT"


@pytest.mark.parametrize(("fire", "complaint"), [("latest", "no fire"), ("2026-01-01T00:00:00+00:00", "0 items")])
def test_the_command_says_when_there_is_nothing_to_show(db_path: str, fire: str, complaint: str) -> None:
    result = CliRunner().invoke(stdlib_count.main, ["--db", db_path, "--fire", fire])
    assert result.exit_code == 1
    assert complaint in result.output


# ---- the demonstration --------------------------------------------------------------------------------------------------


def test_the_demo_tells_what_runs_where(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        Demo().execute(
            ShardContext.for_test(
                sharding_total_count=4, sharding_item=2, sharding_parameter="Shanghai", scheduled_time=FIRE_TIME
            )
        )
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == f"item 2 of 4, Shanghai: runs on {socket.gethostname()} in process {os.getpid()}"


def test_the_shipped_configuration_is_right() -> None:
    file = load_file(ROOT / "conf" / "jobs.yml", {}, now=FIRE_TIME)
    assert file.warnings == ()
    assert parse_url(file.registry or "").scheme == "sqlite"
    assert {job.job_name: job.sharding_total_count for job in file.jobs} == {"demo": 4, "stdlib-count": 6}
    (counting,) = [job for job in file.jobs if job.job_name == "stdlib-count"]
    assert Settings.of(counting.job_parameter, {}).db_path == "var/stdlib-count.db"
