"""What each kind of value accepts: the value itself, or the text that stands for it in a file, the registry or the environment.

Every function returns the value or raises ValueError with a message that names what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import Enum
from typing import TypeVar

from ejpy.config import durations, item_parameters
from ejpy.wording import closest, shown

PROPS_PREFIX = "ejpy."
"""Names in `props` that begin so are ejpy's own: its settings that ElasticJob has no key for."""

LONGEST_JOB_NAME = 200

_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_TRUE = frozenset({"true", "yes", "on"})
_FALSE = frozenset({"false", "no", "off"})
# ZooKeeper refuses these in a path (`PathUtils.validatePath`), and Java counts a character above U+FFFF as two surrogates.
_NOT_IN_A_PATH = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")

EnumType = TypeVar("EnumType", bound=Enum)


def text(value: object) -> str:
    """A text that can be stored: lone surrogates cannot."""
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a text; put it in quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{shown(value)} holds half a character (a lone surrogate)") from None
    return value


def optional_text(value: object) -> str | None:
    """A text; None and the empty text both mean that nothing is set."""
    return None if value is None else text(value) or None


def cron(value: object) -> str | None:
    """The text of a cron expression. None: the job has no schedule (a one-off job)."""
    if value is not None and not text(value).strip():
        raise ValueError("empty; give a cron expression, for instance '0 0/5 * * * ?', or null for a one-off job")
    return optional_text(value)


def job_name(value: object) -> str:
    """A name that can be a node of every registry and part of an ElasticJob task id."""
    name = text(value)
    if not name:
        raise ValueError("a job name must not be empty")
    if len(name) > LONGEST_JOB_NAME:
        raise ValueError(f"{shown(name)} has {len(name)} characters; allowed: at most {LONGEST_JOB_NAME}")
    if name in (".", ".."):
        raise ValueError(f"{shown(name)} cannot be a job name")
    for forbidden in ("/", "@-@"):
        if forbidden in name:
            raise ValueError(f"{shown(name)} has {shown(forbidden)} in it, which a job name must not")
    odd = _NOT_IN_A_PATH.search(name)
    if odd is not None:
        raise ValueError(f"{shown(name)} has the character U+{ord(odd[0]):04X} in it, which ZooKeeper refuses in a name")
    return name


def flag(value: object) -> bool:
    """true or false (also yes/no, on/off), in any case."""
    if isinstance(value, bool):
        return value
    folded = value.strip().lower() if isinstance(value, str) else None
    if folded in _TRUE:
        return True
    if folded in _FALSE:
        return False
    raise ValueError(f"{shown(value)} is not allowed; allowed: true, false")


def whole(lowest: int, highest: int) -> Callable[[object], int]:
    """A whole number from `lowest` to `highest`. Texts are decimal, without leading zeros (YAML 1.1 reads 010 as 8)."""

    def number(value: object) -> int:
        told = int(value) if isinstance(value, str) and _WHOLE.fullmatch(value.strip()) else value
        if isinstance(told, int) and not isinstance(told, bool) and lowest <= told <= highest:
            return told
        raise ValueError(f"{shown(value)} is not allowed; allowed: a whole number from {lowest} to {highest}")

    return number


def choice(members: type[EnumType]) -> Callable[[object], EnumType]:
    """A member of an enum, or its value as a text in any case."""
    by_folded = {str(member.value).lower(): member for member in members}
    names = [str(member.value) for member in members]

    def member(value: object) -> EnumType:
        if isinstance(value, members):
            return value
        if isinstance(value, str) and value.strip().lower() in by_folded:
            return by_folded[value.strip().lower()]
        near = closest(value, names) if isinstance(value, str) else None
        meant = f"; did you mean {near}? allowed" if near else "; allowed"
        raise ValueError(f"{shown(value)} is not allowed{meant}: {', '.join(names)}")

    return member


def choice_or_name(members: type[EnumType]) -> Callable[[object], EnumType | str]:
    """As `choice`; any other text that is not empty is a name that others may know, and is left as it is."""
    own = {str(member.value).lower(): member for member in members}

    def member_or_name(value: object) -> EnumType | str:
        if isinstance(value, members):
            return value
        name = text(value).strip()
        if not name:
            raise ValueError(f"empty; allowed: {', '.join(str(member.value) for member in members)}, or a name of your own")
        return own.get(name.lower(), name)

    return member_or_name


def optional(inner: Callable[[object], EnumType | timedelta]) -> Callable[[object], EnumType | timedelta | None]:
    """As `inner`, or None."""
    return lambda value: None if value is None else inner(value)


def duration(value: object) -> timedelta:
    """A duration above 0, from a `timedelta`, a text (see `durations`) or a number of seconds."""
    if isinstance(value, timedelta):
        return durations.check(value)
    if isinstance(value, str):
        return durations.parse(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return durations.parse(str(value))
    raise ValueError(f"{shown(value)} is not a duration")


def sharding_item_parameters(value: object) -> dict[int, str]:
    """Parameters by item number, from a mapping or from ElasticJob's text form."""
    if isinstance(value, str):
        return item_parameters.parse_unique(value)
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not allowed; allowed: {{0: Beijing, 1: Shanghai}} or '0=Beijing,1=Shanghai'")
    return {item_parameters.number(str(item)): text(parameter) for item, parameter in value.items()}


def props(value: object) -> dict[str, str]:
    """Texts by name."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{shown(value)} is not allowed; allowed: a mapping of names to texts")
    return {prop_name(name): text(prop) for name, prop in value.items()}


def names(value: object) -> tuple[str, ...]:
    """Names, from a list of them or from a text with commas between them."""
    if isinstance(value, str):
        value = value.split(",") if value.strip() else []
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{shown(value)} is not allowed; allowed: [first, second] or 'first,second'")
    found = tuple(text(name).strip() for name in value)
    for name in found:
        if not name or "," in name:
            raise ValueError(f"{shown(name)} is not a name; allowed: [first, second] or 'first,second'")
    return found


def prop_name(value: object) -> str:
    """A name in `props`."""
    name = text(value)
    if not name:
        raise ValueError("a name in props must not be empty")
    if name.startswith(PROPS_PREFIX):
        raise ValueError(f"{shown(name)}: names that begin with {PROPS_PREFIX} are ejpy's own; set the job's key instead")
    return name
