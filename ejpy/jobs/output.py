"""What a script writes: lines for the log as they come, and the last ones for the message of a failure.

A script may write gigabytes, and may never end a line. Nothing here grows with it: a line that is too long is passed on in
pieces, and what is kept is bounded in lines and in characters.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterator

LINE_CHARACTERS = 8 * 1024
"""A longer line is cut into pieces of this length."""
TAIL_LINES = 20
TAIL_CHARACTERS = 8 * 1024
"""Most characters that are kept of the last lines together."""


class Lines:
    """Cuts UTF-8 into lines, without their ends. What is no UTF-8 becomes U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""
        self._cut = False
        """Pieces of the line that is begun were passed on."""

    def feed(self, data: bytes, *, final: bool = False) -> Iterator[str]:
        """The lines that `data` completes; with `final` also one that has no end."""
        *lines, begun = (self._begun + self._decoder.decode(data, final)).split("\n")
        if final and begun:
            lines.append(begun)
            begun = ""
        whole = len(begun) - len(begun) % LINE_CHARACTERS
        self._begun = begun[whole:]
        for line in lines:
            rest = line.removesuffix("\r")
            if rest or not self._cut:
                yield from _pieces(rest)
            self._cut = False
        if whole:
            self._cut = True
            yield from _pieces(begun[:whole])


class Tail:
    """The last lines."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque()
        self._characters = 0

    def add(self, line: str) -> None:
        kept = line[-TAIL_CHARACTERS:]
        self._lines.append(kept)
        self._characters += len(kept)
        while len(self._lines) > TAIL_LINES or self._characters > TAIL_CHARACTERS:
            self._characters -= len(self._lines.popleft())

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)


def _pieces(line: str) -> Iterator[str]:
    """One piece at least, if only an empty one."""
    for start in range(0, max(len(line), 1), LINE_CHARACTERS):
        yield line[start : start + LINE_CHARACTERS]
