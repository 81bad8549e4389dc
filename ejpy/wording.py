"""How problems are worded: each is one line, shows the value in question shortened, and offers the name that was meant.

A configuration comes from elsewhere (a file, the environment, the registry), so anything in it may hold line breaks,
terminal escapes or a megabyte of text. None of that may reach a log line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN_CHARACTERS = 60


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
