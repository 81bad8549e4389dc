"""Workers of ElasticJob and of ejpy share a job, whoever leads: both work, and no item of a fire is run twice."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

from tests.interop.elasticjob.mixed import Installation, MixedJob, overlapping
from tests.support.fleet import now

SECONDS = int(os.environ.get("EJPY_MIXED_SECONDS", "20"))
"""For how long the longest test fires once a second."""


def test_java_leads_and_python_works(installation: Installation, address: str, tmp_path: Path) -> None:
    with MixedJob(installation, address, tmp_path, seconds=0.05) as mixed:
        java = mixed.java("java")
        mixed.wait_until_shared(java)
        python = mixed.python("python")
        owners = mixed.wait_until_shared(java, python)
        assert mixed.view().leader == java.id
        begin = now()
        mixed.wait_for_fires(5)
        assert mixed.twice(begin) == []
        assert {run.item for run in mixed.runs(begin) if run.pid == python.pid} == {i for i in owners if owners[i] == python.id}
        mixed.fleet.stop()
        mixed.wait_until_shared(java)
        mixed.wait_for_fires(2)


def test_python_leads_and_java_works(installation: Installation, address: str, tmp_path: Path) -> None:
    with MixedJob(installation, address, tmp_path, seconds=0.05) as mixed:
        python = mixed.python("python")
        mixed.wait_until_leads(python)
        java = mixed.java("java")
        owners = mixed.wait_until_shared(java, python)
        assert mixed.view().leader == python.id
        begin = now()
        mixed.wait_for_fires(5)
        assert mixed.twice(begin) == []
        by_java = {run.item for run in mixed.runs(begin) if run.pid == java.process.pid}
        assert by_java == {item for item in owners if owners[item] == java.id}
        java.stop()
        mixed.wait_until_shared(python)
        mixed.wait_for_fires(2)
        mixed.fleet.stop()


def test_a_fire_a_second_is_run_once(installation: Installation, address: str, tmp_path: Path) -> None:
    with MixedJob(installation, address, tmp_path, items=10, seconds=0.1) as mixed:
        python = mixed.python("python-1")
        mixed.wait_until_leads(python)
        mixed.wait_until_shared(python, mixed.java("java-1"), mixed.python("python-2"), mixed.java("java-2"))
        [first] = mixed.wait_for_fires(1)
        last = first + timedelta(seconds=SECONDS)
        done = first
        while done <= last:
            [done] = mixed.wait_for_fires(1, after=done)
        runs = [run for run in mixed.runs(first) if run.scheduled_time <= last]
        assert overlapping(runs) == []
        assert [twice for twice in mixed.twice(first) if twice[0].scheduled_time <= last] == []
        fires = {datetime.fromtimestamp(first.timestamp() + i, timezone.utc) for i in range(1, SECONDS + 1)}
        missed = {(fire, item) for fire in fires for item in range(10)} - {(run.scheduled_time, run.item) for run in runs}
        print(f"\n{SECONDS} fires of 10 items: {len(runs)} runs, {len(missed)} missed")
        mixed.fleet.stop()
