"""ElasticJob's config document."""

from __future__ import annotations

import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.config.document import from_document, to_document
from ejpy.config.model import JobConfig, ShardingStrategyName
from ejpy.errors import ConfigError
from ejpy.terms import CatchUp, Executor

LEAST: dict[str, Any] = {"job_name": "job-0", "job_class": "shop.jobs:Orders", "cron": "0/6 * * * * ?", "sharding_total_count": 3}


def job(**keys: Any) -> JobConfig:
    return JobConfig.model_validate({**LEAST, **keys})


def read(text: str, name: str = "job-0") -> JobConfig:
    return from_document(textwrap.dedent(text).encode(), name, "shop.jobs:Orders")


def refusal(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else textwrap.dedent(text).encode()
    with pytest.raises(ConfigError) as caught:
        from_document(data, "job-0", "shop.jobs:Orders")
    assert all(line.isprintable() and line.startswith("job 'job-0': config in the registry: ") for line in caught.value.problems)
    return [line.removeprefix("job 'job-0': config in the registry: ") for line in caught.value.problems]


# ---- documents of a real ElasticJob -------------------------------------------------------------------------------

GOLDEN = """\
cron: 0/6 * * * * ?
description: ''
disabled: false
failover: false
jobName: job-0
jobParameter: pp
maxTimeDiffSeconds: -1
misfire: true
monitorExecution: true
overwrite: false
reconcileIntervalMinutes: 10
shardingItemParameters: 0=Beijing,1=Shanghai,2=Guangzhou
shardingTotalCount: 3
staticSharding: false
"""
"""As ElasticJob (master, 3.0.6-SNAPSHOT) wrote it to ZooKeeper; its other documents differ from it by these changes."""

GOLDEN_CHANGES: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "as it is": (("", ""), {}),
    "other cron": (("0/6 * * * * ?", "0/4 * * * * ?"), {"cron": "0/4 * * * * ?"}),
    "cron with a year": (("0/6 * * * * ?", "0 0 0 1 1 ? 2098"), {"cron": "0 0 0 1 1 ? 2098"}),
    "failover": (("failover: false", "failover: true"), {"failover": True}),
    "four items": (("shardingTotalCount: 3", "shardingTotalCount: 4"), {"sharding_total_count": 4}),
    "one-off": (("cron: 0/6 * * * * ?\n", ""), {"cron": None}),
}


@pytest.mark.parametrize("change", GOLDEN_CHANGES)
def test_ejpy_writes_the_bytes_that_elasticjob_writes_and_reads_them(change: str) -> None:
    (old, new), keys = GOLDEN_CHANGES[change]
    golden = GOLDEN.replace(old, new, 1).encode()
    parameters = "0=Beijing,1=Shanghai,2=Guangzhou"
    config = job(**{"job_parameter": "pp", "sharding_item_parameters": parameters, **keys})
    assert to_document(config) == golden
    assert from_document(golden, "job-0", "shop.jobs:Orders") == config


# ---- writing ------------------------------------------------------------------------------------------------------


def test_only_keys_that_every_java_worker_knows_are_written() -> None:
    every = job(
        time_zone="GMT+08:00",
        sharding_item_parameters={0: "a", 1: "x=1,y=2"},
        job_sharding_strategy_type="ODEVITY",
        label="l",
        props={"streaming.process": "true"},
        catch_up="all",
        misfire_grace="1h",
        claim_timeout="10s",
        failover_max_duration="10m",
        timeout="90s",
        executor="process",
        running_marks=True,
        job_error_handler_type="EMAIL",
        job_listener_types=["audit", "shop.jobs:Listener"],
        python_class="shop.jobs:Orders",
    )
    assert to_document(every).decode() == textwrap.dedent(
        """\
        cron: 0/6 * * * * ?
        description: ''
        disabled: false
        failover: false
        jobErrorHandlerType: EMAIL
        jobListenerTypes:
        - audit
        - shop.jobs:Listener
        jobName: job-0
        jobParameter: ''
        jobShardingStrategyType: ODEVITY
        label: l
        maxTimeDiffSeconds: -1
        misfire: true
        monitorExecution: true
        overwrite: false
        props:
          ejpy.catch_up: all
          ejpy.claim_timeout: 10s
          ejpy.executor: process
          ejpy.failover_max_duration: 10m
          ejpy.misfire_grace: 1h
          ejpy.running_marks: 'true'
          ejpy.sharding_item_parameters: '{"1": "x=1,y=2"}'
          ejpy.timeout: 1m30s
          streaming.process: 'true'
        reconcileIntervalMinutes: 10
        shardingItemParameters: 0=a
        shardingTotalCount: 3
        staticSharding: false
        timeZone: GMT+08:00
        """
    )


