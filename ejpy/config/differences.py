"""What a file and the registry say differently of a job.

Which of them counts is decided by `overwrite`, and that is the question users ask most; so the worker can name every key
that differs, with both values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ejpy.config.model import JobConfig, write_value

NOT_SET = "(not set)"
HIDDEN = "(hidden)"

_SECRET = re.compile("pass|pwd|secret|token|credential|api.?key|private.?key|webhook|ur[il]$", re.IGNORECASE)
"""An address may hold a password or a token."""

_NOT_COMPARED = ("job_name", "job_class", "python_class", "overwrite")
"""The name is the same, another class is a conflict and not a difference, the Python class stands in the file only, and
`overwrite` says who wins."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One key, with both values as texts; `(not set)` for none. For a mapping the key is `props.name`.

    Values in `props` whose name sounds like a secret are shown as `(hidden)`: differences go to the log.
    """

    key: str
    file_value: str
    registry_value: str


def differences(file: JobConfig, registry: JobConfig) -> list[Difference]:
    """The keys whose values differ, in the order of the keys; `overwrite` itself is not compared."""
    found: list[Difference] = []
    for name in JobConfig.model_fields:
        mine, theirs = getattr(file, name), getattr(registry, name)
        if name in _NOT_COMPARED or mine == theirs:
            continue
        if isinstance(mine, Mapping):
            found += _in_mapping(name, mine, theirs)
        else:
            found.append(Difference(name, _shown(mine), _shown(theirs)))
    return found


def _in_mapping(name: str, mine: Mapping[int | str, str], theirs: Mapping[int | str, str]) -> list[Difference]:
    found = []
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key) != theirs.get(key):
            secret = name == "props" and _SECRET.search(str(key)) is not None
            sides = [HIDDEN if secret and key in side else _shown(side.get(key)) for side in (mine, theirs)]
            found.append(Difference(f"{name}.{key}", *sides))
    return found


def _shown(value: object) -> str:
    return NOT_SET if value is None or value == () else write_value(value)
