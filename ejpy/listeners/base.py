"""What a listener is: code of a job's owner that is called before and after each fire, once for each worker that takes part.

A *fire on a worker* is what the worker begins together: its items of one scheduled instant. Items that are begun later for
the same instant (caught up, taken over, made up for) are a fire of their own.

A *distribute-once* listener is called on one worker for all: before the first body of the cluster begins, and after the last
one has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ejpy.execution.base import Ended
from ejpy.terms import Reason


@dataclass(frozen=True, slots=True)
class FireInfo:
    """One fire on one worker."""

    job_name: str
    scheduled_time: datetime
    """Aware, UTC."""
    reasons: tuple[Reason, ...]
    """Why its items are run; mostly one for all."""
    items: tuple[int, ...]
    """Those that are to be run here, ascending."""
    sharding_total_count: int
    job_parameter: str
    task_id: str
    """As in ElasticJob: job, items, instance."""


class JobListener:
    """Subclass it and write what is needed. It is made without arguments, in a thread, once for each job of a worker that names
    it, and anew when the job's listeners change.

    The methods are called in threads, several fires of a job perhaps at once. Whatever they raise goes to the job's error
    handler, and the fire goes on. A listener that hangs holds up the items of its fire, and no other job's.
    """

    order: int = 0
    """Listeners of a job are called by ascending order, before and after alike."""

    def before_fire(self, fire: FireInfo) -> None:
        """Before the first body begins here. The bodies wait for it."""

    def after_fire(self, fire: FireInfo, results: Mapping[int, Ended]) -> None:
        """After the last body ended here. Called if `before_fire` was, whatever became of the fire.

        `results`: how each item of the fire ended. An item whose body was not entered has the outcome None. The ends are
        recorded before; nothing waits for this method.
        """


class DistributeOnceListener(JobListener):
    """A listener that is called once for all workers (ElasticJob: AbstractDistributeOnceElasticJobListener).

    Each worker comes to it after `before_fire` of all its listeners, and after `after_fire` of all of them. The bodies of all
    workers wait until every item of the job that is enabled has been begun somewhere and the first method
    has returned; the second is called when all of them have ended. Each is called on one worker, once for each scheduled
    instant; again only if the worker dies in it, or loses its session. Instants that are run out of turn (made up for after
    a later one was run) are passed over.

    A time-out that passes is told to the error handler, and the fire goes on without the call.
    """

    started_timeout: float | None = 60.0
    """Seconds to wait for all items to begin and for the first method. None: for ever (ElasticJob: 0 and less)."""
    completed_timeout: float | None = 3600.0
    """Seconds to wait for all items to end, after those of this worker have. None: for ever."""

    def before_fire_at_last_started(self, fire: FireInfo) -> None:
        """All items are about to begin. `fire` is that of the worker that it is called on."""

    def after_fire_at_last_completed(self, fire: FireInfo) -> None:
        """All items have ended."""