def test_a_strategy_that_java_does_not_know_is_not_in_its_key() -> None:
    document = to_document(job(sharding_strategy="STICKY")).decode()
    assert "jobShardingStrategyType" not in document
    assert "  ejpy.job_sharding_strategy_type: STICKY\n" in document


def test_a_strategy_of_ones_own_is_in_the_key_that_java_reads_unless_it_is_a_python_class() -> None:
    """An entry point may have the name that Java workers know their twin of it by; `module:Class` can be nobody's in Java, and a
    Java leader would fail at it."""
    by_name = job(sharding_strategy="MINE")
    assert "\njobShardingStrategyType: MINE\n" in to_document(by_name).decode()
    assert read(to_document(by_name).decode()) == by_name
    by_class = job(sharding_strategy="shop.sharding:Mine")
    assert "jobShardingStrategyType" not in to_document(by_class).decode()
    assert read(to_document(by_class).decode()) == by_class


def test_a_default_is_left_out_where_elasticjob_leaves_it_out() -> None:
    document = to_document(job(job_error_handler_type="", job_listener_types=[])).decode()
    assert "Type" not in document
    assert "props" not in document
    assert "timeZone" not in document
    assert "label" not in document


def test_a_job_is_a_plain_mapping_for_any_yaml_reader() -> None:
    loaded = yaml.safe_load(to_document(job(job_parameter="010", description="no", props={"a": "1", "b": "true"})))
    assert loaded["jobParameter"] == "010"
    assert loaded["description"] == "no"
    assert loaded["props"] == {"a": "1", "b": "true"}
    assert (loaded["shardingTotalCount"], loaded["misfire"]) == (3, True)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NAME = st.text(
    st.characters(max_codepoint=0xD7FF, exclude_categories=["Cc"], exclude_characters="/@"), min_size=1, max_size=200
).filter(lambda name: name not in (".", ".."))
DURATION = st.integers(1, 10**9).map(lambda milliseconds: timedelta(milliseconds=milliseconds))

JOBS = st.builds(
    JobConfig,
    job_name=NAME,
    job_class=TEXT,
    cron=st.none() | TEXT.filter(str.strip),
    time_zone=st.none() | TEXT,
    sharding_total_count=st.integers(1, 100_000),
    sharding_item_parameters=st.dictionaries(st.integers(0, 99_999), TEXT | st.sampled_from(["", "a=b", "a,b", " a", "a\n"])),
    job_parameter=TEXT,
    failover=st.booleans(),
    misfire=st.booleans(),
    monitor_execution=st.booleans(),
    job_sharding_strategy_type=st.sampled_from(ShardingStrategyName),
    disabled=st.booleans(),
    overwrite=st.booleans(),
    description=TEXT,
    label=st.none() | TEXT,
    props=st.dictionaries(TEXT.filter(lambda name: name and not name.startswith("ejpy.")), TEXT),
    reconcile_interval_minutes=st.integers(-(2**31), 2**31 - 1),
    max_time_diff_seconds=st.integers(-(2**31), 2**31 - 1),
    static_sharding=st.booleans(),
    catch_up=st.sampled_from(CatchUp),
    misfire_grace=DURATION,
    claim_timeout=DURATION,
    failover_max_duration=st.none() | DURATION,
    timeout=st.none() | DURATION,
    executor=st.none() | st.sampled_from(Executor),
    running_marks=st.booleans(),
    job_error_handler_type=st.none() | TEXT,
    job_listener_types=st.lists(TEXT.map(str.strip).filter(lambda name: name and "," not in name)).map(tuple),
)


