"""What a job in a file is checked for beyond its keys: that what it names is there, and can do what is asked of it.

The classes of the job, of its error handler and of its listeners are imported, its schedule must have a fire ahead, and its
`props` must suit its kind and its error handler. A configuration from the registry is not checked so: what it names may be
known to other workers only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ejpy.config.classes import executor_for, load_class
from ejpy.config.model import Finding, ShardingStrategyName
from ejpy.error_handlers import handler_class
from ejpy.errors import ConfigError, CronError
from ejpy.jobs import AsyncDataflowJob, DataflowJob, HttpJob, ScriptJob
from ejpy.listeners import listener_class
from ejpy.schedule import cron
from ejpy.sharding_strategies import strategy_class
from ejpy.terms import Executor

_KINDS = (ScriptJob, HttpJob, DataflowJob, AsyncDataflowJob)
_PROPS = "props: "
_JAVA = " For a class of Java workers, give python_class, too, or ejpy.classes in an elasticjob file."
_DAILY = "0 0 0 * * ?"

Given = Mapping[str, object]
"""What a job's keys say, by attribute of `JobConfig`: texts, lists and mappings of texts; None for nothing, and for what could
not be read."""


@dataclass(slots=True)
class Findings:
    """What a look at a job has found."""

    problems: list[Finding] = field(default_factory=list)
    remarks: list[Finding] = field(default_factory=list)
    """What is allowed, but hardly meant."""


def findings(given: Given, now: datetime, *, shared_with_java: bool) -> Findings:
    """What there is to say of a job. A cron expression must fire after `now`.

    `shared_with_java`: an error handler, a listener or a sharding strategy that is not known here may be one of Java workers. It
    is no problem then, but a remark that it is not honoured.
    """
    found = Findings()
    _look_at_class(given, found)
    _look_at_error_handler(given, found, shared_with_java)
    _look_at_listeners(given, found, shared_with_java)
    _look_at_strategy(given, found, shared_with_java)
    _look_at_schedule(given, now, found)
    return found


def _look_at_class(given: Given, found: Findings) -> None:
    """The class, the executor for it, and the `props` of its kind."""
    attribute = "python_class" if given.get("python_class") else "job_class"
    spec, props = given.get(attribute), given.get("props", {})
    if not isinstance(spec, str):
        return
    try:
        job_class = load_class(spec)
    except ConfigError as error:
        hint = _JAVA if attribute == "job_class" and ":" not in spec and "." in spec else ""
        found.problems += [Finding(attribute, problem + hint) for problem in error.problems]
        return
    configured = str(given.get("executor") or "").strip().lower()
    if configured in [executor.value for executor in Executor]:
        try:
            executor_for(job_class, Executor(configured))
        except ConfigError as error:
            found.problems += [Finding("executor", problem) for problem in error.problems]
    if issubclass(job_class, _KINDS) and isinstance(props, Mapping):
        found.problems += _of_props(job_class.validate(props))


def _look_at_error_handler(given: Given, found: Findings, shared_with_java: bool) -> None:
    """The error handler, and the `props` that it reads."""
    name, props = given.get("job_error_handler_type"), given.get("props", {})
    if not isinstance(name, str) or not name.strip():
        return
    try:
        kind = handler_class(name)
    except ConfigError as error:
        _unknown("job_error_handler_type", error, found, shared_with_java)
    else:
        found.problems += _of_props(kind.validate(props) if isinstance(props, Mapping) else [])


def _look_at_listeners(given: Given, found: Findings, shared_with_java: bool) -> None:
    names = given.get("job_listener_types")
    listed = names.split(",") if isinstance(names, str) else names if isinstance(names, list) else []
    for name in filter(None, (name.strip() for name in listed)):
        try:
            listener_class(name)
        except ConfigError as error:
            _unknown("job_listener_types", error, found, shared_with_java and ":" not in name)


def _look_at_strategy(given: Given, found: Findings, shared_with_java: bool) -> None:
    name = given.get("job_sharding_strategy_type")
    if not isinstance(name, str) or not name.strip() or name.strip().upper() in ShardingStrategyName.__members__:
        return
    try:
        strategy_class(name)
    except ConfigError as error:
        _unknown("job_sharding_strategy_type", error, found, shared_with_java and ":" not in name)


def _look_at_schedule(given: Given, now: datetime, found: Findings) -> None:
    zone = str(given.get("time_zone") or "") or None
    if zone is not None:
        try:
            cron.parse(_DAILY, zone, now=now)
        except CronError as error:
            found.problems.append(Finding("time_zone", str(error)))
            zone = None
    expression = str(given.get("cron") or "")
    if expression.strip():
        try:
            schedule = cron.parse(expression, zone, now=now)
        except CronError as error:
            found.problems.append(Finding("cron", str(error)))
        else:
            found.remarks += [Finding("cron", remark) for remark in schedule.remarks]


def _unknown(attribute: str, error: ConfigError, found: Findings, may_be_javas: bool) -> None:
    if may_be_javas:
        found.remarks += [Finding(attribute, f"not honoured: {problem}") for problem in error.problems]
    else:
        found.problems += [Finding(attribute, problem) for problem in error.problems]


def _of_props(problems: Iterable[str]) -> list[Finding]:
    return [Finding("props", problem.removeprefix(_PROPS)) for problem in problems]
