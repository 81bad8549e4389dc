"""One submission to a group commit, and the lines in which it waits for the earlier ones on which it depends.

Where one submission changes what the other one touches or tests, blame could fall on a submission whose guard failed only
because of a neighbour that was then taken back itself. Therefore the later of such two waits until the earlier has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from ejpy.registry.base import Check, Committed, Create, Delete, Operation, operation_bytes, parent_of


class Submission:
    """What one caller wants to be applied as a whole."""

    def __init__(
        self, index: int, operations: tuple[Operation, ...], not_after: float | None, result: asyncio.Future[Committed]
    ) -> None:
        self.index = index
        self.operations = operations
        self.not_after = not_after
        self.result = result
        self.size = sum(map(operation_bytes, operations))
        self.flushed = False
        self.uses = _uses(operations)
        self.waits_for: set[Submission] = set()
        self.waited_for_by: list[Submission] = []

    def wait_for(self, earlier: Submission) -> None:
        if earlier not in self.waits_for:
            self.waits_for.add(earlier)
            earlier.waited_for_by.append(self)


class Lines:
    """The submissions that have not ended, in line for what they use."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}

    def enter(self, submission: Submission) -> None:
        """Have it wait for the earlier submissions on which it depends."""
        for key, exclusive in submission.uses.items():
            line = self._lines.setdefault(key, _Line())
            if line.exclusive is not None:
                submission.wait_for(line.exclusive)
            if exclusive:
                for earlier in line.shared:
                    submission.wait_for(earlier)
                line.exclusive, line.shared = submission, {}
            else:
                line.shared[submission] = None

    def leave(self, submission: Submission) -> list[Submission]:
        """It has ended. Returns those that waited for it."""
        for key in submission.uses:
            line = self._lines[key]
            line.shared.pop(submission, None)
            if line.exclusive is submission:
                line.exclusive = None
            if line.exclusive is None and not line.shared:
                del self._lines[key]
        for later in submission.waited_for_by:
            later.waits_for.discard(submission)
        return submission.waited_for_by


@dataclass(slots=True)
class _Line:
    """The unsettled submissions that use one thing: the last that changes it, and those after it that rely on it."""

    exclusive: Submission | None = None
    shared: dict[Submission, None] = field(default_factory=dict)


def _uses(operations: Sequence[Operation]) -> dict[str, bool]:
    """What the operations rely on, and whether they also change it: `path` for a node and its version, `path/` for whether
    there is a node to put children below and whether it has any.

    Children of one parent do not depend on each other; a node's making or removal depends on that of its parent.
    """
    uses: dict[str, bool] = {}
    for operation in operations:
        path = operation.path
        uses[path] = uses.get(path, False) or not isinstance(operation, Check)
        if isinstance(operation, (Create, Delete)):
            uses[f"{path}/"] = True
            uses.setdefault(f"{parent_of(path)}/", False)
    return uses
