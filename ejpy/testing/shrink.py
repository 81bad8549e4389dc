"""Makes the plan of a broken history smaller, as long as the same invariant still breaks.

Faults go first, in halves, quarters and so on (Zeller's delta debugging), then whole jobs and workers, then items, then time.
What is left is the shortest history that was found, not the shortest there is; `budget` bounds how many are played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ejpy.testing.plan import Fault, Plan

Breaks = Callable[[Plan], bool]


def shrink(plan: Plan, breaks: Breaks, *, budget: int = 150) -> Plan:
    """The smallest plan found that `breaks`. `plan` itself does."""
    best = _Best(plan, breaks, budget)
    while best.left > 0:
        before = best.plan
        _fewer_faults(best)
        for smaller in (_without_jobs, _without_workers, _fewer_items, _shorter, _plainer):
            _first_that_breaks(best, smaller)
        if best.plan == before:
            break
    return best.plan


class _Best:
    """The smallest plan so far."""

    def __init__(self, plan: Plan, breaks: Breaks, budget: int) -> None:
        self.plan = plan
        self.left = budget
        self._breaks = breaks

    def offer(self, plan: Plan) -> bool:
        """Take a plan if it still breaks."""
        if self.left <= 0 or plan == self.plan:
            return False
        self.left -= 1
        if not self._breaks(plan):
            return False
        self.plan = plan
        return True


def _fewer_faults(best: _Best) -> None:
    pieces = 1
    while best.plan.faults and best.left > 0:
        size = -(-len(best.plan.faults) // pieces)
        for start in range(0, len(best.plan.faults), size):
            faults = best.plan.faults[:start] + best.plan.faults[start + size :]
            if best.offer(replace(best.plan, faults=faults)):
                pieces = max(1, pieces - 1)
                break
        else:
            if size == 1:
                return
            pieces = min(len(best.plan.faults), 2 * pieces)


def _first_that_breaks(best: _Best, smaller: Callable[[Plan], Iterator[Plan]]) -> None:
    while any(best.offer(plan) for plan in smaller(best.plan)):
        pass


def _without_jobs(plan: Plan) -> Iterator[Plan]:
    for place in range(len(plan.jobs)) if len(plan.jobs) > 1 else ():
        jobs = plan.jobs[:place] + plan.jobs[place + 1 :]
        yield replace(plan, jobs=jobs, faults=_of_fewer(plan.faults, "job", place))


def _without_workers(plan: Plan) -> Iterator[Plan]:
    """The last only, so that the others keep their names."""
    if len(plan.workers) > 1:
        last = len(plan.workers) - 1
        yield replace(plan, workers=plan.workers[:last], faults=_of_fewer(plan.faults, "worker", last))


def _of_fewer(faults: tuple[Fault, ...], what: str, place: int) -> tuple[Fault, ...]:
    kept = []
    for fault in faults:
        concerned = getattr(fault, what)
        if concerned != place:
            kept.append(replace(fault, **{what: concerned - (concerned > place)}))
    return tuple(kept)


def _fewer_items(plan: Plan) -> Iterator[Plan]:
    for place, job in enumerate(plan.jobs):
        for items in {1, job.items // 2, job.items - 1} - {0, job.items}:
            jobs = (*plan.jobs[:place], replace(job, items=items), *plan.jobs[place + 1 :])
            yield replace(plan, jobs=jobs)


def _shorter(plan: Plan) -> Iterator[Plan]:
    ends = max((fault.at + fault.seconds for fault in plan.faults), default=1.0)
    last = max((fault.at for fault in plan.faults), default=1.0)
    for seconds in (last + 1.0, ends + 1.0, plan.faults_seconds * 0.7):
        if last < seconds < plan.faults_seconds - 1.0:
            yield replace(plan, faults_seconds=round(seconds, 3))


def _plainer(plan: Plan) -> Iterator[Plan]:
    """Without what makes a cluster odd."""
    yield replace(plan, workers=tuple(replace(worker, ahead=0.0) for worker in plan.workers))
    yield replace(plan, workers=tuple(replace(worker, starts=0.0) for worker in plan.workers))
    for place, job in enumerate(plan.jobs):
        plain = (
            replace(job, checkpoints=False),
            replace(job, running_marks=False),
            replace(job, deaf=False),
            replace(job, body_seconds=0.0),
        )
        for simpler in plain:
            yield replace(plan, jobs=(*plan.jobs[:place], simpler, *plan.jobs[place + 1 :]))
