"""ElasticJob's config document: what stands in a job's `config` node, to and from `JobConfig`.

Java workers, elasticjob-ui and ejpy share this document, so what is written holds only ElasticJob's own keys: a Java
worker fails at every fire on a key that it does not know. ejpy's settings go into `props` under `ejpy.…`, and only those
that differ from their defaults. Every boolean and number is written, since Java reads a missing `misfire` or
`monitorExecution` as false. Keys that ejpy does not act on (the pool's, tracing) survive a rewrite as they are, tags
included. The class is not in the document, and what Python class stands for it is no other worker's business.

Reading is liberal where Java is (missing keys, unknown keys, any quoting, either name of the pool key) and safe: texts
only, bounded, no object is ever made from it.
"""

from __future__ import annotations

import json

from ejpy.config import item_parameters, values, yaml_tree
from ejpy.config.differences import Difference, differences
from ejpy.config.model import InvalidJob, JobConfig, ShardingStrategyName, camel_case, write_value
from ejpy.config.values import PROPS_PREFIX
from ejpy.config.yaml_tree import ListNode, MapNode, Scalar, YamlError, YamlNode
from ejpy.errors import ConfigError
from ejpy.wording import one_line, shown

__all__ = ["Difference", "differences", "from_document", "to_document"]

_PLAIN_FIELDS = (
    "cron",
    "description",
    "disabled",
    "failover",
    "job_error_handler_type",
    "job_name",
    "job_parameter",
    "job_sharding_strategy_type",
    "label",
    "max_time_diff_seconds",
    "misfire",
    "monitor_execution",
    "overwrite",
    "reconcile_interval_minutes",
    "sharding_item_parameters",
    "sharding_total_count",
    "static_sharding",
    "time_zone",
)
"""Attributes with a key of their own in ElasticJob's document."""

_LISTENERS = "jobListenerTypes"
"""The one key of ElasticJob's whose value is a list of texts."""

_OWN_FIELDS = ("catch_up", "misfire_grace", "claim_timeout", "failover_max_duration", "timeout", "executor", "running_marks")
"""ejpy's own attributes, each a text in `props`."""

_ITEM_PARAMETERS_PROP = PROPS_PREFIX + "sharding_item_parameters"
_STRATEGY_PROP = PROPS_PREFIX + "job_sharding_strategy_type"
_OWN_PROPS = {PROPS_PREFIX + name: name for name in _OWN_FIELDS}

_DOCUMENT_KEYS = {camel_case(name): name for name in _PLAIN_FIELDS}
_MODELLED_KEYS = {*_DOCUMENT_KEYS, _LISTENERS, "props"}

_CARRIED_KEYS = (
    "jobExecutorServiceHandlerType",
    "jobExecutorThreadPoolSizeProviderType",
    "jobExtraConfigurations",
)
"""ElasticJob's keys that ejpy does not act on; the pool's was renamed in ElasticJob 3.0.5."""

_ASSUMED_WHEN_MISSING: dict[str, object] = {
    "cron": None,
    "misfire": False,
    "monitor_execution": False,
    "reconcile_interval_minutes": 0,
}
"""Where ElasticJob's reading of a missing key is not the default of `JobConfig`."""

_EMPTY_MEANS_MISSING = ("cron", "job_sharding_strategy_type")
"""elasticjob-ui stores '' when such a field is cleared."""


# ---- writing ------------------------------------------------------------------------------------------------------


