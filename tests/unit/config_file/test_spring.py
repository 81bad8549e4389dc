"""A Spring Boot application's YAML as a configuration file."""

from __future__ import annotations

import textwrap
from datetime import datetime, timezone
from pathlib import Path

import pytest

from ejpy.config.document import to_document
from ejpy.config.registry_url import parse_url
from ejpy.config_file.file import WorkerFile, load_text
from ejpy.errors import ConfigError

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)

pytestmark = pytest.mark.usefixtures("shop")

APPLICATION = """\
spring:
  application:
    name: shop
  datasource:
    url: jdbc:h2:mem:job_event_storage

elasticjob:
  tracing:
    type: RDB
    excludeJobNames: [report]
  regCenter:
    serverLists: zk1:2181, zk2
    namespace: ${spring.application.name}-jobs
  jobs:
    orders:
      elasticJobClass: com.acme.Orders
      cron: 0/5 * * * * ?
      timeZone: GMT+08:00
      shardingTotalCount: 3
      shardingItemParameters: 0=Beijing,1=Shanghai
      jobErrorHandlerType: IGNORE
    backup:
      elasticJobType: SCRIPT
      jobBootstrapBeanName: backupJob
      shardingTotalCount: 1
      props:
        script.command.line: "echo SCRIPT Job: "

ejpy:
  classes:
    com.acme.Orders: shop.jobs:Orders
"""

JOB = """\
elasticjob:
  jobs:
    orders:
      elasticJobClass: shop.jobs:Orders
      cron: 0/5 * * * * ?
      shardingTotalCount: 3
"""


def load(text: str, **environ: str) -> WorkerFile:
    return load_text(textwrap.dedent(text), "application.yml", environ, now=NOW)


def problems(text: str, **environ: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, **environ)
    assert all(problem.isprintable() for problem in caught.value.problems)
    return list(caught.value.problems)


def with_keys(*lines: str) -> str:
    return JOB + "".join(f"      {line}\n" for line in lines)


def with_registry(*lines: str) -> str:
    return JOB + "  regCenter:\n" + "".join(f"    {line}\n" for line in lines)


def registry(*lines: str, **environ: str) -> str:
    found = load(with_registry(*lines), **environ).registry
    assert found is not None
    return found


def test_an_application_is_read() -> None:
    file = load(APPLICATION)
    assert file.registry == "zookeeper://zk1:2181,zk2/shop-jobs"
    assert parse_url(file.registry).namespace == "/shop-jobs"
    orders, backup = file.jobs
    assert (orders.job_name, orders.job_class, orders.body_class) == ("orders", "com.acme.Orders", "shop.jobs:Orders")
    assert (orders.cron, orders.time_zone, orders.sharding_total_count) == ("0/5 * * * * ?", "GMT+08:00", 3)
    assert orders.sharding_item_parameters == {0: "Beijing", 1: "Shanghai"}
    assert orders.job_error_handler_type == "IGNORE"
    assert (backup.job_class, backup.cron, backup.props) == ("SCRIPT", None, {"script.command.line": "echo SCRIPT Job: "})
    assert file.warnings == ("application.yml:8: not honoured: elasticjob.tracing",)


def test_what_a_job_leaves_out_is_what_the_starter_takes_for_it() -> None:
    [job] = load(JOB).jobs
    assert (job.monitor_execution, job.misfire, job.reconcile_interval_minutes) == (False, False, 0)
    assert (job.failover, job.max_time_diff_seconds, job.disabled, job.overwrite) == (False, -1, False, False)
    [job] = load(with_keys("monitorExecution: true", "misfire: true", "reconcileIntervalMinutes: 10")).jobs
    assert (job.monitor_execution, job.misfire, job.reconcile_interval_minutes) == (True, True, 10)


def test_the_document_is_that_of_the_starter() -> None:
    """As ElasticJob (master, 3.0.6-SNAPSHOT) writes a job with the starter's defaults."""
    assert to_document(load(JOB).jobs[0]).decode() == textwrap.dedent(
        """\
        cron: 0/5 * * * * ?
        description: ''
        disabled: false
        failover: false
        jobName: orders
        jobParameter: ''
        maxTimeDiffSeconds: -1
        misfire: false
        monitorExecution: false
        overwrite: false
        reconcileIntervalMinutes: 0
        shardingItemParameters: ''
        shardingTotalCount: 3
        staticSharding: false
        """
    )


