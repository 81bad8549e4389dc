"""One fire on one worker: the attempts that were started together, held back until the listeners were called."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from ejpy.attempt import Attempt
from ejpy.clock import Clock
from ejpy.execution.base import Ended, Execution, SaveCheckpoint
from ejpy.listeners.base import FireInfo
from ejpy.logs import FieldsAdapter, attempt_fields

logger = logging.getLogger("ejpy.execution")


@dataclass(slots=True, eq=False)
class Fire:
    """See the module's text. All on the control loop."""

    gated: list[GatedAttempt] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """All of them have ended."""
    calling: bool = False
    """A listener is being called for all workers, or was."""

    @property
    def job_name(self) -> str:
        return self.gated[0].attempt.job_name

    @property
    def instant(self) -> datetime:
        return self.gated[0].attempt.scheduled_time

    @property
    def live(self) -> list[GatedAttempt]:
        """Those that are neither ended nor about to be."""
        return [gated for gated in self.gated if gated.ended is None and not gated.dropped]

    def info(self) -> FireInfo:
        """What listeners are told; of those that are live."""
        attempts = [gated.attempt for gated in self.live]
        first = attempts[0]
        items = tuple(sorted(attempt.sharding_item for attempt in attempts))
        return FireInfo(
            job_name=first.job_name,
            scheduled_time=first.scheduled_time,
            reasons=tuple(dict.fromkeys(attempt.reason for attempt in attempts)),
            items=items,
            sharding_total_count=first.sharding_total_count,
            job_parameter=first.job_parameter,
            task_id=_task_id(first.task_id, items),
        )

    def results(self, items: Sequence[int]) -> dict[int, Ended]:
        found = {gated.attempt.sharding_item: gated.ended for gated in self.gated}
        return {item: ended for item in items if (ended := found[item]) is not None}

    def one_ended(self) -> None:
        if all(gated.ended is not None for gated in self.gated):
            self.over.set()


class GatedAttempt:
    """One attempt of a fire: an `Execution` (see `execution/base.py`), before and after it is handed over."""

    def __init__(
        self,
        fire: Fire,
        attempt: Attempt,
        *,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
    ) -> None:
        self.may_enter = may_enter
        self.save_checkpoint = save_checkpoint
        self.execution: Execution | None = None
        """The runner's own, once it was handed over."""
        self.dropped = False
        """Told to stop before it was handed over; its end is about to be reported."""
        self.ended: Ended | None = None
        self.log = FieldsAdapter(logger, attempt_fields(attempt))
        self._fire = fire
        self._attempt = attempt
        self._on_ended = on_ended
        self._loop = loop
        self._clock = clock
        fire.gated.append(self)

    @property
    def attempt(self) -> Attempt:
        return self._attempt

    def cancel(self, why: str) -> None:
        if self.execution is not None:
            self.execution.cancel(why)
        elif not self.dropped and self.ended is None:
            self.log.info("not entered: %s", why)
            self._drop()

    def withdraw(self) -> None:
        if self.execution is not None:
            self.execution.withdraw()
        elif not self.dropped and self.ended is None:
            self._drop()

    def end_unentered(self) -> None:
        """Report that its body was not entered and will not be."""
        self.report(self._attempt, Ended(None, None, self._clock.now()))

    def report(self, attempt: Attempt, ended: Ended) -> None:
        """Its end: pass it on at once."""
        self.ended = ended
        try:
            self._on_ended(attempt, ended)
        finally:
            self._fire.one_ended()

    def _drop(self) -> None:
        self.dropped = True
        self._loop.call_soon(self.end_unentered)


def _task_id(of_item: str, items: Sequence[int]) -> str:
    """ElasticJob's id of a task of several items, from that of one: `job@-@0,1@-@READY@-@ip@-@pid`."""
    parts = of_item.split("@-@")
    return "@-@".join([parts[0], ",".join(map(str, items)), *parts[2:]])
