"""S7, L1: of what is due, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from functools import lru_cache
from itertools import pairwise
from math import inf

from ejpy.schedule.cron import CronSchedule, parse
from ejpy.testing.history import Configured, Switched, time_text
from ejpy.testing.invariants.base import Invariant, Limits, Violation
from ejpy.testing.invariants.told import OfItem, OfJob, Told, last_before

SOON = 20.0
"""Two changes of the configuration within so many seconds: who saw the second only takes it for the first."""


def find(told: Told, limits: Limits) -> Iterator[Violation]:
    for job in told.jobs.values():
        yield from _disabled(job, limits)
        for number, item in sorted(job.items.items()):
            yield from _accounted(job, number, item, told, limits)


def due_fires(told: Told) -> int:
    """How many pairs of fire and item are due in a history."""
    return sum(
        1 for job in told.jobs.values() for number, item in job.items.items() for _ in _due(job, number, item, told, Limits())
    )


# ---- S7 -------------------------------------------------------------------------------------------------------------


def _disabled(job: OfJob, limits: Limits) -> Iterator[Violation]:
    for number, item in sorted(job.items.items()):
        for claim in item.claimed:
            since = _off_since(item, claim.at)
            if since is not None and claim.at - since > limits.hearing:
                text = f"claimed by {claim.instance}, {claim.at - since:.1f} s after it was disabled"
                yield Violation(Invariant.S7, claim.at, f"{job.name}/{number}", text)
            ip = claim.instance.partition("@-@")[0]
            own = last_before([s for s in job.servers if s.which == ip], claim.at)
            if own is not None and not own.enabled and claim.at - own.at > limits.hearing:
                text = f"claimed on {claim.instance}, {claim.at - own.at:.1f} s after that server was disabled"
                yield Violation(Invariant.S7, claim.at, f"{job.name}/{number}", text)


def _off_since(item: OfItem, at: float) -> float | None:
    last = last_before(item.switched, at)
    return None if last is None or last.enabled else last.at


# ---- L1 -------------------------------------------------------------------------------------------------------------


def _accounted(job: OfJob, number: int, item: OfItem, told: Told, limits: Limits) -> Iterator[Violation]:
    if told.is_left(job, item):
        return
    config = job.config_at(told.end)
    monitored = config is None or config.monitored
    allowed = limits.noticed
    if told.stuck and config is not None:
        if not monitored:
            return  # nobody is blamed, since nobody knows what runs
        allowed += 2 * config.claim_timeout  # a leader looks once in that time, for fires that are as old as that
    entered = {body.token: body for body in item.entered}
    attempts: dict[float, list[int]] = {}
    for claim in item.claimed:
        attempts.setdefault(claim.scheduled_time, []).append(claim.token)
    begun_at: dict[float, float] = {}
    for body in item.entered:
        begun_at.setdefault(body.scheduled_time, body.at)
    if not monitored:
        for claim in item.claimed:
            begun_at.setdefault(claim.scheduled_time, claim.at)
    busy = _busy(job, item, told)
    for fire in _due(job, number, item, told, limits):
        where = f"{job.name}/{number} {time_text(fire)}"
        accounted = min(begun_at.get(fire, inf), item.recorded_at(fire))
        if job.removed_between(number, fire, accounted):
            continue  # what an item has left when a change takes it away goes with it
        since = max(fire, told.quiet)
        until = min(accounted, told.rest)
        waited = until - since - sum(max(0.0, min(b, until) - max(a, since)) for a, b in busy)
        if waited > allowed:
            if accounted == inf:
                yield Violation(Invariant.L1, since + allowed, where, _lost(fire, attempts))
            else:
                yield Violation(Invariant.L1, until, where, f"accounted for only after {waited:.1f} s")
        if monitored and fire in attempts and item.recorded_at(fire) == inf:
            token = attempts[fire][-1]
            claim = next(c for c in reversed(item.claimed) if c.token == token)
            gone = max(job.gone_at(claim.instance, claim.at), told.quiet)
            if token not in item.left and gone + limits.noticed < told.rest:
                what = "begun" if token in entered else "claimed and never begun"
                text = f"{what} on {claim.instance}, which died, and nobody said what became of it"
                yield Violation(Invariant.L1, gone + limits.noticed, where, text)


def _lost(fire: float, attempts: dict[float, list[int]]) -> str:
    return "claimed, neither run nor recorded" if fire in attempts else "neither run nor recorded"


def _busy(job: OfJob, item: OfItem, told: Told) -> list[tuple[float, float]]:
    """When the item was claimed by somebody alive; at these times nothing else of it can begin."""
    spans: list[tuple[float, float]] = []
    for claim in item.claimed:
        left = item.left.get(claim.token)
        unknown = min(job.gone_at(claim.instance, claim.at), told.rest) if job.watched else claim.at
        end = left.at if left is not None else unknown
        start = max(claim.at, spans[-1][1]) if spans else claim.at
        if end > start:
            spans.append((start, end))
    return spans


def _due(job: OfJob, number: int, item: OfItem, told: Told, limits: Limits) -> Iterator[float]:
    """The instants at which the item was certainly due: its schedule was in force, it existed, all that matters was enabled."""
    if not job.configured or (job.watched and not item.written):
        return
    # Without the registry's side, a history is complete from its first configuration on.
    begins = item.written[0].accounted_until if item.written else job.configured[0].at
    unclear = _unclear(job, number, item, told, limits)
    ends = [config.at for config in job.configured[1:]] + [told.rest]
    for config, end in zip(job.configured, ends, strict=False):
        schedule = schedule_of(config)
        if schedule is None or number >= config.items:
            continue
        instant = _datetime(max(config.at, begins))
        while True:
            fire = schedule.next_after(instant)
            if fire is None or fire.timestamp() > min(end, told.rest):
                break
            instant = fire
            if not any(a <= fire.timestamp() <= b for a, b in unclear):
                yield fire.timestamp()


def _unclear(job: OfJob, number: int, item: OfItem, told: Told, limits: Limits) -> list[tuple[float, float]]:
    """When clocks and the speed of events decide what is due."""
    spans = [(config.at - limits.skew, config.at + limits.skew) for config in job.configured[1:]]
    spans += [
        (first.at - limits.skew, second.at + limits.hearing)
        for first, second in pairwise(job.configured[1:])
        if second.at - first.at <= SOON
    ]
    for earlier, later in pairwise(job.configured):
        if earlier.items <= number < later.items and not any(job.is_present(i, later.at) for i in job.present):
            # Nobody saw the change that brought the item: for who comes later it is new, and starts at its next fire.
            spans.append((later.at, next((w.accounted_until for w in item.written if w.at > later.at), told.rest)))
    for row in item.switched:
        if not row.enabled:
            again = next((s.at for s in item.switched if s.enabled and s.at >= row.at), inf)
            seen = next((w.accounted_until for w in item.written if w.at > again), again)
            spans.append((row.at - limits.skew, max(again, seen) + limits.skew))
    return spans + _all_off(job, item, told, limits)


def _all_off(job: OfJob, item: OfItem, told: Told, limits: Limits) -> list[tuple[float, float]]:
    """While a server is disabled, the whole job may be, if nobody else is there whose server is enabled."""
    off = [(row.which, row.at, _enabled_again(job, row, told)) for row in job.servers if not row.enabled]
    spans = []
    for which, since, again in off:
        stay = again + limits.hearing
        elsewhere = {ip for ip, a, b in off if a <= stay and b >= since} | {which}
        others = [i for i in job.present if job.is_present(i, since) and job.gone_at(i, since) > stay]
        if all(instance.partition("@-@")[0] in elsewhere for instance in others):
            seen = next((w.accounted_until for w in item.written if w.at > again), again)
            spans.append((since - limits.skew, max(again, seen) + limits.hearing))
    return spans


def _enabled_again(job: OfJob, off: Switched, told: Told) -> float:
    return next((row.at for row in job.servers if row.enabled and row.which == off.which and row.at >= off.at), told.end)


@lru_cache(maxsize=64)
def _parsed(cron: str, time_zone: str | None) -> CronSchedule:
    return parse(cron, time_zone, now=datetime(2000, 1, 1, tzinfo=timezone.utc))


def schedule_of(config: Configured) -> CronSchedule | None:
    """None for a one-off job."""
    return _parsed(config.cron, config.time_zone) if config.cron else None


def _datetime(at: float) -> datetime:
    return datetime.fromtimestamp(at, timezone.utc)
