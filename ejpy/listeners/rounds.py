"""Reading the nodes of a distribute-once round: which items have come for an instant, and what is settled.

An item's node tells the instant that the item has come for. A Java worker's tells nothing; it counts for whatever instant is
asked for, as it does among Java workers.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone

from ejpy.registry.base import Node


def item_data(instant: datetime) -> bytes:
    """What an item's node holds."""
    return instant.astimezone(timezone.utc).isoformat().encode()


def told_instant(data: bytes) -> datetime | None:
    """The instant that a node tells; None if it tells none."""
    try:
        found = datetime.fromisoformat(data.decode())
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def has_come(node: Node | None, instant: datetime) -> bool:
    """Whether the item has come as far as that instant, by all that can be told."""
    if node is None:
        return False
    told = told_instant(node.data)
    return told is None or told >= instant


def is_of(node: Node | None, instant: datetime) -> bool:
    """Whether the node tells exactly that instant."""
    return node is not None and told_instant(node.data) == instant


def is_later(node: Node, instant: datetime) -> bool:
    told = told_instant(node.data)
    return told is not None and told > instant


def settled(data: bytes) -> dict[str, datetime]:
    """The last settled instant of each side. Whatever else may stand there says nothing."""
    try:
        document = json.loads(data)
    except ValueError:
        return {}
    if not isinstance(document, dict):
        return {}
    told = {side: told_instant(str(text).encode("utf-8", "replace")) for side, text in document.items()}
    return {side: instant for side, instant in told.items() if instant is not None}


def with_settled(data: bytes, side: str, instant: datetime) -> bytes:
    """The same, with another instant for one side."""
    instants = settled(data) | {side: instant}
    return json.dumps({name: item_data(instants[name]).decode() for name in sorted(instants)}).encode()
