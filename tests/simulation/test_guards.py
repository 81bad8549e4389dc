"""Guards that only a certain order of events needs, each in a story of its own. Seeded histories meet some of these orders
seldom, and others never; each story here fails when its guard is taken out.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ejpy.attempt import Attempt
from ejpy.coordination.ledger_document import encode
from ejpy.coordination.view import DISABLED, Instance
from ejpy.execution.base import Ended, SaveCheckpoint
from ejpy.registry.base import Check, Delete, Node, SessionState, SetData
from ejpy.terms import Outcome, Reason
from ejpy.testing.bodies import VirtualExecution, VirtualRunner
from ejpy.testing.cluster import SimCluster, instant, job_config
from ejpy.testing.virtual_loop import VirtualLoop, run_virtual
from ejpy.testing.worker import SESSION_TIMEOUT, SimWorker

SATURATED = 100_000
"""So many attempts wait for a place that a worker claims nothing: it lives, and leaves its fires to nobody."""


# ---- a claim is bound to its session ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_body_is_not_entered_when_the_session_of_its_claim_was_replaced(seed: int) -> None:
    """The claim is granted and its reply lost; before it is read back, the session ends and a new one begins, whose lease is
    good. The others saw the claim's owner die, so its body must not be entered: its fire is claimed anew."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(), seed=seed)
        worker = await cluster.add()
        await cluster.until_shared(worker)
        await cluster.until_time(4.9)
        before = worker.registry.session_id
        assert before is not None

        cluster.trouble.lost_replies = 1.0
        await cluster.until(lambda: running(cluster), "the claim is granted")
        cluster.trouble.lost_replies = 0.0
        cluster.store.expire(before)
        await cluster.until_time(9.9)

        lost, *later = cluster.evidence.started
        assert worker.registry.session_id != before
        assert lost.attempt.scheduled_time == instant(5), "the claim was read back"
        tokens = [run.token for run in cluster.runs(instant(5))]
        assert tokens == [later[0].attempt.fencing_token]
        assert lost.attempt.fencing_token not in tokens

    run_virtual(story)


def running(cluster: SimCluster) -> bool:
    entry = cluster.entry(0)
    return entry is not None and entry.running


# ---- one timer ----------------------------------------------------------------------------------------------------


def test_items_that_cannot_be_claimed_yet_share_one_timer() -> None:
    """A saturated worker looks at its items again and again. However many there are and however often it looks, its timers
    must not become more: each would wake it for a look that sets further ones."""

    def most_timers(items: int) -> int:
        async def story(loop: VirtualLoop) -> int:
            cluster = SimCluster(loop, job_config(items=items, cron="* * * * * ?", claim_timeout=timedelta(hours=1)))
            worker = await cluster.add()
            await cluster.until_shared(worker)
            worker.runner.waiting = SATURATED
            most = 0
            for second in range(10, 60):
                await cluster.until_time(second + 0.5)
                most = max(most, loop.pending_timers())
            claimed = [cluster.entry(item) for item in range(items)]
            assert all(entry is not None and entry.accounted_until < instant(10) for entry in claimed), "nothing was claimed"
            return most

        return run_virtual(story)

    assert most_timers(items=30) <= most_timers(items=1) + 1


# ---- draining -----------------------------------------------------------------------------------------------------


