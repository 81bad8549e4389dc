"""How problems are worded: each is one line, shows the value in question shortened, and offers the name that was meant.

A configuration comes from elsewhere (a file, the environment, the registry), so anything in it may hold line breaks,
terminal escapes or a megabyte of text. None of that may reach a log line.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable

SHOWN_CHARACTERS = 60
ERROR_LENGTH = 500
"""Most characters of an error text."""
TRACE_LENGTH = 20_000
"""Most characters of a stack trace; of a longer one the middle is left out."""


def one_line(text: str) -> str:
    """`text` with everything unprintable escaped, so that it is one line and cannot steer a terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode("ascii") for c in text)


def shown(value: object) -> str:
    """A value as it is quoted in a message: in single quotes, on one line, cut after `SHOWN_CHARACTERS`."""
    text = value if isinstance(value, str) else repr(value)
    if len(text) > SHOWN_CHARACTERS:
        text = text[:SHOWN_CHARACTERS] + "…"
    return f"'{one_line(text)}'" if isinstance(value, str) else one_line(text)


def closest(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` is most likely a misspelling of, whatever its case; None if none is close."""
    by_folded: dict[str, str] = {}
    for candidate in candidates:
        by_folded.setdefault(candidate.lower(), candidate)
    found = difflib.get_close_matches(word.lower()[:200], by_folded, n=1, cutoff=0.75)
    return by_folded[found[0]] if found else None


def describe_error(error: BaseException) -> str:
    """Type and message in one line of at most 500 characters; also for an exception whose `__str__` raises."""
    try:
        message = str(error)
    except BaseException as second:  # noqa: BLE001 - a message is asked of an object of which nothing is known
        message = f"(its message cannot be read: __str__ raised {type(second).__name__})"
    kind = type(error).__name__
    text = one_line(" ".join(f"{kind}: {message}".split())) if message else kind
    return text if len(text) <= ERROR_LENGTH else text[: ERROR_LENGTH - 1] + "…"


def describe_trace(error: BaseException) -> str:
    """Its stack trace in at most 20,000 characters, without the frame that called what raised it."""
    frames = error.__traceback__
    try:
        text = "".join(traceback.format_exception(type(error), error, frames and frames.tb_next)).rstrip("\n")
    except BaseException as second:  # noqa: BLE001 - as for the message; what it is caused by may be as strange
        return f"(its stack trace cannot be read: {type(second).__name__} was raised)"
    if len(text) <= TRACE_LENGTH:
        return text
    mark = "\n[…]\n"
    half = (TRACE_LENGTH - len(mark)) // 2
    return text[:half] + mark + text[-half:]
