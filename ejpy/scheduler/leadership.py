"""Leading a job: when to stand for election, abdicate, reshard, and look for owners that leave fires unclaimed.

follower ──no leader, own server enabled──► latch ──► leader ──own server disabled, draining, strategy unusable──► follower
                                                        └──session lost, node removed──► follower
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime

from ejpy.config.document import to_document
from ejpy.config.model import JobConfig
from ejpy.coordination import failover, neglect
from ejpy.coordination.changes import Changes
from ejpy.coordination.claims import Schedule
from ejpy.coordination.ledger import Basis
from ejpy.coordination.marks import Marks, marks_of
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView, view_of
from ejpy.errors import RegistryError
from ejpy.logs import fields
from ejpy.registry.base import Create, Operation, SessionState
from ejpy.registry.mirror import TreeMirror
from ejpy.scheduler.election import Election
from ejpy.scheduler.host import RETRY_SECONDS, Deed, Host
from ejpy.scheduler.own_strategy import OwnStrategy
from ejpy.scheduler.resharding import Resharding
from ejpy.scheduler.term import ABANDONED_SECONDS, CONFIG_GONE_SECONDS, Term


class Leadership:
    """See the module's text. All methods on the control loop."""

    def __init__(
        self,
        host: Host,
        paths: JobPaths,
        mirror: TreeMirror,
        again: Callable[[], None],
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._host = host
        self._paths = paths
        self._mirror = mirror
        self._again = again
        self._log = log
        self._election = Election(host, paths, again, log)
        self._own_strategy = OwnStrategy(again, log)
        self._resharding = Resharding(host, paths, mirror, self._election, self._own_strategy, again, log)
        self._deed = Deed("leading", again, log)
        self._check: asyncio.TimerHandle | None = None
        self._fired_meanwhile = False
        """A fire came while a check is waited for, which may be too early for it."""
        self._document: bytes | None = None
        """The job's configuration as it stood in its node last."""
        self._known: tuple[JobConfig, Schedule | None] | None = None
        """Configuration and schedule at the last look."""

    def leads(self, view: JobView) -> bool:
        """By the job's tree, this worker is the leader in its present session."""
        mine = view.leader == self._host.instance_id
        return mine and view.leader_session == self._host.registry.session_id

    def look(
        self,
        view: JobView,
        marks: Marks,
        config: JobConfig,
        schedule: Schedule | None,
        known: Changes,
        now: datetime,
        *,
        willing: bool,
    ) -> None:
        """Begin what there is to do, if nothing is under way. `willing`: this worker may lead."""
        self._known = (config, schedule)
        if self._deed.under_way or self._host.registry.state is not SessionState.CONNECTED:
            return
        leads, term = self.leads(view), self._election.term
        if term is not None and not leads:
            if not self._settled(term):
                return  # just elected: the copy of the tree does not show it yet
            self._log.info("no longer the leader", extra=fields(leader=view.leader))
            self._election.term = term = None
        if term is None:
            self._stop_checking()
        able = self._own_strategy.usable(config.own_sharding_strategy)
        if leads and (not willing or able is False):
            self._deed.begin(self._election.abdicate(self._resharding.announcement(view)))
        elif view.leader is None and willing and able:
            self._deed.begin(self._election.stand())
        elif leads and term is None:
            self._deed.begin(self._election.resume())
        elif leads and term is not None and self._settled(term):
            term.see(view.instances)
            if schedule is not None and not term.checked:
                term.checked = True
                self.fired(config)  # the leader before may not have come to it
            abandoned = self._abandoned(term, view, config)
            untidy = failover.left_over(self._paths, view, marks, config, self._mirror.nodes, abandoned)
            untidy += self._lost_config(term, config)
            if untidy and self._host.clock.monotonic() >= term.tidy_from:
                self._deed.begin(self._resharding.tidy(term, untidy))
            elif able and self._resharding.wanted(term, view, marks, config):
                self._deed.begin(self._resharding.reshard(term, view, marks, config, known, now))

    def _abandoned(self, term: Term, view: JobView, config: JobConfig) -> frozenset[str]:
        known = term.without_instance.keys()
        servers = failover.servers_without_instance(view, config)
        if servers - known:
            asyncio.get_running_loop().call_later(ABANDONED_SECONDS, self._again)
        return term.abandoned(servers, self._host.clock.monotonic())

    def _lost_config(self, term: Term, config: JobConfig) -> list[list[Operation]]:
        """A job without configuration is none to operators, and whoever starts next would bring his own. A job that is being
        removed is gone by then."""
        there = self._mirror.nodes.get(self._paths.config)
        if there is not None:
            term.config_gone, self._document = None, there.data
            return []
        now = self._host.clock.monotonic()
        if term.config_gone is None:
            term.config_gone = now
            asyncio.get_running_loop().call_later(CONFIG_GONE_SECONDS, self._again)
        restored = now - term.config_gone >= CONFIG_GONE_SECONDS
        return [[Create(self._paths.config, self._document or to_document(config))]] if restored else []

    def resignation(self) -> list[Operation]:
        """What gives the leadership up, if this worker has it."""
        return self._election.resignation()

    async def close(self) -> None:
        self._stop_checking()
        await self._deed.cancel()
        self._own_strategy.close()
        self._election.close()

    def _settled(self, term: Term) -> bool:
        return term.settled(self._mirror.nodes, self._host.clock.monotonic())

    # -- owners that do not claim --

    def fired(self, config: JobConfig) -> None:
        """A scheduled instant came: see after `claim_timeout` that everybody claimed it. Of a job that is not monitored nobody
        knows what runs, so nobody is blamed."""
        if self._election.term is None or not config.monitor_execution:
            return
        if self._check is None:
            self._check_in(config.claim_timeout.total_seconds())
        else:
            self._fired_meanwhile = True

    def _check_in(self, seconds: float) -> None:
        self._check = asyncio.get_running_loop().call_later(seconds, self._begin_check)

    def _begin_check(self) -> None:
        self._check = None
        term, (config, schedule) = self._election.term, self._known or (None, None)
        if term is None or config is None or schedule is None:
            return
        if self._deed.under_way:
            self._check_in(RETRY_SECONDS)
        else:
            if self._fired_meanwhile:
                self._fired_meanwhile = False
                self._check_in(config.claim_timeout.total_seconds())  # for the fire that came while this check was waited for
            self._deed.begin(self._find_neglect(term, config, schedule))

    async def _find_neglect(self, term: Term, config: JobConfig, schedule: Schedule) -> bool:
        view = view_of(self._mirror.nodes, self._paths)
        owners = neglect.claimable(view, marks_of(self._mirror.nodes, self._paths), config.sharding_total_count)
        basis, now = Basis.of(config), self._host.clock.now()
        try:
            ledger = await self._resharding.read_ledger(term, list(owners), basis, now)
        except RegistryError as error:
            self._log.info("ledger not checked: %s", error)
            if self._check is None:  # else one is to come
                self._check_in(RETRY_SECONDS)
            return True
        until = self._host.clock.monotonic() + 2 * config.claim_timeout.total_seconds()
        term.neglect.overdue.clear()
        for item, due in neglect.unclaimed(ledger, config, basis, schedule, now).items():
            self._log.warning("%s left the fire of %s unclaimed: its items move", owners[item], due, extra=fields(item=item))
            term.neglect.found(item, owners[item], until)
        return True

    def _stop_checking(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None
        self._fired_meanwhile = False
