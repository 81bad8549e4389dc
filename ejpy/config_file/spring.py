"""A Spring Boot application's YAML with an `elasticjob` section, as a file of ejpy's own form.

    elasticjob:                                         registry: zookeeper://zk:2181/shop
      regCenter:                                        jobs:
        serverLists: zk:2181                              orders:
        namespace: shop                                     elasticJobClass: com.acme.Orders
      jobs:                                       ──►       pythonClass: shop.jobs:Orders
        orders:                                             cron: 0/5 * * * * ?
          elasticJobClass: com.acme.Orders                  shardingTotalCount: 3
          cron: 0/5 * * * * ?                               monitorExecution: false
          shardingTotalCount: 3                             misfire: false
    ejpy:                                                   reconcileIntervalMinutes: 0
      classes: {com.acme.Orders: 'shop.jobs:Orders'}

The result is a tree whose nodes keep their lines, so that all that `file` finds wrong is told with the place where it was
written. The Java class stays what the registry holds: Java and Python share the job.

Keys are compared as Spring does (`reg-center` is `regCenter`), what a job leaves out is what the starter takes for it, and
sections of the application's own are not looked at. Spring passes over keys that it does not know; here each one, and what
ElasticJob has and ejpy has not, is named in `not_honoured`. ejpy's own keys of a job may stand among ElasticJob's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from urllib.parse import quote

from ejpy.config import registry_url, yaml_tree
from ejpy.config.model import SPELLINGS, UNSUPPORTED, camel_case, closest_key, field_of
from ejpy.config.yaml_tree import ListNode, MapNode, Scalar, YamlNode
from ejpy.config_file.spring_placeholders import Placeholders, relaxed
from ejpy.wording import shown

SECTION = "elasticjob"
OWN_SECTION = "ejpy"

_STARTER_DEFAULTS = {"monitorExecution": "false", "misfire": "false", "reconcileIntervalMinutes": "0"}
"""Where the starter's default is not that of ejpy (ElasticJobConfigurationProperties)."""
_REGISTRY_KEYS = ("type", "serverLists", "namespace", "digest", "sessionTimeoutMilliseconds")
_BEAN_NAME = "jobBootstrapBeanName"
"""What makes a job without a schedule a one-off job in the starter."""
_SPELLING_OF = {relaxed(spelling): spelling for spelling in SPELLINGS if "_" not in spelling}
_UNSUPPORTED = {relaxed(camel_case(name)) for name in UNSUPPORTED}
_MILLISECONDS = re.compile(r"0|[1-9][0-9]{0,8}")


@dataclass(slots=True)
class Translation:
    """What a Spring file says, in ejpy's form."""

    expand: Callable[[str], str]
    """Replaces the placeholders in a text. Raises ValueError."""
    registry: Scalar | None = None
    """A registry URL; None if the file names no registry."""
    jobs: YamlNode | None = None
    problems: list[tuple[int, str]] = field(default_factory=list)
    """Line and message."""
    not_honoured: list[tuple[int, str]] = field(default_factory=list)
    """Line and message: what has no effect, or an effect that Spring alone knows."""


def is_spring(root: YamlNode | None) -> bool:
    """Whether a file's top level has the section."""
    return isinstance(root, MapNode) and any(isinstance(key, Scalar) and key.text == SECTION for key, _ in root.entries)


def translated(root: MapNode, environ: Mapping[str, str]) -> Translation:
    """The file in ejpy's form. Texts have their placeholders still, for which it says how they are replaced."""
    return _Translator(root, environ).translation


