"""A short run of the chaos that `scripts/chaos` plays at length: on a real ZooKeeper, and on the embedded registry."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.chaos import SESSION_SECONDS, Scenario, run
from tests.support.fleet import sqlite_url, zookeeper_url

SHORT = Scenario(seed=7, seconds=25, faults=7, items=12)


def test_on_zookeeper_every_due_item_is_run_or_recorded_and_none_is_doubled(zookeeper: str, tmp_path: Path) -> None:
    report = run(SHORT, zookeeper_url(zookeeper, SESSION_SECONDS), tmp_path)
    assert report.passed, report.line()


def test_on_sqlite_every_due_item_is_run_or_recorded_and_none_is_doubled(tmp_path: Path) -> None:
    report = run(SHORT, sqlite_url(tmp_path, SESSION_SECONDS), tmp_path)
    assert report.passed, report.line()
