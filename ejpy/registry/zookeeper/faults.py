"""ZooKeeper's error codes, and what kazoo raises, as errors of ejpy.

The one question that matters for a write is whether it can have had an effect. A refusal by the server is an answer: it had
none. Everything else that happens to a request that was sent leaves it open.
"""

from __future__ import annotations

from kazoo.exceptions import ConnectionClosedError, ConnectionLoss, ZookeeperError

from ejpy.errors import (
    AccessDenied,
    GuardFailed,
    GuardFailure,
    OutcomeUnknown,
    RegistryError,
    RegistryUnavailable,
    SessionExpired,
)

SESSION_EXPIRED = -112

_GUARDS = {
    -101: GuardFailure.NO_NODE,
    -103: GuardFailure.BAD_VERSION,
    -108: GuardFailure.EPHEMERAL_PARENT,
    -110: GuardFailure.NODE_EXISTS,
    -111: GuardFailure.NOT_EMPTY,
}

_REFUSALS: dict[int, tuple[type[RegistryError], str]] = {
    -6: (
        RegistryError,
        "the server does not know this request; ejpy needs ZooKeeper 3.6 or later (multiRead, persistent recursive watches)",
    ),
    -8: (RegistryError, "the server refused an argument of the request; is every path absolute and without empty parts?"),
    -102: (AccessDenied, "the credentials in use do not allow this (ZooKeeper: NoAuth); check the digest user and password"),
    SESSION_EXPIRED: (SessionExpired, "the session has ended"),
    -114: (AccessDenied, "the server refused the access list of a new node (ZooKeeper: InvalidACL); are credentials missing?"),
    -115: (AccessDenied, "the server refused the credentials (ZooKeeper: AuthFailed); check the digest user and password"),
    -118: (RegistryUnavailable, "the session has moved to another server; this connection is of no use any more"),
    -124: (AccessDenied, "the server accepts authenticated sessions only, and not with these credentials"),
    -125: (RegistryError, "a quota set on the server is used up"),
    -127: (RegistryUnavailable, "the server is overloaded and did not take the request"),
}
"""Codes that say for certain that nothing was applied (ZooKeeper: KeeperException.Code)."""


def from_operation(index: int, path: str, code: int) -> RegistryError:
    """The error for one operation of a transaction that the server refused as a whole."""
    if code in _GUARDS:
        return GuardFailed(index, path, _GUARDS[code])
    kind, message = _REFUSALS.get(code, (RegistryError, f"the server refused it (ZooKeeper error {code})"))
    return kind(f"{path}: {message}")


def from_exception(error: Exception, *, path: str, write: bool, sent: bool) -> RegistryError:
    """The error for what kazoo reported instead of a reply to a request."""
    lost = isinstance(error, (ConnectionLoss, ConnectionClosedError))
    if not lost and isinstance(error, ZookeeperError) and error.code in _GUARDS | _REFUSALS:
        return from_operation(0, path, error.code)
    if write and sent:
        return OutcomeUnknown(f"{path}: the request was sent, but not answered ({_told(error)}); read before repeating it")
    if lost:
        return RegistryUnavailable(f"{path}: the connection was lost before there was an answer")
    return RegistryError(f"{path}: the request failed ({_told(error)})")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