def to_document(job: JobConfig, previous: bytes | None = None) -> bytes:
    """The document that says what `job` says, but for the class (which is the data of the job's root node).

    With `previous`, the document that is replaced, ElasticJob's keys that ejpy does not act on and settings of a newer ejpy
    are kept from it; of a document that `from_document` refuses as unreadable nothing is. Keys that not even ElasticJob
    knows are dropped.
    """
    kept = {} if previous is None else _readable(previous, job.job_name)
    entries = {key: kept[key] for key in _CARRIED_KEYS if key in kept and not _says_nothing(kept[key])}
    props = {**job.props, **_unknown_own_props(kept.get("props"))}
    for name in _PLAIN_FIELDS:
        scalar = _plain_value(job, name)
        if scalar is not None:
            entries[camel_case(name)] = scalar
    if job.job_listener_types:
        entries[_LISTENERS] = ListNode(tuple(yaml_tree.text_scalar(name) for name in job.job_listener_types))
    props |= _own_props(job)
    if props:
        pairs = tuple((yaml_tree.text_scalar(name), yaml_tree.text_scalar(props[name])) for name in sorted(props))
        entries["props"] = MapNode(pairs)
    return yaml_tree.write(MapNode(tuple((yaml_tree.text_scalar(key), entries[key]) for key in sorted(entries)))).encode()


def _readable(data: bytes, job_name: str) -> dict[str, YamlNode]:
    try:
        return _parse(data, job_name)
    except ConfigError:
        return {}


def _plain_value(job: JobConfig, name: str) -> Scalar | None:
    value = getattr(job, name)
    if name == "sharding_item_parameters":
        value = item_parameters.write({i: text for i, text in value.items() if item_parameters.expressible(text)})
    elif name == "job_sharding_strategy_type" and (value is ShardingStrategyName.AVG_ALLOCATION or _is_pythons(value)):
        return None
    if value is None:
        return None
    text = write_value(value)
    return Scalar(text, implicit=(True, False)) if isinstance(value, (bool, int)) else yaml_tree.text_scalar(text)


def _is_pythons(strategy: ShardingStrategyName | str) -> bool:
    """Whether no Java worker can know the strategy: its leader would fail at each resharding, and uses its default instead."""
    return strategy is ShardingStrategyName.STICKY or ":" in strategy


def _own_props(job: JobConfig) -> dict[str, str]:
    own = {
        prop: write_value(getattr(job, name))
        for prop, name in _OWN_PROPS.items()
        if getattr(job, name) != JobConfig.model_fields[name].default
    }
    if _is_pythons(job.job_sharding_strategy_type):
        own[_STRATEGY_PROP] = write_value(job.job_sharding_strategy_type)
    beyond = {str(i): text for i, text in sorted(job.sharding_item_parameters.items()) if not item_parameters.expressible(text)}
    if beyond:
        own[_ITEM_PARAMETERS_PROP] = json.dumps(beyond, ensure_ascii=False)
    return own


def _unknown_own_props(node: YamlNode | None) -> dict[str, str]:
    """Settings of an ejpy that knows more than this one."""
    known = {*_OWN_PROPS, _STRATEGY_PROP, _ITEM_PARAMETERS_PROP}
    entries = node.entries if isinstance(node, MapNode) else ()
    return {
        key.text: value.text
        for key, value in entries
        if isinstance(key, Scalar) and isinstance(value, Scalar) and key.text.startswith(PROPS_PREFIX) and key.text not in known
    }


def _says_nothing(node: YamlNode) -> bool:
    """Null and empty: what ElasticJob leaves out, and an empty text that its newer workers take for an unknown type."""
    if isinstance(node, Scalar):
        return node.is_null or not node.text
    return not (node.items if isinstance(node, ListNode) else node.entries)


# ---- reading ------------------------------------------------------------------------------------------------------


