"""S3, S4, S5, S9, L3: of the assignment, the leader who makes it, and the marks of what runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import combinations, groupby
from math import inf

from ejpy.testing.history import Assigned, Configured, Event, Leads, Marked, Present, Written
from ejpy.testing.invariants.base import Invariant, Limits, Violation
from ejpy.testing.invariants.fires import schedule_of
from ejpy.testing.invariants.told import OfItem, OfJob, Told, last_before

STICKY = "STICKY"
TAKES_TURNS = "SINGLE_SHARDING_BALANCE"


def find(told: Told, limits: Limits) -> Iterator[Violation]:
    for job in told.jobs.values():
        if job.watched:
            yield from _transactions(job, told.stuck, limits)
            yield from _at_rest(job, told, limits)
            for number, item in sorted(job.items.items()):
                yield from _marks(job, number, item, told, limits)


@dataclass
class _Tree:
    """What the registry says, transaction by transaction."""

    present: dict[str, Present] = field(default_factory=dict)
    assigned: dict[int, str] = field(default_factory=dict)
    entries: dict[int, Written] = field(default_factory=dict)
    claimed_in: dict[int, int | None] = field(default_factory=dict)
    """The session in which the newest attempt of an item was claimed."""
    leader: str | None = None
    elected: str | None = None
    """Who was elected last: his term lasts until somebody else is, also when his node has gone."""

    def take(self, event: Event) -> None:
        if isinstance(event, Present):
            if event.session is None:
                self.present.pop(event.instance, None)
            else:
                self.present[event.instance] = event
        elif isinstance(event, Leads):
            self.leader = event.instance
            self.elected = event.instance or self.elected
        elif isinstance(event, Written):
            self.entries[event.item] = event
            if event.claims:
                owner = self.present.get(event.owner or "")
                self.claimed_in[event.item] = owner.session if owner is not None else None
        elif isinstance(event, Assigned):
            if event.instance is None:
                self.assigned.pop(event.item, None)
            else:
                self.assigned[event.item] = event.instance


def _transactions(job: OfJob, stuck: set[str], limits: Limits) -> Iterator[Violation]:
    tree = _Tree()
    recent: list[tuple[float, frozenset[str]]] = [(-inf, frozenset())]
    """Who could be given items, and since when."""
    blamed = _blamed(job)
    for transaction in _each_transaction(job):
        at = transaction[0].at
        moves = [row for row in transaction if isinstance(row, Assigned)]
        yield from _moves(job, tree, transaction, moves, limits)
        if moves and moves[0].by is not None:
            yield from _needless(job, tree, moves, at, recent, blamed, stuck, limits)
        for row in transaction:
            tree.take(row)
        recent.append((at, frozenset(i for i, p in tree.present.items() if not p.draining)))


def _each_transaction(job: OfJob) -> Iterator[list[Present | Leads | Written | Assigned]]:
    rows = (event for event in job.events if isinstance(event, (Present, Leads, Written, Assigned)))
    return (list(of_one) for _, of_one in groupby(rows, key=lambda event: event.revision))


def _blamed(job: OfJob) -> list[tuple[str, float]]:
    """Whose items were taken since they had left a fire unclaimed, and when."""
    found: list[tuple[str, float]] = []
    tree = _Tree()
    for transaction in _each_transaction(job):
        overdue = {row.item for row in transaction if isinstance(row, Written) and row.overdue}
        for row in transaction:
            if isinstance(row, Assigned) and row.item in overdue and row.item in tree.assigned:
                found.append((tree.assigned[row.item], row.at))
            tree.take(row)
    return found


def _moves(job: OfJob, tree: _Tree, transaction: Sequence[Event], moves: list[Assigned], limits: Limits) -> Iterator[Violation]:
    """S3, S5."""
    arriving = {row.instance for row in transaction if isinstance(row, Present) and row.session is not None}
    for move in moves:
        if move.by is None:
            continue  # an operator's
        where = f"{job.name}/{move.item}"
        if tree.elected != move.by:
            text = f"{move.by} assigned it to {move.instance} in the term of {tree.elected or 'nobody'}"
            yield Violation(Invariant.S5, move.at, where, text)
        if move.instance is not None and move.instance not in tree.present and move.instance not in arriving:
            yield Violation(Invariant.S3, move.at, where, f"given to {move.instance}, which is gone")
        owner, entry = tree.assigned.get(move.item), tree.entries.get(move.item)
        alive = tree.present.get(owner or "")
        runs = entry is not None and entry.running and entry.owner == owner
        same_session = alive is not None and alive.session == tree.claimed_in.get(move.item)  # or the run was lost with the other
        settled = alive is not None and move.at - alive.at >= limits.back
        if runs and same_session and settled and move.instance not in (owner, None):
            yield Violation(Invariant.S3, move.at, where, f"given to {move.instance} while it ran on {owner}, which is alive")


def _needless(
    job: OfJob,
    tree: _Tree,
    moves: list[Assigned],
    at: float,
    recent: list[tuple[float, frozenset[str]]],
    blamed: list[tuple[str, float]],
    stuck: set[str],
    limits: Limits,
) -> Iterator[Violation]:
    """S4 under STICKY. The leader may not have heard of the last changes: one of the recent situations must explain it."""
    config = job.config_at(at)
    if config is None or config.strategy != STICKY:
        return
    counts = {c.items for c in job.configured if c.at >= at - limits.hearing} | {config.items}
    earlier = last_before(job.configured, at - limits.hearing)
    counts |= {earlier.items} if earlier is not None else set()
    first = max(place for place, (since, _) in enumerate(recent) if since <= at - limits.hearing)
    entries = tree.entries
    silent = stuck | {owner for item, owner in tree.assigned.items() if _left_unclaimed(config, entries.get(item), at, limits)}
    silent |= {who for who, when in blamed if -limits.hearing <= at - when <= 2 * config.claim_timeout + limits.hearing}
    passed_over = [frozenset(some) for number in range(len(silent) + 1) for some in combinations(sorted(silent), number)]
    moments = {at, at - limits.hearing, *(row.at for row in job.servers if row.at >= at - limits.hearing)}
    disabled = {
        frozenset(row.which for row in job.servers if row.which and not _server_enabled(job, row.which, moment))
        for moment in moments
    }
    for _, present in recent[first:]:
        for off in disabled:
            able = frozenset(i for i in present if i.partition("@-@")[0] not in off)
            for eligible in {among - some for among in (able, present) for some in passed_over}:
                for count in counts:
                    if _necessary(tree, moves, eligible, count):
                        return
    text = f"{len(moves)} items moved in vain: {[(m.item, tree.assigned.get(m.item), m.instance) for m in moves]}"
    yield Violation(Invariant.S4, at, job.name, text)


def _left_unclaimed(config: Configured, entry: Written | None, at: float, limits: Limits) -> bool:
    """Whether an item's owner let a fire pass for so long that its leader may take all his items away."""
    schedule = schedule_of(config)
    if schedule is None or entry is None:
        return False
    due = schedule.next_after(datetime.fromtimestamp(entry.accounted_until, timezone.utc))
    return due is not None and due.timestamp() + config.claim_timeout <= at + limits.skew