@settings(deadline=None)  # the machine may be slow
@given(JOBS)
def test_what_is_written_is_read_back_as_the_same(config: JobConfig) -> None:
    document = to_document(config)
    assert from_document(document, config.job_name, config.job_class) == config
    assert to_document(config, previous=document) == document


# ---- reading what others wrote ------------------------------------------------------------------------------------


def test_a_missing_key_means_what_it_means_to_elasticjob() -> None:
    config = read("shardingTotalCount: 1\n")
    assert (config.misfire, config.monitor_execution, config.reconcile_interval_minutes) == (False, False, 0)
    assert config == job(cron=None, sharding_total_count=1, misfire=False, monitor_execution=False, reconcile_interval_minutes=0)


@pytest.mark.parametrize(
    "text",
    [
        "{\"jobName\": \"job-0\", \"cron\": \"0/6 * * * * ?\", \"shardingTotalCount\": \"3\", \"misfire\": \"true\"}",
        "jobName: 'job-0'\ncron: '0/6 * * * * ?'\nshardingTotalCount: '3'\nmisfire: 'true'\n",
        "misfire: yes\nshardingTotalCount: 3\ncron: \"0/6 * * * * ?\"\njobName: job-0\n",
        "---\ncron: 0/6 * * *\n  * ?\nshardingTotalCount: !!int 3\nmisfire: True\n...\n",
    ],
)  # fmt: skip
def test_any_quoting_order_and_style_is_read(text: str) -> None:
    assert read(text) == job(misfire=True, monitor_execution=False, reconcile_interval_minutes=0)


@pytest.mark.parametrize(
    "line",
    [
        "jobExecutorServiceHandlerType: CPU",
        "jobExecutorThreadPoolSizeProviderType: CPU",
        "jobErrorHandlerType: ''",
        "jobListenerTypes: []",
        "jobListenerTypes: ['']",
        "jobListenerTypes:",
        "keyOfALaterRelease: {a: [b]}",
        "jobShardingStrategyType: ''",
        "jobShardingStrategyType: avg_allocation",
        "timeZone: ''",
        "label: null",
        "props:",
        "props: {}",
        "props: {ejpy.setting_of_a_later_ejpy: x}",
        "jobExtraConfigurations:\n- !!org.example.Tracing {type: RDB}",
    ],
)
def test_what_others_write_besides_is_tolerated(line: str) -> None:
    assert read(GOLDEN + line + "\n") == read(GOLDEN)


def test_handlers_and_listeners_that_only_java_knows_are_read() -> None:
    config = read(GOLDEN + "jobErrorHandlerType: OWN\njobListenerTypes: [a, 010]\n")
    assert (config.job_error_handler_type, config.job_listener_types) == ("OWN", ("a", "010"))
    assert read(GOLDEN + "jobListenerTypes: a,b\n").job_listener_types == ("a", "b")


def test_the_class_to_run_is_not_taken_from_a_document() -> None:
    document = GOLDEN + "pythonClass: evil:Job\nprops: {ejpy.python_class: 'evil:Job'}\n"
    assert from_document(document.encode(), "job-0", "com.acme.Job").body_class == "com.acme.Job"
    config = from_document(document.encode(), "job-0", "com.acme.Job", "shop.jobs:Orders")
    assert (config.job_class, config.body_class) == ("com.acme.Job", "shop.jobs:Orders")
    assert b"shop" not in to_document(config)


def test_nothing_given_is_as_if_the_key_was_missing() -> None:
    empty = read("shardingTotalCount: 1\ncron:\nmisfire: ~\njobParameter: null\nshardingItemParameters:\nprops:\njobName:\n")
    assert empty == read("shardingTotalCount: 1\n")


