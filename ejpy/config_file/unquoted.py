"""Values that YAML cannot read for want of quotes: `cron: */5 * * * * ?`, `cron: @daily`, `description: a: b`.

The most frequent mistake in such files, and YAML's own message ("while scanning an alias") helps nobody. The value is
named, and quoted in memory, so that reading goes on and the file's other mistakes are found in the same pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ejpy.config import yaml_tree
from ejpy.config.yaml_tree import YamlError, YamlNode
from ejpy.wording import shown

MOST_REPAIRS = 20
"""Each costs one more parse of the file; what is beyond is found in the next pass."""

_KEY_AND_VALUE = re.compile(r"(?P<before>\s*(?P<key>[^\s'\"#:&*!|>%@?\[{][^'\"#:]*?)\s*:\s+)(?P<value>[^\s'\"|>#\[{].*?)\s*")
_RESERVED = "*?@%&`!"


@dataclass(frozen=True, slots=True)
class Unquoted:
    """A value that was read as if it stood in quotes."""

    line: int
    key: str
    message: str


@dataclass(frozen=True, slots=True)
class Reading:
    """What could be read."""

    root: YamlNode | None
    """None if the text has no document, or a `failure`."""
    unquoted: tuple[Unquoted, ...]
    failure: YamlError | None


def read(text: str) -> Reading:
    """The document's tree, read as far as quotes can help."""
    unquoted: list[Unquoted] = []
    while True:
        try:
            return Reading(yaml_tree.read(text), tuple(unquoted), None)
        except YamlError as error:
            repaired = _with_quotes(text, error.line) if error.is_syntax and len(unquoted) < MOST_REPAIRS else None
            if repaired is None:
                return Reading(None, tuple(unquoted), error)
            text, found = repaired
            unquoted.append(found)


def _with_quotes(text: str, number: int) -> tuple[str, Unquoted] | None:
    lines = text.split("\n")
    match = _KEY_AND_VALUE.fullmatch(lines[number - 1]) if number <= len(lines) else None
    if match is None:
        return None
    key, value = match["key"], match["value"]
    if value[0] in _RESERVED:
        why = f"YAML gives {shown(value[0])} at the beginning a meaning of its own"
    elif ": " in value or value.endswith(":"):
        why = "YAML takes the second ':' for another key"
    else:
        return None
    quoted = "'" + value.replace("'", "''") + "'"
    lines[number - 1] = match["before"] + quoted
    thing = "the cron expression" if key == "cron" else "the value"
    return "\n".join(lines), Unquoted(number, key, f"{why}; put {thing} in quotes: {key}: {quoted}")
