"""Blotting out what must not get into a log: passwords, and the tokens in webhook addresses.

The text of an error may come from anywhere (a mail server's answer, a library's message that quotes the address), so what is
logged about a handler passes through here, whoever wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, urlsplit

_SECRET_NAME = re.compile(r"pass|secret|token|webhook|credential|key\b|uri$|url$", re.IGNORECASE)
_SHORTEST_PART = 6
"""Shorter parts of an address are ordinary words as likely as tokens."""

BLOT = "***"


def without_secrets(text: str, props: Mapping[str, str]) -> str:
    """`text` with the values of those `props` blotted out whose names say that they are secret."""
    secrets = {secret for name, value in props.items() if value.strip() and _SECRET_NAME.search(name) for secret in _parts(value)}
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, BLOT)
    return text


def _parts(value: str) -> Iterable[str]:
    """A secret, and what of it may stand alone in a message."""
    value = value.strip()
    yield value
    try:
        address = urlsplit(value)
    except ValueError:
        return
    if address.scheme and address.netloc:
        target = address.path + ("?" + address.query if address.query else "")
        parts = [target, address.query, address.password or "", *address.path.split("/")]
        parts += [found for _, found in parse_qsl(address.query)]
        yield from (part for part in parts if len(part) >= _SHORTEST_PART)
