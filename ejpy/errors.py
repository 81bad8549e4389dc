"""Every error that a user of ejpy can meet. Each message says what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


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


# ---- jobs ---------------------------------------------------------------------------------------------------------


class JobConflict(EjpyError):
    """The job is registered with another class. Rename the job, or set `overwrite: true` to replace it."""


class JobCancelled(EjpyError):
    """Raised inside a body by `ShardContext.raise_if_cancelled()` when the attempt was told to stop."""


class StaleAttempt(EjpyError):
    """A write was refused, since a newer attempt of the item exists: this one has lost its right to write."""
