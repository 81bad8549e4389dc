"""The worker's configuration file: YAML in, `JobConfig`s out, and everything that is wrong with it at once.

    registry: zookeeper://localhost:2181/example
    jobs:
      orders:
        class: shop.jobs:Orders
        cron: '0 0/5 * * * ?'
        sharding_total_count: 3

Nothing is connected to and nothing is run but the import of the job classes. A problem never hides another one: each key
is looked at on its own, and a value that YAML cannot read for want of quotes (`cron: */5 …`) is reported and quoted, so
that the rest of the file is looked at, too. Every problem is one line: `file:line: job 'x': key: what is wrong; what is
allowed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from ejpy.config import item_parameters, unquoted, values, yaml_tree
from ejpy.config.classes import executor_for, load_class
from ejpy.config.environment import expand
from ejpy.config.model import InvalidJob, JobConfig, field_of, file_key
from ejpy.config.registry_url import parse_url
from ejpy.config.yaml_tree import MapNode, Scalar, YamlNode
from ejpy.errors import ConfigError, CronError
from ejpy.schedule import cron
from ejpy.terms import Executor
from ejpy.wording import closest, one_line, shown

LARGEST_FILE_BYTES = 8 * 1024 * 1024
_TOP_KEYS = ("registry", "jobs")
_NEEDED = tuple(file_key(name) for name, info in JobConfig.model_fields.items() if info.is_required() and name != "job_name")
_MAPPINGS: dict[str, Callable[[str], int | str]] = {
    "sharding_item_parameters": item_parameters.number,
    "props": values.prop_name,
}
"""Keys whose value is a mapping, and what a name in it must be."""
_DAILY = "0 0 0 * * ?"


@dataclass(frozen=True, slots=True)
class WorkerFile:
    """What a worker is told by its file."""

    registry: str | None = field(repr=False)
    """Address of the registry; may hold a password."""
    jobs: tuple[JobConfig, ...]
    warnings: tuple[str, ...]
    """What is allowed, but hardly meant; one line each, as problems are."""


def load_file(path: str | Path, environ: Mapping[str, str], *, now: datetime) -> WorkerFile:
    """Read a configuration file. See `load_text`; raises ConfigError also if it cannot be read or is not UTF-8."""
    name = one_line(str(path))
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        raise ConfigError([f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}"]) from error
    if len(data) > LARGEST_FILE_BYTES:
        raise ConfigError([f"{name}: larger than {LARGEST_FILE_BYTES} bytes; a configuration is smaller"])
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError([f"{name}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"]) from error
    return load_text(text, name, environ, now=now)


def load_text(text: str, file_name: str, environ: Mapping[str, str], *, now: datetime) -> WorkerFile:
    """The configuration in `text`. `${NAME}` in values is taken from `environ`; a cron expression must fire after `now`.

    Raises ConfigError with every problem, in the order of lines. The classes' modules are imported.
    """
    reading = _Reading(one_line(file_name), environ, now)
    registry, jobs = reading.file(text)
    if reading.problems:
        raise ConfigError([line for _, line in sorted(reading.problems, key=lambda problem: problem[0])])
    return WorkerFile(registry, tuple(jobs), tuple(line for _, line in sorted(reading.warnings, key=lambda w: w[0])))


class _Reading:
    """One pass over one file, and what it has found so far."""

    def __init__(self, file_name: str, environ: Mapping[str, str], now: datetime) -> None:
        self.file_name = file_name
        self.environ = environ
        self.now = now
        self.problems: list[tuple[int, str]] = []
        self.warnings: list[tuple[int, str]] = []

    # -- the file --

    def file(self, text: str) -> tuple[str | None, list[JobConfig]]:
        reading = unquoted.read(text)
        registry, named = self._top(reading)
        for found in reading.unquoted:
            inside = [name for name, _ in named if name.line < found.line]
            self._problem(found.line, _job(inside[-1]) if inside else "", found.key, found.message)
        configs = [self._job(name, node) for name, node in named]
        return registry, [config for config in configs if config is not None]

    def _top(self, reading: unquoted.Reading) -> tuple[str | None, list[tuple[Scalar, YamlNode]]]:
        """The registry and the jobs by name, if there is a tree."""
        registry: str | None = None
        jobs: YamlNode | None = None
        root = reading.root
        if reading.failure is not None:
            self._problem(reading.failure.line, reading.failure.message)
        elif root is None or (isinstance(root, Scalar) and root.is_null):
            self._problem(0, "the file is empty; it needs the key jobs")
        elif not isinstance(root, MapNode):
            self._problem(root.line, "the file must be a mapping with the key jobs")
        else:
            for key, node in self._entries(root):
                if key.text == "registry":
                    registry = self._text(node, "registry") or None
                    self._check_registry(node, registry)
                elif key.text == "jobs":
                    jobs = node
                else:
                    near = closest(key.text, _TOP_KEYS)
                    meant = f"did you mean {near}?" if near else f"allowed: {', '.join(_TOP_KEYS)}"
                    self._problem(key.line, key.text, f"unknown key; {meant}")
            if isinstance(jobs, MapNode) and jobs.entries:
                return registry, list(self._entries(jobs, "jobs"))
            if jobs is None or isinstance(jobs, MapNode) or (isinstance(jobs, Scalar) and jobs.is_null):
                self._problem(root.line if jobs is None else jobs.line, "jobs", "no jobs; give at least one")
            else:
                self._problem(jobs.line, "jobs", "must be a mapping of job names to their keys")
        return registry, []

    def _check_registry(self, node: YamlNode, url: str | None) -> None:
        try:
            if url is not None:
                parse_url(url)
        except ConfigError as error:
            self._problem(node.line, *error.problems)

    # -- a job --

    def _job(self, name: Scalar, node: YamlNode) -> JobConfig | None:
        where = _job(name)
        if not isinstance(node, MapNode):
            self._problem(name.line, where, f"must be a mapping; it needs {', '.join(_NEEDED)}")
            return None
        given: dict[str, object] = {"job_name": name.text}
        line_of: dict[str, int] = {}
        unreadable: set[str | None] = set()
        for key, value_node in self._entries(node, where):
            field_name = field_of(key.text)
            line_of[key.text] = key.line
            if field_name == "job_name":
                self._same_name(name, key, value_node)
            elif field_name is None:
                given[key.text] = None  # the model has the words for it
            else:
                before = len(self.problems)
                given[key.text] = self._value(field_name, value_node, where, key.text)
                if len(self.problems) > before:
                    del given[key.text]
                    unreadable.add(field_name)
        self._check_class(given, line_of, where)
        self._check_cron(given, line_of, where)
        try:
            job = JobConfig.model_validate(given)
        except InvalidJob as error:
            for finding in error.findings:
                if field_of(finding.key) not in unreadable:
                    self._problem(line_of.get(finding.key, name.line), where, finding.key, finding.message)
            return None
        for finding in job.warnings():
            written = _written(given, finding.key) or finding.key
            self._report(self.warnings, line_of.get(written, name.line), where, written, finding.message)
        return job

    def _same_name(self, name: Scalar, key: Scalar, node: YamlNode) -> None:
        text = self._text(node, _job(name), key.text)
        if text is not None and text != name.text:
            self._problem(key.line, _job(name), key.text, f"{shown(text)} is not the name that the job stands under; remove it")

    def _check_class(self, given: Mapping[str, object], line_of: Mapping[str, int], where: str) -> None:
        key = _written(given, "job_class")
        spec = given[key] if key else None
        if key is None or not isinstance(spec, str):
            return
        executor_key = _written(given, "executor")
        configured = str(given[executor_key]).strip().lower() if executor_key else ""
        try:
            job_class = load_class(spec)
            key = executor_key or key
            if configured in [executor.value for executor in Executor]:
                executor_for(job_class, Executor(configured))
        except ConfigError as error:
            self._problem(line_of[key], where, key, *error.problems)

    def _check_cron(self, given: Mapping[str, object], line_of: Mapping[str, int], where: str) -> None:
        key, zone_key = _written(given, "cron"), _written(given, "time_zone")
        zone = str(given[zone_key] or "") or None if zone_key else None
        if zone is not None and zone_key is not None:
            try:
                cron.parse(_DAILY, zone, now=self.now)
            except CronError as error:
                self._problem(line_of[zone_key], where, zone_key, str(error))
                zone = None
        if key is not None and str(given[key]).strip():
            try:
                schedule = cron.parse(str(given[key]), zone, now=self.now)
            except CronError as error:
                self._problem(line_of[key], where, key, str(error))
            else:
                for remark in schedule.remarks:
                    self._report(self.warnings, line_of[key], where, key, remark)

    # -- values --

    def _value(self, field_name: str, node: YamlNode, where: str, key: str) -> object:
        """What the model is given for a key: texts, None, or a mapping of texts."""
        if field_name in _MAPPINGS and isinstance(node, MapNode):
            return self._mapping(_MAPPINGS[field_name], node, where, key)
        text = self._text(node, where, key)
        if isinstance(node, Scalar) and not node.style and not text:  # nothing, or a reference that expands to nothing
            if field_name in _MAPPINGS:
                return {}
            return None if JobConfig.model_fields[field_name].default is None else ""
        return text

    def _mapping(self, name_of: Callable[[str], int | str], node: MapNode, where: str, key: str) -> dict[int | str, str]:
        mapping: dict[int | str, str] = {}
        for name, value in self._entries(node, where, key):
            try:
                checked = name_of(name.text)
                if checked in mapping:
                    raise ValueError(f"{shown(name.text)} is given twice")
            except ValueError as error:
                self._problem(name.line, where, key, str(error))
                continue
            if isinstance(value, Scalar) and value.is_null:
                self._problem(name.line, where, key, _shown_key(name), "no value; write '' for an empty one")
                continue
            mapping[checked] = self._text(value, where, key, _shown_key(name)) or ""
        return mapping

    def _text(self, node: YamlNode, *where: str) -> str | None:
        """A single text with its references to the environment replaced; None if something is wrong with it."""
        if not self._no_tags(node, *where):
            return None
        if not isinstance(node, Scalar):
            kind = "mapping" if isinstance(node, MapNode) else "list"
            self._problem(node.line, *where, f"a {kind} is not allowed here; allowed: a single value")
            return None
        if node.is_null:
            return ""
        try:
            return expand(node.text, self.environ)
        except ValueError as error:
            self._problem(node.line, *where, str(error))
            return None

    def _entries(self, node: MapNode, *where: str) -> Iterator[tuple[Scalar, YamlNode]]:
        """Keys and values; a key that occurs again is a problem, and only its first value counts."""
        self._no_tags(node, *where)
        first: dict[str, int] = {}
        for key, value in node.entries:
            if not isinstance(key, Scalar):
                self._problem(key.line, *where, "a key must be a single text")
            elif "${" in key.text:
                self._problem(key.line, *where, f"{shown(key.text)}: ${{…}} is replaced in values only")
            elif key.text in first:
                self._problem(key.line, *where, _shown_key(key), f"given twice, first in line {first[key.text]}")
            elif self._no_tags(key, *where):
                first[key.text] = key.line
                yield key, value

    def _no_tags(self, node: YamlNode, *where: str) -> bool:
        if node.tag is None or node.tag in yaml_tree.CORE_TAGS:
            return True
        self._problem(node.line, *where, yaml_tree.tag_problem(node))
        return False

    # -- reports --

    def _problem(self, line: int, *parts: str) -> None:
        self._report(self.problems, line, *parts)

    def _report(self, reports: list[tuple[int, str]], line: int, *parts: str) -> None:
        place = f"{self.file_name}:{line}" if line else self.file_name
        reports.append((line, one_line(": ".join([place, *filter(None, parts)]))))


def _job(name: Scalar) -> str:
    return f"job {shown(name.text)}"


def _shown_key(key: Scalar) -> str:
    return shown(key.text).strip("'") if key.text else "''"


def _written(given: Mapping[str, object], field_name: str) -> str | None:
    """The key by which an attribute was set."""
    return next((key for key in given if field_of(key) == field_name), None)
