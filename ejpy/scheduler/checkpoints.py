"""Saving a checkpoint: into the item's ledger entry, guarded by its version, so that an older attempt is refused atomically.

The body waits for it, also while the connection is interrupted: only when the session is lost, and with it perhaps the right to
write, does it hear of that.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ejpy.attempt import Attempt
from ejpy.coordination.ledger_document import decode, encode
from ejpy.coordination.paths import JobPaths
from ejpy.errors import GuardFailed, OutcomeUnknown, RegistryUnavailable, StaleAttempt
from ejpy.registry.base import SessionState, SetData
from ejpy.scheduler.host import RETRY_SECONDS, Host
from ejpy.scheduler.item import Item


async def save(host: Host, paths: JobPaths, item: Item | None, attempt: Attempt, value: Any) -> None:
    """Write `value` (JSON) as the attempt's checkpoint.

    Raises StaleAttempt if a newer attempt exists, or this one has ended; RegistryError if it was not written, or
    (OutcomeUnknown) may not have been.
    """
    if item is None or item.execution is None or item.execution.attempt is not attempt or item.ended is not None:
        raise StaleAttempt(f"{attempt.idempotency_key}: this attempt has ended; its checkpoint is refused")
    path = paths.ledger(item.number)
    async with item.saving:
        await _write(host, path, item, attempt, value)


async def _write(host: Host, path: str, item: Item, attempt: Attempt, value: Any) -> None:
    """Written twice, a checkpoint is the same: so it is tried again while the connection may come back."""
    try:
        if item.entry is None:
            [node] = await host.registry.read([path])
            item.entry = decode(node.data, node.revision, path) if node else None
            item.version = node.version if node else None
        entry = item.entry
        lost = entry is None or entry.token != attempt.fencing_token or (item.monitored and not entry.running)
        if entry is None or lost or item.superseded or item.ended is not None:
            raise StaleAttempt(f"{attempt.idempotency_key}: a newer attempt exists; this checkpoint is refused")
        saved = entry.save(value, attempt.fencing_token)
        committed = await host.group.commit([SetData(path, encode(saved), item.version)], not_after=host.registry.lease_until)
    except GuardFailed:
        item.entry = None
        await _write(host, path, item, attempt, value)
    except (OutcomeUnknown, RegistryUnavailable):
        item.entry = None
        if host.registry.state is SessionState.LOST:
            raise
        await asyncio.sleep(RETRY_SECONDS)
        await _write(host, path, item, attempt, value)
    else:
        item.entry, item.version = saved, committed.versions[0]
