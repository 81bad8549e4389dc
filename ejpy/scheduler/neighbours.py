"""The instances of a job, as this worker sees them come and go.

When somebody goes, his runs may have to be recovered: whoever saw him go knows how long ago that was, and nobody else does.
After an interruption nobody was seen, and those who are missing may have been gone for long.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta


class Neighbours:
    """See the module's text. `me` is the id of this worker's instance."""

    def __init__(self, me: str, log: logging.LoggerAdapter[logging.Logger]) -> None:
        self._me = me
        self._log = log
        self._present: frozenset[str] | None = None
        self._gone_since: dict[str, datetime] = {}

    @property
    def gone_since(self) -> Mapping[str, datetime]:
        """Those that were seen to go, and when."""
        return self._gone_since

    def interrupted(self) -> None:
        """The session was lost: what happened since is not known."""
        self._present = None

    def look(self, instances: Iterable[str], now: datetime, forget_after: timedelta) -> None:
        """Who is there now. Departures are remembered for `forget_after`."""
        before, self._present = self._present, frozenset(instances)
        if before is None:
            others = len(self._present - {self._me})
            self._log.info("there %s %d other instance%s", "is" if others == 1 else "are", others, "" if others == 1 else "s")
            return
        if before == self._present:
            return
        for instance in sorted(self._present - before - {self._me}):
            self._gone_since.pop(instance, None)
            self._log.info("instance %s joined; %d now", instance, len(self._present))
        for instance in sorted(before - self._present - {self._me}):
            self._gone_since[instance] = now
            self._log.info("instance %s left; %d now", instance, len(self._present))
        self._gone_since = {i: at for i, at in self._gone_since.items() if now - at <= forget_after}
