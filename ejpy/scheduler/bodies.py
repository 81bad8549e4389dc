"""The bodies of one job that run on this worker: started once their claims were granted, and settled when their ends are known
to be recorded, or to count no more.

Guards: a body is not entered once the session could have expired, or under another session than its claim was made in. The
ends of the items of one fire are gathered for a moment, so that they share a transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from ejpy.attempt import Attempt
from ejpy.execution.base import Ended, SaveCheckpoint
from ejpy.history.records import AttemptEnded, AttemptStarted, BodyEnded, Journal
from ejpy.logs import fields
from ejpy.scheduler.host import RETRY_SECONDS, Host
from ejpy.scheduler.item import Item, Look, NotStarted

GATHER_ENDS_SECONDS = 0.05
"""How long the first item that ends waits for the others of its fire."""


class Bodies:
    """See the module's text. All methods on the control loop."""

    def __init__(
        self,
        host: Host,
        journal: Journal,
        save_checkpoint: SaveCheckpoint,
        again: Callable[[], None],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._host = host
        self._journal = journal
        self._save_checkpoint = save_checkpoint
        self._again = again
        self._log = log
        self._here: dict[int, Item] = {}
        """Items whose bodies were started here and whose ends are not settled yet."""
        self._gathering: asyncio.TimerHandle | None = None

    @property
    def attempts(self) -> list[Attempt]:
        """Those whose ends are not settled."""
        return [item.execution.attempt for item in self._here.values() if item.execution is not None]

    @property
    def gathering(self) -> bool:
        """Whether ends wait for others to be recorded with."""
        return self._gathering is not None

    def cancel(self, why: str) -> list[Attempt]:
        """Tell all to stop; returns their attempts."""
        for item in list(self._here.values()):
            if item.execution is not None:
                item.execution.cancel(why)
        return self.attempts

    def withdraw_waiting(self) -> None:
        """Have those that were not entered yet end so."""
        for item in list(self._here.values()):
            if item.execution is not None:
                item.execution.withdraw()

    def close(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()

    def start(self, item: Item, look: Look, session_id: int | None, *, enter: bool = True) -> None:
        """Start the body of a claim that was made in the session `session_id`. If that is over, others may have seen its owner
        die: then the body is not entered, and the claim is given back. So it is if `enter` says no."""
        entry, registry, clock = item.entry, self._host.registry, self._host.clock
        assert entry is not None
        assert entry.token is not None
        item.superseded = False
        item.monitored = entry.running
        item.ended = item.mind_from = None
        self._here[item.number] = item

        def may_enter() -> bool:
            return enter and registry.session_id == session_id and clock.monotonic() < registry.lease_until

        attempt = look.attempt_of(item.number, entry, entry.token)
        self._journal.write(AttemptStarted(attempt, self._host.instance_id))
        try:
            item.execution = look.runner.start(
                attempt, may_enter=may_enter, save_checkpoint=self._save_checkpoint, on_ended=partial(self._on_ended, item)
            )
        except (OSError, RuntimeError) as error:  # no thread, no process to be had: the fire is given back, and tried again
            self._log.error("cannot start a body: %s", error, extra=fields(item=item.number))
            item.execution = NotStarted(attempt)
            item.ended = Ended(None, None, clock.now())
            if self._gathering is None:
                self._gathering = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._ends_gathered)

    def settle(self, item: Item, *, recorded: bool) -> None:
        """The end of its body is recorded, or counts no more."""
        assert item.execution is not None
        assert item.ended is not None
        self._journal.write(AttemptEnded(item.execution.attempt, self._host.instance_id, item.ended, recorded))
        item.execution = item.ended = None
        item.superseded = False
        del self._here[item.number]

    def superseded(self, item: Item) -> None:
        """A newer attempt exists, or somebody removed the entry: this one has lost its say."""
        assert item.execution is not None
        item.superseded = True
        item.execution.cancel("its claim is not in the ledger any more")
        if item.ended is not None:
            self.settle(item, recorded=False)

    def _on_ended(self, item: Item, attempt: Attempt, ended: Ended) -> None:
        if item.execution is None or item.execution.attempt is not attempt:
            self._log.error("an attempt ended that is not known here: %s", attempt)
            return
        self._journal.write(BodyEnded(attempt, self._host.instance_id, ended))
        item.ended = ended
        if ended.outcome is None:
            item.rest_until = asyncio.get_running_loop().time() + RETRY_SECONDS
        unmonitored = item.entry is not None and not item.entry.running and ended.outcome is not None
        if item.superseded or unmonitored:
            self.settle(item, recorded=not item.superseded)
        others = any(other.ended is None for other in self._here.values())
        if not others:
            self._ends_gathered()
        elif self._gathering is None and item.ended is not None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_ENDS_SECONDS, self._ends_gathered)

    def _ends_gathered(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        self._again()
