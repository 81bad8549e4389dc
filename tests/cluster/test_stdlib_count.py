"""The shipped example on three workers and a real ZooKeeper: the parts add up, whatever happens to the workers.

The fires are counted with a schedule of one instant, so that there is one fire to look at and no next one to help out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

from ejpy.examples import stdlib_count
from tests.support.waiting import wait_until
from tests.support.workers import WorkerProcess
from tests.support.zookeeper import ZooKeeperServer

ITEMS = 6
FIRES_AFTER = timedelta(seconds=20)
"""From when the workers are started; they have to be ready by then."""
SESSION_TIMEOUT_SECONDS = 4


class Cluster:
    """Three workers that will count once, and what they have said."""

    def __init__(self, directory: Path, registry_url: str, **parameter: Any) -> None:
        self.db_path = directory / "results.db"
        self.fire = (datetime.now(timezone.utc) + FIRES_AFTER).replace(microsecond=0)
        config = directory / "jobs.yml"
        config.write_text(yaml.safe_dump({"jobs": {"stdlib-count": self._job(parameter)}}))
        self.workers = [
            WorkerProcess(config, registry_url, directory, name=name, options=("--log-format", "json")) for name in "abc"
        ]

    def _job(self, parameter: dict[str, Any]) -> dict[str, Any]:
        return {
            "class": "ejpy.examples.stdlib_count:StdlibCount",
            "cron": f"{self.fire:%-S %-M %-H %-d %-m} ? {self.fire:%Y}",
            "time_zone": "UTC",
            "sharding_total_count": ITEMS,
            "failover": True,
            "job_parameter": json.dumps({"db": str(self.db_path), **parameter}),
        }

    @property
    def counted(self) -> bool:
        return stdlib_count.latest_complete_fire(self.db_path) is not None

    @property
    def parts(self) -> list[stdlib_count.Part]:
        return stdlib_count.parts(self.db_path, self.fire.isoformat())


def said(worker: WorkerProcess, beginning: str) -> list[dict[str, Any]]:
    """The lines of a worker's bodies that begin so."""
    return [line for line in worker.events if line["logger"] == "ejpy.job.stdlib-count" and line["message"].startswith(beginning)]


def items(lines: list[dict[str, Any]]) -> set[int]:
    return {line["item"] for line in lines}