def test_a_draining_worker_says_so_again_under_a_new_session() -> None:
    """Its node goes with the old session, and it makes another, since bodies still run. At no moment may the tree show that
    one as a worker that can be given items: a newcomer makes the leader share them out again."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=6, cron="* * * * * ?", job_sharding_strategy_type="AVG_ALLOCATION"))
        long = itertools.chain([1000.0], itertools.repeat(0.0))
        staying, draining = await cluster.add_leader(), await cluster.add(body_seconds=lambda: next(long), deaf=True)
        await cluster.until_shared(staying, draining)
        await cluster.until(lambda: draining.job.running, "a body runs")
        await draining.job.drain()
        await cluster.until(lambda: len(cluster.items_of(draining)) == 1, "only the item that runs stays with it")
        watch = Watch(cluster, draining)

        before = draining.registry.session_id
        assert before is not None
        cluster.store.expire(before)
        await cluster.until(lambda: draining.registry.session_id not in (None, before), "a new session")
        await cluster.until(lambda: watch.sessions - {before}, "registered again")
        later = await cluster.add()
        await cluster.until(lambda: cluster.items_of(later), "the newcomer has items")
        await asyncio.sleep(5)

        assert draining.registry.session_id in watch.sessions
        assert not watch.able, "the tree showed it as able to take items"
        assert not watch.given, "it was given items"

    run_virtual(story)


def test_draining_that_could_not_be_said_is_said_when_the_connection_is_back() -> None:
    """The worker was told to stop while it was cut off; its session survives."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=4, cron="* * * * * ?"))
        staying, draining = await cluster.add(), await cluster.add(body_seconds=lambda: 1000.0, deaf=True)
        await cluster.until_shared(staying, draining)
        await cluster.until(lambda: draining.job.running, "bodies run")
        before = draining.registry.session_id
        draining.registry.disconnect()
        await draining.job.drain()
        assert not shown(cluster, draining).draining
        draining.registry.reconnect()
        await cluster.until(lambda: shown(cluster, draining).draining, "it says that it drains", within=3)
        assert draining.registry.session_id == before

    run_virtual(story)


def shown(cluster: SimCluster, worker: SimWorker) -> Instance:
    """What the tree says of a worker that is in it."""
    return cluster.view().instances[worker.host.instance_id]


class Watch:
    """Looks at the tree after each transaction: what it says of one worker that has been draining since."""

    def __init__(self, cluster: SimCluster, worker: SimWorker) -> None:
        self.sessions: set[int | None] = set()
        self.able = False
        self.given: set[int] = set()
        self._cluster = cluster
        self._worker = worker
        self._had = set(cluster.items_of(worker))
        cluster.store.subscribe(self, self._changed)

    def _changed(self, paths: frozenset[str]) -> None:
        instance = self._cluster.view().instances.get(self._worker.host.instance_id)
        if instance is not None:
            self.sessions.add(instance.session_id)
            self.able |= not instance.draining
        items = set(self._cluster.items_of(self._worker))
        self.given |= items - self._had
        self._had = items


# ---- leaders ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goes", ["leaves", "drains"])
def test_a_deposed_leader_that_goes_does_not_remove_its_successors_node(goes: str) -> None:
    """It was paused, and its node was removed by hand; another one was elected. It goes before it hears of all that."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=2))
        deposed, successor = await cluster.add_leader(), await cluster.add()
        await cluster.until_shared(deposed, successor)
        session = deposed.registry.session_id
        deposed.pause()
        by_hand(cluster, Delete(cluster.paths.leader))
        await cluster.until(lambda: cluster.leader() is successor, "another leader", within=SESSION_TIMEOUT / 2)
        elected = leader_node(cluster)

        deposed.resume()
        await (deposed.job.leave() if goes == "leaves" else deposed.job.drain())
        gone = deposed.host.instance_id
        view = cluster.view()
        assert deposed.registry.session_id == session, "its session lived all the time"
        assert gone not in view.instances if goes == "leaves" else view.instances[gone].draining
        await asyncio.sleep(2)
        assert leader_node(cluster) == elected

    run_virtual(story)


def by_hand(cluster: SimCluster, operation: Delete | Check | SetData) -> None:
    """Somebody else's change, in a session of nobody here."""
    cluster.store.commit(-1, [operation])


def leader_node(cluster: SimCluster) -> Node:
    node = cluster.store.read(cluster.paths.leader)
    assert node is not None, "there is a leader"
    return node


