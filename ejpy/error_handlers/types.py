"""Error handlers by name: ElasticJob's, Slack, and what other distributions provide.

Names are compared without regard to case, as in ElasticJob from 3.0.5 on; no name, or an empty one, means LOG. A name of
ejpy's own cannot be taken by an entry point: what LOG does must not depend on what is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from ejpy.entry_points import class_of, entry_points, named
from ejpy.error_handlers.base import JobErrorHandler
from ejpy.error_handlers.local import IgnoreHandler, LogHandler, ThrowHandler
from ejpy.error_handlers.mail import EmailHandler
from ejpy.error_handlers.webhook import DingTalkHandler, SlackHandler, WeChatHandler
from ejpy.errors import ConfigError
from ejpy.wording import closest, one_line, shown

GROUP = "ejpy.error_handlers"
"""The group of entry points: name → a subclass of JobErrorHandler."""

DEFAULT = "LOG"
BUILT_IN: Mapping[str, type[JobErrorHandler]] = {
    "LOG": LogHandler,
    "THROW": ThrowHandler,
    "IGNORE": IgnoreHandler,
    "EMAIL": EmailHandler,
    "WECHAT": WeChatHandler,
    "DINGTALK": DingTalkHandler,
    "SLACK": SlackHandler,
}


LOCAL = frozenset({"LOG", "THROW", "IGNORE"})
"""Those that send nothing: what they do is done when their jobs' failures are logged."""


@dataclass(frozen=True, slots=True)
class HandlerSettings:
    """What a job says of its error handler."""

    type_name: str | None = None
    props: Mapping[str, str] = field(default_factory=dict)
    deduplicate: timedelta = timedelta(minutes=1)
    """For how long after a failure was told others with the same error are only counted; zero: each one is told."""


def folded(type_name: str | None) -> str:
    """The name in the spelling that names are compared in."""
    return (type_name or "").strip().upper() or DEFAULT


def handler_class(type_name: str | None) -> type[JobErrorHandler]:
    """The class of that name.

    Raises ConfigError with one problem: unknown (with a close name), provided twice, or an entry point that cannot be used.
    """
    name = folded(type_name)
    if name in BUILT_IN:
        return BUILT_IN[name]
    point = named(GROUP, name, same=lambda provided, wanted: provided.upper() == wanted)
    if point is None:
        known = [*BUILT_IN, *dict.fromkeys(other.name for other in entry_points(GROUP))]
        near = closest(name, known)
        hint = f"did you mean {near}?" if near else f"allowed: {one_line(', '.join(known))}"
        raise ConfigError([f"error handler {shown(type_name)} is unknown; {hint}"])
    return class_of(point, JobErrorHandler)


def problems_of(settings: HandlerSettings) -> list[str]:
    """All that is wrong with a job's settings of its error handler, one line each; empty if it can be made."""
    try:
        kind = handler_class(settings.type_name)
    except ConfigError as error:
        return list(error.problems)
    return [one_line(problem) for problem in kind.validate(settings.props)]
