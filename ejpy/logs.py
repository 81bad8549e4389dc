"""Logging: which attempt a line belongs to, and how the command line tool prints it.

ejpy logs through `logging.getLogger("ejpy.…")` and configures nothing, except in the command line tool, which calls
`configure`. A record carries its fields (job, item, scheduled_time, token, attempt, reason, …) as one mapping in the
attribute `ejpy_fields`. They come from two sides:

* `extra=fields(job=…, item=…)`, which ejpy's own log calls pass;
* a context variable that is set around every body, so that a user's own `logging.getLogger("shop")` lines carry them too.
  `ContextFields`, a filter for handlers, puts them into the record. Applications with a logging set-up of their own can
  add it to their handlers.

A log line must not be forged by what a job logs: in text, line breaks and whatever steers a terminal are printed as escapes,
and values that could be mistaken for other fields are quoted.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from datetime import datetime, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from ejpy.attempt import Attempt
from ejpy.wording import one_line

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

    # at run time these classes take a parameter only from Python 3.11 on
    _LoggerAdapter = logging.LoggerAdapter[logging.Logger]
    _StreamHandler = logging.StreamHandler[SupportsWrite[str]]
else:
    _LoggerAdapter = logging.LoggerAdapter
    _StreamHandler = logging.StreamHandler

current_fields: ContextVar[Mapping[str, Any]] = ContextVar("ejpy_fields")
"""The fields of the attempt whose body runs in this context; not set outside of bodies."""

_NAME = "ejpy_fields"
_FIRST_IN_TEXT = {"job": "job", "item": "item", "scheduled_time": "scheduled", "token": "token"}
_OMITTED_IN_TEXT = {"task_id"}
# What is so on nearly every line says nothing to people; JSON has it all.
_ORDINARY_IN_TEXT: set[tuple[str, Any]] = {("attempt", 1), ("reason", "scheduled")}
_PLAIN_VALUE = re.compile(r"[^\s\"=]+")
# kazoo prints requests, authentication included, at DEBUG and below: a registry's password must not get into a log.
_LIBRARIES_TOO_CHATTY = ("kazoo", "apscheduler")


def fields(**values: Any) -> dict[str, Any]:
    """The `extra=` argument of a log call: `log.info("claimed", extra=fields(job=name, item=3, token=17))`."""
    return {_NAME: values}


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The fields that a record carries; empty without."""
    found: Mapping[str, Any] = getattr(record, _NAME, {})
    return found


def attempt_fields(attempt: Attempt) -> dict[str, Any]:
    """The fields that every line about one attempt carries."""
    return {
        "job": attempt.job_name,
        "item": attempt.sharding_item,
        "scheduled_time": attempt.scheduled_time,
        "token": attempt.fencing_token,
        "attempt": attempt.attempt,
        "reason": attempt.reason.value,
        "task_id": attempt.task_id,
    }


class FieldsAdapter(_LoggerAdapter):
    """A logger whose records carry the same fields each time, together with those of the single call."""

    def __init__(self, logger: logging.Logger, always: Mapping[str, Any]) -> None:
        super().__init__(logger, {})
        self._always = always

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        extra = dict(kwargs.get("extra") or {})
        extra[_NAME] = {**self._always, **extra.get(_NAME, {})}
        return msg, {**kwargs, "extra": extra}


class ContextFields(logging.Filter):
    """Adds the fields of the body that is running to a record; those that the record has already win. Drops nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        around = current_fields.get({})
        if around:
            setattr(record, _NAME, {**around, **fields_of(record)})
        return True


class TextFormatter(logging.Formatter):
    """One line an event, for people: time (UTC), level, logger, message, fields. A stack trace follows, indented."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [_instant(record), f"{record.levelname:<7}", record.name, one_line(record.getMessage())]
        given = fields_of(record)
        parts += [f"{shown}={_text_value(given[name])}" for name, shown in _FIRST_IN_TEXT.items() if name in given]
        for name, value in given.items():
            plain = value.value if isinstance(value, Enum) else value
            if name not in _FIRST_IN_TEXT and name not in _OMITTED_IN_TEXT and not _is_ordinary(name, plain):
                parts.append(f"{name}={_text_value(plain)}")
        line = " ".join(parts)
        trace = _trace(self, record)
        return line if not trace else line + "\n" + "\n".join("    " + row for row in trace.splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, the fields, and `exception` with the stack trace."""

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, Any] = {
            "time": _instant(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in fields_of(record).items():
            event.setdefault(name, value)
        trace = _trace(self, record)
        if trace:
            event["exception"] = trace
        return json.dumps(event, ensure_ascii=False, default=plain)


def configure(level: str, format: Literal["text", "json"], stream: SupportsWrite[str]) -> None:
    """Send everything that is logged in this process at `level` ("debug", "info", …) or above to `stream`.

    For the command line tool only. Called again, it replaces what it set up before. Libraries below ejpy are held to
    WARNING, at `debug` to INFO. Raises ValueError for an unknown level or format.
    """
    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        raise ValueError(f"log level {level!r} is unknown: use debug, info, warning, error or critical")
    formatters = {"text": TextFormatter, "json": JsonFormatter}
    if format not in formatters:
        raise ValueError(f"log format {format!r} is unknown: use {' or '.join(formatters)}")
    handler = _CommandLineHandler(stream)
    handler.setFormatter(formatters[format]())
    handler.addFilter(ContextFields())
    root = logging.getLogger()
    for earlier in [known for known in root.handlers if isinstance(known, _CommandLineHandler)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel(number)
    for library in _LIBRARIES_TOO_CHATTY:
        logging.getLogger(library).setLevel(logging.INFO if number <= logging.DEBUG else max(number, logging.WARNING))


class _CommandLineHandler(_StreamHandler):
    """The handler that `configure` set up, to be known again."""


def _instant(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The stack trace as text: of the exception at hand, or as it came from a child process in `exc_text`."""
    trace = record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")
    return "\n".join(part for part in (trace, record.stack_info) if part)


def _is_ordinary(name: str, value: Any) -> bool:
    return any(name == known and value == usual for known, usual in _ORDINARY_IN_TEXT)


def plain(value: Any) -> Any:
    """A field's value as it is printed: text for enums, instants and whatever JSON does not know."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    return str(value)


def _text_value(value: Any) -> str:
    text = str(plain(value))
    return text if _PLAIN_VALUE.fullmatch(text) and text.isprintable() else json.dumps(text, ensure_ascii=False)
