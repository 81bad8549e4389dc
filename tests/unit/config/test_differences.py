"""G6: the file and the registry differ, and users cannot tell which one counts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from ejpy.config.differences import Difference, differences
from ejpy.config.document import from_document, to_document
from ejpy.config.model import JobConfig

LEAST: dict[str, Any] = {"job_name": "orders", "job_class": "shop.jobs:Orders", "cron": "0 0 12 * * ?", "sharding_total_count": 3}

OTHER_VALUES: dict[str, tuple[Any, Difference]] = {
    "cron": ("0 0 13 * * ?", Difference("cron", "0 0 13 * * ?", "0 0 12 * * ?")),
    "time_zone": ("GMT+08:00", Difference("time_zone", "GMT+08:00", "(not set)")),
    "sharding_total_count": (5, Difference("sharding_total_count", "5", "3")),
    "sharding_item_parameters": ("1=x", Difference("sharding_item_parameters.1", "x", "(not set)")),
    "job_parameter": ("p", Difference("job_parameter", "p", "")),
    "failover": (True, Difference("failover", "true", "false")),
    "misfire": (False, Difference("misfire", "false", "true")),
    "monitor_execution": (False, Difference("monitor_execution", "false", "true")),
    "job_sharding_strategy_type": ("STICKY", Difference("job_sharding_strategy_type", "STICKY", "AVG_ALLOCATION")),
    "disabled": (True, Difference("disabled", "true", "false")),
    "description": ("d", Difference("description", "d", "")),
    "label": ("l", Difference("label", "l", "(not set)")),
    "props": ({"a": "b"}, Difference("props.a", "b", "(not set)")),
    "reconcile_interval_minutes": (0, Difference("reconcile_interval_minutes", "0", "10")),
    "max_time_diff_seconds": (5, Difference("max_time_diff_seconds", "5", "-1")),
    "static_sharding": (True, Difference("static_sharding", "true", "false")),
    "job_error_handler_type": ("EMAIL", Difference("job_error_handler_type", "EMAIL", "(not set)")),
    "job_listener_types": (["a", "b"], Difference("job_listener_types", "a,b", "(not set)")),
    "catch_up": ("none", Difference("catch_up", "none", "latest")),
    "misfire_grace": ("1h", Difference("misfire_grace", "1h", "5m")),
    "claim_timeout": (timedelta(seconds=1), Difference("claim_timeout", "1s", "30s")),
    "failover_max_duration": ("10m", Difference("failover_max_duration", "10m", "(not set)")),
    "timeout": ("90s", Difference("timeout", "1m30s", "(not set)")),
    "executor": ("process", Difference("executor", "process", "(not set)")),
    "running_marks": (True, Difference("running_marks", "true", "false")),
}


def job(**keys: Any) -> JobConfig:
    return JobConfig.model_validate({**LEAST, **keys})


@pytest.mark.parametrize("key", OTHER_VALUES)
def test_g6_a_key_that_differs_is_told_with_both_values(key: str) -> None:
    value, expected = OTHER_VALUES[key]
    file = job(**{key: value})
    registry = from_document(to_document(job()), "orders", "shop.jobs:Orders")
    assert differences(file, registry) == [expected]
    assert differences(registry, file) == [Difference(expected.key, expected.registry_value, expected.file_value)]


def test_g6_every_key_is_compared_but_those_that_are_no_difference() -> None:
    assert set(JobConfig.model_fields) - set(OTHER_VALUES) == {"job_name", "job_class", "python_class", "overwrite"}


def test_g6_overwrite_itself_and_the_classes_are_no_difference() -> None:
    assert differences(job(), job()) == []
    assert differences(job(overwrite=True, job_class="a:B", python_class="c:D"), job(job_class="")) == []


def test_g6_a_job_that_is_one_off_on_one_side_only_is_a_difference() -> None:
    assert differences(job(cron=None), job()) == [Difference("cron", "(not set)", "0 0 12 * * ?")]


def test_g6_all_differences_are_listed() -> None:
    file = job(cron="0 0 13 * * ?", sharding_item_parameters="0=a,1=b,2=c", props={"x": "1", "y": "2"}, failover=True)
    registry = job(sharding_item_parameters="0=a,1=B", props={"y": "3", "z": "4"})
    assert differences(file, registry) == [
        Difference("cron", "0 0 13 * * ?", "0 0 12 * * ?"),
        Difference("sharding_item_parameters.1", "b", "B"),
        Difference("sharding_item_parameters.2", "c", "(not set)"),
        Difference("failover", "true", "false"),
        Difference("props.x", "1", "(not set)"),
        Difference("props.y", "2", "3"),
        Difference("props.z", "(not set)", "4"),
    ]


@pytest.mark.parametrize(
    "name",
    ["email.password", "dingtalk.secret", "access-Token", "API_KEY", "aws.credentials", "slack.webhook", "http.uri", "db_pwd"],
)
def test_k5_a_secret_in_props_is_not_shown(name: str) -> None:
    found = differences(job(props={name: "s3cret"}), job(props={name: "0ther"}))
    assert found == [Difference(f"props.{name}", "(hidden)", "(hidden)")]
    assert differences(job(props={name: "s3cret"}), job()) == [Difference(f"props.{name}", "(hidden)", "(not set)")]
