"""YAML as a tree of texts that know their line.

PyYAML parses; this module builds the tree from its events and writes one back. No scalar is guessed to be a number, a
date or a boolean, and no tag ever constructs an object: whoever reads the tree converts by the type that a key has.

A document may come from a stranger (the registry), so it is bounded: depth, and the number of nodes with every alias
counted in full, which stops the documents of a few lines that expand to billions of nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from ejpy.wording import one_line, shown

DEEPEST = 40
MOST_NODES = 500_000

CORE_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("str", "int", "bool", "null", "float", "map", "seq"))

_Loader = type[yaml.SafeLoader] | type[yaml.CSafeLoader]
FASTEST: _Loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
"""libyaml's parser where PyYAML was built with it: some ten times as fast. Only its events are used."""

_BREAKS = re.compile("[\n\r\x85\u2028\u2029]")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class YamlError(Exception):
    """The text is not one well-formed, bounded YAML document."""

    def __init__(self, line: int, message: str, *, is_syntax: bool) -> None:
        self.line = line
        """Counted from 1."""
        self.message = message
        self.is_syntax = is_syntax
        """Whether it is a matter of how the text is written (quotes may help), and not of a bound."""
        super().__init__(f"line {line}: {message}")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single text."""

    text: str
    line: int = 0
    tag: str | None = None
    implicit: tuple[bool, bool] = (True, True)
    """Whether the tag may be left out in the plain style, and in the quoted styles (as in PyYAML's events)."""
    style: str | None = None

    @property
    def is_null(self) -> bool:
        """Nothing was given: an empty plain scalar, `~` or `null`. Quoted ones are texts."""
        return not self.style and self.tag is None and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class ListNode:
    """A YAML sequence."""

    items: tuple[YamlNode, ...]
    line: int = 0
    tag: str | None = None
    flow: bool = False


@dataclass(frozen=True, slots=True)
class MapNode:
    """A YAML mapping, in the order of the text; a key may occur twice."""

    entries: tuple[tuple[YamlNode, YamlNode], ...]
    line: int = 0
    tag: str | None = None
    flow: bool = False


YamlNode = Scalar | ListNode | MapNode


# ---- reading ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Open:
    """A collection whose end has not come yet."""

    start: Any
    nodes_before: int
    children: list[YamlNode]


def read(text: str, loader: _Loader = FASTEST) -> YamlNode | None:
    """The root of the one document in `text`; None if there is none. Raises YamlError."""
    odd = _UNPRINTABLE.search(text)
    if odd is not None:
        line = text.count("\n", 0, odd.start()) + 1
        raise YamlError(line, f"the character U+{ord(odd[0]):04X} is not allowed in YAML", is_syntax=False)
    try:
        return _compose(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        raise _translated(error, text) from None


def _compose(events: Iterator[Any]) -> YamlNode | None:
    root: YamlNode | None = None
    documents = 0
    nodes = 0
    stack: list[_Open] = []
    anchors: dict[str, tuple[YamlNode, int] | None] = {}  # None while the anchored collection is open
    for event in events:
        node: YamlNode
        before = nodes
        if isinstance(event, yaml.DocumentStartEvent):
            documents += 1
            if documents > 1:
                raise _error(event, "more than one YAML document; remove the line ---")
            continue
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise _error(event, f"the alias *{event.anchor} has no anchor &{event.anchor} before it", is_syntax=True)
            anchored = anchors[event.anchor]
            if anchored is None:
                raise _error(event, f"the alias *{event.anchor} stands inside what it names")
            node, size = anchored
            nodes += size
        elif isinstance(event, yaml.ScalarEvent):
            node = Scalar(event.value, _line(event), event.tag, event.implicit, event.style or None)
            nodes += 1
        elif isinstance(event, yaml.CollectionStartEvent):
            nodes += 1
            stack.append(_Open(event, before, []))
            if len(stack) > DEEPEST:
                raise _error(event, f"nested deeper than {DEEPEST} levels")
            if event.anchor is not None:
                anchors[event.anchor] = None
            continue
        elif isinstance(event, yaml.CollectionEndEvent):
            opened = stack.pop()
            node, before, event = _closed(opened), opened.nodes_before, opened.start
        else:
            continue
        if nodes > MOST_NODES:
            raise _error(event, f"more than {MOST_NODES} nodes, aliases expanded")
        if not isinstance(event, yaml.AliasEvent) and event.anchor is not None:
            anchors[event.anchor] = (node, nodes - before)
        if stack:
            stack[-1].children.append(node)
        else:
            root = node
    return root


def _closed(opened: _Open) -> YamlNode:
    start, children = opened.start, opened.children
    line = _line(start)
    if isinstance(start, yaml.SequenceStartEvent):
        return ListNode(tuple(children), line, start.tag, bool(start.flow_style))
    pairs = tuple(zip(children[::2], children[1::2], strict=True))
    return MapNode(pairs, line, start.tag, bool(start.flow_style))


def _line(event: Any) -> int:
    number: int = event.start_mark.line + 1
    return number


def _error(event: Any, message: str, *, is_syntax: bool = False) -> YamlError:
    return YamlError(_line(event), one_line(message), is_syntax=is_syntax)


def _translated(error: yaml.MarkedYAMLError, text: str) -> YamlError:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark is not None else (0, 0)
    lines = text.splitlines() or [""]
    if line < len(lines) and lines[line][column : column + 1] == "\t":
        return YamlError(line + 1, "a tab; YAML is indented with blanks", is_syntax=True)
    started = f" {error.context} of line {error.context_mark.line + 1}:" if error.context and error.context_mark else ""
    message = f"not valid YAML:{started} {error.problem}"
    return YamlError(min(line + 1, len(lines)), one_line(message), is_syntax=True)


def with_foreign_tags(node: YamlNode) -> Iterator[YamlNode]:
    """The nodes of a subtree that carry an explicit tag other than YAML's own plain types."""
    if node.tag is not None and node.tag not in CORE_TAGS:
        yield node
    if isinstance(node, ListNode):
        for item in node.items:
            yield from with_foreign_tags(item)
    elif isinstance(node, MapNode):
        for entry in node.entries:
            yield from with_foreign_tags(entry[0])
            yield from with_foreign_tags(entry[1])


def tag_problem(node: YamlNode) -> str:
    """What to say of one that `with_foreign_tags` found."""
    return f"the tag {shown(node.tag)} is not allowed: a configuration holds plain texts only"


# ---- writing ------------------------------------------------------------------------------------------------------

_resolver: Any = yaml.resolver.Resolver()


def text_scalar(text: str) -> Scalar:
    """A scalar that every YAML reader takes for a text: quoted where the plain text would be a number, a boolean, …"""
    plain_is_text = _resolver.resolve(yaml.ScalarNode, text, (True, False)) == "tag:yaml.org,2002:str"
    # PyYAML folds some line breaks in single quotes so that they are read back as others; escapes are safe everywhere.
    style = '"' if _BREAKS.search(text) else None
    return Scalar(text, implicit=(plain_is_text, True), style=style)


def write(root: MapNode) -> str:
    """The document in block style, as SnakeYAML writes it (folded at 80 columns, raw Unicode, newline at the end).

    Tags, styles and texts of nodes that were read are kept as they were; aliases come out expanded.
    """
    events = [yaml.StreamStartEvent(), yaml.DocumentStartEvent(explicit=False)]
    events += _events(root)
    events += [yaml.DocumentEndEvent(explicit=False), yaml.StreamEndEvent()]
    written: str = yaml.emit(events, Dumper=yaml.SafeDumper, allow_unicode=True)
    return written


def _events(node: YamlNode) -> Iterator[yaml.Event]:
    if isinstance(node, Scalar):
        yield yaml.ScalarEvent(None, node.tag, node.implicit, node.text, style=node.style)
    elif isinstance(node, ListNode):
        yield yaml.SequenceStartEvent(None, node.tag, node.tag is None, flow_style=node.flow)
        for item in node.items:
            yield from _events(item)
        yield yaml.SequenceEndEvent()
    else:
        yield yaml.MappingStartEvent(None, node.tag, node.tag is None, flow_style=node.flow)
        for entry in node.entries:
            yield from _events(entry[0])
            yield from _events(entry[1])
        yield yaml.MappingEndEvent()
