"""Carries out what a plan says is done to a cluster. Whatever lasts ends by itself, and at `heal` at the latest."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ejpy.config.document import from_document, to_document
from ejpy.coordination.paths import JobPaths
from ejpy.coordination.view import DISABLED, ENABLED, view_of
from ejpy.errors import GuardFailed
from ejpy.registry.base import Create, Delete, Operation, SetData
from ejpy.testing import history
from ejpy.testing.history import Event
from ejpy.testing.network import Trouble
from ejpy.testing.observer import ObservedStore
from ejpy.testing.plan import Fault, Plan, cron
from ejpy.testing.virtual_loop import VirtualLoop
from ejpy.testing.worker import NAMESPACE, SimWorker

OPERATOR = 0
"""The session of somebody who is no worker."""
MOST_AHEAD = 2.0
"""Seconds that a clock may be off after a jump; a jump that would make it more is left out."""
LONGEST_UNDER_WAY = 3.0
FULL = 100_000
"""So many bodies wait for a place on a worker that is saturated."""


class Faults:
    """`at_place` gives the worker that is at a place now; `begin` and `stop` start and end one there."""

    def __init__(
        self,
        loop: VirtualLoop,
        plan: Plan,
        store: ObservedStore,
        trouble: Trouble,
        tell: Callable[[Event], None],
        at_place: Callable[[int], SimWorker | None],
        begin: Callable[[int], None],
        stop: Callable[[SimWorker], None],
    ) -> None:
        self._loop = loop
        self._plan = plan
        self._store = store
        self._trouble = trouble
        self._tell = tell
        self._at_place = at_place
        self._begin = begin
        self._tell_to_end = stop
        self._lasting: dict[int, Callable[[], None]] = {}
        """What ends a fault that lasts, by its place in the plan."""
        self._slow: dict[SimWorker, float] = {}
        self._stuck_ones: set[SimWorker] = set()
        self._calm = Trouble(**vars(trouble))

    def schedule(self) -> None:
        """Have all that the plan says done when it says so."""
        for number, fault in enumerate(self._plan.faults):
            self._loop.call_at(fault.at, self._do, number, fault)

    def heal(self) -> None:
        """Nothing lasts any more."""
        for number in list(self._lasting):
            self._end(number)
        living = [w for place in range(len(self._plan.workers)) if (w := self._at_place(place)) is not None]
        for worker in living:
            worker.registry.crash_before = worker.registry.crash_after = worker.registry.expire_after = None
        if self._stuck_ones.issuperset(living):
            for worker in self._stuck_ones:
                worker.runner.waiting = 0

    def slower_by(self, worker: SimWorker) -> float:
        """How much longer bodies take that begin on a worker now."""
        return self._slow.get(worker, 0.0)

    # -- doing it --

    def _do(self, number: int, fault: Fault) -> None:
        worker = self._at_place(fault.worker)
        act: Callable[[Fault, SimWorker], Callable[[], None] | None] | None = getattr(self, f"_{fault.kind.value}", None)
        if act is not None:
            if worker is None:
                return
            ends = act(fault, worker)
            self._tell_of(fault, worker)
        else:
            ends = getattr(self, f"_all_{fault.kind.value}")(fault)
            self._tell_of(fault, None)
        if ends is not None:
            self._lasting[number] = ends
            self._loop.call_at(min(fault.at + fault.seconds, self._plan.faults_seconds), self._end, number)

    def _end(self, number: int) -> None:
        ends = self._lasting.pop(number, None)
        if ends is not None:
            ends()

    def _tell_of(self, fault: Fault, worker: SimWorker | None) -> None:
        now = self._store._clock.now().timestamp()
        self._tell(history.Faulted(now, fault.kind.value, worker.instance_id if worker else None, fault.seconds))

    # -- to a worker --

    def _again_later(self, fault: Fault) -> None:
        if fault.seconds:
            self._loop.call_at(min(fault.at + fault.seconds, self._plan.faults_seconds), self._begin, fault.worker)

    def _crash(self, fault: Fault, worker: SimWorker) -> None:
        worker.crash()
        self._again_later(fault)

    def _crash_before(self, fault: Fault, worker: SimWorker) -> None:
        worker.registry.crash_before = int(fault.amount)
        self._again_later(fault)

    def _crash_after(self, fault: Fault, worker: SimWorker) -> None:
        worker.registry.crash_after = int(fault.amount)
        self._again_later(fault)

    def _stop(self, fault: Fault, worker: SimWorker) -> None:
        self._tell_to_end(worker)
        self._again_later(fault)

    def _pause(self, fault: Fault, worker: SimWorker) -> Callable[[], None] | None:
        if worker.paused:
            return None
        worker.pause()
        return lambda: worker.resume(fault.amount)

    def _cut(self, fault: Fault, worker: SimWorker) -> Callable[[], None]:
        worker.registry.sends = worker.registry.hears = False
        return lambda: self._join(worker)

    def _cut_out(self, fault: Fault, worker: SimWorker) -> Callable[[], None]:
        worker.registry.sends = False
        return lambda: self._join(worker)

    def _cut_in(self, fault: Fault, worker: SimWorker) -> Callable[[], None]:
        worker.registry.hears = False
        return lambda: self._join(worker)

    def _join(self, worker: SimWorker) -> None:
        worker.registry.sends = worker.registry.hears = worker.registry.hears_events = True
        worker.process.call_soon(worker.registry.break_connection)

    def _hold_back(self, fault: Fault, worker: SimWorker) -> None:
        worker.registry.held_back_until = min(fault.at + fault.seconds, self._plan.faults_seconds)

    def _disconnect(self, fault: Fault, worker: SimWorker) -> Callable[[], None]:
        worker.process.call_soon(worker.registry.disconnect)
        return lambda: worker.process.call_soon(worker.registry.reconnect)

    def _expire(self, fault: Fault, worker: SimWorker) -> None:
        if worker.registry.session_id is not None:
            self._store.expire(worker.registry.session_id)

    def _expire_after(self, fault: Fault, worker: SimWorker) -> None:
        worker.registry.expire_after = int(fault.amount)

    def _lose_events(self, fault: Fault, worker: SimWorker) -> Callable[[], None]:
        worker.registry.hears_events = False
        return lambda: self._join(worker)

    def _lose_replies(self, fault: Fault, worker: SimWorker) -> Callable[[], None]:
        worker.registry.replies_to_lose = int(fault.amount)

        def ends() -> None:
            worker.registry.replies_to_lose = 0

        return ends

    def _clock_jump(self, fault: Fault, worker: SimWorker) -> None:
        if abs(worker.clock.ahead + timedelta(seconds=fault.amount)) <= timedelta(seconds=MOST_AHEAD):
            worker.jump(fault.amount)

    def _slow_bodies(self, fault: Fault, worker: SimWorker) -> Callable[[], None]:
        self._slow[worker] = fault.amount

        def ends() -> None:
            self._slow.pop(worker, None)

        return ends

    def _saturate(self, fault: Fault, worker: SimWorker) -> Callable[[], None]:
        worker.runner.waiting = FULL

        def ends() -> None:
            worker.runner.waiting = 0

        return ends

    def _stuck(self, fault: Fault, worker: SimWorker) -> None:
        worker.runner.waiting = FULL
        self._stuck_ones.add(worker)

    def _dismiss(self, fault: Fault, worker: SimWorker) -> Callable[[], None]:
        self._commit(Delete(self._paths(fault).instance(worker.instance_id)))

        def ends() -> None:
            worker.crash()
            self._begin(fault.worker)

        return ends

    # -- to all --

    def _all_slow_network(self, fault: Fault) -> Callable[[], None]:
        return self._change_network(delay_seconds=fault.amount)

    def _all_lossy_network(self, fault: Fault) -> Callable[[], None]:
        return self._change_network(lost_requests=fault.amount, lost_replies=fault.amount)

    def _all_late_events(self, fault: Fault) -> Callable[[], None]:
        return self._change_network(event_delay_seconds=fault.amount, doubled_events=0.5)

    def _change_network(self, **changes: Any) -> Callable[[], None]:
        vars(self._trouble).update(changes)
        calm = {name: getattr(self._calm, name) for name in changes}
        return lambda: vars(self._trouble).update(calm)

    def _all_restart_registry(self, fault: Fault) -> Callable[[], None]:
        seconds = min(fault.seconds, self._plan.faults_seconds - fault.at)
        self._store.stay_away(seconds)
        down = [w for place in range(len(self._plan.workers)) if (w := self._at_place(place)) is not None]
        for worker in down:
            worker.registry.sends = worker.registry.hears = False
            worker.process.call_soon(worker.registry.disconnect)

        def ends() -> None:
            for worker in down:
                worker.registry.sends = worker.registry.hears = True
                worker.process.call_soon(worker.registry.reconnect)

        return ends

    # -- by an operator --

    def _paths(self, fault: Fault) -> JobPaths:
        return JobPaths(NAMESPACE, self._plan.jobs[fault.job].name)

    def _commit(self, *operations: Operation) -> bool:
        try:
            self._store.commit(OPERATOR, operations)
        except GuardFailed:
            return False
        return True

    def _change_config(self, fault: Fault, **changes: Any) -> None:
        paths = self._paths(fault)
        node = self._store.read(paths.config)
        if node is not None:
            config = from_document(node.data, paths.job, "m:J").model_copy(update=changes)
            self._commit(SetData(paths.config, to_document(config, previous=node.data)))

    def _all_change_cron(self, fault: Fault) -> None:
        self._change_config(fault, cron=cron(int(fault.amount)))

    def _all_change_count(self, fault: Fault) -> None:
        self._change_config(fault, sharding_total_count=int(fault.amount))

    def _all_disable_item(self, fault: Fault) -> Callable[[], None] | None:
        path = self._paths(fault).item_disabled(int(fault.amount))
        return self._undo(Delete(path)) if self._commit(Create(path)) else None

    def _all_disable_server(self, fault: Fault) -> Callable[[], None] | None:
        path = self._paths(fault).server(f"10.0.0.{fault.worker + 1}")
        return self._undo(SetData(path, ENABLED)) if self._commit(SetData(path, DISABLED)) else None

    def _undo(self, operation: Operation) -> Callable[[], None]:
        def ends() -> None:
            self._commit(operation)

        return ends

    def _all_trigger(self, fault: Fault) -> None:
        paths = self._paths(fault)
        if self._store.read(paths.root) is not None and self._store.read(paths.triggers) is None:
            self._commit(Create(paths.triggers))
        for instance in view_of(self._store.tree(paths.root), paths).instances:
            self._commit(Create(paths.trigger(instance)))

    def _all_depose(self, fault: Fault) -> None:
        paths = self._paths(fault)
        node = self._store.read(paths.leader)
        on_the_way = min(fault.seconds, LONGEST_UNDER_WAY, self._plan.faults_seconds - fault.at)
        for place in range(len(self._plan.workers)):
            worker = self._at_place(place)
            if worker is not None and node is not None and worker.instance_id == node.data.decode():
                worker.registry.held_back_until = fault.at + on_the_way
        self._loop.call_later(on_the_way / 2, self._commit, Delete(paths.leader))
