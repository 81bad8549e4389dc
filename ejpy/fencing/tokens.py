"""Tokens as the guards compare them: that of the writer, and the one that is stored.

Both are whole numbers of 63 bits: a revision of ZooKeeper has its epoch in the upper half. 0 stands for "nobody yet".
"""

from __future__ import annotations

import re

from ejpy.errors import StaleAttempt, UnreadableToken
from ejpy.job import ShardContext

GREATEST_TOKEN = 2**63 - 1

Writer = ShardContext | int
"""Who writes: the context of the attempt, or its fencing token alone."""

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,18}")


def token_of(writer: Writer) -> int:
    """The fencing token of the one who writes. Raises ValueError if it is none: 1 up to 2**63 - 1."""
    token = writer.fencing_token if isinstance(writer, ShardContext) else writer
    if not isinstance(token, int) or isinstance(token, bool) or not 1 <= token <= GREATEST_TOKEN:
        raise ValueError(f"{token!r} is no fencing token: a whole number from 1 to 2**63 - 1 (ShardContext.fencing_token)")
    return token


def stored_token(value: object, what: str, remedy: str) -> int:
    """A token as it was stored, as a number or as decimal digits.

    Raises UnreadableToken with `what` is guarded and the `remedy` if it is anything else.
    """
    number: object = value
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        number = int(value)
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= GREATEST_TOKEN:
        raise UnreadableToken(f"{what}: the stored fencing token is {_shown(value)}; nothing was written. {remedy}")
    return number


def refuse(what: str, writer: Writer, stored: int) -> StaleAttempt:
    """The error for a writer whose token is smaller than the stored one."""
    attempt = f" of {writer.idempotency_key}" if isinstance(writer, ShardContext) else ""
    return StaleAttempt(
        f"{what}: token {token_of(writer)}{attempt} is older than {stored}, which was stored meanwhile; nothing was written."
        " A newer attempt has the item: stop"
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