def test_a_new_leader_notices_what_was_left_unclaimed_before_its_term() -> None:
    """The leader dies between a fire and the moment at which it would have looked who left it unclaimed. Long before the next
    fire, its successor has looked, and moved the items."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(
            loop,
            job_config(items=6, cron="30 * * * * ?", claim_timeout=timedelta(seconds=6), job_sharding_strategy_type="STICKY"),
        )
        leader, idle, able = await cluster.add_leader(), await cluster.add(), await cluster.add()
        await cluster.until_shared(leader, idle, able)
        left = set(cluster.items_of(idle))
        assert left
        idle.runner.waiting = SATURATED

        await cluster.until_time(31)
        assert {run.item for run in cluster.runs(instant(30))} == set(range(6)) - left
        leader.crash()
        await cluster.until_time(80)
        late = {run.item: run for run in cluster.runs(instant(30)) if run.item in left}
        assert {(item, run.worker, run.reason, run.attempt) for item, run in late.items()} == {
            (item, able.name, Reason.SCHEDULED_TOO_LONG, 1) for item in left
        }

    run_virtual(story)


# ---- bodies that cannot be started --------------------------------------------------------------------------------


class Exhausted(VirtualRunner):
    """Has no thread to give the first `times` that it is asked to run one certain item."""

    def __init__(self, worker: SimWorker, item: int, error: Exception, times: int) -> None:
        super().__init__(worker, lambda: 0.0, deaf=False)
        self.left = times
        self._item = item
        self._error = error

    def start(
        self,
        attempt: Attempt,
        *,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
    ) -> VirtualExecution:
        if attempt.sharding_item == self._item and self.left:
            self.left -= 1
            raise self._error
        return super().start(attempt, may_enter=may_enter, save_checkpoint=save_checkpoint, on_ended=on_ended)


@pytest.mark.parametrize("failover", [True, False])
@pytest.mark.parametrize("error", [OSError("no process"), RuntimeError("can't start new thread")], ids=["process", "thread"])
def test_a_fire_whose_body_could_not_be_started_is_given_back_and_tried_again(
    error: Exception, failover: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The machine has no thread or process left for a moment, three times for one of three items. Its body has not begun, so
    this is no interruption, and the fire is run as soon as there is one; the others are run at once."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=3, cron="0/10 * * * * ?", failover=failover))
        worker = cluster.make()
        worker.runner = runner = Exhausted(worker, 1, error, times=3)
        await worker.start()
        await cluster.until_time(39)

        assert runner.left == 0
        for fire in (instant(10), instant(20), instant(30)):
            runs = cluster.runs(fire)
            assert sorted((run.item, run.outcome) for run in runs) == [(item, Outcome.SUCCEEDED) for item in range(3)]
        late = next(run for run in cluster.runs(instant(10)) if run.item == 1)
        assert late.reason is not Reason.OWNER_LOST
        assert 11 < late.entered < 18
        on_time = [run for run in cluster.runs() if run is not late]
        assert all(run.entered < (run.fire - instant(0)).total_seconds() + 1 for run in on_time)
        assert not cluster.evidence.not_run
        assert sum(str(error) in record.getMessage() for record in caplog.records) == 3

    run_virtual(story)


# ---- checkpoints --------------------------------------------------------------------------------------------------


class Saving(VirtualRunner):
    """Leaves it to the test to save checkpoints for its bodies."""

    def __init__(self, worker: SimWorker) -> None:
        super().__init__(worker, lambda: 10.0, deaf=False)
        self.bodies: list[tuple[Attempt, SaveCheckpoint]] = []

    def start(
        self,
        attempt: Attempt,
        *,
        may_enter: Callable[[], bool],
        save_checkpoint: SaveCheckpoint,
        on_ended: Callable[[Attempt, Ended], None],
    ) -> VirtualExecution:
        self.bodies.append((attempt, save_checkpoint))
        return super().start(attempt, may_enter=may_enter, save_checkpoint=save_checkpoint, on_ended=on_ended)


@pytest.mark.parametrize("when", ["before it is sent", "before it arrives", "before its reply"])
def test_a_checkpoint_is_saved_over_a_short_interruption(when: str) -> None:
    """The connection breaks and comes back within the session: the body waits, and hears nothing of it."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(cron="0/30 * * * * ?"))
        worker = cluster.make()
        worker.runner = runner = Saving(worker)
        await worker.start()
        await cluster.until(lambda: cluster.runs(), "a body runs", within=40)
        session = worker.registry.session_id
        [(attempt, save)] = runner.bodies

        if when == "before it is sent":
            worker.registry.disconnect()
        elif when == "before it arrives":
            cluster.trouble.lost_requests = 1.0
        else:
            cluster.trouble.lost_replies = 1.0
        saving = loop.create_task(save_it(save, attempt, {"done": 7}))
        await asyncio.sleep(0.02)
        cluster.trouble.lost_requests = cluster.trouble.lost_replies = 0.0
        worker.registry.disconnect()
        assert worker.registry.state is SessionState.SUSPENDED
        assert not saving.done()
        await asyncio.sleep(SESSION_TIMEOUT / 3)
        worker.registry.reconnect()
        await asyncio.wait_for(saving, 3)

        entry = cluster.entry(0)
        assert entry is not None
        assert (entry.checkpoint, entry.token, entry.running) == ({"done": 7}, attempt.fencing_token, True)
        await asyncio.sleep(12)
        assert [run.outcome for run in cluster.runs()] == [Outcome.SUCCEEDED]
        assert worker.registry.session_id == session

    run_virtual(story)


