"""JobScheduler: one job on one worker, its parts put together.

Whatever happens (the tree changed, an instant of the schedule came, a body ended, the session's state changed, a deed ended)
leads to the same thing: one look, in the next turn of the loop, at what is known now. A look begins at most one deed of each
kind; the deed's end asks for another look. At rest there is no task, no timer but the schedule's, and nothing is read.

    new ──start──► active ──drain──► draining ──leave──► gone
                     └── instance node removed by an operator ──► dismissed (until the process is started again)
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from enum import Enum

from ejpy.attempt import Attempt
from ejpy.config.model import JobConfig, ShardingStrategyName
from ejpy.coordination import assignment
from ejpy.coordination.claims import Policy, Situation
from ejpy.coordination.marking import Marking
from ejpy.coordination.marks import Marks, foreign_instances, marks_of
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import JobView, view_of
from ejpy.errors import RegistryError
from ejpy.history.records import Journal
from ejpy.logs import FieldsAdapter
from ejpy.registry.base import SessionState
from ejpy.registry.mirror import TreeMirror
from ejpy.scheduler.clock_check import ClockCheck
from ejpy.scheduler.configuration import Configuration
from ejpy.scheduler.host import Host
from ejpy.scheduler.item import Look, attempt_of
from ejpy.scheduler.items import Items
from ejpy.scheduler.leadership import Leadership
from ejpy.scheduler.membership import Membership
from ejpy.scheduler.neighbours import Neighbours
from ejpy.scheduler.registration import Registration
from ejpy.scheduler.takeover import Takeover


class Phase(Enum):
    NEW = "new"
    ACTIVE = "active"
    DRAINING = "draining"
    DISMISSED = "dismissed"
    GONE = "gone"


class JobScheduler:
    """See the module's text. All methods on the control loop."""

    def __init__(self, host: Host, file: JobConfig, journal: Journal) -> None:
        self.name = file.job_name
        self._host = host
        self._log = FieldsAdapter(logging.getLogger("ejpy.scheduler"), {"job": file.job_name})
        self._paths = JobPaths(host.namespace, file.job_name)
        self._mirror = TreeMirror(host.registry, self._paths.root, self._tree_changed)
        self._configuration = Configuration(self._paths, file, host.clock, self._log)
        self._membership = Membership(host, self._paths, file, self._log)
        self._clock_check = ClockCheck(self._membership, self._paths.instance(host.instance_id), self._log)
        self._neighbours = Neighbours(host.instance_id, self._log)
        self._leadership = Leadership(host, self._paths, self._mirror, self.look_again, self._log)
        self._items = Items(host, self._paths, journal, self.look_again, self._log)
        self._takeover = Takeover(host, self._paths, self.look_again, self._log)
        self._registration = Registration(
            host, self._membership, self._leadership.resignation, self._dismissed, self.look_again, self._log
        )
        self._phase = Phase.NEW
        self._view = JobView()
        self._marks = Marks()
        self._stale = True
        self._look_due = False
        self._lost = False
        self._resharding_since: datetime | None = None
        self._others_until: datetime | None = None
        self._ready: asyncio.Event = asyncio.Event()
        self._unsubscribe = host.registry.on_session(self._session_changed)

    @property
    def config(self) -> JobConfig:
        """The configuration that counts."""
        return self._configuration.current

    @property
    def mirror(self) -> TreeMirror:
        """A copy of the job's tree."""
        return self._mirror

    def enabled_items(self) -> list[int]:
        """The items that a fire consists of now."""
        disabled = self._current_view().disabled_items
        return [item for item in range(self.config.sharding_total_count) if item not in disabled]

    # -- life --

    async def start(self) -> None:
        """Register the job and this instance, and begin to take part. Raises JobConflict, ConfigError, RegistryError."""
        self._configuration.current, self._registration.session_id = await self._membership.register()
        await self._mirror.start()
        self._phase = Phase.ACTIVE
        self._set_timer()
        self.look_again()

    async def ready(self) -> None:
        """Wait until the job has a leader and all its items are assigned (or it is disabled)."""
        await self._ready.wait()

    async def drain(self) -> None:
        """Claim nothing any more, have idle items given to others, give up the leadership. Bodies go on."""
        if self._phase is not Phase.ACTIVE:
            return
        self._phase = Phase.DRAINING
        self._host.timer.remove(self.name)
        self._items.withdraw_waiting()
        self._membership.draining = True
        if self._host.registry.state is SessionState.CONNECTED:
            await self._registration.say_draining()
        self.look_again()

    async def settled(self) -> None:
        """Wait until no body runs here and every end is recorded."""
        await self._items.settled()

    def cancel(self, why: str) -> list[Attempt]:
        """Tell all bodies to stop; returns their attempts."""
        return self._items.cancel_all(why)

    @property
    def running(self) -> list[Attempt]:
        return self._items.running

    async def leave(self) -> None:
        """Remove this instance, and end taking part. What still runs here counts as interrupted by now."""
        phase, self._phase = self._phase, Phase.GONE
        resignation = self._leadership.resignation()
        await self._leadership.close()
        await self._items.close()
        await self._takeover.close()
        await self._registration.close()
        if phase is not Phase.DISMISSED and self._host.registry.state is SessionState.CONNECTED:
            try:
                await self._membership.leave(resignation)
            except RegistryError as error:
                self._log.warning("its nodes were not removed, and go with the session: %s", error)
        self._mirror.close()
        self._unsubscribe()

    # -- what wakes it --

    def look_again(self) -> None:
        """Look at everything in the next turn of the loop."""
        if not self._look_due:
            self._look_due = True
            asyncio.get_running_loop().call_soon(self._look)

    def _tree_changed(self, paths: frozenset[str] | None) -> None:
        self._stale = True
        self.look_again()

    def _fire(self) -> None:
        self._leadership.fired(self.config)
        self.look_again()

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._lost = True
            self._neighbours.interrupted()
            self._items.session_lost()
        elif state is SessionState.CONNECTED:
            if self._lost:
                self._lost = False
                self._items.session_renewed(self._host.clock.now())
            self.look_again()

    # -- the look --

    def _look(self) -> None:
        self._look_due = False
        if self._phase not in (Phase.ACTIVE, Phase.DRAINING, Phase.DISMISSED):
            return
        if self._host.registry.state is not SessionState.CONNECTED:
            return
        now = self._host.clock.now()
        if self._mirror.fresh:
            self._look_at_tree(now)
        self._items.look(self._item_look(now))

    def _look_at_tree(self, now: datetime) -> None:
        view = self._current_view()
        if self._registration.holds(view):
            self._clock_check.look(self._mirror.nodes, self.config.max_time_diff_seconds)
        self._membership.draining = self._phase is Phase.DRAINING or self._clock_refused()
        if self._phase is not Phase.DISMISSED:
            self._registration.look(view, self.config, clock_refused=self._clock_refused())
        if self._configuration.look(self._mirror.nodes):
            self._set_timer()
        if self._registration.holds(view):
            self._neighbours.look(view.instances, now, self.config.misfire_grace)
        self._assign(view, now)
        able = self._phase is Phase.ACTIVE and self._registration.holds(view) and not self._clock_refused()
        willing = able and view.server_enabled(self._host.ip)
        schedule, changes = self._configuration.schedule, self._configuration.changes(now)
        self._leadership.look(view, self._marks, self.config, schedule, changes, now, willing=willing)
        if willing and not self._items.running:
            total = self.config.sharding_total_count
            self._takeover.look(self._marks, self._configuration.basis, total)
        if self._shared_out(view) or not view.enabled:
            self._ready.set()

    def _assign(self, view: JobView, now: datetime) -> None:
        """While a resharding is announced foreign instances begin nothing, and their leader may have removed assignments to make
        them anew: what is due from the announcement on is for whoever has the item afterwards."""
        if self._resharding(view):
            self._resharding_since = self._resharding_since or now
            return
        self._items.assign(self._mine(view), self._resharding_since or now)
        self._resharding_since = None

    def _resharding(self, view: JobView) -> bool:
        return (view.necessary or view.processing) and bool(foreign_instances(view))

    def _shared_out(self, view: JobView) -> bool:
        return len(view.assigned) >= self.config.sharding_total_count

    def _clock_refused(self) -> bool:
        """This worker's clock is too far off to decide anything by it."""
        return self._clock_check.refused(self.config.max_time_diff_seconds)

    def _mine(self, view: JobView) -> list[int]:
        if self._phase is Phase.DISMISSED:
            return []
        total, me = self.config.sharding_total_count, self._host.instance_id
        return view.items_of(me, total) + [item for item in self._marks.taken_by(me) if item < total]

    def _item_look(self, now: datetime) -> Look:
        view, config = self._current_view(), self.config
        marks = self._marks
        foreign = bool(foreign_instances(view))
        if foreign:
            self._others_until = now
        strategy = config.job_sharding_strategy_type
        single = config.sharding_total_count == 1 and strategy is ShardingStrategyName.SINGLE_SHARDING_BALANCE
        trigger = marks.triggers.get(self._host.instance_id) if self._shared_out(view) else None
        situation = Situation(
            now=now,
            me=self._host.instance_id,
            live=view.instances,
            policy=Policy.of(config),
            changes=self._configuration.changes(now),
            schedule_of=self._configuration.schedules.for_one_look(),
            gone_since=self._neighbours.gone_since,
            others_until=self._others_until,
        )
        job_enabled, disabled, own = view.enabled, view.disabled_items, view.server_enabled(self._host.ip)
        return Look(
            situation=situation,
            may_claim=(
                self._phase is Phase.ACTIVE
                and self._mirror.fresh
                and self._registration.holds(view)
                and (own or not job_enabled)
                and not self._resharding(view)
                and not self._clock_refused()
            ),
            config_version=self._configuration.version,
            enabled=lambda item: job_enabled and item not in disabled,
            attempt_of=lambda item, entry, token: attempt_of(config, self._host.instance_id, item, entry, token),
            runner=self._host.runner_for(config, self),
            marking=Marking(
                paths=self._paths,
                me=self._host.instance_id,
                marks=marks,
                nodes=self._mirror.nodes,
                write=(foreign or config.running_marks) and config.monitor_execution,
                persistent=config.failover,
                foreign=foreign,
                next_server=assignment.next_server(view, self._host.instance_id) if single else None,
            ),
            trigger=trigger,
        )

    def _current_view(self) -> JobView:
        if self._stale:
            self._view = view_of(self._mirror.nodes, self._paths)
            self._marks = marks_of(self._mirror.nodes, self._paths)
            self._stale = False
        return self._view

    def _dismissed(self) -> None:
        self._log.warning("an operator removed this instance: the job stops on this worker until it is started again")
        self._phase = Phase.DISMISSED
        self._host.timer.remove(self.name)
        self._items.cancel_all("an operator removed this instance")

    def _set_timer(self) -> None:
        schedule = self._configuration.schedule
        if schedule is None:
            self._host.timer.remove(self.name)
        elif self._phase is Phase.ACTIVE:
            self._host.timer.set(self.name, schedule.next_after, self._fire)