def test_keys_are_compared_as_spring_does() -> None:
    file = load(
        """\
        elasticjob:
          reg-center:
            server-lists: zk
            namespace: n
            session_timeout_milliseconds: 6000
          jobs:
            my-job:
              elastic-job-class: shop.jobs:Orders
              cron: 0/5 * * * * ?
              sharding-total-count: 3
              Monitor-Execution: true
              job_parameter: p
        """
    )
    assert file.registry == "zookeeper://zk/n?session_timeout=6000ms"
    [job] = file.jobs
    assert (job.job_name, job.sharding_total_count, job.monitor_execution, job.job_parameter) == ("my-job", 3, True, "p")
    assert problems(JOB + "  reg-center: {}\n  regCenter: {}\n") == [
        "application.yml:8: elasticjob.regCenter: given twice, first in line 7"
    ]
    assert problems(with_keys("sharding-total-count: 4"))[0].startswith(
        "application.yml:7: job 'orders': shardingTotalCount: given"
    )


def test_a_name_in_brackets_is_the_name() -> None:
    assert load(JOB.replace("orders:", '"[my.orders]":')).jobs[0].job_name == "my.orders"


def test_nested_props_are_one_level() -> None:
    text = JOB.replace("elasticJobClass: shop.jobs:Orders", "elasticJobType: SCRIPT")
    [job] = load(text + "      props: {script: {command: {line: x}}, '[a.b]': c}\n").jobs
    assert job.props == {"script.command.line": "x", "a.b": "c"}


def test_listeners_and_an_error_handler_of_java_are_kept_for_java_and_named() -> None:
    file = load(with_keys("jobListenerTypes:", "  - NOOP", "  - LOG", "jobErrorHandlerType: OWN"))
    assert (file.jobs[0].job_listener_types, file.jobs[0].job_error_handler_type) == (("NOOP", "LOG"), "OWN")
    assert [line.partition(";")[0] for line in file.warnings] == [
        "application.yml:7: job 'orders': jobListenerTypes: not honoured: listener 'NOOP' is unknown",
        "application.yml:7: job 'orders': jobListenerTypes: not honoured: listener 'LOG' is unknown",
        "application.yml:10: job 'orders': jobErrorHandlerType: not honoured: error handler 'OWN' is unknown",
    ]
    assert "cannot be loaded" in problems(with_keys("jobListenerTypes: 'shop.jobs:None'"))[0]
    assert "props: wechat.webhook: required" in problems(with_keys("jobErrorHandlerType: WECHAT"))[0]


def test_own_keys_of_a_job_may_stand_among_elasticjobs() -> None:
    [job] = load(with_keys("timeout: 10m", "catchUp: none", "python_class: shop.jobs:Fetch")).jobs
    assert job.timeout is not None
    assert (job.catch_up.value, job.body_class) == ("none", "shop.jobs:Fetch")


# ---- classes ------------------------------------------------------------------------------------------------------------


def test_a_java_class_without_a_python_class_is_one_problem() -> None:
    assert problems(APPLICATION.partition("ejpy:")[0]) == [
        "application.yml:16: job 'orders': elasticJobClass: 'com.acme.Orders' is not of the form module:Class; did you mean "
        "com.acme:Orders? For a class of Java workers, give python_class, too, or ejpy.classes in an elasticjob file."
    ]


def test_a_python_class_that_is_not_there_is_told_where_it_is_named() -> None:
    assert problems(APPLICATION.replace("shop.jobs:Orders", "shop.jobs:Ordres")) == [
        "application.yml:31: job 'orders': pythonClass: module shop.jobs has no class Ordres; did you mean Orders?"
    ]


def test_a_class_given_with_the_job_goes_before_the_mapping() -> None:
    file = load(APPLICATION.replace("shardingTotalCount: 3", "shardingTotalCount: 3\n      pythonClass: shop.jobs:Fetch"))
    assert file.jobs[0].body_class == "shop.jobs:Fetch"


def test_a_type_of_java_is_mapped_as_a_class_is() -> None:
    text = JOB.replace("elasticJobClass: shop.jobs:Orders", "elasticJobType: PRINT")
    assert problems(text)[0].startswith("application.yml:4: job 'orders': elasticJobType: 'PRINT' is not allowed; ")
    [job] = load(text + "ejpy: {classes: {PRINT: 'shop.jobs:Orders'}}\n").jobs
    assert (job.job_class, job.body_class) == ("PRINT", "shop.jobs:Orders")


