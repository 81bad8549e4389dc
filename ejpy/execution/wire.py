"""What a worker and its child processes say to each other: JSON objects, each behind its length in four bytes.

From the worker             | from the child
----------------------------|--------------------------------------------------------------------
run, an attempt             | ready: its class is loaded, or its body will raise why not
go: enter the body          | ended: how, with what error and trace
skip: do not                |
stop: cancel it             |
hand off: others could run  |
saved, or why not           | save, a checkpoint
exit                        | log, a record

`run` numbers the runs of a child, so that what is late for one run is not taken for the next. JSON, since what comes from a
process that runs any code must not be able to do anything when it is read.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from ejpy import errors
from ejpy.attempt import Attempt
from ejpy.errors import EjpyError, RegistryError
from ejpy.terms import Reason
from ejpy.wording import describe_error

Message = dict[str, Any]

_LENGTH = struct.Struct(">I")
_CHUNK = 64 * 1024
# Those that are made from a message alone; a body may want to tell them apart.
_KNOWN_ERRORS = {
    known.__name__: known
    for known in (
        errors.StaleAttempt,
        errors.RegistryError,
        errors.RegistryUnavailable,
        errors.OutcomeUnknown,
        errors.SessionExpired,
        errors.AccessDenied,
        errors.RequestTooLarge,
    )
}


def encode(message: Message) -> bytes:
    """A message as it is sent."""
    body = json.dumps(message, ensure_ascii=True).encode()
    return _LENGTH.pack(len(body)) + body


def received(connection: socket.socket) -> Iterator[Message]:
    """The messages that come, until the other side has closed or died; half a message at the end is dropped."""
    buffer = bytearray()
    while True:
        try:
            chunk = connection.recv(_CHUNK)
        except ConnectionError:
            return
        if not chunk:
            return
        buffer += chunk
        while len(buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer)
            end = _LENGTH.size + length
            if len(buffer) < end:
                break
            message: Message = json.loads(buffer[_LENGTH.size : end])
            del buffer[:end]
            yield message


def attempt_to_wire(attempt: Attempt) -> Message:
    document = {name: getattr(attempt, name) for name in Attempt.__dataclass_fields__}
    document["scheduled_time"] = attempt.scheduled_time.isoformat()
    document["reason"] = attempt.reason.value
    document["props"] = dict(attempt.props)
    return document


def attempt_from_wire(document: Message) -> Attempt:
    return Attempt(
        **{
            **document,
            "scheduled_time": datetime.fromisoformat(document["scheduled_time"]),
            "reason": Reason(document["reason"]),
        }
    )


def error_to_wire(error: BaseException) -> Message:
    """What `save_checkpoint` shall raise in the child."""
    kind = next((base.__name__ for base in type(error).__mro__ if base.__name__ in _KNOWN_ERRORS), None)
    return {"kind": kind, "text": str(error) if type(error).__name__ == kind else describe_error(error)}


def error_from_wire(document: Message) -> EjpyError:
    known: type[EjpyError] = _KNOWN_ERRORS.get(document["kind"], RegistryError)
    return known(document["text"])
