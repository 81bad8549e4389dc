"""What keeps ejpy's promises, one guard at a time, each with a way to take it out: so that it shows whether it would be missed.

A removal patches what it has to while a history is played, and nothing else. `found_by`: invariants of which one must break.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from ejpy.attempt import Attempt
from ejpy.coordination import assignment, claims, neglect, sharding
from ejpy.coordination.assignment import LedgerNode
from ejpy.coordination.claims import Claim, Policy, Step, Write
from ejpy.coordination.ledger import Entry
from ejpy.coordination.ledger_document import decode, encode
from ejpy.coordination.marking import Marking
from ejpy.registry.base import Check, Committed, Operation, SetData
from ejpy.registry.group import GroupCommit
from ejpy.registry.latch import LatchHold
from ejpy.registry.memory import MemoryStore
from ejpy.registry.watches import Watches
from ejpy.scheduler import checkpoints, items
from ejpy.scheduler.bodies import Bodies
from ejpy.scheduler.entries import Entries
from ejpy.scheduler.host import Host
from ejpy.scheduler.item import Change, Item, Look
from ejpy.scheduler.resharding import Resharding
from ejpy.terms import Reason
from ejpy.testing import worker
from ejpy.testing.checker import Invariant
from ejpy.testing.plan import FaultKind as K
from ejpy.testing.plan import Scope
from ejpy.testing.worker import SimRegistry

S1, S2, S3, S4, S5 = Invariant.S1, Invariant.S2, Invariant.S3, Invariant.S4, Invariant.S5
S6, S7, S8, S9, S10 = Invariant.S6, Invariant.S7, Invariant.S8, Invariant.S9, Invariant.S10
L1, L2, L3, L4, L5 = Invariant.L1, Invariant.L2, Invariant.L3, Invariant.L4, Invariant.L5
STICKY = Scope(strategy="STICKY")


def only(*kinds: K, **more: Any) -> Scope:
    """Histories with the faults that a guard is there for, which are seldom together otherwise."""
    return Scope(faults=kinds, **more)


Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Guard:
    """`seed`: a history without the guard that is known to break one of `found_by`, or is not far before one."""

    name: str
    remove: Callable[[Patch], None]
    found_by: frozenset[Invariant]
    seed: int
    scope: Scope


def _in_transactions(patch: Patch, change: Callable[[Sequence[Operation]], list[Operation]]) -> None:
    """Change the operations of every transaction."""
    commit = GroupCommit.commit

    async def changed(self: GroupCommit, operations: Sequence[Operation], *, not_after: float | None = None) -> Committed:
        return await commit(self, change(operations), not_after=not_after)

    patch.setattr(GroupCommit, "commit", changed)


def _without_checks(patch: Patch, of: Callable[[str], bool]) -> None:
    """Nodes are not checked any more whose paths are so. What a check was the only operation of, keeps it."""

    def change(operations: Sequence[Operation]) -> list[Operation]:
        kept = [one for one in operations if not (isinstance(one, Check) and of(one.path))]
        return kept or list(operations)

    _in_transactions(patch, change)


# ---- the ledger -----------------------------------------------------------------------------------------------------


def ledger_version(patch: Patch) -> None:
    operation = Entries._operation

    def unguarded(self: Entries, change: Change) -> Operation:
        guarded = operation(self, change)
        return replace(guarded, version=None) if isinstance(guarded, SetData) else guarded

    patch.setattr(Entries, "_operation", unguarded)


def reading_back_of_claims_in_doubt(patch: Patch) -> None:
    """Every claim whose reply was lost is taken for granted."""
    patch.setattr(items, "granted", lambda entry, doubt: entry.token is not None)


def end_is_recorded_by_token(patch: Patch) -> None:
    patch.setattr(Entries, "_compare", lambda *arguments: None)


def claims_of_registered_instances_only(patch: Patch) -> None:
    _without_checks(patch, lambda path: "/instances/" in path)


def configuration_of_a_decision(patch: Patch) -> None:
    _without_checks(patch, lambda path: path.endswith("/config"))


def session_in_transactions(patch: Patch) -> None:
    def touch(self: MemoryStore, session_id: int) -> None:
        if session_id in self._sessions:
            self._sessions[session_id].deadline = self._clock.monotonic() + self._sessions[session_id].timeout

    patch.setattr(MemoryStore, "touch", touch)


# ---- bodies ---------------------------------------------------------------------------------------------------------


def local_deadline(patch: Patch) -> None:
    patch.setattr(SimRegistry, "lease_until", property(lambda self: math.inf))


class _Any:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def session_of_the_claim(patch: Patch) -> None:
    start = Bodies.start

    def started(self: Bodies, item: Item, look: Look, session_id: Any, *, enter: bool = True) -> None:
        start(self, item, look, _Any(), enter=enter)  # type: ignore[arg-type]

    patch.setattr(Bodies, "start", started)


def checkpoint_guard(patch: Patch) -> None:
    async def write(host: Host, path: str, item: Item, attempt: Attempt, value: Any) -> None:
        [node] = await host.registry.read([path])
        if node is not None:
            entry = replace(decode(node.data, node.revision, path), checkpoint=value)
            await host.group.commit([SetData(path, encode(entry))])

    patch.setattr(checkpoints, "_write", write)


# ---- what is due ----------------------------------------------------------------------------------------------------


def catch_up(patch: Patch) -> None:
    missed = claims._missed

    def forget(entry: Entry, s: claims.Situation, *rest: Any) -> Step:
        step = missed(entry, s, *rest)
        late = isinstance(step, Claim) and step.entry.reason is not Reason.SCHEDULED
        return Write(entry.account(step.entry.accounted_until)) if late and isinstance(step, Claim) else step

    patch.setattr(claims, "_missed", forget)


def record_of_what_was_missed(patch: Patch) -> None:
    patch.setattr(Entry, "record", lambda self, after, until, why: self.account(until))


def misfire_grace(patch: Patch) -> None:
    of = Policy.of.__func__  # type: ignore[attr-defined]
    patch.setattr(Policy, "of", classmethod(lambda cls, config: replace(of(cls, config), misfire_grace=timedelta(days=1))))


def not_before_its_time(patch: Patch) -> None:
    pending = claims._pending

    def early(entry: Entry, s: claims.Situation, schedule: Any, until: Any, held_since: Any) -> Step:
        return pending(entry, s, schedule, until + timedelta(seconds=4), held_since)

    patch.setattr(claims, "_pending", early)


def what_is_disabled_rests(patch: Patch) -> None:
    decide = claims.decide
    patch.setattr(claims, "decide", lambda *a, enabled, **how: decide(*a, enabled=True, **how))


# ---- failover -------------------------------------------------------------------------------------------------------


def failover_of_the_dead_only(patch: Patch) -> None:
    decide = claims.decide
    patch.setattr(claims, "decide", lambda item, entry, s, **how: decide(item, entry, replace(s, live=()), **how))

    async def all_of(self: Entries, changes: list[Change]) -> list[Change]:
        return changes

    patch.setattr(Entries, "_without_living_owners", all_of)


def owners_are_looked_at_again(patch: Patch) -> None:
    async def all_of(self: Entries, changes: list[Change]) -> list[Change]:
        return changes

    patch.setattr(Entries, "_without_living_owners", all_of)


def failover(patch: Patch) -> None:
    """What runs on a dead worker is left alone."""
    decide = claims.decide

    def ignore(item: int, entry: Entry, s: claims.Situation, **how: Any) -> Step:
        return None if entry.running and entry.owner != s.me else decide(item, entry, s, **how)

    patch.setattr(claims, "decide", ignore)


def fires_left_unclaimed(patch: Patch) -> None:
    """The leader moves nothing away from who is stuck."""
    patch.setattr(neglect, "unclaimed", lambda *arguments: {})


# ---- the leader -----------------------------------------------------------------------------------------------------


def term(patch: Patch) -> None:
    def change(operations: Sequence[Operation]) -> list[Operation]:
        return [replace(one, version=None) if isinstance(one, SetData) and _is_term(one.path) else one for one in operations]

    _in_transactions(patch, change)


def _is_term(path: str) -> bool:
    return path.count("/") == 2 and ".ledger/" in path


def receiver_is_looked_at_again(patch: Patch) -> None:
    add = assignment._Batches.add

    def unchecked(self: Any, guards: list[tuple[Operation, ...]], changes: list[Operation]) -> None:
        add(self, [guard for guard in guards if not isinstance(guard[0], Check)], changes)

    patch.setattr(assignment._Batches, "add", unchecked)


def running_items_stay(patch: Patch) -> None:
    """The leader takes nothing for running."""
    read = Resharding.read_ledger

    async def idle(self: Resharding, *arguments: Any) -> dict[int, LedgerNode | None]:
        found = await read(self, *arguments)
        return {item: node and LedgerNode(replace(node.entry, running=False), node.version) for item, node in found.items()}

    patch.setattr(Resharding, "read_ledger", idle)


def hand_over(patch: Patch) -> None:
    patch.setattr(claims, "HAND_OVER", timedelta(0))


def balance(patch: Patch) -> None:
    patch.setattr(sharding, "_average", lambda total, instances: dict.fromkeys(range(total), instances[0]))


def fewest_moves(patch: Patch) -> None:
    patch.setattr(sharding, "_sticky", lambda total, instances, current: sharding._average(total, instances))


def latch_is_given_back(patch: Patch) -> None:
    async def keep(self: LatchHold) -> None:
        return

    patch.setattr(LatchHold, "release", keep)


# ---- what is left ---------------------------------------------------------------------------------------------------


def marks_go_with_the_end(patch: Patch) -> None:
    patch.setattr(Marking, "of_end", lambda self, item, *, marked, release: [])


def watches_are_closed(patch: Patch) -> None:
    patch.setattr(Watches, "close", lambda self: None)


def connections_are_closed(patch: Patch) -> None:
    patch.setattr(MemoryStore, "unsubscribe", lambda self, subscriber: None)


def steps_of_the_end_have_deadlines(patch: Patch) -> None:
    async def without_end(seconds: float, what: str, deeds: Iterable[Any]) -> None:
        await asyncio.gather(*deeds, return_exceptions=True)

    patch.setattr(worker, "within", without_end)


def _guard(remove: Callable[[Patch], None], *found_by: Invariant, seed: int = 0, scope: Scope = Scope()) -> Guard:  # noqa: B008
    return Guard(remove.__name__.replace("_", " "), remove, frozenset(found_by), seed, scope)


GUARDS = [
    _guard(ledger_version, S1, S2, seed=4),
    _guard(reading_back_of_claims_in_doubt, S1, S2, seed=21),
    _guard(end_is_recorded_by_token, S1, S2, seed=1),
    _guard(claims_of_registered_instances_only, S9, S3, seed=7, scope=only(K.DISMISS, K.EXPIRE, K.SLOW_NETWORK, K.LATE_EVENTS)),
    _guard(configuration_of_a_decision, S10, L1, seed=45, scope=only(K.CHANGE_COUNT, K.LATE_EVENTS, K.LOSE_EVENTS)),
    _guard(session_in_transactions, S1, seed=44),
    _guard(local_deadline, S1, seed=4),
    _guard(checkpoint_guard, S1, S8, seed=8, scope=only(K.EXPIRE, K.CUT_OUT, body_seconds=15.0)),
    _guard(catch_up, L1),
    _guard(record_of_what_was_missed, L1, seed=1),
    _guard(misfire_grace, S6, seed=7),
    _guard(not_before_its_time, S6),
    _guard(what_is_disabled_rests, S7, seed=9, scope=only(K.DISABLE_ITEM, K.CRASH)),
    _guard(failover_of_the_dead_only, L2, seed=3),
    _guard(failover, S9, L1, seed=3),
    _guard(fires_left_unclaimed, L1, seed=42),
    _guard(receiver_is_looked_at_again, S3, seed=6, scope=only(K.CRASH, K.EXPIRE, K.STOP, K.SLOW_NETWORK)),
    _guard(running_items_stay, S3),
    _guard(hand_over, L3, S4, seed=4, scope=Scope(body_seconds=15.0)),
    _guard(balance, S4),
    _guard(fewest_moves, S4, scope=STICKY),
    _guard(latch_is_given_back, L3, L4, seed=3),
    _guard(marks_go_with_the_end, S9, L4, seed=17),
    _guard(watches_are_closed, L4, seed=10),
    _guard(connections_are_closed, L4),
]

SELDOM = [
    _guard(session_of_the_claim, S1, scope=only(K.EXPIRE_AFTER, K.LOSSY_NETWORK, K.LOSE_REPLIES, workers=1)),
    _guard(owners_are_looked_at_again, L2, scope=only(K.LATE_EVENTS, K.CRASH, K.EXPIRE, K.STOP)),
    _guard(term, S5, scope=only(K.DEPOSE, K.EXPIRE, K.STOP, K.CHANGE_COUNT)),
    _guard(steps_of_the_end_have_deadlines, L5, scope=only(K.STOP, K.CUT, K.CUT_IN, body_seconds=15.0)),
]
"""No history is known that shows these; the first three have stories of their own in `test_guards`, `test_stories` and the unit
tests. They are looked for where EJPY_GUARD_SEEDS says."""
