"""GroupCommit: many small transactions that are due at the same moment share few large ones.

A transaction of a hundred operations costs the registry hardly more than one of ten, and a thousand jobs that fire in the
same second would otherwise cost a thousand round trips. So submissions are gathered for a few milliseconds and merged:

    commit ──► gathered ──window over, flush──► ready ──► under way ──► each gets its own slice of the result
                  │                               ▲            │
                  └─ waits for an earlier one ────┘            └── one guard failed: its submitter is told,
                     that touches the same nodes                   the rest goes again at once

Merging is not to be noticed: each submission ends as if it had been sent alone, after the earlier ones on which it depends.

* A transaction is applied as a whole or not at all, so one guard that fails takes innocent submissions with it. The registry
  names the operation, and with it the culprit; the rest goes again without it. When a second culprit shows up among the rest,
  many may be stale (a resharding, say), and each of the others goes alone.
* Submissions that depend on each other (`submission.py`) never share a transaction; the later one is sent only after the
  earlier one has ended.
* A submission may have a last instant (`not_after`), the end of the lease: it is looked at right before each sending.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ejpy.clock import Clock
from ejpy.errors import (
    AccessDenied,
    GuardFailed,
    OutcomeUnknown,
    RegistryError,
    RegistryUnavailable,
    RequestTooLarge,
    SessionExpired,
)
from ejpy.registry.base import Committed, Operation, Registry, refuse_too_large
from ejpy.registry.submission import Lines, Submission

MOST_UNDER_WAY = 8
"""How many transactions wait for their replies at the same time; what is ready meanwhile is merged into the next ones."""

MOST_CULPRITS = 2
"""After so many failed guards in one transaction's submissions, the rest of them go one by one."""