def _necessary(tree: _Tree, moves: list[Assigned], eligible: frozenset[str], count: int) -> bool:
    if not eligible:
        return False
    held = Counter(owner for item, owner in tree.assigned.items() if owner in eligible and item < count)
    share, larger = divmod(count, len(eligible))
    by_load = sorted(eligible, key=lambda instance: -held[instance])
    surplus = sum(max(0, held[instance] - share - (rank < larger)) for rank, instance in enumerate(by_load))
    taken = sum(1 for m in moves if m.item < count and m.instance is not None and tree.assigned.get(m.item) in eligible)
    return taken <= surplus


def _server_enabled(job: OfJob, ip: str, at: float) -> bool:
    last = last_before([s for s in job.servers if s.which == ip], at)
    return last is None or last.enabled


def _at_rest(job: OfJob, told: Told, limits: Limits) -> Iterator[Violation]:
    """S4, L3, of a history that comes to rest."""
    if told.rest == inf or told.quiet == -inf or told.rest - told.quiet < limits.noticed:
        return
    rest, config = told.rest, job.config_at(told.rest)
    tree = _Tree()
    moved: list[Assigned] = []
    changed = max([told.quiet, *(row.at for row in (*job.configured, *job.servers) if row.at < rest)])
    """When something happened last that items move for."""
    for event in job.events:
        if event.at < rest:
            tree.take(event)
            if isinstance(event, (Present, Leads)):
                changed = max(changed, event.at)
            if isinstance(event, Assigned) and event.at > max(changed + limits.noticed, rest - limits.calm):
                moved.append(event)
    if config is None or not tree.present:
        return
    able = [i for i, p in tree.present.items() if not p.draining and _server_enabled(job, i.partition("@-@")[0], rest)]
    if tree.leader not in tree.present:
        yield Violation(Invariant.L3, rest, job.name, f"the leader is {tree.leader or 'nobody'}")
    loads: defaultdict[str, int] = defaultdict(int)
    for item in range(config.items):
        owner = tree.assigned.get(item)
        if owner not in able and able:
            yield Violation(Invariant.L3, rest, f"{job.name}/{item}", f"belongs to {owner or 'nobody'}")
        elif owner is not None:
            loads[owner] += 1
    if beyond := sorted(item for item in tree.assigned if item >= config.items):
        yield Violation(Invariant.L3, rest, job.name, f"items {beyond} are assigned, there are {config.items}")
    unsettled = rest - limits.calm - 2 * config.claim_timeout
    blamed = any(row.overdue and row.at > unsettled for item in job.items.values() for row in item.written)
    if blamed or not told.stuck.isdisjoint(able):
        return  # who left a fire unclaimed has his items taken, and is given some again after a while
    spread = [loads[instance] for instance in able]
    if able and max(spread) - min(spread) > 1:
        yield Violation(Invariant.S4, rest, job.name, f"unbalanced: {dict(loads)} over {sorted(able)}")
    if moved and config.strategy != TAKES_TURNS:
        yield Violation(Invariant.L3, moved[-1].at, job.name, f"items still move: {[(m.item, m.instance) for m in moved[-5:]]}")


