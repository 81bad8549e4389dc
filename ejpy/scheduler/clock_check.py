"""This worker's clock against the registry's: compared whenever this instance's node is written, which the registry dates."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta

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

    def look(self, nodes: Mapping[str, Node], max_time_diff_seconds: int) -> None:
        """Compare, if this instance's node was written since the last look."""
        before = self.refused(max_time_diff_seconds)
        node, dated = nodes.get(self._path), self._membership.dated
        if node is None or dated is None or node.revision < dated.revision:
            return
        self._membership.dated = None
        self._ahead = clocks.difference(node.modified, dated.before, dated.after)
        if self.refused(max_time_diff_seconds):
            if before:
                return  # that was said
            self._log.error(
                "nothing is run here: this clock said %s when the registry's said %s; max_time_diff_seconds is %d",
                dated.before,
                node.modified,
                max_time_diff_seconds,
            )
        elif before:
            self._log.info("this clock is right again: this worker takes part again")
        elif abs(self._ahead) >= clocks.WARN_FROM:
            self._log.warning("this clock said %s when the registry's said %s: set it right", dated.before, node.modified)

    def refused(self, max_time_diff_seconds: int) -> bool:
        """Whether the clocks are so far apart that nothing may be run here."""
        return clocks.refused(self._ahead, max_time_diff_seconds)
