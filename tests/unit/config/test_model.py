from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from ejpy.config.model import InvalidJob, JobConfig, ShardingStrategyName, camel_case, write_value
from ejpy.errors import ConfigError
from ejpy.terms import CatchUp, Executor

LEAST: dict[str, Any] = {"job_name": "orders", "job_class": "shop.jobs:Orders", "cron": "0 0 12 * * ?", "sharding_total_count": 3}


def job(**keys: Any) -> JobConfig:
    return JobConfig.model_validate({**LEAST, **keys})


def problems(keys: Mapping[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        JobConfig.model_validate(keys)
    return list(caught.value.problems)


def test_the_defaults() -> None:
    assert job().model_dump(exclude=set(LEAST)) == {
        "time_zone": None,
        "sharding_item_parameters": {},
        "job_parameter": "",
        "failover": False,
        "misfire": True,
        "monitor_execution": True,
        "job_sharding_strategy_type": ShardingStrategyName.AVG_ALLOCATION,
        "disabled": False,
        "overwrite": False,
        "description": "",
        "label": None,
        "props": {},
        "reconcile_interval_minutes": 10,
        "max_time_diff_seconds": -1,
        "static_sharding": False,
        "python_class": None,
        "job_error_handler_type": None,
        "job_listener_types": (),
        "running_marks": False,
        "catch_up": CatchUp.LATEST,
        "misfire_grace": timedelta(minutes=5),
        "claim_timeout": timedelta(seconds=30),
        "failover_max_duration": None,
        "timeout": None,
        "executor": None,
    }


EXAMPLES: dict[str, tuple[str, Any]] = {
    "time_zone": ("Europe/Berlin", "Europe/Berlin"),
    "sharding_item_parameters": ("0=a,2=b", {0: "a", 2: "b"}),
    "job_parameter": ("010", "010"),
    "failover": ("true", True),
    "misfire": ("No", False),
    "monitor_execution": ("OFF", False),
    "job_sharding_strategy_type": ("round_robin", ShardingStrategyName.ROUND_ROBIN),
    "disabled": ("yes", True),
    "overwrite": ("on", True),
    "description": ("true", "true"),
    "label": ("x", "x"),
    "reconcile_interval_minutes": ("0", 0),
    "max_time_diff_seconds": ("-2", -2),
    "static_sharding": ("TRUE", True),
    "catch_up": ("All", CatchUp.ALL),
    "misfire_grace": ("1h30m", timedelta(minutes=90)),
    "claim_timeout": ("2", timedelta(seconds=2)),
    "failover_max_duration": ("10m", timedelta(minutes=10)),
    "timeout": ("500ms", timedelta(milliseconds=500)),
    "executor": ("process", Executor.PROCESS),
    "python_class": ("shop.jobs:Other", "shop.jobs:Other"),
    "job_error_handler_type": ("EMAIL", "EMAIL"),
    "job_listener_types": ("audit, shop.jobs:Listener", ("audit", "shop.jobs:Listener")),
    "running_marks": ("on", True),
}


@pytest.mark.parametrize("key", EXAMPLES)
def test_every_key_takes_a_text_in_either_spelling_and_the_value_itself(key: str) -> None:
    text, value = EXAMPLES[key]
    assert getattr(job(), key) != value
    for spelling in (key, camel_case(key)):
        assert getattr(job(**{spelling: text}), key) == value
        assert getattr(job(**{spelling: value}), key) == value


def test_the_examples_cover_every_optional_key() -> None:
    assert set(EXAMPLES) == set(JobConfig.model_fields) - set(LEAST) - {"props"}


@pytest.mark.parametrize("key", ["sharding_strategy", "shardingStrategy", "jobShardingStrategyType"])
def test_the_strategy_has_a_short_name_too(key: str) -> None:
    assert job(**{key: "STICKY"}).job_sharding_strategy_type is ShardingStrategyName.STICKY


def test_the_class_may_be_given_as_class() -> None:
    keys = {**LEAST, "class": LEAST["job_class"]}
    del keys["job_class"]
    assert JobConfig.model_validate(keys) == job()


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        job().failover = True  # type: ignore[misc]  # what is tested


def test_all_that_is_missing_is_told_at_once() -> None:
    found = problems({})
    assert [line.partition(":")[0] for line in found] == ["job_name", "class", "sharding_total_count"]
    assert all("required" in line for line in found)


@pytest.mark.parametrize(
    ("text", "own"), [("Mine", "Mine"), (" shop.sharding:Mine ", "shop.sharding:Mine"), ("STICKY", None), ("odevity", None)]
)
def test_a_strategy_may_have_a_name_that_others_know(text: str, own: str | None) -> None:
    assert job(job_sharding_strategy_type=text).own_sharding_strategy == own


def test_an_empty_strategy_is_refused() -> None:
    [found] = problems({**LEAST, "jobShardingStrategyType": " "})
    assert found.startswith("jobShardingStrategyType: empty; allowed: AVG_ALLOCATION, ODEVITY, ")


@pytest.mark.parametrize("count", ["0", "-1", 0, -1, 100_001, "3.0", "010", "1_0", "", True, None, 2.5, "9" * 5000, "٣"])
def test_c5_the_item_count_is_a_whole_number_in_its_range(count: object) -> None:
    [found] = problems({**LEAST, "sharding_total_count": count})
    assert found.startswith("sharding_total_count: ")
    assert found.endswith("is not allowed; allowed: a whole number from 1 to 100000")
    assert len(found) < 200


@pytest.mark.parametrize("value", ["ja", "", "1", 1, None, "truee"])
def test_a_flag_is_true_or_false(value: object) -> None:
    [found] = problems({**LEAST, "failover": value})
    assert found.endswith("is not allowed; allowed: true, false")


@pytest.mark.parametrize("key", ["misfire_grace", "claim_timeout", "failover_max_duration", "timeout"])
@pytest.mark.parametrize("value", ["0", "-5s", timedelta(0), timedelta(seconds=-1), True, [1]])
def test_a_duration_must_be_above_0(key: str, value: object) -> None:
    [found] = problems({**LEAST, key: value})
    assert found.startswith(f"{key}: ")


@pytest.mark.parametrize("key", ["reconcile_interval_minutes", "max_time_diff_seconds"])
def test_a_number_fits_a_java_int(key: str) -> None:
    assert getattr(job(**{key: 2**31 - 1}), key) == 2**31 - 1
    assert len(problems({**LEAST, key: 2**31})) == 1


@pytest.mark.parametrize("name", ["", "a/b", "a@-@b", "a\nb", "a\x7f", "x" * 201, ".", "..", "\ud800", "\ue000", "\ufffe", "😀"])
def test_a_job_name_can_be_a_node_of_every_registry(name: str) -> None:
    [found] = problems({**LEAST, "job_name": name})
    assert found.startswith("job_name: ")
    assert found.isprintable()


@pytest.mark.parametrize("name", ["x" * 200, "订单", "a.b", "a b", "a@b", "A-1_2"])
def test_job_names_that_are_allowed(name: str) -> None:
    assert job(job_name=name).job_name == name


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("shardingTotalcount", "shardingTotalCount"),
        ("sharding_totl_count", "sharding_total_count"),
        ("shardingtotalcount", "sharding_total_count"),
        ("Cron", "cron"),
        ("fail_over", "failover"),
        ("monitorExecutions", "monitorExecution"),
        ("job-parameter", "job_parameter"),
    ],
)
def test_g4_an_unknown_key_is_refused_with_the_name_that_was_meant(key: str, meant: str) -> None:
    assert problems({**LEAST, key: "1"}) == [f"{key}: unknown key; did you mean {meant}?"]