async def save_it(save: SaveCheckpoint, attempt: Attempt, value: Any) -> None:
    await save(attempt, value)


# ---- clocks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [timedelta(minutes=2), -timedelta(minutes=2)], ids=["fast", "slow"])
def test_a_worker_whose_clock_is_off_runs_nothing_and_the_others_run_all(
    ahead: timedelta, caplog: pytest.LogCaptureFixture
) -> None:
    """`max_time_diff_seconds: 60`, and one worker's clock is two minutes off."""

    async def story(loop: VirtualLoop) -> None:
        config = job_config(items=4, cron="0/10 * * * * ?", max_time_diff_seconds=60, claim_timeout=timedelta(seconds=3))
        cluster = SimCluster(loop, config)
        right = [await cluster.add_leader(), await cluster.add()]
        await cluster.add(ahead=ahead)
        await cluster.until_time(109)

        assert {run.worker for run in cluster.runs()} == {worker.name for worker in right}
        for fire in range(30, 110, 10):
            assert sorted(run.item for run in cluster.runs(instant(fire))) == list(range(4)), f"fire of second {fire}"
        said = [r for r in caplog.records if r.levelno == logging.ERROR and "nothing is run here" in r.getMessage()]
        assert len(said) == 1

    run_virtual(story)


def test_a_clock_that_is_off_by_less_than_is_allowed_does_its_share() -> None:
    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=4, cron="0/10 * * * * ?", max_time_diff_seconds=60))
        workers = [await cluster.add(), await cluster.add(ahead=-timedelta(seconds=2))]
        await cluster.until_shared(*workers)
        await cluster.until_time(39)
        for fire in (20, 30):
            assert sorted(run.item for run in cluster.runs(instant(fire))) == list(range(4))
        assert {run.worker for run in cluster.runs()} == {worker.name for worker in workers}

    run_virtual(story)


@pytest.mark.parametrize("ahead", [timedelta(minutes=2), -timedelta(minutes=2)], ids=["fast", "slow"])
def test_a_worker_whose_clock_is_off_does_not_lead(ahead: timedelta, caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: VirtualLoop) -> None:
        config = job_config(items=4, cron="0/10 * * * * ?", max_time_diff_seconds=60, claim_timeout=timedelta(seconds=3))
        cluster = SimCluster(loop, config)
        wrong = await cluster.add(ahead=ahead)
        await cluster.until_time(1)
        right = [await cluster.add(), await cluster.add()]
        await cluster.until_time(109)

        stalled = [r.getMessage() for r in caplog.records if "left the fire" in r.getMessage()]
        assert not [line for line in stalled if any(w.host.instance_id in line for w in right)], "right ones were judged stalled"
        assert {run.worker for run in cluster.runs()} == {worker.name for worker in right}
        missing = {
            fire: 4 - len(cluster.runs(instant(fire))) for fire in range(30, 110, 10) if len(cluster.runs(instant(fire))) != 4
        }
        assert not missing, f"items not run, by fire: {missing}; recorded: {cluster.evidence.not_run}"
        assert cluster.leader() is not wrong

    run_virtual(story)


# ---- an end that somebody else has recorded -----------------------------------------------------------------------


