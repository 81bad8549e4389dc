"""Classes that other distributions provide: by the name of an entry point, or as `module:Class`.

Loading runs somebody else's code, which may fail in any way; every way ends as one line that names the entry point, where it
comes from, and what went wrong.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint
from typing import Any

from ejpy.errors import ConfigError
from ejpy.wording import describe_error, one_line, shown

_SPEC = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def entry_points(group: str) -> list[EntryPoint]:
    """What the installed distributions provide in `group`, sorted by name."""
    return sorted(importlib.metadata.entry_points(group=group), key=lambda point: (point.name, point.value))


def named(group: str, name: str, *, same: Callable[[str, str], bool] = str.__eq__) -> EntryPoint | None:
    """The entry point of that name. Raises ConfigError if different things are provided under it."""
    found = {point.value: point for point in entry_points(group) if same(point.name, name)}
    if len(found) > 1:
        raise ConfigError(
            [f"entry point {group} {shown(name)} is provided more than once: {_list(found.values())}; uninstall one"]
        )
    return next(iter(found.values()), None)


def class_named(spec: str, base: type[Any]) -> type[Any]:
    """The class that `spec` (`module:Class`) names, a subclass of `base`. Raises ConfigError with one problem."""
    if not _SPEC.fullmatch(spec):
        raise ConfigError([f"{shown(spec)} is not of the form module:Class"])
    return class_of(EntryPoint(spec, spec, ""), base, one_line(spec))


def class_of(point: EntryPoint, base: type[Any], what: str | None = None) -> type[Any]:
    """The class behind an entry point, a subclass of `base`. Raises ConfigError with one problem, which begins with `what`."""
    what = what or f"entry point {point.group} {_text(point)}"
    try:
        found = point.load()
    except (Exception, SystemExit) as error:
        raise ConfigError([f"{what} cannot be loaded: {describe_error(error)}"]) from error
    if not inspect.isclass(found) or not issubclass(found, base):
        raise ConfigError([f"{what} is not a subclass of {base.__name__}"])
    kind: type[Any] = found
    if inspect.isabstract(kind):
        raise ConfigError([f"{what} is abstract; it must define {', '.join(sorted(kind.__abstractmethods__))}"])
    return kind


def _list(points: Iterable[EntryPoint]) -> str:
    return ", ".join(map(_text, points))


def _text(point: EntryPoint) -> str:
    source = f" ({point.dist.name} {point.dist.version})" if point.dist is not None else ""
    return one_line(f"'{point.name} = {point.value}'{source}")