def test_g4_a_misspelled_required_key_is_one_problem() -> None:
    keys = {**LEAST, "shardingTotalcount": "3"}
    del keys["sharding_total_count"]
    assert problems(keys) == ["shardingTotalcount: unknown key; did you mean shardingTotalCount?"]


def test_an_unknown_key_that_is_like_none_lists_the_keys() -> None:
    [found] = problems({**LEAST, "zzz": "1"})
    assert found.startswith("zzz: unknown key; allowed: job_name, class, cron, ")


@pytest.mark.parametrize(
    "key",
    ["jobExecutorThreadPoolSizeProviderType", "job_executor_service_handler_type", "job_extra_configurations"],
)
def test_a_key_of_elasticjob_without_effect_is_refused_as_such(key: str) -> None:
    assert problems({**LEAST, key: "LOG"}) == [
        f"{key}: not supported: ElasticJob has this key, but it would have no effect in ejpy; remove it"
    ]


def test_two_spellings_of_one_key_are_refused() -> None:
    assert problems({**LEAST, "jobParameter": "a", "job_parameter": "b"}) == ["job_parameter: given twice, also as jobParameter"]


def test_the_problems_name_their_keys_as_they_were_written() -> None:
    with pytest.raises(InvalidJob) as caught:
        job(timeOut="1", failover="ja", timeout="x", jobParameter=3)
    assert [finding.key for finding in caught.value.findings] == ["timeOut", "jobParameter", "failover", "timeout"]


def test_a_problem_is_one_short_line_whatever_the_value() -> None:
    for line in problems({**LEAST, "catch_up": "x\n\x1b[31m" * 1000, "bad\nkey": 1, "executor": {"a": "\u2028" * 500}}):
        assert line.isprintable()
        assert len(line) < 700