def test_a_class_that_no_job_has_is_named() -> None:
    file = load(JOB + "ejpy: {classes: {com.acme.Oders: 'shop.jobs:Orders'}}\n")
    assert file.warnings == ("application.yml:7: not honoured: ejpy.classes.com.acme.Oders: no job has this class or type",)
    assert problems(JOB + "ejpy: {clases: {}}\n") == ["application.yml:7: ejpy.clases: unknown key; allowed: classes"]
    assert problems(JOB + "ejpy: {classes: {a: }}\n") == ["application.yml:7: ejpy.classes.a: empty; give module:Class"]
    assert problems(JOB + "ejpy: [a]\n") == ["application.yml:7: ejpy: must be a mapping"]


def test_both_class_and_type_or_neither_is_refused() -> None:
    assert "a job has a class or a type" in problems(with_keys("elasticJobType: SCRIPT"))[0]
    assert problems(JOB.replace("      elasticJobClass: shop.jobs:Orders\n", ""))[0].startswith(
        "application.yml:3: job 'orders': class: required; "
    )


# ---- one-off jobs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cron", ["", "      cron:\n", "      cron: ''\n", "      cron: ${CRON:}\n"])
def test_a_bean_name_in_place_of_a_schedule_makes_a_one_off_job(cron: str) -> None:
    text = JOB.replace("      cron: 0/5 * * * * ?\n", cron)
    assert load(text + "      jobBootstrapBeanName: b\n").jobs[0].cron is None
    [found] = problems(text)
    assert "job 'orders': cron: " in found


def test_a_bean_name_beside_a_schedule_changes_nothing() -> None:
    assert load(with_keys("jobBootstrapBeanName: b")) == load(JOB)


# ---- what is not honoured -----------------------------------------------------------------------------------------------


def test_each_key_that_has_no_effect_is_named() -> None:
    file = load(
        with_keys("timeZome: GMT+08:00", "maxWaitMillis: 60000", "job-executor-thread-pool-size-provider-type: CPU")
        + "  regCenter:\n    serverLists: zk\n    namespace: n\n    baseSleepTimeMilliseconds: 1000\n    maxRetries: 3\n"
        + "  dump: {enabled: true, port: 9888}\n  enabled: true\nserver: {port: 8080}\n"
    )
    assert file.warnings == (
        "application.yml:7: not honoured: elasticjob.jobs.orders.timeZome: unknown; did you mean timeZone?",
        "application.yml:8: not honoured: elasticjob.jobs.orders.maxWaitMillis: unknown",
        "application.yml:9: not honoured: elasticjob.jobs.orders.job-executor-thread-pool-size-provider-type: "
        "has no effect in ejpy",
        "application.yml:13: not honoured: elasticjob.regCenter.baseSleepTimeMilliseconds",
        "application.yml:14: not honoured: elasticjob.regCenter.maxRetries",
        "application.yml:15: not honoured: elasticjob.dump",
    )


def test_a_section_that_is_switched_off_is_refused() -> None:
    assert problems(JOB + "  enabled: false\n") == [
        "application.yml:7: elasticjob.enabled: is false, so that nothing of the section would run; remove it"
    ]


def test_a_file_has_one_form() -> None:
    assert problems(JOB + "registry: memory://\n") == [
        "application.yml:7: registry: a file with the section elasticjob has its registry and jobs there"
    ]
    assert problems("elasticjob:\n") == ["application.yml:1: jobs: no jobs; give at least one"]


# ---- the registry -------------------------------------------------------------------------------------------------------


def test_the_registry_is_elasticjobs() -> None:
    address = parse_url(registry("serverLists: 'zk1:2181,[::1]:2182'", "namespace: a/b", "digest: 'me:p@s:s/w${X:#}'"))
    assert (address.location, address.namespace, address.credentials) == ("zk1:2181,[::1]:2182", "/a/b", ("me", "p@s:s/w#"))
    assert parse_url(registry("serverLists: [zk1, 'zk2:1']", "namespace: n")).location == "zk1,zk2:1"
    assert parse_url(registry("serverLists: zk/root", "namespace: n", "type: ZooKeeper")).namespace == "/root/n"
    timeouts = [
        parse_url(registry("serverLists: zk", "namespace: n", f"sessionTimeoutMilliseconds: {number}")).session_timeout_seconds
        for number in ("0", "''", "60000")
    ]
    assert timeouts == [10.0, 10.0, 60.0]