def test_a_key_that_occurs_twice_counts_as_in_elasticjob() -> None:
    assert read(GOLDEN + "jobParameter: last\nshardingItemParameters: '0=a,0=b'\n").job_parameter == "last"
    assert read(GOLDEN + "shardingItemParameters: '0=a,0=b,'\n").sharding_item_parameters == {0: "b"}


def test_g5_a_blank_class_is_accepted_from_a_registry() -> None:
    assert from_document(GOLDEN.encode(), "job-0", "").job_class == ""


def test_an_edit_of_elasticjobs_own_keys_counts() -> None:
    written = to_document(job(sharding_strategy="STICKY", sharding_item_parameters={0: "a=b", 1: "c=d"})).decode()
    edited = written.replace("shardingItemParameters: ''", "shardingItemParameters: 0=edited")
    edited += "jobShardingStrategyType: ODEVITY\n"
    assert read(edited).sharding_item_parameters == {0: "edited", 1: "c=d"}
    assert read(edited).job_sharding_strategy_type is ShardingStrategyName.ODEVITY


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "empty"),
        (b"# nothing\n", "empty"),
        (b"\xff", "not UTF-8: "),
        ("[a]", "not a YAML mapping"),
        ("a text", "not a YAML mapping"),
        ("a: [", "line 1: not valid YAML: "),
        ("a: *b", "line 1: the alias *b has no anchor"),
        (GOLDEN + "---\na: b\n", "line 15: more than one YAML document"),
        ("cron: x\n", "shardingTotalCount: required; "),
        (GOLDEN.replace("Count: 3", "Count: 0"), "shardingTotalCount: '0' is not allowed; "),
        (GOLDEN.replace("Count: 3", "Count: [3]"), "shardingTotalCount: must be a single value"),
        (GOLDEN.replace("misfire: true", "misfire: maybe"), "misfire: 'maybe' is not allowed; "),
        (GOLDEN.replace("jobName: job-0", "jobName: job-1"), "jobName: 'job-1' is not the name of the node"),
        (GOLDEN.replace("0=Beijing", "0=a=b"), "shardingItemParameters: '0=a=b' is not of the form item=value"),
        (GOLDEN + "jobListenerTypes: [[a]]\n", "jobListenerTypes: must be a single value"),
        (GOLDEN + "jobListenerTypes: {a: b}\n", "jobListenerTypes: must be a single value"),
        (GOLDEN + "jobListenerTypes: [!!java.Foo {}]\n", "jobListenerTypes: the tag 'tag:yaml.org,2002:java.Foo' is not allowed"),
        (GOLDEN + "props: {ejpy.running_marks: x}\n", "props: ejpy.running_marks: 'x' is not allowed; "),
        (GOLDEN + "props: [a]\n", "props: must be a mapping"),
        (GOLDEN + "props: {a: [b]}\n", "props: a: must be a single value"),
        (GOLDEN + "props: {ejpy.timeout: soon}\n", "props: ejpy.timeout: 'soon' is not a duration; "),
        (GOLDEN + "props: {ejpy.executor: fork}\n", "props: ejpy.executor: 'fork' is not allowed; "),
        (GOLDEN + "props: {ejpy.sharding_item_parameters: '{'}\n", "props: ejpy.sharding_item_parameters: "),
        (GOLDEN + "props: {ejpy.sharding_item_parameters: '[]'}\n", "props: ejpy.sharding_item_parameters: "),
        (GOLDEN + 'props: {ejpy.sharding_item_parameters: \'{"x": "a"}\'}\n', "props: ejpy.sharding_item_parameters: "),
        (GOLDEN + "props: {ejpy.sharding_item_parameters: '{\"0\": 1}'}\n", "props: ejpy.sharding_item_parameters: "),
        (GOLDEN + f"props: {{ejpy.sharding_item_parameters: '{'[' * 100_000}'}}\n", "props: ejpy.sharding_item_parameters: "),
    ],
)
def test_a_broken_document_is_refused_with_what_is_wrong(text: str | bytes, said: str) -> None:
    assert any(line.startswith(said) for line in refusal(text)), refusal(text)


