"""ElasticJob's text form of item parameters: `0=Beijing,1=Shanghai`.

The rules are those of ElasticJob's `ShardingItemParameters`: parts are separated by `,`, number and value by one `=`,
blanks around both are dropped, a trailing comma does not count. A value with `,` or `=` in it (JSON, SQL), an empty one,
or one with blanks at its ends cannot be written in this form; ejpy takes such values from a YAML mapping.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ejpy.wording import shown

_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
_BLANK = "".join(map(chr, range(0x21)))
"""What Java's `String.trim` drops."""
_MAPPING_HINT = "for values with ',' or '=' use a mapping: {0: ..., 1: ...}"


def number(text: str) -> int:
    """The item number that `text` tells. Raises ValueError."""
    text = text.strip(_BLANK)
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"{shown(text)} is not an item number; allowed: 0, 1, 2, …")
    return int(text)


def parse(text: str) -> list[tuple[int, str]]:
    """Items and values in the order of `text`; an item may occur twice (in ElasticJob the last one wins).

    Raises ValueError for the first part that is not `item=value`.
    """
    parts = text.split(",")
    while parts and not parts[-1].strip(_BLANK):
        parts.pop()
    return [_pair(part.strip(_BLANK)) for part in parts]


def parse_unique(text: str) -> dict[int, str]:
    """As `parse`; an item that occurs twice is a ValueError, too."""
    values: dict[int, str] = {}
    for item, value in parse(text):
        if item in values:
            raise ValueError(f"item {item} is given twice")
        values[item] = value
    return values


def expressible(value: str) -> bool:
    """Whether the text form can hold this value so that Java workers and ejpy read the same."""
    return bool(value) and "," not in value and "=" not in value and value == value.strip(_BLANK)


def write(values: Mapping[int, str]) -> str:
    """The text form of values that are all `expressible`, by item number."""
    return ",".join(f"{item}={value}" for item, value in sorted(values.items()))


def _pair(part: str) -> tuple[int, str]:
    pieces = [piece.strip(_BLANK) for piece in part.split("=")]
    if len(pieces) != 2 or not pieces[1]:
        raise ValueError(f"{shown(part)} is not of the form item=value; {_MAPPING_HINT}")
    return number(pieces[0]), pieces[1]
