"""How a script or an HTTP request fails. What is most telling stands first: histories keep only the beginning of a message."""

from __future__ import annotations

from collections.abc import Sequence

from ejpy.errors import EjpyError
from ejpy.wording import one_line

_SHOWN_OF_LAST_LINE = 200


class ScriptFailed(EjpyError):
    """A script could not be started, ended with an exit code other than 0 or by a signal, or could not be ended.

    `exit_code` is None if there is none; `last_lines` are the last ones of what the script wrote.
    """

    def __init__(self, what: str, *, exit_code: int | None = None, last_lines: Sequence[str] = ()) -> None:
        self.exit_code = exit_code
        self.last_lines = tuple(last_lines)
        said = [line for line in self.last_lines if line.strip()]
        message = what
        if said:
            message += f": {one_line(said[-1].strip())[:_SHOWN_OF_LAST_LINE]}"
        if len(said) > 1:
            message += "\nlast lines of its output:\n" + "\n".join(self.last_lines)
        super().__init__(message)


class HttpFailed(EjpyError):
    """A request was not answered, or with a status of 400 or more, or with a redirection that is not followed.

    `status` is None if no answer came. A request without an answer may have had its effect all the same.
    """

    def __init__(self, what: str, *, status: int | None = None) -> None:
        self.status = status
        super().__init__(what)
