"""The configuration file: what is read, and that every mistake is told at once, in one line, with its place."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ejpy.config.model import ShardingStrategyName
from ejpy.config_file.file import WorkerFile, load_file, load_text
from ejpy.errors import ConfigError
from ejpy.terms import CatchUp, Executor

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)

pytestmark = pytest.mark.usefixtures("shop")

GOOD = """\
jobs:
  orders:
    class: shop.jobs:Orders
    cron: '0 0/5 * * * ?'
    sharding_total_count: 3
"""


def load(text: str, **environ: str) -> WorkerFile:
    return load_text(textwrap.dedent(text), "jobs.yml", environ, now=NOW)


def problems(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **environ)
    assert all(problem.isprintable() for problem in caught.value.problems)
    return list(caught.value.problems)


def with_keys(*lines: str) -> str:
    return GOOD + "".join(f"    {line}\n" for line in lines)


def problem(*lines: str, **environ: str) -> str:
    """The one problem of a file that has these lines besides good ones."""
    [found] = problems(with_keys(*lines), **environ)
    return found


# ---- what is read -------------------------------------------------------------------------------------------------


def test_a_file_is_read() -> None:
    file = load(
        """\
        registry: zookeeper://localhost:2181/example
        jobs:
          orders:
            class: shop.jobs:Orders
            cron: 0 0/5 * * * ?
            time_zone: Europe/Berlin
            sharding_total_count: 3
            sharding_item_parameters: {0: Beijing, 1: 'a=1,b=2', 2: ''}
            job_parameter: 010
            failover: yes
            sharding_strategy: sticky
            label: no
            props: {streaming.process: true, n: 1.50}
            catch_up: all
            misfire_grace: 1h30m
            claim_timeout: 2
            timeout:
            executor: process
          fetch:
            class: shop.jobs:Fetch
            cron: '@daily'
            shardingTotalCount: 1
            shardingItemParameters: 0=x
        """
    )
    assert file.registry == "zookeeper://localhost:2181/example"
    assert file.warnings == ()
    orders, fetch = file.jobs
    assert (orders.job_name, orders.job_class, orders.cron) == ("orders", "shop.jobs:Orders", "0 0/5 * * * ?")
    assert orders.sharding_item_parameters == {0: "Beijing", 1: "a=1,b=2", 2: ""}
    assert (orders.job_parameter, orders.label, orders.failover) == ("010", "no", True)
    assert orders.job_sharding_strategy_type is ShardingStrategyName.STICKY
    assert orders.props == {"streaming.process": "true", "n": "1.50"}
    assert (orders.catch_up, orders.executor, orders.timeout) == (CatchUp.ALL, Executor.PROCESS, None)
    assert (orders.misfire_grace, orders.claim_timeout) == (timedelta(minutes=90), timedelta(seconds=2))
    assert (fetch.job_name, fetch.sharding_total_count, fetch.sharding_item_parameters) == ("fetch", 1, {0: "x"})


def test_names_of_jobs_are_texts_whatever_they_look_like() -> None:
    body = "{class: shop.jobs:Orders, cron: '@daily', sharding_total_count: 1}"
    file = load(f"jobs:\n  010: {body}\n  true: {body}\n  null: {body}\n  2026-01-01: {body}\n")
    assert [job.job_name for job in file.jobs] == ["010", "true", "null", "2026-01-01"]


def test_an_anchor_may_stand_for_a_value() -> None:
    file = load(GOOD + "    job_parameter: &p x\n    description: *p\n")
    assert file.jobs[0].description == "x"


def test_the_name_may_be_repeated_but_not_changed() -> None:
    assert load(with_keys("jobName: orders")).jobs[0].job_name == "orders"
    assert problem("job_name: other") == (
        "jobs.yml:6: job 'orders': job_name: 'other' is not the name that the job stands under; remove it"
    )


def test_c6_parameters_of_items_that_do_not_exist_are_a_warning() -> None:
    file = load(with_keys("failover: true", "shardingItemParameters: 3=x"))
    assert file.warnings == ("jobs.yml:7: job 'orders': shardingItemParameters: no effect for item 3: sharding_total_count is 3",)
    assert file.jobs[0].sharding_item_parameters.get(0) is None


def test_the_registry_address_is_not_shown_by_the_file() -> None:
    file = load("registry: zookeeper://user:secret@host/x\n" + GOOD)
    assert "secret" not in repr(file)


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.yml"
    path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert [job.job_name for job in load_file(path, {}, now=NOW).jobs] == ["orders"]


# ---- kinds of job, classes, handlers, listeners -------------------------------------------------------------------------


def test_a_job_of_a_type_needs_no_class() -> None:
    file = load(
        """\
        jobs:
          backup:
            type: script
            cron: '@daily'
            sharding_total_count: 1
            props: {script.command.line: 'backup.sh --all'}
          ping:
            type: HTTP
            cron: '@daily'
            sharding_total_count: 1
            props: {http.uri: 'http://localhost/ping', http.method: GET}
        """
    )
    assert [(job.job_class, job.body_class) for job in file.jobs] == [("SCRIPT", "SCRIPT"), ("HTTP", "HTTP")]


SCRIPT = GOOD.replace("class: shop.jobs:Orders", "type: SCRIPT")


def test_g8_a_script_job_without_a_command_line_is_refused_when_it_is_loaded() -> None:
    missing = "job 'orders': props: script.command.line: is missing; it must be a command, such as /opt/report/run.sh --daily"
    assert problems(SCRIPT) == [f"jobs.yml:3: {missing}"]
    assert problems(SCRIPT + "    props: {script.command.line: ''}\n") == [f"jobs.yml:6: {missing}"]


def test_a_misspelled_prop_is_one_problem() -> None:
    """It is unknown, and what it should be is missing."""
    [found] = problems(SCRIPT + "    props: {script.comand.line: x}\n")
    assert found.endswith("props: 'script.comand.line': unknown name; did you mean script.command.line?")
    [found] = problems(SCRIPT + "    props: {scirpt.command.line: x}\n")
    assert found.endswith("props: script.command.line: is missing; is it what 'scirpt.command.line' should be?")
    found, other = problems(SCRIPT.replace("SCRIPT", "HTTP") + "    props: {http.urll: 'http://localhost/ping'}\n")
    assert found.endswith("'http.urll': unknown name; did you mean http.url?")
    assert "http.method: is missing" in other


def test_a_problem_of_a_prop_has_the_line_of_the_prop() -> None:
    props = [
        "job_error_handler_type: EMAIL",
        "props:",
        "  n: 1",
        "  http.uri: 'http://[::1'",
        "  http.methd: GET",
        "  email.from: a@example.org",
        "  email.to:",
        "    ops@@example.org",
        "  email.username: ops",
        "  'http.read.timeout.milliseconds': 0",
    ]
    found = problems(with_keys(*props).replace("class: shop.jobs:Orders", "type: HTTP"))
    assert [(int(line.split(":")[1]), line.split(": ")[3]) for line in found] == [
        (7, "email.host"),  # what is missing has no line of its own
        (7, "email.port"),
        (9, "http.uri"),
        (10, "'http.methd'"),
        (12, "email.to"),
        (14, "email.username, email.password"),
        (15, "http.read.timeout.milliseconds"),
    ]


def test_the_props_of_other_kinds_are_checked_too(module: Callable[[str, str], Path]) -> None:
    assert problems(SCRIPT.replace("SCRIPT", "HTTP"))[0].startswith("jobs.yml:3: job 'orders': props: http.uri: ")
    module(
        "flow",
        """
        from ejpy.jobs import DataflowJob
        class Flow(DataflowJob):
            def fetch_data(self, shard_ctx): pass
            def process_data(self, shard_ctx, data): pass
        """,
    )
    text = with_keys("props: {streaming.process: perhaps}")
    assert load(text).jobs, "the props of a simple job are its own"
    assert problems(text.replace("shop.jobs:Orders", "flow:Flow")) == [
        "jobs.yml:6: job 'orders': props: streaming.process: 'perhaps' is not allowed; allowed: true, false"
    ]


def test_props_that_cannot_be_read_are_one_problem() -> None:
    [found] = problems(SCRIPT + "    props: {script.command.line: '${NOT_SET}'}\n")
    assert "NOT_SET is not set" in found


def test_class_and_type_exclude_each_other_and_one_is_needed() -> None:
    assert problem("type: HTTP").startswith(
        "jobs.yml:6: job 'orders': type: a job has a class or a type, and class is given, too"
    )
    assert problems(GOOD.replace("class: shop.jobs:Orders", "type: DATAFLOW")) == [
        "jobs.yml:3: job 'orders': type: 'DATAFLOW' is not allowed; allowed: SCRIPT, HTTP; any other needs python_class; "
        "for a class of your own give class instead of a type"
    ]


def test_a_java_class_is_run_by_a_python_class() -> None:
    text = GOOD.replace("shop.jobs:Orders", "com.acme.Orders")
    assert problems(text)[0].startswith("jobs.yml:3: job 'orders': class: 'com.acme.Orders' is not of the form module:Class")
    [job] = load(text + "    python_class: shop.jobs:Fetch\n").jobs
    assert (job.job_class, job.body_class) == ("com.acme.Orders", "shop.jobs:Fetch")
    assert problems(text + "    python_class: shop.jobs:Ftch\n") == [
        "jobs.yml:6: job 'orders': python_class: module shop.jobs has no class Ftch; did you mean Fetch?"
    ]
    assert problems(text + "    python_class: shop.jobs:Fetch\n    executor: thread\n")[0].startswith(
        "jobs.yml:7: job 'orders': executor: thread cannot run Fetch"
    )


def test_an_error_handler_is_one_that_is_known_and_has_what_it_needs() -> None:
    assert load(with_keys("job_error_handler_type: ignore")).jobs[0].job_error_handler_type == "ignore"
    assert problem("jobErrorHandlerType: EMIAL") == (
        "jobs.yml:6: job 'orders': jobErrorHandlerType: error handler 'EMIAL' is unknown; did you mean EMAIL?"
    )
    found = problems(with_keys("job_error_handler_type: WECHAT", "props: {wechat.webhook: 'ftp://hunter2'}"))
    assert found == [
        "jobs.yml:7: job 'orders': props: wechat.webhook: not an address that begins with https:// or http:// "
        "(it is not shown here)"
    ]


def test_listeners_are_a_list_or_a_text_and_are_loaded(module: Callable[[str, str], Path]) -> None:
    module("listening", "from ejpy.listeners import JobListener\nclass A(JobListener): pass\nclass B(JobListener): pass\n")
    for written in ("[listening:A, listening:B]", "listening:A, listening:B", "\n    - listening:A\n    - listening:B"):
        assert load(with_keys(f"job_listener_types: {written}")).jobs[0].job_listener_types == ("listening:A", "listening:B")
    assert load(with_keys("jobListenerTypes:")).jobs[0].job_listener_types == ()
    found = problem("jobListenerTypes: [listening:A, listening:C]")
    assert found.startswith("jobs.yml:6: job 'orders': jobListenerTypes: listening:C cannot be loaded: ")
    assert "a mapping is not allowed here" in problem("job_listener_types: [{a: b}]")
    assert "the tag '!x' is not allowed" in problem("job_listener_types: !x [a]")


# ---- one-off jobs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("null", ["null", "~", "NULL"])
def test_a_cron_that_is_null_makes_a_one_off_job(null: str) -> None:
    assert load(GOOD.replace("'0 0/5 * * * ?'", null)).jobs[0].cron is None


@pytest.mark.parametrize("cron", ["", "''", "' '", "${CRON:}"])
def test_a_cron_without_a_value_is_a_mistake(cron: str) -> None:
    assert problems(GOOD.replace("'0 0/5 * * * ?'", cron)) == [
        "jobs.yml:4: job 'orders': cron: empty; give a cron expression, for instance '0 0/5 * * * ?', or null for a one-off job"
    ]


def test_g4_a_cron_that_was_forgotten_is_told_what_a_one_off_job_needs() -> None:
    [found] = problems(GOOD.replace("    cron: '0 0/5 * * * ?'\n", ""))
    assert found == (
        "jobs.yml:2: job 'orders': cron: required; give a cron expression, for instance '0 0/5 * * * ?'; "
        "for a one-off job, which runs only when it is triggered, write cron: null"
    )
    assert problems(GOOD.replace("cron:", "crom:")) == ["jobs.yml:4: job 'orders': crom: unknown key; did you mean cron?"]


# ---- G4: everything that is wrong, at once ------------------------------------------------------------------------


def test_g4_all_errors_of_a_file_are_listed_in_one_go_in_the_order_of_lines() -> None:
    found = problems(
        """\
        registri: zookeeper://localhost
        jobs:
          a:
            class: shop.jobs:Ordres
            cron: */5 * * * * ?
            shardingTotalcount: 3
            jobShardingStrategyType: ROUNDROBIN
          b:
            sharding_total_count: ${COUNT}
            timeout: [5m]
            props: {x: {y: z}}
          c:
            class: nowhere.jobs:Job
            cron: 0 0 0 31 2 ?
            time_zone: Mars/Olympus
            sharding_total_count: 0
            sharding_item_parameters: {0: a, x: b}
            failover: perhaps
            job_extra_configurations: x
        """
    )
    begun = [
        "jobs.yml:1: registri: unknown key; did you mean registry?",
        "jobs.yml:4: job 'a': class: module shop.jobs has no class Ordres; did you mean Orders?",
        "jobs.yml:5: job 'a': cron: ",
        "jobs.yml:6: job 'a': shardingTotalcount: unknown key; did you mean shardingTotalCount?",
        "jobs.yml:7: job 'a': jobShardingStrategyType: 'ROUNDROBIN' is not allowed; did you mean ROUND_ROBIN? allowed: ",
        "jobs.yml:8: job 'b': class: required; ",
        "jobs.yml:8: job 'b': cron: required; ",
        "jobs.yml:9: job 'b': sharding_total_count: the environment variable COUNT is not set; ",
        "jobs.yml:10: job 'b': timeout: a list is not allowed here; allowed: a single value",
        "jobs.yml:11: job 'b': props: x: a mapping is not allowed here; allowed: a single value",
        "jobs.yml:13: job 'c': class: there is no module nowhere (of nowhere.jobs) on Python's path",
        "jobs.yml:14: job 'c': cron: ",
        "jobs.yml:15: job 'c': time_zone: ",
        "jobs.yml:16: job 'c': sharding_total_count: '0' is not allowed; allowed: a whole number from 1 to 100000",
        "jobs.yml:17: job 'c': sharding_item_parameters: 'x' is not an item number; ",
        "jobs.yml:18: job 'c': failover: 'perhaps' is not allowed; allowed: true, false",
        "jobs.yml:19: job 'c': job_extra_configurations: not supported: ",
    ]
    assert [line[: len(expected)] for line, expected in zip(found, begun, strict=True)] == begun


@pytest.mark.parametrize("key", ["class", "cron", "sharding_total_count"])
def test_g4_a_required_key_is_missing(key: str) -> None:
    without = "".join(line for line in GOOD.splitlines(keepends=True) if not line.lstrip().startswith(f"{key}:"))
    [found] = problems(without)
    assert found.startswith(f"jobs.yml:2: job 'orders': {key}: required; ")


@pytest.mark.parametrize("key", ["class", "cron", "sharding_total_count"])
def test_g4_a_required_key_is_empty(key: str) -> None:
    emptied = "".join(f"    {key}:\n" if line.lstrip().startswith(f"{key}:") else line for line in GOOD.splitlines(keepends=True))
    [found] = problems(emptied)
    assert f"job 'orders': {key}: " in found


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("jobs: {}\njobs: {}\n", "jobs.yml:2: jobs: given twice, first in line 1"),
        (GOOD + "  orders:\n", "jobs.yml:6: jobs: orders: given twice, first in line 2"),
        (with_keys("cron: '@daily'"), "jobs.yml:6: job 'orders': cron: given twice, first in line 4"),
        (
            with_keys("shardingTotalCount: 5"),
            "jobs.yml:6: job 'orders': shardingTotalCount: given twice, also as sharding_total_count",
        ),
        (with_keys("props: {a: 1, b: 2, a: 3}"), "jobs.yml:6: job 'orders': props: a: given twice, first in line 6"),
        (
            with_keys("sharding_item_parameters:", "  0: a", "  ' 0': b"),
            "jobs.yml:8: job 'orders': sharding_item_parameters: ' 0' is given twice",
        ),
    ],
)
def test_a_key_that_is_given_twice_is_refused_at_any_level(text: str, line: str) -> None:
    assert line in problems(text)


def test_c7_values_that_the_text_form_cannot_hold_are_told_with_job_and_key() -> None:
    for text in ("0=a=b", "0=", "x=1", "0=a,0=b", '0={"a":1,"b":2}'):
        found = problem(f"sharding_item_parameters: '{text}'")
        assert found.startswith("jobs.yml:6: job 'orders': sharding_item_parameters: ")
    assert load(with_keys("sharding_item_parameters: ' 0=Beijing, 1=Shanghai '")).jobs[0].sharding_item_parameters == {
        0: "Beijing",
        1: "Shanghai",
    }


def test_c7_a_mapping_holds_any_text() -> None:
    file = load(with_keys("sharding_item_parameters:", """  0: '{"a":1,"b":2}'""", "  1: a=b,c=d", "  2: ''"))
    assert file.jobs[0].sharding_item_parameters == {0: '{"a":1,"b":2}', 1: "a=b,c=d", 2: ""}
    assert problem("sharding_item_parameters: {0: }") == (
        "jobs.yml:6: job 'orders': sharding_item_parameters: 0: no value; write '' for an empty one"
    )


@pytest.mark.parametrize(
    ("executor", "job_class"), [("asyncio", "Orders"), ("thread", "Fetch"), ("process", "Fetch"), ("ASYNCIO", "Orders")]
)
def test_an_executor_that_cannot_run_the_class_is_refused(executor: str, job_class: str) -> None:
    [found] = problems(GOOD.replace("Orders", job_class) + f"    executor: {executor}\n    bad_key: 1\n")[:1]
    assert found.startswith(f"jobs.yml:6: job 'orders': executor: {executor.lower()} cannot run {job_class}: ")


def test_a_cron_expression_that_never_fires_is_refused() -> None:
    [found] = problems(GOOD.replace("0 0/5 * * * ?", "0 0 0 1 1 ? 2025"))
    assert found.startswith("jobs.yml:4: job 'orders': cron: ")
    load_text(GOOD.replace("0 0/5 * * * ?", "0 0 0 1 1 ? 2025"), "jobs.yml", {}, now=NOW - timedelta(days=366))


def test_a_wrong_zone_is_a_problem_of_the_zone_only() -> None:
    assert problem("time_zone: Mars/Olympus").startswith("jobs.yml:6: job 'orders': time_zone: ")
    never, zone = problems(with_keys("time_zone: Mars/Olympus").replace("0 0/5 * * * ?", "0 0 0 31 2 ?"))
    assert never.startswith("jobs.yml:4: job 'orders': cron: ")
    assert "Mars" not in never
    assert "Mars" in zone


def test_a_remark_on_a_cron_expression_is_a_warning() -> None:
    file = load(GOOD.replace("0 0/5 * * * ?", "0 0 12 ? * MON-FRI/2"))
    [warning] = file.warnings
    assert warning.startswith("jobs.yml:4: job 'orders': cron: ")


@pytest.mark.parametrize("name", ["a/b", "a@-@b", "x" * 201, "''", '"a\\nb"'])
def test_a_name_that_cannot_be_a_node_is_refused(name: str) -> None:
    [found] = problems(GOOD.replace("orders:", f"{name}:"))
    assert found.startswith("jobs.yml:2: job '")
    assert "job_name: " in found


# ---- G2: quotes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cron", ["*/5 * * * * ?", "* * * * *", "? 0 12 * * *", "@daily", "*daily"])
def test_g2_an_unquoted_cron_is_told_with_the_hint_to_quote_it(cron: str) -> None:
    found = problems(GOOD.replace("'0 0/5 * * * ?'", cron))
    assert found[0] == (
        f"jobs.yml:4: job 'orders': cron: YAML gives '{cron[0]}' at the beginning a meaning of its own; "
        f"put the cron expression in quotes: cron: '{cron}'"
    )


def test_g2_a_cron_that_needs_no_quotes_is_read() -> None:
    assert load(GOOD.replace("'0 0/5 * * * ?'", "0/5 * * * * ?")).jobs[0].cron == "0/5 * * * * ?"


def test_g2_every_unquoted_value_of_a_file_is_told() -> None:
    found = problems(
        """\
        jobs:
          a:
            class: shop.jobs:Orders
            cron: */5 * * * * ?
            sharding_total_count: 1
            description: first: second
            job_parameter: it's: "this"
          b:
            class: shop.jobs:Orders
            cron: @hourly
            sharding_total_count: -1
        """
    )
    assert [line.split(": YAML")[0] for line in found[:4]] == [
        "jobs.yml:4: job 'a': cron",
        "jobs.yml:6: job 'a': description",
        "jobs.yml:7: job 'a': job_parameter",
        "jobs.yml:10: job 'b': cron",
    ]
    assert found[2].endswith("""put the value in quotes: job_parameter: 'it''s: "this"'""")
    assert found[4:] == [
        "jobs.yml:11: job 'b': sharding_total_count: '-1' is not allowed; allowed: a whole number from 1 to 100000"
    ]


def test_g2_reading_ends_even_if_everything_wants_quotes() -> None:
    found = problems("jobs:\n  a:\n" + "".join(f"    k{n}: @x\n" for n in range(100)))
    assert 20 <= len(found) <= 120


def test_quotes_do_not_help_other_mistakes() -> None:
    [found] = problems("jobs:\n  a: [1, 2\n")
    assert found.startswith("jobs.yml:2: not valid YAML: ")


# ---- the file as such ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "jobs.yml: the file is empty; it needs the key jobs"),
        ("# only a comment\n", "jobs.yml: the file is empty; it needs the key jobs"),
        ("registry: memory://\n", "jobs.yml:1: jobs: no jobs; give at least one"),
        ("jobs:\n", "jobs.yml:1: jobs: no jobs; give at least one"),
        ("jobs: {}\n", "jobs.yml:1: jobs: no jobs; give at least one"),
        ("jobs: [a]\n", "jobs.yml:1: jobs: must be a mapping of job names to their keys"),
        ("jobs: x\n", "jobs.yml:1: jobs: must be a mapping of job names to their keys"),
        ("- jobs\n", "jobs.yml:1: the file must be a mapping with the key jobs"),
        ("jobs\n", "jobs.yml:1: the file must be a mapping with the key jobs"),
        ("jobs:\n  a:\n", "jobs.yml:2: job 'a': must be a mapping; it needs class, cron, sharding_total_count"),
        ("jobs:\n\ta:\n", "jobs.yml:2: a tab; YAML is indented with blanks"),
        ("jobs:\n  a: {}\n---\njobs:\n", "jobs.yml:3: more than one YAML document; remove the line ---"),
        ("jobs:\n  a: \x00\n", "jobs.yml:2: the character U+0000 is not allowed in YAML"),
        ("registry: [a]\n" + GOOD, "jobs.yml:1: registry: a list is not allowed here; allowed: a single value"),
        ("? [a]\n: b\n" + GOOD, "jobs.yml:1: a key must be a single text"),
    ],
)
def test_what_is_no_configuration_is_one_line(text: str, said: str) -> None:
    assert problems(text) == [said]


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            load_file(path, {}, now=NOW)
        [found] = caught.value.problems
        return found

    latin, large = tmp_path / "latin.yml", tmp_path / "large.yml"
    latin.write_bytes("jobs:\n  a:\n    description: grün\n".encode("latin-1"))
    large.write_bytes(b"#" * (8 * 1024 * 1024 + 1))
    assert refusal(tmp_path / "none.yml") == f"{tmp_path}/none.yml: cannot be read: No such file or directory"
    assert refusal(tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    assert refusal(latin) == f"{latin}:3: byte 0xfc is not UTF-8; save the file as UTF-8"
    assert refusal(large) == f"{large}: larger than 8388608 bytes; a configuration is smaller"
    assert refusal(Path("a\0b")).startswith("a\\x00b: cannot be read: ")


def test_k7_a_tag_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "pwned"
    tagged = f'!!python/object/apply:os.system ["touch {trace}"]'
    for text in (
        with_keys(f"description: {tagged}"),
        with_keys("props:", f"  a: {tagged}"),
        with_keys(f"props: {tagged}"),
        f"registry: {tagged}\n" + GOOD,
        f"jobs: {tagged}\n",
        f"--- {tagged}\n",
        with_keys(f"{tagged}: x"),
    ):
        assert any("python/object/apply" in line or "must be a" in line or "single text" in line for line in problems(text))
    assert "the tag 'tag:yaml.org,2002:python/name:os.system' is not allowed" in problem("description: !!python/name:os.system x")
    assert "the tag '!own' is not allowed" in problem("props: !own {a: b}")
    assert not trace.exists()


def test_a_file_of_aliases_does_not_explode() -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 30))
    assert problems("l0: &l0 x\n" + levels) == ["jobs.yml:7: more than 500000 nodes, aliases expanded"]


# ---- the registry -------------------------------------------------------------------------------------------------


def test_a_registry_that_cannot_be_is_told_with_its_line_and_with_the_others() -> None:
    text = "jobs:\n  orders:\n    class: shop.jobs:Orders\nregistry: mysql://app:hunter2@db/x\n"
    *others, last = problems(text)
    assert len(others) == 2
    assert last.startswith("jobs.yml:4: registry: '…@db/x' is not a registry URL; it starts with one of zookeeper://")


def test_g10_a_bad_host_or_port_is_told_with_its_line() -> None:
    found = problems("jobs:\n  orders:\n    class: shop.jobs:Orders\nregistry: 'zookeeper://zk:2181,zk2:port,/x'\n")
    assert [line.partition(": entry")[2] for line in found[-2:]] == [
        " 2 ('zk2:port'): the port must be a number from 1 to 65535",
        " 3 (''): it is empty; write host:port and remove surplus commas",
    ]
    assert all(line.startswith("jobs.yml:4: registry: ZooKeeper servers ") for line in found[-2:])


def test_a_registry_of_the_environment_is_looked_at_as_it_comes_out() -> None:
    text = "registry: ${WHERE}\n" + GOOD
    assert load(text, WHERE="").registry is None
    assert problems(text, WHERE="sqlite://x") == [
        "jobs.yml:1: registry: no file; expected sqlite:///relative/path.db or sqlite:////absolute/path.db"
    ]


# ---- classes ------------------------------------------------------------------------------------------------------


def test_a_class_that_could_not_be_called_is_told_with_its_line(module: Callable[[str, str], Path]) -> None:
    path = module("wrong", "from ejpy import ShardedJob\nclass Job(ShardedJob):\n    def execute(self): pass\n")
    [found] = problems(GOOD.replace("shop.jobs:Orders", "wrong:Job"))
    assert found.startswith("jobs.yml:3: job 'orders': class: wrong:Job: execute is called with the context alone: ")
    assert found.endswith(f"; define execute(self, shard_ctx) ({path}:3)")


# ---- G11: the environment -----------------------------------------------------------------------------------------


def test_g11_values_come_from_the_environment() -> None:
    text = "registry: zookeeper://app:${PASSWORD}@${HOSTS:localhost}/x\n" + with_keys(
        "sharding_item_parameters: {0: '${A}', 1: '$${A}'}", "props: {k: '${A}'}", "failover: ${F:true}"
    )
    file = load(text, PASSWORD="s3cret", A="a: [b", COUNT="3")
    assert file.registry == "zookeeper://app:s3cret@localhost/x"
    assert file.jobs[0].sharding_item_parameters == {0: "a: [b", 1: "${A}"}
    assert file.jobs[0].props == {"k": "a: [b"}
    assert file.jobs[0].failover is True


def test_g11_a_value_that_comes_out_as_nothing_is_not_set() -> None:
    text = with_keys("timeout: ${T:}", "label: ${L:}", "props: ${P:}", "sharding_item_parameters: ${I:}")
    job = load(text).jobs[0]
    assert (job.timeout, job.label, job.props, job.sharding_item_parameters) == (None, None, {}, {})
    assert load(text, T="5m", I="0=x").jobs[0].timeout == timedelta(minutes=5)


def test_g11_a_variable_that_is_not_set_is_an_error_of_its_key_only() -> None:
    assert problem("description: ${NOT_SET}") == (
        "jobs.yml:6: job 'orders': description: the environment variable NOT_SET is not set; "
        "set it, or give a default: ${NOT_SET:default}"
    )
    [found] = problems(GOOD.replace("shop.jobs:Orders", "${NOT_SET}"))
    assert found.startswith("jobs.yml:3: job 'orders': class: the environment variable NOT_SET")


def test_g11_names_are_not_replaced() -> None:
    assert "jobs.yml:2: jobs: '${NAME}': ${…} is replaced in values only" in problems(
        GOOD.replace("orders:", "${NAME}:"), NAME="x"
    )


# ---- classes ------------------------------------------------------------------------------------------------------


def test_loading_leaves_the_import_path_alone(module: Callable[[str, str], Path]) -> None:
    module("shop.more", "from shop.jobs import Orders as More")
    before = list(sys.path)
    assert load(GOOD.replace("shop.jobs:Orders", "shop.more:More")).jobs[0].job_class == "shop.more:More"
    assert sys.path == before
