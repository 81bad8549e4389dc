"""The worker's configuration file: YAML in, `JobConfig`s out, and everything that is wrong with it at once.

    registry: zookeeper://localhost:2181/example
    jobs:
      orders:
        class: shop.jobs:Orders
        cron: '0 0/5 * * * ?'
        sharding_total_count: 3

A file of ElasticJob's Spring Boot starter is read, too: `spring` makes one of the above of it, line by line.

Nothing is connected to, and nothing is run but the import of the classes that are named. A problem never hides another one:
each key is looked at on its own, and a value that YAML cannot read for want of quotes (`cron: */5 …`) is reported and quoted,
so that the rest of the file is looked at, too. Every problem is one line: `file:line: job 'x': key: what is wrong; what is
allowed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path

from ejpy.config import item_parameters, kinds, values, yaml_tree
from ejpy.config.model import Finding, InvalidJob, JobConfig, closest_key, field_of, says_type
from ejpy.config.registry_url import parse_url
from ejpy.config.yaml_tree import ListNode, MapNode, Scalar, YamlNode
from ejpy.config_file import job_checks, spring, unquoted
from ejpy.config_file.environment import expand
from ejpy.errors import ConfigError
from ejpy.wording import closest, one_line, shown

LARGEST_FILE_BYTES = 8 * 1024 * 1024
_TOP_KEYS = ("registry", "jobs")
NEEDED = ("class", "cron", "sharding_total_count")
"""Keys without which a job in a file is refused; instead of `class` it may have a `type`."""
_MAPPINGS: dict[str, Callable[[str], int | str]] = {
    "sharding_item_parameters": item_parameters.number,
    "props": values.prop_name,
}
"""Keys whose value is a mapping, and what a name in it must be."""
_LISTS = ("job_listener_types",)
"""Keys whose value is a list of texts."""
_NO_CRON = (
    "required; give a cron expression, for instance '0 0/5 * * * ?'; for a one-off job, which runs only when it is triggered, "
    "write cron: null"
)


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
        self._expand: Callable[[str], str] = partial(expand, environ=environ)
        self.now = now
        self._is_spring = False
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
            registry_node, jobs = self._spring(root) if spring.is_spring(root) else self._own(root)
            if registry_node is not None:
                registry = self._text(registry_node, "registry") or None
                self._check_registry(registry_node, registry)
            if isinstance(jobs, MapNode) and jobs.entries:
                return registry, list(self._entries(jobs, "jobs"))
            if jobs is None or isinstance(jobs, MapNode) or (isinstance(jobs, Scalar) and jobs.is_null):
                self._problem(root.line if jobs is None else jobs.line, "jobs", "no jobs; give at least one")
            else:
                self._problem(jobs.line, "jobs", "must be a mapping of job names to their keys")
        return registry, []

    def _own(self, root: MapNode) -> tuple[YamlNode | None, YamlNode | None]:
        """What stands under `registry` and `jobs`."""
        found: dict[str, YamlNode] = {}
        for key, node in self._entries(root):
            if key.text in _TOP_KEYS:
                found[key.text] = node
            else:
                near = closest(key.text, _TOP_KEYS)
                meant = f"did you mean {near}?" if near else f"allowed: {', '.join(_TOP_KEYS)}"
                self._problem(key.line, key.text, f"unknown key; {meant}")
        return found.get("registry"), found.get("jobs")

    def _spring(self, root: MapNode) -> tuple[YamlNode | None, YamlNode | None]:
        """The same of a file of the Spring Boot starter."""
        translation = spring.translated(root, self.environ)
        self._expand, self._is_spring = translation.expand, True
        for line, problem in translation.problems:
            self._problem(line, problem)
        for line, remark in translation.not_honoured:
            self._report(self.warnings, line, remark)
        return translation.registry, translation.jobs

    def _check_registry(self, node: YamlNode, url: str | None) -> None:
        try:
            if url is not None:
                parse_url(url)
        except ConfigError as error:
            for problem in error.problems:
                self._problem(node.line, problem)

    # -- a job --

    def _job(self, name: Scalar, node: YamlNode) -> JobConfig | None:
        where = _job(name)
        if not isinstance(node, MapNode):
            self._problem(name.line, where, f"must be a mapping; it needs {', '.join(NEEDED)}")
            return None
        given: dict[str, object] = {"job_name": name.text}
        line_of: dict[str, int] = {}
        prop_lines: dict[str, int] = {}
        unreadable: set[str | None] = set()
        for key, value_node in self._entries(node, where):
            field_name = field_of(key.text)
            line_of[key.text] = key.line
            if field_name == "job_name":
                self._same_name(name, key, value_node)
            elif field_name is None:
                given[key.text] = None  # the model has the words for it
            else:
                if field_name == "props":
                    prop_lines |= _prop_lines(value_node)
                before = len(self.problems)
                given[key.text] = self._value(field_name, value_node, where, key.text)
                if len(self.problems) > before:
                    del given[key.text]
                    unreadable.add(field_name)
        found = job_checks.findings(_by_attribute(given, unreadable), self.now, shared_with_java=self._is_spring)
        problems, warnings = found.problems, found.remarks
        try:
            job = JobConfig.model_validate(given)
            warnings += job.warnings()
        except InvalidJob as error:
            job = None
            problems += [finding for finding in error.findings if field_of(finding.key) not in unreadable]
        if "cron" not in {field_of(closest_key(key) or key) for key in line_of}:
            problems.append(Finding("cron", _NO_CRON))
        class_line = line_of.get(_written(given, "job_class") or "", name.line)
        for reports, findings in ((self.problems, problems), (self.warnings, warnings)):
            for finding in findings:
                written = finding.key if finding.key in line_of else _written(given, finding.key) or finding.key
                # What a kind of job misses in `props` that are not given is a matter of the class.
                line = line_of.get(written, class_line if written == "props" else name.line)
                if field_of(finding.key) == "props":
                    line = prop_lines.get(_first_name(finding.message), line)
                self._report(reports, line, where, written, finding.message)
        return job

    def _same_name(self, name: Scalar, key: Scalar, node: YamlNode) -> None:
        text = self._text(node, _job(name), key.text)
        if text is not None and text != name.text:
            self._problem(key.line, _job(name), key.text, f"{shown(text)} is not the name that the job stands under; remove it")

    # -- values --

    def _value(self, field_name: str, node: YamlNode, where: str, key: str) -> object:
        """What the model is given for a key: texts, None, or a mapping or list of texts."""
        if field_name in _MAPPINGS and isinstance(node, MapNode):
            return self._mapping(_MAPPINGS[field_name], node, where, key)
        if field_name in _LISTS and isinstance(node, ListNode):
            return [self._text(item, where, key) or "" for item in node.items] if self._no_tags(node, where, key) else None
        text = self._text(node, where, key)
        if field_name == "cron":  # None is a job that runs only when it is triggered: not for want of a value
            return None if isinstance(node, Scalar) and node.is_null and node.text else text
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
            return self._expand(node.text)
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


def _prop_lines(node: YamlNode) -> dict[str, int]:
    """The lines of the names in `props`, by the name as it is and as it is quoted in messages."""
    keys = [key for key, _ in node.entries if isinstance(key, Scalar)] if isinstance(node, MapNode) else []
    return {name: key.line for key in reversed(keys) for name in (key.text, shown(key.text))}


def _first_name(message: str) -> str:
    """The name in `props` that a message about them begins with, or the first one of several."""
    return message.partition(": ")[0].partition(", ")[0]


def _shown_key(key: Scalar) -> str:
    return shown(key.text).strip("'") if key.text else "''"


def _by_attribute(given: Mapping[str, object], unreadable: set[str | None]) -> dict[str, object]:
    """What a job's keys say, by attribute. A type stands for its class; one that ejpy does not have is left to the model."""
    found: dict[str, object] = {name: None for name in unreadable if name is not None}
    for key, value in given.items():
        attribute = field_of(key)
        if attribute is not None:
            found.setdefault(attribute, kinds.known_type(str(value)) if says_type(key) else value)
    return found


def _written(given: Mapping[str, object], field_name: str) -> str | None:
    """The key by which an attribute was set."""
    return next((key for key in given if field_of(key) == field_name), None)
