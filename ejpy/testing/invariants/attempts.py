"""S1, S2, S6, S8, S10, L2: of the attempts of one item, and of the items of one fire."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from ejpy.terms import Outcome, Reason
from ejpy.testing.history import Claimed, Entered, Written, time_text
from ejpy.testing.invariants.base import Invariant, Limits, Violation
from ejpy.testing.invariants.told import OfItem, OfJob, Told, last_before

BY_SCHEDULE = {Reason.SCHEDULED, Reason.CATCH_UP, Reason.SCHEDULED_TOO_LONG}


def find(told: Told, limits: Limits) -> Iterator[Violation]:
    for job in told.jobs.values():
        for number, item in sorted(job.items.items()):
            where = f"{job.name}/{number}"
            if job.watched:
                yield from _fencing(job, item, where)
            yield from _one_claim_each(job, item, where)
            yield from _in_time(job, item, where, limits)
            yield from _checkpoints(item, where)
            yield from _true_reasons(job, item, where, limits)
        yield from _one_configuration(job, limits)


def _fencing(job: OfJob, item: OfItem, where: str) -> Iterator[Violation]:
    """S1."""
    granted = newest = -1
    saved = None
    for row in item.written:
        if row.checkpoint not in (None, saved) and not row.claims and row.by not in (None, row.owner):
            yield Violation(Invariant.S1, row.at, where, f"{row.by} saved a checkpoint, {row.owner} runs it")
        saved = row.checkpoint
        if not row.live:
            yield Violation(Invariant.S1, row.at, where, f"a write of {row.by} was accepted, whose session had ended")
        if row.token is None:
            continue
        if row.token < newest:
            yield Violation(Invariant.S1, row.at, where, f"token {row.token} was accepted after {newest}")
        elif granted >= 0 and not row.claims and row.token != granted:
            yield Violation(Invariant.S1, row.at, where, f"a write with token {row.token}, {granted} is granted")
        newest = max(newest, row.token)
        granted = row.token if row.claims else max(granted, row.token)
    for body in item.entered:
        newer = last_before(item.claimed, body.at)
        # Of a job that is not monitored nobody knows what runs: its fires may overlap.
        concerns = newer is not None and (newer.scheduled_time == body.scheduled_time or _monitored(job, body.at))
        if concerns and newer is not None and newer.token > body.token:
            text = f"token {body.token} was entered on {body.instance}, {newer.token} was granted to {newer.instance}"
            yield Violation(Invariant.S1, body.at, where, text)
        granted_in = next((job.session_of(c.instance, c.token) for c in item.claimed if c.token == body.token), None)
        if None not in (granted_in, body.session) and granted_in != body.session:
            text = f"token {body.token} was entered in session {body.session}, it was granted in {granted_in}"
            yield Violation(Invariant.S1, body.at, where, text)


def _one_claim_each(job: OfJob, item: OfItem, where: str) -> Iterator[Violation]:
    """S2."""
    for rows in (item.claimed, item.entered):
        by_fire: defaultdict[float, list[Claimed | Entered]] = defaultdict(list)
        for row in rows:
            by_fire[row.scheduled_time].append(row)
        for fire, attempts in by_fire.items():
            attempts.sort(key=lambda row: row.token)
            name = f"{where} {time_text(fire)}"
            for before, after in pairwise(attempts):
                if after.attempt <= before.attempt or after.token == before.token:
                    text = f"attempt {after.attempt} ({_who(after)}) after attempt {before.attempt} ({_who(before)})"
                    yield Violation(Invariant.S2, after.at, name, text)
            for row in attempts:
                if row.attempt > 1 and row.reason is Reason.SCHEDULED:
                    yield Violation(Invariant.S2, row.at, name, f"attempt {row.attempt} has no reason ({_who(row)})")
            if rows is item.claimed and job.watched:
                yield from _no_gap(attempts, name)
    ended: defaultdict[float, int] = defaultdict(int)
    for end in item.recorded:
        if end.recorded and end.outcome is Outcome.SUCCEEDED:
            ended[end.scheduled_time] += 1
            if ended[end.scheduled_time] > 1 and _monitored(job, end.at):
                text = f"recorded as succeeded {ended[end.scheduled_time]} times"
                yield Violation(Invariant.S2, end.at, f"{where} {time_text(end.scheduled_time)}", text)


def _no_gap(attempts: list[Claimed | Entered], name: str) -> Iterator[Violation]:
    expected = 1
    for row in attempts:
        if row.attempt != expected:
            yield Violation(Invariant.S2, row.at, name, f"attempts {[each.attempt for each in attempts]}")
            return
        expected = row.attempt + 1


def _in_time(job: OfJob, item: OfItem, where: str, limits: Limits) -> Iterator[Violation]:
    """S6."""
    for body in item.entered:
        early = body.scheduled_time - body.at
        if body.reason is not Reason.TRIGGER and early > max(limits.skew, body.ahead):
            yield Violation(Invariant.S6, body.at, where, f"entered {early:.3f} s before {time_text(body.scheduled_time)}")
    for place, claim in enumerate(item.claimed):
        config = job.config_at(claim.at)
        if config is None or claim.decided is None:
            continue
        begun = f"claimed for {time_text(claim.scheduled_time)} as {claim.reason.value}"
        by_own_clock = claim.reason is not Reason.OWNER_LOST and not claim.unscheduled
        if by_own_clock and claim.decided < claim.scheduled_time - 1e-3:
            yield Violation(Invariant.S6, claim.at, where, f"{begun} at {time_text(claim.decided)}")
        # Somebody who has not heard of a new grace yet goes by the one before, and the settings change seldom.
        if claim.reason in BY_SCHEDULE and not claim.unscheduled:
            since = claim.scheduled_time
        elif claim.reason is Reason.OWNER_LOST and place and item.claimed[place - 1].instance != claim.instance:
            since = _last_sign_of_life(job, item, item.claimed[place - 1], claim) + 2 * limits.skew + limits.hearing
        else:
            continue
        late = claim.decided - since - config.misfire_grace
        if late > 1e-3:
            yield Violation(Invariant.S6, claim.at, where, f"{begun}, {late:.3f} s after its grace")


def _last_sign_of_life(job: OfJob, item: OfItem, lost: Claimed, claim: Claimed) -> float:
    """Of the owner of a lost attempt: its claim, its end, what was written of it, or when its instance went."""
    written = [row.at for row in item.written if lost.at <= row.at < claim.at]
    gone = job.gone_at(lost.instance, lost.at)
    return max(lost.at, *written, gone if gone <= claim.at else lost.at)


def _checkpoints(item: OfItem, where: str) -> Iterator[Violation]:
    """S8. What bodies save grows."""
    last: Written | None = None
    for row in item.written:
        if last is not None and row.scheduled_time == last.scheduled_time and last.checkpoint is not None:
            lost = row.checkpoint is None and (row.running or row.to_recover)
            back = isinstance(row.checkpoint, (int, float)) and row.checkpoint < last.checkpoint
            if lost or back:
                text = f"{last.checkpoint!r} became {row.checkpoint!r}, written by {row.by}"
                yield Violation(Invariant.S8, row.at, where, text)
        last = row
    for body in item.entered:
        known = [row.checkpoint for row in item.written if row.token == body.token and row.claims]
        if known and known[0] is not None and body.checkpoint != known[0]:
            yield Violation(Invariant.S8, body.at, where, f"the body was told {body.checkpoint!r}, {known[0]!r} is saved")


def _true_reasons(job: OfJob, item: OfItem, where: str, limits: Limits) -> Iterator[Violation]:
    """L2."""
    entered = {body.token: body for body in item.entered}
    by_fire: defaultdict[float, list[Claimed]] = defaultdict(list)
    for claim in item.claimed:
        by_fire[claim.scheduled_time].append(claim)
    for fire, claims in by_fire.items():
        for before, after in pairwise(claims):
            name = f"{where} {time_text(fire)}"
            body = entered.get(before.token)
            if body is None or body.at > after.at:
                continue  # what never began is not run again
            if after.reason is not Reason.OWNER_LOST:
                text = f"run again as {after.reason.value}, though attempt {before.attempt} had been entered"
                yield Violation(Invariant.L2, after.at, name, text)
            elif job.watched and not _was_lost(job, item, before, after):
                text = f"run again on {after.instance} as lost, though {before.instance} was alive"
                yield Violation(Invariant.L2, after.at, name, text)


def _was_lost(job: OfJob, item: OfItem, before: Claimed, after: Claimed) -> bool:
    """The owner of an attempt had gone, or given it up."""
    if job.gone_at(before.instance, before.at) <= after.at or not job.is_present(before.instance, after.at):
        return True
    return any(row.to_recover for row in item.written if before.at <= row.at <= after.at)


def _one_configuration(job: OfJob, limits: Limits) -> Iterator[Violation]:
    """S10."""
    totals: defaultdict[float, dict[int, list[str]]] = defaultdict(dict)
    for number, item in job.items.items():
        for claim in item.claimed:
            if not claim.unscheduled and claim.total is not None:
                totals[claim.scheduled_time].setdefault(claim.total, []).append(f"{number} on {claim.instance}")
    for fire, seen in totals.items():
        if len(seen) > 1 and not any(abs(config.at - fire) <= limits.skew for config in job.configured):
            yield Violation(Invariant.S10, fire, job.name, f"the fire saw different item counts: {seen}")


def _monitored(job: OfJob, at: float) -> bool:
    config = job.config_at(at)
    return config is None or config.monitored


def _who(row: Claimed | Entered) -> str:
    return f"token {row.token}, {row.reason.value}, {row.instance}"
