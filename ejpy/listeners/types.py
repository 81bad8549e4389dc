"""Listeners by name: an entry point, or `module:Class`. ejpy has none of its own."""

from __future__ import annotations

from ejpy.entry_points import class_named, class_of, entry_points, named
from ejpy.errors import ConfigError
from ejpy.listeners.base import JobListener
from ejpy.wording import closest, one_line, shown

GROUP = "ejpy.listeners"
"""The group of entry points: name → a subclass of JobListener."""


def listener_class(name: str) -> type[JobListener]:
    """The class that `name` stands for: with a colon `module:Class`, otherwise the name of an entry point, in any case.

    Raises ConfigError with one problem.
    """
    if ":" in name:
        return class_named(name, JobListener)
    point = named(GROUP, name.strip().upper(), same=lambda provided, wanted: provided.upper() == wanted)
    if point is None:
        known = list(dict.fromkeys(other.name for other in entry_points(GROUP)))
        near = closest(name, known)
        if near:
            hint = f"did you mean {near}?"
        else:
            hint = "give module:Class" + (f", or one of: {one_line(', '.join(known))}" if known else "")
        raise ConfigError([f"listener {shown(name)} is unknown; {hint}"])
    return class_of(point, JobListener)
