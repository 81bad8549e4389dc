"""Bodies that do not end by themselves, and workers that join."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.fleet import Fleet, job, sqlite_url
from tests.support.waiting import PATIENCE_SECONDS, wait_until


def test_l3_an_endless_stream_gives_its_item_to_a_worker_that_joins(tmp_path: Path) -> None:
    """L3: a streaming job held its items for ever. It ends at its next batch once its item is to move."""
    with Fleet(sqlite_url(tmp_path), tmp_path) as fleet:
        settings = {"job_parameter": "", "props": {"streaming.process": "true"}}
        jobs = fleet.write("jobs.yml", {"stream": job(body="tests.cluster.kinds:Endless", items=2, settings=settings)})
        fleet.start(jobs, "a")

        def pids() -> set[int]:
            """Of those who process now."""
            lines = [json.loads(line) for line in fleet.record.read_text().splitlines()] if fleet.record.exists() else []
            return {line["pid"] for line in lines[-20:]}

        wait_until(pids, PATIENCE_SECONDS, "it streams")
        [b] = fleet.launch(jobs, "b")
        wait_until(lambda: b.pid in pids() and len(pids()) == 2, PATIENCE_SECONDS, "both stream")
        assert len(set(fleet.owners("stream").values())) == 2
        fleet.stop()