class GroupCommit:
    """Merges what is submitted to `registry` within `window` seconds.

    `clock` is the one that `not_after` is measured by, `loop` the loop that everything runs on.
    """

    def __init__(self, registry: Registry, *, clock: Clock, loop: asyncio.AbstractEventLoop, window: float = 0.003) -> None:
        self.submissions = 0
        """How many submissions were taken in so far."""
        self.transactions = 0
        """How many transactions were sent so far."""
        self._registry = registry
        self._clock = clock
        self._loop = loop
        self._window = window
        self._timer: asyncio.TimerHandle | None = None
        self._gathered: list[Submission] = []
        self._ready: list[tuple[int, Submission]] = []  # a heap, the first submitted on top
        self._again: deque[_Chunk] = deque()
        self._under_way: set[_Sending] = set()
        self._lines = Lines()
        self._closed = False

    async def commit(self, operations: Sequence[Operation], *, not_after: float | None = None) -> Committed:
        """Apply `operations` (at least one) as a whole or not at all, perhaps together with those of others.

        Submissions that depend on each other are applied in the order of the calls; others in any order. `versions` and
        the index of a GuardFailed are those of `operations`; `revision` may be shared with others. `not_after` is an instant
        of the clock's `monotonic`: what was not sent by then is not sent. A call that is cancelled before it was sent is not
        sent. An error names a node of `operations`, or none: never one of somebody else's.

        Raises RequestTooLarge if `operations` alone are over the registry's limits; RegistryUnavailable if it was too late
        or the group is closed; and what `Registry.commit` raises.
        """
        if not operations:
            raise ValueError("a transaction needs an operation")
        if self._closed:
            raise RegistryUnavailable("not sent: this worker is closing its connection to the registry")
        submission = Submission(self.submissions, tuple(operations), not_after, self._loop.create_future())
        refuse_too_large(operations, self._registry.max_operations, self._registry.max_bytes)
        self.submissions += 1
        self._lines.enter(submission)
        self._gathered.append(submission)
        if self._timer is None:
            self._timer = self._loop.call_later(self._window, self.flush)
        return await submission.result

    def flush(self) -> None:
        """Send what was gathered, without waiting for the window's end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        gathered, self._gathered = self._gathered, []
        for submission in gathered:
            submission.flushed = True
            self._make_ready(submission)
        self._send_ready()

    async def close(self) -> None:
        """Send what was gathered, take in no more, and return when every submission has ended. Idempotent."""
        self._closed = True
        self.flush()
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _make_ready(self, submission: Submission) -> None:
        if submission.flushed and not submission.waits_for:
            heapq.heappush(self._ready, (submission.index, submission))

    def _settle(self, submission: Submission) -> None:
        """It has ended; what waited for it may go on."""
        for later in self._lines.leave(submission):
            self._make_ready(later)

    # -- sending --

    def _send_ready(self) -> None:
        while len(self._under_way) < MOST_UNDER_WAY and (self._again or self._ready):
            chunk = self._again.popleft() if self._again else _Chunk(self._fill())
            sending = self._loop.create_task(self._send(chunk))
            self._under_way.add(sending)
            sending.add_done_callback(partial(self._ended, chunk))

    def _fill(self) -> list[Submission]:
        """The first of what is ready, as many as fit into one transaction."""
        taken: list[Submission] = []
        operations = size = 0
        while self._ready:
            [_, first] = self._ready[0]
            operations += len(first.operations)
            size += first.size
            if taken and (operations > self._registry.max_operations or size > self._registry.max_bytes):
                break
            heapq.heappop(self._ready)
            taken.append(first)
        return taken

    async def _send(self, chunk: _Chunk) -> Committed | None:
        chunk.submissions = [submission for submission in chunk.submissions if self._may_go(submission)]
        if not chunk.submissions:
            return None
        self.transactions += 1
        return await self._registry.commit([each for submission in chunk.submissions for each in submission.operations])

    def _may_go(self, submission: Submission) -> bool:
        if submission.not_after is not None and self._clock.monotonic() > submission.not_after:
            self._fail(submission, RegistryUnavailable("not sent: its last instant (`not_after`) passed while it waited"))
        elif submission.result.cancelled():
            self._settle(submission)
        else:
            return True
        return False

    def _ended(self, chunk: _Chunk, sending: _Sending) -> None:
        self._under_way.discard(sending)
        error = OutcomeUnknown("the loop is closing") if sending.cancelled() else sending.exception()
        if error is None:
            committed = sending.result()
            if committed is not None:
                self._succeed(chunk, committed)
        elif isinstance(error, GuardFailed):
            self._drop_culprit(chunk, error)
        elif isinstance(error, (AccessDenied, RequestTooLarge)) and len(chunk.submissions) > 1:
            self._again.extend(chunk.one_by_one())  # had no effect, and which of them was refused is not told
        else:
            for submission in chunk.submissions:
                self._fail(submission, error if len(chunk.submissions) == 1 else _of_own(submission, error))
        self._send_ready()

    def _succeed(self, chunk: _Chunk, committed: Committed) -> None:
        first = 0
        for submission in chunk.submissions:
            after = first + len(submission.operations)
            if not submission.result.done():
                submission.result.set_result(Committed(committed.revision, committed.versions[first:after]))
            self._settle(submission)
            first = after

    def _drop_culprit(self, chunk: _Chunk, failed: GuardFailed) -> None:
        index = failed.index
        for culprit in chunk.submissions:
            if index < len(culprit.operations):
                break
            index -= len(culprit.operations)
        chunk.submissions.remove(culprit)
        chunk.culprits += 1
        if chunk.culprits >= MOST_CULPRITS:
            self._again.extend(chunk.one_by_one())
        elif chunk.submissions:
            self._again.append(chunk)
        self._fail(culprit, GuardFailed(index, culprit.operations[index].path, failed.failure))

    def _fail(self, submission: Submission, error: BaseException) -> None:
        if not submission.result.done():
            submission.result.set_exception(error)
        self._settle(submission)


_Sending = asyncio.Task["Committed | None"]


def _of_own(submission: Submission, error: BaseException) -> BaseException:
    """What became of a submission whose transaction, shared with others, ended with `error`: that may name a node of theirs."""
    path = submission.operations[0].path
    if isinstance(error, OutcomeUnknown):
        own: RegistryError = OutcomeUnknown(f"{path}: sent, together with others, but not answered; read before repeating it")
    elif isinstance(error, SessionExpired):
        own = SessionExpired(f"{path}: not written, since the session has ended")
    elif isinstance(error, RegistryUnavailable):
        own = RegistryUnavailable(f"{path}: not sent, since the registry is not to be reached")
    else:
        return error
    own.__cause__ = error
    return own


@dataclass(slots=True)
class _Chunk:
    """Submissions that share a transaction."""

    submissions: list[Submission]
    culprits: int = 0
    """How many of its submissions were dropped for a failed guard."""

    def one_by_one(self) -> Iterator[_Chunk]:
        return (_Chunk([submission]) for submission in self.submissions)