def test_all_that_is_wrong_with_a_document_is_told() -> None:
    found = refusal(
        GOLDEN.replace("misfire: true", "misfire: x").replace("Count: 3", "Count: x").replace("failover: false", "failover: x")
    )
    assert [line.partition(":")[0] for line in found] == ["shardingTotalCount", "failover", "misfire"]


def test_k7_no_object_is_made_from_a_document(tmp_path: Path) -> None:
    trace = tmp_path / "pwned"
    tagged = f'!!python/object/apply:os.system ["touch {trace}"]'
    for text in (
        tagged,
        f"cron: {tagged}",
        GOLDEN + f"props: {{a: {tagged}}}",
        GOLDEN + f"label: {tagged}",
        f"!!java.Foo {{a: {tagged}}}",
    ):
        assert "is not allowed: a configuration holds plain texts only" in refusal(text)[0]
    harmless = read(GOLDEN + f"jobExtraConfigurations: [{tagged}]\nother: {tagged}\n")
    assert harmless == read(GOLDEN)
    to_document(harmless, previous=(GOLDEN + f"jobExtraConfigurations: [{tagged}]\n").encode())
    assert not trace.exists()


def test_k7_a_document_of_aliases_does_not_explode() -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 30))
    assert refusal("l0: &l0 x\n" + levels) == ["line 7: more than 500000 nodes, aliases expanded"]


# ---- rewriting ----------------------------------------------------------------------------------------------------

TRACING = """\
jobExtraConfigurations:
- !!org.apache.shardingsphere.elasticjob.tracing.yaml.YamlTracingConfiguration
  tracingStorageConfiguration: !!org.apache.shardingsphere.elasticjob.tracing.rdb.yaml.YamlDataSourceConfiguration
    dataSourceClassName: com.zaxxer.hikari.HikariDataSource
    props:
      jdbcUrl: jdbc:h2:mem:trace;DB_CLOSE_DELAY=-1
      password: '010'
  type: RDB
"""


def test_what_ejpy_does_not_act_on_survives_a_rewrite_tags_included() -> None:
    previous = "jobExecutorServiceHandlerType: CPU\njobExecutorThreadPoolSizeProviderType: 'CPU'\n" + TRACING + GOLDEN
    rewritten = to_document(job(failover=True, job_listener_types=["a", "true"]), previous=previous.encode()).decode()
    assert TRACING in rewritten
    assert (
        "\njobExecutorServiceHandlerType: CPU\njobExecutorThreadPoolSizeProviderType: 'CPU'\njobExtraConfigurations:\n"
    ) in rewritten
    assert "\njobListenerTypes:\n- a\n- 'true'\njobName: job-0\n" in rewritten
    assert "\nfailover: true\n" in rewritten
    keys = [line.partition(":")[0] for line in rewritten.splitlines() if line[0].isalpha()]
    assert keys == sorted(keys)


def test_what_says_nothing_or_is_unknown_to_elasticjob_is_not_carried_on() -> None:
    previous = (
        GOLDEN
        + "jobExecutorThreadPoolSizeProviderType: ''\njobExtraConfigurations: []\njobExecutorServiceHandlerType:\n"
        + "unknown: x\nlabel: old\njobErrorHandlerType: EMAIL\njobListenerTypes: [a]\n"
        + "props: {old: x}\n"
    )
    assert to_document(job(), previous=previous.encode()) == to_document(job())


def test_settings_of_a_later_ejpy_survive_a_rewrite_and_ones_that_are_known_do_not() -> None:
    previous = GOLDEN + "props: {ejpy.later: x, ejpy.timeout: 5m, ejpy.sharding_item_parameters: '{}', mine: x}\n"
    assert yaml.safe_load(to_document(job(props={"a": "b"}), previous=previous.encode()))["props"] == {
        "a": "b",
        "ejpy.later": "x",
    }


@pytest.mark.parametrize("previous", [b"", b"\xff", b"a: [", b"!!java.Foo {}"])
def test_of_a_document_that_cannot_be_read_nothing_is_carried_on(previous: bytes) -> None:
    assert to_document(job(), previous=previous) == to_document(job())
