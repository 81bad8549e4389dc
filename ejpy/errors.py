"""Every error that a user of ejpy can meet. Each message says what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ejpy.wording import one_line

_SHOWN_OF_LAST_LINE = 200


class EjpyError(Exception):
    """Base of ejpy's own errors."""


# ---- configuration ------------------------------------------------------------------------------------------------


class ConfigError(EjpyError):
    """One or more things are wrong with a configuration; `problems` has one readable line for each.

    Nothing was written to the registry when this is raised.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))


class CronError(EjpyError, ValueError):
    """A cron expression or time zone is refused; the message names the field and what is allowed."""


# ---- registry -----------------------------------------------------------------------------------------------------


class RegistryError(EjpyError):
    """Base of everything that a registry call can raise."""


class RegistryUnreachable(RegistryError):
    """No connection could be made within the connection time-out. The message names the address and the cause."""

    def __init__(self, address: str, cause: str) -> None:
        self.address = address
        self.cause = cause
        super().__init__(f"registry {address} cannot be reached: {cause}; is it running, and is the address right?")


class RegistryUnavailable(RegistryError):
    """The request was not sent, since there is no connection (or none in time). It has certainly had no effect."""


class OutcomeUnknown(RegistryError):
    """The request was sent, and no reply came. It may have had its effect, or may still have it: read before repeating."""


class SessionExpired(RegistryError):
    """The session ended; its ephemeral nodes are gone. The request has had no effect."""


class AccessDenied(RegistryError):
    """The registry refused the credentials, or they do not allow this request."""


class GuardFailure(str, Enum):
    """Which condition an operation failed on."""

    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    NOT_EMPTY = "not empty"
    EPHEMERAL_PARENT = "parent is ephemeral"


class GuardFailed(RegistryError):
    """A condition did not hold, so nothing of the transaction was applied.

    `index` is the position of the first operation that failed, `path` its node.
    """

    def __init__(self, index: int, path: str, failure: GuardFailure) -> None:
        self.index = index
        self.path = path
        self.failure = failure
        super().__init__(f"{path}: {failure.value} (operation {index})")


class RequestTooLarge(RegistryError):
    """The transaction is over the registry's limit of operations or bytes and was not sent."""


class BrokenEntry(RegistryError):
    """A ledger node does not hold an entry. Its item starts anew, at its next fire; tokens grow all the same."""


class NewerEntry(BrokenEntry):
    """An entry of a later ejpy, whose meaning is unknown here. It must not be overwritten."""


# ---- jobs ---------------------------------------------------------------------------------------------------------


class JobConflict(EjpyError):
    """The job is registered with another class. Rename the job, or set `overwrite: true` to replace it."""


class JobCancelled(EjpyError):
    """Raised inside a body by `ShardContext.raise_if_cancelled()` when the attempt was told to stop."""


class StaleAttempt(EjpyError):
    """A write was refused, since a newer attempt of the item exists: this one has lost its right to write."""


class UnreadableToken(EjpyError):
    """The fencing token that is stored with what was to be written is none, so nothing could be compared or was written."""


# ---- kinds of jobs ------------------------------------------------------------------------------------------------
# What is most telling stands first in a message: histories keep only its beginning.


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


# ---- operations ---------------------------------------------------------------------------------------------------


class NoSuchJob(EjpyError):
    """There is no job of that name in the namespace."""


class NothingToDo(EjpyError):
    """There is nothing that the operation could have an effect on: no instance to trigger, no such server or item."""