@pytest.mark.parametrize("recovers", [False, True], ids=["no-failover", "failover"])
def test_a_body_that_ends_well_after_others_took_it_for_lost_has_no_say_any_more(recovers: bool) -> None:
    """Its worker is cut off beyond its session. Without failover nobody claims its fire again: the record alone has to tell the
    body, when its worker is back, that it was given up."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=2, cron="0 * * * * ?", failover=recovers))
        await cluster.add_leader()
        cut_off = await cluster.add(body_seconds=lambda: 20.0, deaf=True)
        await cluster.until_shared(*cluster.workers)
        await cluster.until_time(59)
        await cluster.until(lambda: len(cluster.runs(instant(60))) == 2, "both items run")
        lost = next(run for run in cluster.runs() if run.worker == cut_off.name)
        cut_off.registry.disconnect()
        if recovers:
            await cluster.until(lambda: len(cluster.runs(instant(60))) == 3, "it is run again")
        else:
            await cluster.until(lambda: cluster.evidence.not_run, "it is recorded")
        cut_off.registry.reconnect()
        await cluster.until(lambda: lost.ended is not None, "its body ends", within=30)
        await cluster.until_time(100)
        entry = cluster.entry(lost.item)
        assert entry is not None
        assert entry.outcome is (Outcome.SUCCEEDED if recovers else Outcome.INTERRUPTED)
        assert entry.token is not None
        assert (entry.token > lost.token) is recovers
        assert [end.recorded for end in cluster.evidence.recorded if end.attempt.fencing_token == lost.token] == [False]
        assert len(cluster.evidence.not_run) == (0 if recovers else 1)

    run_virtual(story)


# ---- blame ----------------------------------------------------------------------------------------------------------


def test_nobody_is_blamed_for_the_long_runs_of_a_job_that_is_not_monitored(caplog: pytest.LogCaptureFixture) -> None:
    async def story(loop: VirtualLoop) -> None:
        config = job_config(
            items=2, cron="0/5 * * * * ?", monitor_execution=False, failover=False, claim_timeout=timedelta(seconds=3)
        )
        cluster = SimCluster(loop, config)
        both = [await cluster.add(body_seconds=lambda: 14.0), await cluster.add(body_seconds=lambda: 14.0)]
        await cluster.until_shared(*both)
        before = {item: assigned.instance_id for item, assigned in cluster.view().assigned.items()}
        await cluster.until_time(120)
        assert {item: assigned.instance_id for item, assigned in cluster.view().assigned.items()} == before
        assert not [record for record in caplog.records if "left the fire" in record.getMessage()]
        for item in range(2):
            runs = [run for run in cluster.runs() if run.item == item]
            assert len(runs) > 5
            assert all(
                earlier.ended is not None and earlier.ended <= later.entered for earlier, later in itertools.pairwise(runs)
            )

    run_virtual(story)


def test_items_that_their_leader_does_not_move_after_all_go_on() -> None:
    """Two items are to be moved when they end, one after the other, and nobody moves them. Each waits its own while."""

    async def story(loop: VirtualLoop) -> None:
        seconds = iter((7.0, 8.0))
        cluster = SimCluster(loop, job_config(items=2, cron="0/30 * * * * ?"))
        await cluster.add_leader(body_seconds=lambda: next(seconds, 0.0))
        await cluster.until(lambda: len(cluster.runs()) == 2, "both items run", within=40)
        for item in range(2):
            node, entry = cluster.store.read(cluster.paths.ledger(item)), cluster.entry(item)
            assert node is not None
            assert entry is not None
            asked = encode(entry.ask_for_hand_over().ask(instant(31), Reason.TRIGGER))
            cluster.store.commit(-1, [SetData(cluster.paths.ledger(item), asked, node.version)])
        await cluster.until(lambda: len(cluster.runs()) == 4, "both run again", within=20)
        assert {run.reason for run in cluster.runs()[2:]} == {Reason.TRIGGER}

    run_virtual(story)


# ---- giving the leadership up --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_who_gives_the_leadership_up_leaves_his_successors_alone(seed: int) -> None:
    """His copy of the tree shows his own node for a while yet."""

    async def story(loop: VirtualLoop) -> None:
        cluster = SimCluster(loop, job_config(items=2), seed=seed)
        first = await cluster.add_leader()
        second = await cluster.add()
        await cluster.until_shared(first, second)
        leaders: list[str] = []

        def seen(paths: frozenset[str]) -> None:
            node = cluster.store.read(cluster.paths.leader)
            leader = node.data.decode() if node is not None else "nobody"
            if leader not in leaders[-1:]:
                leaders.append(leader)

        cluster.trouble.delay_seconds = 0.02 + seed * 0.005
        cluster.store.subscribe(seen, seen)
        by_hand(cluster, SetData(cluster.paths.server(first.host.ip), DISABLED))
        await cluster.until_time(cluster.loop.time() + 20)
        assert leaders[-2:] == ["nobody", second.host.instance_id]
        assert leaders.count("nobody") == 1

    run_virtual(story)
