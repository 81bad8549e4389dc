"""The sharding items of one job that concern this worker: those assigned to it, and those whose bodies run here.

    unknown ──read──► idle ──claim──► body here ──ends──► ended ──recorded──► idle
       ▲                                                     │
       └──── a write lost its race, or its outcome is unknown ┘

Each look works out what there is to do and does one round of it: read the entries that are not known, or write what ended and
what was decided in one transaction, and start the bodies whose claims were granted. Then it is looked at again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from ejpy.attempt import Attempt
from ejpy.coordination import claims
from ejpy.coordination.claims import Claim, Step, Wait
from ejpy.coordination.ledger import Entry
from ejpy.coordination.paths import JobPaths
from ejpy.errors import AccessDenied, GuardFailed, RegistryError
from ejpy.history.records import Journal
from ejpy.logs import fields
from ejpy.registry.base import Delete, Node, SessionState
from ejpy.scheduler import checkpoints
from ejpy.scheduler.bodies import Bodies
from ejpy.scheduler.entries import Entries
from ejpy.scheduler.host import RETRY_SECONDS, Deed, Host
from ejpy.scheduler.item import (
    Change,
    Item,
    Look,
    answer_to_marks,
    claim_of,
    end_of,
    granted,
    marked_late,
    overdue_again,
    triggered,
)
from ejpy.scheduler.stale_marks import StaleMarks
from ejpy.scheduler.wording import item_ranges

CLAIM_AHEAD = 256
"""While so many attempts wait for a place in the pool nothing new is claimed: another worker may be free."""

MIND_SECONDS = 10.0
"""The entry of a body that runs is watched from then on, and read anew after a change at most so often."""


class Items:
    """See the module's text. All methods on the control loop."""

    def __init__(
        self,
        host: Host,
        paths: JobPaths,
        journal: Journal,
        again: Callable[[], None],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._host = host
        self._paths = paths
        self._again = again
        self._log = log
        self._items: dict[int, Item] = {}
        self._bodies = Bodies(host, journal, self._save_checkpoint, again, log)
        self._entries = Entries(host, paths, journal, self._bodies, again, log)
        self._round = Deed("claiming and recording", again, log)
        self._waking: asyncio.TimerHandle | None = None
        self._obeyed: int | None = None
        """Revision of the newest trigger that all items know of."""
        self._stale_marks = StaleMarks(host, paths, self._again_in, log)
        self._settled: list[asyncio.Future[None]] = []

    # -- events --

    def assign(self, numbers: Iterable[int], since: datetime) -> None:
        """These items, and no others, are assigned to this worker; those that it did not have before since then."""
        mine = set(numbers)
        before = {item.number for item in self._items.values() if item.held_since is not None}
        for number in mine:
            item = self._items.setdefault(number, Item(number))
            item.held_since = item.held_since or since
        for item in self._items.values():
            if item.number not in mine:
                item.held_since = None
        if mine != before:
            self._log.info("items here: %s", item_ranges(mine))

    def session_lost(self) -> None:
        """Others may take over from now on: tell the bodies to stop."""
        self._bodies.cancel("the session with the registry may have expired")

    def session_renewed(self, now: datetime) -> None:
        """After a loss: whatever was known may be wrong, and no fire in between could have been run here."""
        for item in self._items.values():
            item.entry = None
            item.watched = False
            if item.held_since is not None:
                item.held_since = now

    def withdraw_waiting(self) -> None:
        """Give back what was claimed and not entered."""
        self._bodies.withdraw_waiting()

    def cancel_all(self, why: str) -> list[Attempt]:
        """Tell all bodies to stop; returns their attempts."""
        return self._bodies.cancel(why)

    @property
    def running(self) -> list[Attempt]:
        """Attempts whose bodies were started here and whose ends are not settled."""
        return self._bodies.attempts

    async def settled(self) -> None:
        """Wait until no body runs here and every end is recorded."""
        while self.running or self._round.under_way:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settled.append(waiter)
            await waiter

    async def close(self) -> None:
        self._bodies.close()
        if self._waking is not None:
            self._waking.cancel()
        await self._round.cancel()

    async def _save_checkpoint(self, attempt: Attempt, value: Any) -> None:
        await checkpoints.save(self._host, self._paths, self._items.get(attempt.sharding_item), attempt, value)

    # -- the look --

    def look(self, look: Look) -> None:
        """Begin what there is to do, if nothing is under way."""
        if self._round.under_way or self._host.registry.state is not SessionState.CONNECTED:
            return
        self._forget_others()
        now = asyncio.get_running_loop().time()
        unread = [item for item in self._items.values() if item.entry is None and item.refused_until <= now]
        if unread:
            self._round.begin(self._read_round(unread, look))
            return
        doubts = any(item.doubt is not None for item in self._items.values())
        if look.trigger is not None and look.trigger.revision != self._obeyed and not doubts:
            # Before anything is claimed: a trigger that replaces this one unseen is one with it, as long as neither has run.
            # An item that cannot be written now does not hold up the others; the trigger stays for it.
            asked = [Change.of(item, entry) for item in self._items.values() if (entry := triggered(item, look.trigger))]
            writable = [change for change in asked if change.item.refused_until <= now]
            if writable or not asked:
                self._round.begin(self._write_round(writable, [], look) if writable else self._obey(look.trigger))
                return
        changes, watches = self._todo(look)
        if changes or watches:
            self._round.begin(self._write_round(changes, watches, look))
            return
        self._wake_settled()
        if stale := self._stale_marks.look(look, self._may_run):
            self._round.begin(self._stale_marks.remove(stale))

    def _todo(self, look: Look) -> tuple[list[Change], list[Item]]:
        changes: list[Change] = []
        watches: list[Item] = []
        saturated = look.runner.waiting >= CLAIM_AHEAD
        for item in self._items.values():
            entry = item.entry
            if (rest := item.refused_until - asyncio.get_running_loop().time()) > 0:
                self._again_in(rest)
            elif entry is None:
                continue
            elif item.doubt is not None:
                doubt, item.doubt = item.doubt, None
                if granted(entry, doubt.entry):  # also if the item is not assigned to this worker any more
                    item.marked = doubt.marked
                    self._bodies.start(item, look, doubt.session_id, enter=look.may_claim)
                else:
                    self._again()
            elif item.execution is not None:
                if item.ended is None:
                    if (mark := marked_late(item, entry, look) or overdue_again(item, entry, look)) is not None:
                        changes.append(mark)
                    if self._minds_its_entry(item):
                        watches.append(item)
                elif not self._bodies.gathering:
                    changes.append(end_of(item, entry, item.ended, look))
            elif item.blocked or item.held_since is None or not look.may_claim or look.marking.held_by_other(item.number):
                continue
            elif item.version is None:
                changes.append(Change.of(item, entry, decided=True))
            else:
                step = self._decide(item, entry, item.held_since, look)
                self._mind_wait(item, entry, step, look)
                if isinstance(step, Wait):
                    if step.until is not None:
                        self._again_in((step.until - look.situation.now).total_seconds())
                    if not item.watched:
                        watches.append(item)
                elif isinstance(step, Claim):
                    rest = item.rest_until - asyncio.get_running_loop().time()
                    if saturated or rest > 0:
                        self._again_in(RETRY_SECONDS if saturated else rest)
                    else:
                        changes.append(claim_of(item, step.entry, self._host.registry.session_id, look))
                elif step is not None:
                    changes.append(Change.of(item, step.entry, decided=True))
                elif (answer := answer_to_marks(item, entry, look)) is not None:
                    changes.append(answer)
        return changes, watches

    def _minds_its_entry(self, item: Item) -> bool:
        """Whether to watch the entry of a body that runs here. One that runs for long shall hear that the leader wants to move
        its item, and that it has lost its say; for all others that would be a read for each run."""
        now = asyncio.get_running_loop().time()
        if item.watched or item.execution is None:
            return False
        if item.mind_from is None:
            item.mind_from = now + MIND_SECONDS
        if now < item.mind_from:
            self._again_in(item.mind_from - now)
            return False
        item.mind_from = now + MIND_SECONDS
        return True

    def _may_run(self, number: int) -> bool:
        """Whether a body of this item runs here, or may, for all that is known."""
        item = self._items.get(number)
        if item is None:
            return False
        claimed = item.entry is None or (item.entry.running and item.entry.owner == self._host.instance_id)
        return item.execution is not None or item.doubt is not None or claimed

    def _decide(self, item: Item, entry: Entry, held_since: datetime, look: Look) -> Step:
        """One item whose entry nobody thought of must not stop the others."""
        try:
            return claims.decide(
                item.number,
                entry,
                look.situation,
                held_since=held_since,
                enabled=look.enabled(item.number),
                written=item.written,
            )
        except (ValueError, OverflowError) as error:
            self._log.error("the ledger entry makes no sense, the item rests: %s", error, extra=fields(item=item.number))
            item.blocked = True
            return None

    def _mind_wait(self, item: Item, entry: Entry, step: Step, look: Look) -> None:
        """An item that is assigned here and that, by its entry, runs elsewhere: nobody assigns it so for long. If the one who
        is said to run it does not, the item is blocked, and somebody has to be told."""
        if not isinstance(step, Wait) or step.until is not None:
            item.waiting_since, item.wait_said = None, False
            return
        now = asyncio.get_running_loop().time()
        item.waiting_since = now if item.waiting_since is None else item.waiting_since
        left = look.situation.policy.claim_timeout.total_seconds() - (now - item.waiting_since)
        if left > 0:
            self._again_in(left)
        elif not item.wait_said:
            item.wait_said = True
            self._log.warning(
                "not run here: by its ledger entry it runs on %s since %s, which is alive; if it does not, restart that worker",
                entry.owner,
                entry.claimed,
                extra=fields(item=item.number),
            )

    def _again_in(self, seconds: float) -> None:
        """Look again at the latest then; one timer, whoever asks."""
        loop = asyncio.get_running_loop()
        when = loop.time() + max(0.0, seconds)
        if self._waking is None or when < self._waking.when():
            if self._waking is not None:
                self._waking.cancel()
            self._waking = loop.call_at(when, self._wake)

    def _wake(self) -> None:
        self._waking = None
        self._again()

    # -- rounds --

    async def _read_round(self, items: list[Item], look: Look) -> bool:
        try:
            await self._entries.read(items, look.situation)
        except RegistryError as error:
            self._log.info("ledger not read: %s", error)
            return False
        return True

    async def _write_round(self, changes: list[Change], watches: list[Item], look: Look) -> bool:
        try:
            written = await self._entries.write(changes, look)
            await asyncio.gather(*(self._entries.watch(item, look) for item in watches))
        except RegistryError as error:
            self._log.info("not done: %s", error)
            return False
        return written

    async def _obey(self, trigger: Node) -> bool:
        """All items know of the trigger: it can go."""
        path = self._paths.trigger(self._host.instance_id)
        try:
            await self._host.group.commit([Delete(path)], not_after=self._host.registry.lease_until)
            self._log.info("triggered")
        except GuardFailed:
            self._log.debug("the trigger has gone already")
        except AccessDenied as error:
            self._log.error("triggered; the trigger cannot be removed: %s", error)
        except RegistryError as error:
            self._log.info("trigger not removed: %s", error)
            return False
        self._obeyed = trigger.revision
        return True

    def _forget_others(self) -> None:
        """Not while a round is under way, which may be about to start a body."""
        for item in list(self._items.values()):
            if item.held_since is None and item.execution is None and item.doubt is None:
                del self._items[item.number]

    def _wake_settled(self) -> None:
        if not self.running:
            waiters, self._settled = self._settled, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
