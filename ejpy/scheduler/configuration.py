"""The configuration that counts for one job: the registry's, as long as it can be understood, else the last good one; and what
is remembered of its changes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime

from ejpy.clock import Clock
from ejpy.config.document import from_document
from ejpy.config.model import JobConfig
from ejpy.coordination import changes
from ejpy.coordination.changes import Changes
from ejpy.coordination.ledger import Basis
from ejpy.coordination.paths import JobPaths
from ejpy.errors import ConfigError, CronError
from ejpy.registry.base import Node
from ejpy.schedule.cron import CronSchedule
from ejpy.scheduler.schedules import Schedules
from ejpy.scheduler.wording import ONE_OFF


class Configuration:
    """See the module's text."""

    def __init__(self, paths: JobPaths, file: JobConfig, clock: Clock, log: logging.LoggerAdapter[logging.Logger]) -> None:
        self.current = file
        """The one that counts; the file's until the job is registered."""
        self.version: int | None = None
        """Of the configuration's node, as it was seen last, also if it could not be understood."""
        self.schedules = Schedules(clock, log)
        self._paths = paths
        self._log = log
        self._clock = clock
        self._revision: int | None = None
        self._changes: Changes = ()

    @property
    def basis(self) -> Basis:
        return Basis.of(self.current)

    @property
    def schedule(self) -> CronSchedule | None:
        return self.schedules.of(self.basis)

    def changes(self, now: datetime) -> Changes:
        """What is known to have been in force, and is."""
        return self._changes or changes.learn((), self.basis, now, now)

    def look(self, nodes: Mapping[str, Node]) -> bool:
        """Take over what the registry says now. Returns whether schedule or item count are others than before."""
        node = nodes.get(self._paths.config)
        self.version = node.version if node is not None else None
        if node is None or node.revision == self._revision:
            return False
        first, self._revision = self._revision is None, node.revision
        try:
            config = from_document(node.data, self._paths.job, self.current.job_class, self.current.python_class)
            self.schedules.read(Basis.of(config))
        except (ConfigError, CronError) as error:
            self._log.error("the registry's configuration is broken, the last good one stays: %s", error)
            return False
        basis_before, self.current = self.basis, config
        self._changes = changes.learn(self._changes, self.basis, node.modified, self._clock.now())
        if self.basis == basis_before:
            if first and config.cron is None:
                self._log.info(ONE_OFF)
            return False
        self._log.info("the schedule is now %s, the item count %d", config.cron or ONE_OFF, config.sharding_total_count)
        return True
