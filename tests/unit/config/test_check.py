"""`ejpy check`, for what the tests with workers do not show of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ejpy.cli.check import check

pytestmark = pytest.mark.usefixtures("shop")


def checked(path: Path, text: str, *arguments: str) -> str:
    path.write_text(text)
    done = CliRunner().invoke(check, ["--config", str(path), *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_one_off_job_is_said_to_be_one(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yml"
    text = "jobs:\n  orders: {class: 'shop.jobs:Orders', cron: null, sharding_total_count: 3}\n"
    assert checked(path, text) == (f"orders: 3 items, one-off: runs only when it is triggered\n{path}: 1 job, no errors\n")
    [row] = json.loads(checked(path, text, "-o", "json"))
    assert row == {"job": "orders", "cron": None, "time_zone": None, "sharding_total_count": 3, "next_fires": []}


def test_what_is_not_honoured_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "application.yml"
    text = (
        "elasticjob:\n  tracing: {type: RDB}\n  jobs:\n    orders: {elasticJobClass: 'shop.jobs:Orders', "
        "cron: 0 0 12 * * ?, shardingTotalCount: 1}\n"
    )
    assert f"warning: {path}:2: not honoured: elasticjob.tracing\n" in checked(path, text)
