"""The evidence that cluster tests go by is right: what a recording job writes, and what is read from it."""

from __future__ import annotations

import json
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from ejpy.errors import JobCancelled
from ejpy.job import ShardContext, ShardContextForTest
from ejpy.terms import Reason
from tests.support.jobs import RECORD_VARIABLE, Planned, RecordingJob, append_line, read_executions
from tests.support.waiting import wait_until

FIRE_TIME = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "record"
    monkeypatch.setenv(RECORD_VARIABLE, str(path))
    return path


def attempt(item: int = 0, *, job_name: str = "j", token: int = 7, number: int = 1, **behaviour: Any) -> ShardContextForTest:
    return ShardContext.for_test(
        job_name=job_name,
        job_parameter=json.dumps(behaviour),
        sharding_total_count=3,
        sharding_item=item,
        sharding_parameter="Beijing",
        scheduled_time=FIRE_TIME,
        attempt=number,
        reason=Reason.OWNER_LOST if number > 1 else Reason.SCHEDULED,
        fencing_token=token,
    )


def test_an_execution_is_read_as_it_was(record: Path) -> None:
    RecordingJob().execute(attempt(2, token=99, number=2))
    (execution,) = read_executions(record)
    assert (execution.job, execution.item, execution.total, execution.parameter) == ("j", 2, 3, "Beijing")
    assert (execution.scheduled_time, execution.attempt, execution.token) == (FIRE_TIME, 2, 99)
    assert execution.reason is Reason.OWNER_LOST
    assert execution.how == "returned"
    assert execution.end is not None
    assert execution.start <= execution.end


def test_attempts_are_told_apart_and_jobs_can_be_picked(record: Path) -> None:
    RecordingJob().execute(attempt(0, token=1))
    RecordingJob().execute(attempt(0, token=2, number=2))
    RecordingJob().execute(attempt(1, job_name="other"))
    assert [(execution.item, execution.attempt) for execution in read_executions(record, "j")] == [(0, 1), (0, 2)]
    assert len(read_executions(record)) == 3


def test_a_failure_is_recorded_and_raised(record: Path) -> None:
    with pytest.raises(Planned):
        RecordingJob().execute(attempt(1, fail_items=[1]))
    RecordingJob().execute(attempt(0, fail_items=[1]))
    assert [execution.how for execution in read_executions(record)] == ["raised", "returned"]


@pytest.mark.parametrize("deaf", [False, True])
def test_a_held_body_ends_when_it_is_let_go_or_told_to_stop(record: Path, tmp_path: Path, deaf: bool) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    context = attempt(hold=str(hold), deaf=deaf)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            RecordingJob().execute(context)
        except JobCancelled as error:
            raised.append(error)

    body = threading.Thread(target=run)
    body.start()
    wait_until(lambda: read_executions(record), 10, "the body has begun")
    (execution,) = read_executions(record)
    assert (execution.end, execution.how) == (None, None)
    context.cancel()
    if deaf:
        hold.unlink()
    body.join(10)
    assert not body.is_alive()
    assert bool(raised) is not deaf
    assert [execution.how for execution in read_executions(record)] == ["returned" if deaf else "raised"]


def test_only_slow_items_are_slow(record: Path) -> None:
    RecordingJob().execute(attempt(0, slow_items={"1": 3600}))
    RecordingJob().execute(attempt(1, slow_items={"1": 0.2}, seconds=3600))
    _, slow = read_executions(record)
    assert slow.end is not None
    assert slow.end - slow.start >= 0.19


def test_what_is_being_written_is_left_out(record: Path) -> None:
    assert read_executions(record) == []
    RecordingJob().execute(attempt())
    with record.open("a") as file:
        file.write('{"event": "sta')
    assert len(read_executions(record)) == 1


def test_lines_of_many_writers_do_not_mix(record: Path) -> None:
    def write(number: int) -> None:
        for _ in range(200):
            append_line(str(record), {"number": number, "text": "x" * 500})

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    numbers = [json.loads(line)["number"] for line in record.read_text().splitlines()]
    assert [numbers.count(number) for number in range(4)] == [200] * 4


def test_a_wait_that_is_in_vain_says_for_what() -> None:
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: the moon \(last seen: 0\)"):
        wait_until(lambda: 0, 0.05, "the moon")
    assert wait_until(lambda: 7, 0, "seven") == 7
