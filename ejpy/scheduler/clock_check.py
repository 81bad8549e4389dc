"""This worker's clock against the registry's: compared whenever this instance's node is written, which the registry dates."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta

from ejpy.coordination import clocks
from ejpy.registry.base import Node
from ejpy.scheduler.membership import Membership


class ClockCheck:
    """`path` is this instance's node."""

    def __init__(self, membership: Membership, path: str, log: logging.LoggerAdapter[logging.Logger]) -> None:
        self._membership = membership
        self._path = path
        self._log = log
        self._ahead = timedelta(0)
        self._compared: tuple[datetime, datetime] | None = None
        """What this clock and the registry's said when they were compared last."""
        self._said = False
        """That this worker is refused."""

    def look(self, nodes: Mapping[str, Node], max_time_diff_seconds: int) -> None:
        """Compare, if this instance's node was written since the last look."""
        node, dated = nodes.get(self._path), self._membership.dated
        compared = False
        if node is not None and dated is not None and node.revision >= dated.revision:
            compared = True
            self._membership.dated = None
            self._ahead = clocks.difference(node.modified, dated.before, dated.after)
            self._compared = (dated.before, node.modified)
        if self._compared is None:
            return
        said, self._said = self._said, self.refused(max_time_diff_seconds)
        if self._said and not said:
            self._log.error(
                "nothing is run here: this clock said %s when the registry's said %s; max_time_diff_seconds is %d",
                *self._compared,
                max_time_diff_seconds,
            )
        elif said and not self._said:
            self._log.info("this clock is near enough now: this worker takes part again")
        elif compared and not said and abs(self._ahead) >= clocks.WARN_FROM:
            self._log.warning("this clock said %s when the registry's said %s: set it right", *self._compared)

    def refused(self, max_time_diff_seconds: int) -> bool:
        """Whether the clocks are so far apart that nothing may be run here."""
        return clocks.refused(self._ahead, max_time_diff_seconds)