def test_names_in_props_that_are_ejpys_own_are_refused() -> None:
    [found] = problems({**LEAST, "props": {"ejpy.timeout": "5m"}})
    assert "names that begin with ejpy. are ejpy's own" in found


@pytest.mark.parametrize("parameters", [{-1: "a"}, {"x": "a"}, {0: 1}, {0: None}, ["a"], 5])
def test_item_parameters_are_texts_by_item_number(parameters: object) -> None:
    [found] = problems({**LEAST, "sharding_item_parameters": parameters})
    assert found.startswith("sharding_item_parameters: ")


def test_a_text_must_be_one_that_can_be_stored() -> None:
    assert problems({**LEAST, "description": "\ud800"}) == ["description: '\\ud800' holds half a character (a lone surrogate)"]


def test_a_job_without_cron_is_a_one_off_job_and_an_empty_cron_is_a_mistake() -> None:
    assert job(cron=None).cron is None
    assert JobConfig(job_name="orders", job_class="shop.jobs:Orders", sharding_total_count=1).cron is None
    assert problems({**LEAST, "cron": " "})[0].startswith("cron: empty")


# ---- classes and types ----------------------------------------------------------------------------------------------


def without_class(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in LEAST.items() if key != "job_class"} | keys


@pytest.mark.parametrize("key", ["type", "jobType", "elasticJobType"])
@pytest.mark.parametrize(("text", "stored"), [("SCRIPT", "SCRIPT"), ("http", "HTTP"), (" Script ", "SCRIPT")])
def test_a_type_stands_for_its_class_and_is_what_the_registry_holds(key: str, text: str, stored: str) -> None:
    config = JobConfig.model_validate(without_class(**{key: text}))
    assert (config.job_class, config.body_class) == (stored, stored)


def test_a_type_that_ejpy_does_not_have_needs_a_python_class() -> None:
    assert problems(without_class(type="PRINT")) == [
        "type: 'PRINT' is not allowed; allowed: SCRIPT, HTTP; any other needs python_class; "
        "for a class of your own give class instead of a type"
    ]
    config = JobConfig.model_validate(without_class(type="PRINT", python_class="shop.jobs:Print"))
    assert (config.job_class, config.body_class) == ("PRINT", "shop.jobs:Print")


def test_a_job_has_a_class_or_a_type() -> None:
    assert problems(without_class(**{"class": "a:B", "type": "HTTP"})) == [
        "type: a job has a class or a type, and class is given, too; remove one"
    ]
    [found] = problems(without_class())
    assert found == "class: required; give the job's class as module:Class, or its type: SCRIPT, HTTP"


def test_the_python_class_is_run_in_place_of_the_class_that_the_registry_holds() -> None:
    config = job(job_class="com.acme.Job", python_class="shop.jobs:Orders")
    assert (config.job_class, config.body_class) == ("com.acme.Job", "shop.jobs:Orders")
    assert job(python_class="").body_class == LEAST["job_class"]


@pytest.mark.parametrize("value", [5, {"a": "b"}, ["a", ""], ["a,b"], "a,,b", [1], None])
def test_listeners_are_a_list_of_names(value: object) -> None:
    [found] = problems({**LEAST, "job_listener_types": value})
    assert found.startswith("job_listener_types: ")


def test_c6_parameters_of_items_that_do_not_exist_are_a_warning() -> None:
    config = job(sharding_total_count=1, sharding_item_parameters="1=x")
    assert [(w.key, w.message) for w in config.warnings()] == [
        ("sharding_item_parameters", "no effect for item 1: sharding_total_count is 1")
    ]
    assert config.sharding_item_parameters.get(0) is None


def test_c6_items_without_a_parameter_are_no_warning() -> None:
    config = job(sharding_total_count=3, sharding_item_parameters="0=a,2=c")
    assert config.warnings() == []
    assert config.sharding_item_parameters == {0: "a", 2: "c"}


def test_c6_a_warning_names_a_few_items_only() -> None:
    [warning] = job(sharding_total_count=1, sharding_item_parameters=dict.fromkeys(range(1, 1000), "x")).warnings()
    assert warning.message == "no effect for item 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …: sharding_total_count is 1"


def test_failover_without_monitoring_is_a_warning() -> None:
    assert [w.key for w in job(failover=True, monitor_execution=False).warnings()] == ["failover"]


@pytest.mark.parametrize("key", sorted(set(EXAMPLES) - {"sharding_item_parameters"}))
def test_a_value_that_is_written_is_read_back(key: str) -> None:
    value = EXAMPLES[key][1]
    assert getattr(job(**{key: write_value(value)}), key) == value