def from_document(data: bytes, job_name: str, job_class: str, python_class: str | None = None) -> JobConfig:
    """The job that a document describes, with the name of its node, the class text of its root, and the class that the file
    gives for it.

    A missing key means what it means to ElasticJob. Raises ConfigError, naming every key that is wrong; the caller keeps
    the configuration that it has.
    """
    root = _parse(data, job_name)
    problems: list[str] = []
    given: dict[str, object] = dict(_ASSUMED_WHEN_MISSING)
    props = _props(root.get("props"), problems)
    given |= {name: props.pop(prop) for prop, name in _OWN_PROPS.items() if prop in props}
    if _STRATEGY_PROP in props:
        given["job_sharding_strategy_type"] = props[_STRATEGY_PROP]
    for key, name in _DOCUMENT_KEYS.items():
        node = root.get(key)
        if node is not None and not (isinstance(node, Scalar) and node.is_null):
            text = _text(node, key, problems)
            if text or name not in _EMPTY_MEANS_MISSING:
                given[name] = text
    given["sharding_item_parameters"] = {
        **_beyond_the_text_form(props.get(_ITEM_PARAMETERS_PROP, "{}"), problems),
        # An item that has a value in both places was edited by somebody who sees ElasticJob's key only.
        **_text_form(str(given.get("sharding_item_parameters", "")), problems),
    }
    given["job_listener_types"] = _names(root.get(_LISTENERS), problems)
    given["props"] = {name: text for name, text in props.items() if not name.startswith(PROPS_PREFIX)}
    if given.setdefault("job_name", job_name) != job_name:
        problems.append(f"jobName: {shown(given['job_name'])} is not the name of the node")
    given |= {"job_class": job_class, "python_class": python_class}
    try:
        job = JobConfig.model_validate(given)
    except InvalidJob as error:
        problems += [f"{_document_key(finding.key)}: {finding.message}" for finding in error.findings]
    if problems:
        raise _broken(job_name, problems)
    return job


def _parse(data: bytes, job_name: str) -> dict[str, YamlNode]:
    """The nodes by key; of a key that occurs twice the last one, as in SnakeYAML."""
    try:
        root = yaml_tree.read(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _broken(job_name, [f"not UTF-8: {error}"]) from error
    except YamlError as error:
        raise _broken(job_name, [str(error)]) from error
    if root is None or (isinstance(root, Scalar) and root.is_null):
        raise _broken(job_name, ["empty"])
    if root.tag is not None and root.tag not in yaml_tree.CORE_TAGS:
        raise _broken(job_name, [yaml_tree.tag_problem(root)])
    if not isinstance(root, MapNode):
        raise _broken(job_name, ["not a YAML mapping"])
    nodes = {key.text: node for key, node in root.entries if isinstance(key, Scalar)}
    problems = [
        f"{key}: {yaml_tree.tag_problem(tagged)}"
        for key in sorted(_MODELLED_KEYS & nodes.keys())
        for tagged in yaml_tree.with_foreign_tags(nodes[key])
    ]
    if problems:
        raise _broken(job_name, problems)
    return nodes


def _text(node: YamlNode, key: str, problems: list[str]) -> str:
    if isinstance(node, Scalar):
        return node.text
    problems.append(f"{key}: must be a single value")
    return ""


def _names(node: YamlNode | None, problems: list[str]) -> list[str] | str:
    if node is None or (isinstance(node, Scalar) and node.is_null):
        return []
    if isinstance(node, ListNode):
        return [name for name in (_text(item, _LISTENERS, problems) for item in node.items) if name]
    return _text(node, _LISTENERS, problems)


def _props(node: YamlNode | None, problems: list[str]) -> dict[str, str]:
    if node is None or (isinstance(node, Scalar) and node.is_null):
        return {}
    if not isinstance(node, MapNode):
        problems.append("props: must be a mapping")
        return {}
    return {
        _text(name, "props", problems): _text(value, f"props: {_text(name, 'props', problems)}", problems)
        for name, value in node.entries
    }


def _text_form(text: str, problems: list[str]) -> dict[int, str]:
    try:
        return dict(item_parameters.parse(text))
    except ValueError as error:
        problems.append(f"shardingItemParameters: {error}")
        return {}


def _beyond_the_text_form(text: str, problems: list[str]) -> dict[int, str]:
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError(f"{shown(text)} is not a JSON object")
        return {item_parameters.number(item): values.text(value) for item, value in found.items()}
    except (ValueError, RecursionError) as error:
        problems.append(f"props: {_ITEM_PARAMETERS_PROP}: {error}")
        return {}


def _document_key(name: str) -> str:
    if name in _OWN_FIELDS:
        return f"props: {PROPS_PREFIX}{name}"
    return camel_case(name)


def _broken(job_name: str, problems: list[str]) -> ConfigError:
    return ConfigError([one_line(f"job {shown(job_name)}: config in the registry: {problem}") for problem in problems])