def _marks(job: OfJob, number: int, item: OfItem, told: Told, limits: Limits) -> Iterator[Violation]:
    """S9. A death counts from when the faults are over: while nobody can be reached, nobody can see to it."""
    where = f"{job.name}/{number}"
    kinds: list[tuple[str, Sequence[Written | Marked]]] = [("the entry", item.written), ("a mark", item.marked)]
    for kind, of_kind in kinds:
        for row, after in zip(of_kind, [*of_kind[1:], None], strict=False):
            owner = _runner(row)
            until = told.rest if after is None else after.at
            if owner is None:
                continue
            if isinstance(row, Written) and row.claims and job.session_of(owner, row.revision) is None:
                yield Violation(Invariant.S9, row.at, where, f"claimed by {owner}, which is not registered")
            if job.removed_between(number, row.at, until) or (after is None and told.is_left(job, item)):
                continue  # nobody sees to what an item has left when a change takes it away
            gone = row.at if not job.is_present(owner, row.at) else job.gone_at(owner, row.at)
            since = max(gone, told.quiet)
            if until - since > limits.noticed and not job.is_present(owner, since):
                text = f"{kind} says that it runs on {owner}, which has been gone for {until - since:.1f} s"
                yield Violation(Invariant.S9, since + limits.noticed, where, text)


def _runner(row: Written | Marked) -> str | None:
    if isinstance(row, Marked):
        return row.instance
    return row.owner if row.running else None