def test_without_servers_the_registry_is_given_otherwise() -> None:
    assert load(JOB).registry is None
    assert load(with_registry("namespace: n", "serverLists: ${ZK:}")).registry is None


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["serverLists: zk"], "7: elasticjob.regCenter.namespace: required; give the namespace of the jobs"),
        (
            ["serverLists: 'zk:port,zk2'", "namespace: n"],
            "8: registry: ZooKeeper servers 'zk:port,zk2': entry 1 ('zk:port'): the port",
        ),
        (["namespace: n", "serverLists: 'me:hunter2@zk'"], "9: elasticjob.regCenter.serverLists: '@', '?' and '#' are not"),
        (["serverLists: zk", "namespace: n?x"], "9: elasticjob.regCenter.namespace: '@', '?' and '#' are not allowed here"),
        (
            ["serverLists: zk", "namespace: n", "digest: hunter2"],
            "10: elasticjob.regCenter.digest: must be user:password (it is not",
        ),
        (
            ["serverLists: zk", "namespace: n", "type: etcd"],
            "10: elasticjob.regCenter.type: 'etcd' is not allowed; allowed: zookeeper",
        ),
        (["serverLists: zk", "namespace: [n]"], "9: elasticjob.regCenter.namespace: a single value is needed"),
        (["serverLists: !x zk", "namespace: n"], "8: elasticjob.regCenter.serverLists: the tag '!x' is not allowed"),
        (["serverLists: zk", "namespace: ${NS}"], "9: elasticjob.regCenter.namespace: 'NS' is neither in the environment"),
        (
            ["serverLists: zk", "namespace: n", "sessionTimeoutMilliseconds: 10"],
            "10: elasticjob.regCenter.sessionTimeoutMilliseconds: '10' is not allowed; allowed: milliseconds, 1000 to 300000",
        ),
    ],
)
def test_what_is_wrong_with_the_registry_is_told_with_its_line(lines: list[str], said: str) -> None:
    found = problems(with_registry(*lines))
    assert found[0].startswith(f"application.yml:{said}")
    assert "hunter2" not in str(found)


# ---- placeholders -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "comes_out_as"),
    [
        ("${A}", "a"),
        ("${zk.server-lists}", "from the variable"),
        ("x${B:b}y${B:}z", "xbyz"),
        ("${B:${C:${A}}}", "a"),
        ("${${K}}", "a"),
        ("${own.name}", "a of the file"),
        ("${ownName}", "set"),
        ('${B:{"k": "v"}}', '{"k": "v"}'),
        (r"\${A} ${B:\${A}}", "${A} ${A}"),
        ("$${A}", "$a"),
        ("$A {A}", "$A {A}"),
    ],
)
def test_placeholders_are_springs(text: str, comes_out_as: str) -> None:
    file = "own: {name: '${A} of the file'}\nown-name: set\n" + with_keys("jobParameter: '" + text + "'")
    environ = {"A": "a", "ZK_SERVERLISTS": "from the variable", "K": "A"}
    assert load(file, **environ).jobs[0].job_parameter == comes_out_as


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "${own.nme}",
            "'own.nme' is neither in the environment (as OWN_NME) nor a property of this file; set it, or give a default",
        ),
        ("${A", "'${A' has no end: a '}' is missing"),
        ("${own.circle}", "placeholders within placeholders without an end"),
    ],
)
def test_a_placeholder_that_cannot_be_replaced_is_told_once_with_its_key(text: str, said: str) -> None:
    [found] = problems("own: {circle: 'x${own.circle}'}\n" + with_keys("jobParameter: '" + text + "'"))
    assert found.startswith("application.yml:8: job 'orders': jobParameter: ")
    assert said in found


def test_k7_a_tag_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "pwned"
    tagged = f'!!python/object/apply:os.system ["touch {trace}"]'
    for text in (
        with_keys(f"description: {tagged}"),
        with_keys("props:", f"  a: {tagged}"),
        JOB + f"ejpy: {{classes: {{a: {tagged}}}}}\n",
        with_registry(f"digest: {tagged}"),
        f"elasticjob: {tagged}\n",
    ):
        assert any("python/object/apply" in line or "must be a" in line for line in problems(text))
    assert load("other: " + tagged + "\n" + JOB).jobs
    assert not trace.exists()


def test_the_example_in_the_documentation_is_read() -> None:
    page = (Path(__file__).parents[3] / "docs" / "elasticjob-yaml.md").read_text(encoding="utf-8")
    file = load(page.partition("```yaml\n")[2].partition("```")[0])
    assert file.registry == "zookeeper://localhost:2181/shop"
    assert [(job.job_name, job.job_class, job.cron) for job in file.jobs] == [
        ("orders", "com.acme.Orders", "0/5 * * * * ?"),
        ("backup", "SCRIPT", None),
    ]
    assert file.warnings == ()