class _Translator:
    def __init__(self, root: MapNode, environ: Mapping[str, str]) -> None:
        self.translation = Translation(Placeholders(root, environ).expand)
        self._classes: dict[str, Scalar] = {}
        self._used: set[str] = set()
        top = {key.text: (key, node) for key, node in self._entries(root, "")}
        for name in ("registry", "jobs"):
            if name in top:
                self._problem(top[name][0].line, f"{name}: a file with the section {SECTION} has its registry and jobs there")
        if OWN_SECTION in top:
            self._own_section(*top[OWN_SECTION])
        self._section(*top[SECTION])
        for name in sorted(self._classes.keys() - self._used):
            self._not_honoured(self._classes[name].line, f"{OWN_SECTION}.classes.{name}: no job has this class or type")

    # -- sections --

    def _section(self, key: Scalar, node: YamlNode) -> None:
        for name, value in self._entries(node, SECTION, key.line, same=relaxed):
            path = f"{SECTION}.{name.text}"
            match relaxed(name.text):
                case "regcenter":
                    self._registry(name, value, path)
                case "jobs":
                    self.translation.jobs = self._jobs(value, path)
                case "enabled":
                    if self._text(value, path).lower() == "false":
                        self._problem(name.line, f"{path}: is false, so that nothing of the section would run; remove it")
                case _:
                    self._not_honoured(name.line, path)

    def _own_section(self, key: Scalar, node: YamlNode) -> None:
        for name, value in self._entries(node, OWN_SECTION, key.line):
            path = f"{OWN_SECTION}.{name.text}"
            if name.text != "classes":
                self._problem(name.line, f"{path}: unknown key; allowed: classes")
                continue
            for java, python in self._entries(value, path, name.line):
                problems = len(self.translation.problems)
                text = self._text(python, f"{path}.{java.text}")
                if not text and len(self.translation.problems) == problems:
                    self._problem(java.line, f"{path}.{java.text}: empty; give module:Class")
                self._classes[_without_brackets(java.text)] = _literal(text, java.line)

    # -- the registry --

    def _registry(self, key: Scalar, node: YamlNode, path: str) -> None:
        known = {relaxed(name): name for name in _REGISTRY_KEYS}
        texts: dict[str, str] = {}
        lines: dict[str, int] = {}
        for name, value in self._entries(node, path, key.line, same=relaxed):
            meant = known.get(relaxed(name.text))
            if meant is None:
                self._not_honoured(name.line, f"{path}.{name.text}")
            else:
                texts[meant] = self._text(value, f"{path}.{name.text}", joined=meant == "serverLists")
                lines[meant] = name.line
        kind = texts.get("type", "")
        if kind and kind.lower() != "zookeeper":
            self._problem(lines["type"], f"{path}.type: {shown(kind)} is not allowed; allowed: zookeeper")
        hosts, slash, chroot = texts.get("serverLists", "").partition("/")
        if not hosts.strip():
            return  # may be given to the worker otherwise
        problems = len(self.translation.problems)
        identity = self._identity(texts.get("digest", ""), lines.get("digest", 0), f"{path}.digest")
        timeout = self._timeout(texts.get("sessionTimeoutMilliseconds", ""), lines, f"{path}.sessionTimeoutMilliseconds")
        namespace = texts.get("namespace", "").strip("/ ")
        if not namespace:
            self._problem(lines.get("namespace", key.line), f"{path}.namespace: required; give the namespace of the jobs")
        for part, text in (("serverLists", hosts + slash + chroot), ("namespace", namespace)):
            if any(character in text for character in "@?#"):
                self._problem(lines[part], f"{path}.{part}: '@', '?' and '#' are not allowed here")
        if len(self.translation.problems) == problems:
            servers = ",".join(host.strip() for host in hosts.split(","))
            path_in_zookeeper = "/".join(filter(None, [chroot.strip("/ "), namespace]))
            url = f"zookeeper://{identity}{servers}/{path_in_zookeeper}{timeout}"
            self.translation.registry = _literal(url, lines["serverLists"])

    def _identity(self, digest: str, line: int, path: str) -> str:
        user, colon, password = digest.partition(":")
        if digest and not (user and colon):
            self._problem(line, f"{path}: must be user:password (it is not shown here)")
        return f"{quote(user, safe='')}:{quote(password, safe='')}@" if digest else ""

    def _timeout(self, text: str, lines: Mapping[str, int], path: str) -> str:
        if text in ("", "0"):
            return ""
        low, high = registry_url.SESSION_TIMEOUT_RANGE
        if not _MILLISECONDS.fullmatch(text) or not low <= timedelta(milliseconds=int(text)) <= high:
            bounds = f"{low // timedelta(milliseconds=1)} to {high // timedelta(milliseconds=1)}"
            line = lines["sessionTimeoutMilliseconds"]
            self._problem(line, f"{path}: {shown(text)} is not allowed; allowed: milliseconds, {bounds}; 0 for the default")
            return ""
        return f"?session_timeout={text}ms"

    # -- jobs --

    def _jobs(self, node: YamlNode, path: str) -> YamlNode:
        if not isinstance(node, MapNode):
            return node
        return replace(node, entries=tuple(self._job(name, job, path) for name, job in node.entries))

    def _job(self, name: YamlNode, node: YamlNode, path: str) -> tuple[YamlNode, YamlNode]:
        if not isinstance(name, Scalar) or not isinstance(node, MapNode):
            return name, node
        name = replace(name, text=_without_brackets(name.text))
        path = f"{path}.{name.text}"
        entries: list[tuple[YamlNode, YamlNode]] = []
        given: dict[str | None, str] = {}
        bean = ""
        for key, value in node.entries:
            if isinstance(key, Scalar) and relaxed(key.text) == relaxed(_BEAN_NAME):
                bean = self._text(value, f"{path}.{key.text}")
            elif not isinstance(key, Scalar):
                entries.append((key, value))  # `file` has the words for it
            elif (spelling := self._spelling(key, path)) is not None:
                entries.append((replace(key, text=spelling), _flattened(value) if spelling == "props" else value))
                given[field_of(spelling)] = self._as_it_comes_out(value)
        python_class = self._classes.get(given.get("job_class", ""))
        if python_class is not None:
            self._used.add(given["job_class"])
        if python_class is not None and "python_class" not in given:
            entries.append((Scalar("pythonClass", python_class.line), python_class))
        if bean and not given.get("cron"):
            entries = [(key, value) for key, value in entries if not (isinstance(key, Scalar) and key.text == "cron")]
            entries.append((Scalar("cron", name.line), Scalar("null", name.line)))
        for spelling, default in _STARTER_DEFAULTS.items():
            if field_of(spelling) not in given:
                entries.append((Scalar(spelling, name.line), Scalar(default, name.line)))
        return name, replace(node, entries=tuple(entries))

    def _spelling(self, key: Scalar, path: str) -> str | None:
        """The key as ejpy knows it; None if it is not one of a job's."""
        if field_of(key.text) is not None:
            return key.text
        spelling = _SPELLING_OF.get(relaxed(key.text))
        if spelling is None:
            near = closest_key(key.text)
            why = f"unknown; did you mean {near}?" if near else "unknown"
            if relaxed(key.text) in _UNSUPPORTED:
                why = "has no effect in ejpy"
            self._not_honoured(key.line, f"{path}.{key.text}: {why}")
        return spelling

    def _as_it_comes_out(self, node: YamlNode) -> str:
        """A text that `file` looks at; what is wrong with it is told there."""
        if not isinstance(node, Scalar) or node.is_null:
            return ""
        try:
            return self.translation.expand(node.text).strip()
        except ValueError:
            return node.text

    # -- nodes --

    def _entries(
        self, node: YamlNode, path: str, line: int = 0, *, same: Callable[[str], str] = str
    ) -> Iterator[tuple[Scalar, YamlNode]]:
        """Keys and values of a section; a key that occurs again, by what `same` makes of it, is a problem."""
        if isinstance(node, Scalar) and node.is_null:
            return
        if not isinstance(node, MapNode):
            self._problem(node.line or line, f"{path}: must be a mapping")
            return
        before = f"{path}." if path else ""
        first: dict[str, int] = {}
        for key, value in node.entries:
            if not isinstance(key, Scalar):
                self._problem(key.line, f"{path}: a key must be a single text".removeprefix(": "))
            elif same(key.text) in first:
                self._problem(key.line, f"{before}{key.text}: given twice, first in line {first[same(key.text)]}")
            else:
                first[same(key.text)] = key.line
                yield key, value

    def _text(self, node: YamlNode, path: str, *, joined: bool = False) -> str:
        """A single text, stripped; '' if something is wrong with it. A list of texts is `joined` with commas, as in Spring."""
        if isinstance(node, ListNode) and joined:
            return ",".join(self._text(item, path) for item in node.items)
        for tagged in yaml_tree.with_foreign_tags(node):
            self._problem(tagged.line, f"{path}: {yaml_tree.tag_problem(tagged)}")
            return ""
        if not isinstance(node, Scalar):
            self._problem(node.line, f"{path}: a single value is needed")
            return ""
        try:
            return "" if node.is_null else self.translation.expand(node.text).strip()
        except ValueError as error:
            self._problem(node.line, f"{path}: {error}")
            return ""

    def _problem(self, line: int, message: str) -> None:
        self.translation.problems.append((line, message))

    def _not_honoured(self, line: int, message: str) -> None:
        self.translation.not_honoured.append((line, f"not honoured: {message}"))


def _literal(text: str, line: int) -> Scalar:
    """A text in which no placeholder is left."""
    return Scalar(text.replace("${", "\\${"), line, style='"')


def _without_brackets(name: str) -> str:
    """Spring wants a name of a mapping in brackets if it has characters of its own syntax in it."""
    return name[1:-1] if name.startswith("[") and name.endswith("]") else name


def _flattened(node: YamlNode) -> YamlNode:
    """Nested mappings as one, with dotted names: to Spring `script: {command: {line: x}}` is `script.command.line: x`."""
    if not isinstance(node, MapNode):
        return node
    return replace(node, entries=tuple(_leaves(node, "")))


def _leaves(node: MapNode, before: str) -> Iterator[tuple[YamlNode, YamlNode]]:
    for key, value in node.entries:
        if not isinstance(key, Scalar):
            yield key, value
            continue
        name = before + _without_brackets(key.text)
        if isinstance(value, MapNode) and value.tag is None:
            yield from _leaves(value, name + ".")
        else:
            yield replace(key, text=name), value
