"""Histories written by hand: a job of two items, a fire every 10 s, workers A and B. Times are seconds after the beginning."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ejpy.terms import CatchUp, NotRun, Outcome, Reason
from ejpy.testing import history
from ejpy.testing.history import Event

BEGIN = 1_767_225_600.0
"""2026-01-01T00:00:00Z."""
JOB = "job"
A, B, C = "10.0.0.1@-@a", "10.0.0.2@-@b", "10.0.0.3@-@c"


def configured(at: float = 0, *, items: int = 2, strategy: str = "AVG_ALLOCATION", **other: Any) -> history.Configured:
    row = history.Configured(
        BEGIN + at, JOB, "0/10 * * * * ?", "UTC", items, True, True, CatchUp.LATEST, 60.0, 6.0, strategy, True
    )
    return replace(row, **other)


class Teller:
    """Writes rows, and keeps revisions and tokens."""

    def __init__(self, *rows: Event) -> None:
        self.rows: list[Event] = list(rows)
        self.revision = 0

    def tell(self, *rows: Event) -> Teller:
        self.rows += rows
        return self

    def next(self) -> int:
        self.revision += 1
        return self.revision

    # -- the registry's side --

    def joins(self, at: float, instance: str, session: int = 1, *, draining: bool = False) -> Teller:
        return self.tell(history.Present(BEGIN + at, self.next(), JOB, instance, session, draining))

    def goes(self, at: float, instance: str) -> Teller:
        return self.tell(history.Present(BEGIN + at, self.next(), JOB, instance, None, False))

    def leads(self, at: float, instance: str | None) -> Teller:
        return self.tell(history.Leads(BEGIN + at, self.next(), JOB, instance))

    def assigns(self, at: float, by: str | None, **to: str | None) -> Teller:
        """Items are given as `i0="…"`, in one transaction."""
        revision = self.next()
        return self.tell(*(history.Assigned(BEGIN + at, revision, JOB, int(item[1:]), whom, by) for item, whom in to.items()))

    def written(self, at: float, item: int, by: str | None, **entry: Any) -> Teller:
        row = history.Written(
            BEGIN + at, self.next(), JOB, item, by, None, False, None, 0, None, False, False, BEGIN + at, None, False, True
        )
        return self.tell(replace(row, **entry))

    def marked(self, at: float, item: int, instance: str | None) -> Teller:
        return self.tell(history.Marked(BEGIN + at, self.next(), JOB, item, instance))

    # -- attempts --

    def claims(
        self,
        at: float,
        item: int,
        who: str,
        fire: float,
        *,
        attempt: int = 1,
        reason: Reason = Reason.SCHEDULED,
        token: int | None = None,
        seen: bool = True,
        **more: Any,
    ) -> Teller:
        """A claim; `seen`: with the registry's side of it."""
        revision = self.next()
        token = revision if token is None else token
        scheduled = BEGIN + fire
        if seen:
            self.tell(
                history.Written(
                    BEGIN + at, revision, JOB, item, who, token, True, scheduled, attempt, who, True, False, scheduled,
                    more.pop("checkpoint", None), False, True,
                )
            )  # fmt: skip
        decided = more.pop("decided", at)
        return self.tell(history.Claimed(BEGIN + at, JOB, item, scheduled, attempt, reason, token, who, BEGIN + decided, **more))

    def enters(self, at: float, item: int, who: str, fire: float, **more: Any) -> Teller:
        claim = self._newest(item, BEGIN + fire, more.pop("token", None))
        row = history.Entered(
            BEGIN + at, JOB, item, claim.scheduled_time, claim.attempt, claim.reason, claim.token, who, 0.0, claim.total
        )
        return self.tell(replace(row, **more))

    def ends(self, at: float, item: int, who: str, fire: float, outcome: Outcome = Outcome.SUCCEEDED, **more: Any) -> Teller:
        """The body ends; and that is recorded, as far as the registry's side is told of."""
        claim = self._newest(item, BEGIN + fire, more.pop("token", None))
        self.tell(history.Left(BEGIN + at, JOB, item, BEGIN + fire, claim.attempt, claim.token, who, outcome))
        if any(isinstance(row, history.Written) for row in self.rows):
            of = {"token": claim.token, "scheduled_time": BEGIN + fire, "attempt": claim.attempt, "owner": claim.instance}
            self.written(at, item, who, **{**of, "accounted_until": BEGIN + fire, **more})
        return self.tell(history.Recorded(BEGIN + at, JOB, item, BEGIN + fire, claim.attempt, claim.token, who, outcome, True))

    def runs(self, at: float, item: int, who: str, fire: float, **more: Any) -> Teller:
        """Claimed, entered and ended, each right away."""
        return self.claims(at, item, who, fire, **more).enters(at + 0.01, item, who, fire).ends(at + 0.1, item, who, fire)

    def _newest(self, item: int, fire: float, token: int | None) -> history.Claimed:
        return next(
            row
            for row in reversed(self.rows)
            if isinstance(row, history.Claimed) and (row.item, row.scheduled_time) == (item, fire) and token in (None, row.token)
        )

    # -- the rest --

    def not_run(self, at: float, item: int, after: float, until: float, why: NotRun = NotRun.MISSED) -> Teller:
        return self.tell(history.FiresNotRun(BEGIN + at, JOB, item, BEGIN + after, BEGIN + until, why))

    def switched(self, at: float, *, item: int | None = None, server: str | None = None, enabled: bool) -> Teller:
        return self.tell(history.Switched(BEGIN + at, JOB, item, server, enabled))

    def quiet(self, at: float) -> Teller:
        return self.tell(history.Quiet(BEGIN + at))

    def ends_at(self, at: float) -> list[Event]:
        return [*self.rows, history.AtRest(BEGIN + at), history.Finished(BEGIN + at)]


def cluster(*, items: int = 2, strategy: str = "AVG_ALLOCATION", quiet: float = 1.0, **other: Any) -> Teller:
    """A and B are there, A leads, and the first items belong to A, the others to B."""
    teller = Teller(configured(items=items, strategy=strategy, **other))
    teller.joins(0.1, A, 1).joins(0.2, B, 2).leads(0.3, A)
    share = -(-items // 2)
    teller.assigns(0.4, A, **{f"i{item}": A if item < share else B for item in range(items)})
    for item in range(items):
        teller.written(0.4, item, A)
    return teller.quiet(quiet)


def fires(teller: Teller, *at: float) -> Teller:
    """Both items run well at each of these."""
    for fire in at:
        teller.runs(fire + 0.01, 0, A, fire).runs(fire + 0.02, 1, B, fire)
    return teller
