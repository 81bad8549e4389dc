"""GroupCommit: merged submissions end as if each had been sent alone, in few transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.errors import (
    AccessDenied,
    GuardFailed,
    GuardFailure,
    OutcomeUnknown,
    RegistryUnavailable,
    RequestTooLarge,
    SessionExpired,
)
from ejpy.registry.base import Check, Committed, Create, Delete, Operation, SetData, operation_bytes
from ejpy.registry.group import MOST_UNDER_WAY, GroupCommit
from ejpy.registry.memory import MemoryRegistry, MemoryStore
from ejpy.testing.virtual_loop import LoopClock, VirtualLoop, run_virtual

T = TypeVar("T")
ROUND_TRIP = 0.001


class RecordingRegistry(MemoryRegistry):
    """Notes what is committed; a request takes `ROUND_TRIP` seconds there and back."""

    def __init__(self, store: MemoryStore, clock: LoopClock) -> None:
        super().__init__(store, clock=clock, session_timeout=1000)
        self.sent: list[list[Operation]] = []
        self.under_way = 0
        self.most_under_way = 0
        self.lose_replies = False

    async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
        self.sent.append(list(operations))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            return await super().commit(operations, timeout=timeout)
        finally:
            self.under_way -= 1

    async def _transport(self, apply: Callable[[], T]) -> T:
        await asyncio.sleep(ROUND_TRIP / 2)
        try:
            return apply()
        finally:
            await asyncio.sleep(ROUND_TRIP / 2)
            if self.lose_replies:
                raise OutcomeUnknown(f"{self.sent[-1][0].path}: reply lost")  # as a registry names a transaction


@dataclass
class Bench:
    loop: VirtualLoop
    store: MemoryStore
    registry: RecordingRegistry
    group: GroupCommit

    async def outcomes(self, *submissions: Sequence[Operation]) -> list[Committed | BaseException]:
        return await asyncio.gather(*(self.group.commit(each) for each in submissions), return_exceptions=True)

    async def each_at_once(self, *submissions: Sequence[Operation]) -> None:
        """One after the other, each without waiting for the window's end."""
        tasks: list[asyncio.Task[Committed]] = []
        for each in submissions:
            tasks.append(self.loop.create_task(self.group.commit(each)))
            await asyncio.sleep(0)
            self.group.flush()
        await asyncio.gather(*tasks)


async def bench(loop: VirtualLoop, *existing: Operation, window: float = 0.003) -> Bench:
    clock = LoopClock(loop)
    store = MemoryStore(clock)
    registry = RecordingRegistry(store, clock)
    await registry.start(1)
    if existing:
        await registry.commit(existing)
    registry.sent.clear()
    return Bench(loop, store, registry, GroupCommit(registry, clock=clock, loop=loop, window=window))


def operations(*each: Operation) -> list[Operation]:
    return list(each)


def nodes(*paths: str) -> list[Operation]:
    return [Create(path) for path in paths]


def seen(outcome: Committed | BaseException) -> object:
    """An outcome without the revision, comparable."""
    if isinstance(outcome, Committed):
        return outcome.versions
    assert isinstance(outcome, GuardFailed), outcome
    return (outcome.index, outcome.path, outcome.failure)


def test_submissions_of_one_window_share_a_transaction_and_each_gets_its_own_slice() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a", "/b"), SetData("/b", b"x"))
        first, second, third = await b.outcomes(
            [SetData("/a", b"1"), Check("/a", 1)], [SetData("/b", b"2", version=1)], [Create("/c"), Delete("/c")]
        )
        assert [seen(each) for each in (first, second, third)] == [(1, -1), (2,), (0, -1)]
        assert isinstance(first, Committed)
        assert isinstance(second, Committed)
        node = b.store.read("/b")
        assert node is not None
        assert first.revision == second.revision == node.revision
        assert len(b.registry.sent) == b.group.transactions == 1
        assert b.group.submissions == 3

    run_virtual(main)


def test_submission_order_is_kept_within_a_transaction() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        submissions: list[list[Operation]] = [[Create(f"/n{i}"), SetData(f"/n{i}", b"x")] for i in (3, 1, 2, 0)]
        await b.outcomes(*submissions)
        assert b.registry.sent == [[operation for each in submissions for operation in each]]

    run_virtual(main)


def test_submission_order_is_kept_also_by_what_had_to_wait_for_another() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a"))
        first, second = operations(SetData("/a", b"1")), operations(SetData("/a", b"2"))
        fill = [nodes(f"/fill{i}") for i in range(MOST_UNDER_WAY - 1)]
        later = [nodes(f"/later{i}") for i in range(5)]
        await b.each_at_once(first, *fill, second, *later)
        assert b.registry.sent[:MOST_UNDER_WAY] == [first, *fill]
        assert b.registry.sent[MOST_UNDER_WAY] == [operation for each in [second, *later] for operation in each]

    run_virtual(main)


def test_nothing_is_sent_before_the_windows_end_unless_it_is_flushed() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, window=0.003)
        start = loop.time()
        waiting = loop.create_task(b.group.commit([Create("/a")]))
        await asyncio.sleep(0.0029)
        assert not b.registry.sent
        await waiting
        assert loop.time() == pytest.approx(start + 0.003 + ROUND_TRIP)

        waiting = loop.create_task(b.group.commit([Create("/d")]))
        await asyncio.sleep(0)
        b.group.flush()
        asked = loop.time()
        await waiting
        assert loop.time() == pytest.approx(asked + ROUND_TRIP)

    run_virtual(main)


def test_a_thousand_jobs_due_in_one_tick_take_a_dozen_transactions() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/i", "/ledger", *(f"/ledger/{i}" for i in range(995))))
        await b.registry.commit(nodes(*(f"/ledger/{i}" for i in range(995, 1000))))
        b.registry.sent.clear()
        outcomes = await b.outcomes(
            *(operations(Check("/i"), *(SetData(f"/ledger/{i}", b"claim", version=v) for v in range(9))) for i in range(1000))
        )
        assert [seen(each) for each in outcomes] == [(-1, *range(1, 10))] * 1000
        assert b.group.transactions == 10

    run_virtual(main)


def test_submissions_under_load_are_merged_while_they_wait() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        await b.each_at_once(*([Create(f"/n{i}")] for i in range(500)))
        assert b.registry.most_under_way == MOST_UNDER_WAY
        assert b.group.transactions == MOST_UNDER_WAY + 1

    run_virtual(main)


def test_limits_hold_and_no_submission_is_divided() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        b.registry.max_operations = 10
        b.registry.max_bytes = 2000
        submissions = [[Create(f"/n{i}x{k}", b"d" * (97 * i % 300)) for k in range(1 + i % 4)] for i in range(60)]
        outcomes = await b.outcomes(*submissions)
        assert all(isinstance(each, Committed) for each in outcomes)
        expected: list[list[Operation]] = [[]]
        for each in submissions:
            together = [*expected[-1], *each]
            if len(together) <= 10 and sum(map(operation_bytes, together)) <= 2000:
                expected[-1] = together
            else:
                expected.append([*each])
        assert b.registry.sent == expected

    run_virtual(main)


def test_a_submission_over_the_limits_is_refused_alone() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        b.registry.max_operations = 3
        ok, too_many, too_big, also_ok = await b.outcomes(
            nodes("/a"), nodes("/1", "/2", "/3", "/4"), [Create("/b", b"x" * b.registry.max_bytes)], nodes("/c")
        )
        assert isinstance(too_many, RequestTooLarge)
        assert isinstance(too_big, RequestTooLarge)
        assert (seen(ok), seen(also_ok)) == ((0,), (0,))
        assert b.group.transactions == 1
        with pytest.raises(ValueError, match="operation"):
            await b.group.commit([])

    run_virtual(main)


def test_a_culprit_is_told_its_own_index_and_the_rest_goes_again_at_once() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a", "/b", "/c"), window=5)
        start = loop.time()
        outcomes = await b.outcomes(
            [SetData("/a", b"1")], [Check("/b", 0), SetData("/b", b"1", version=7), Delete("/b")], [SetData("/c", b"1")]
        )
        assert [seen(each) for each in outcomes] == [(1,), (1, "/b", GuardFailure.BAD_VERSION), (1,)]
        assert b.group.transactions == 2
        assert loop.time() == pytest.approx(start + 5 + 2 * ROUND_TRIP)

    run_virtual(main)


def test_after_the_second_culprit_the_rest_goes_one_by_one_side_by_side() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes(*(f"/n{i}" for i in range(20))))
        stale = {3, 5, 11, 19}
        start = loop.time()
        outcomes = await b.outcomes(*([SetData(f"/n{i}", b"1", version=9 if i in stale else 0)] for i in range(20)))
        assert [i for i, each in enumerate(outcomes) if isinstance(each, GuardFailed)] == sorted(stale)
        assert sum(isinstance(each, Committed) for each in outcomes) == 16
        assert [len(each) for each in b.registry.sent] == [20, 19] + [1] * 18
        assert b.registry.most_under_way == MOST_UNDER_WAY
        assert loop.time() == pytest.approx(start + 0.003 + 5 * ROUND_TRIP)  # 18 in rounds of 8

    run_virtual(main)


def test_competing_submissions_are_applied_in_order_and_the_first_wins() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a"))
        outcomes = await b.outcomes(*([SetData("/a", bytes([i]), version=0)] for i in range(3)))
        assert [seen(each) for each in outcomes] == [(1,), *[(0, "/a", GuardFailure.BAD_VERSION)] * 2]
        node = b.store.read("/a")
        assert node is not None
        assert node.data == b"\0"
        assert all(len(each) == 1 for each in b.registry.sent)

    run_virtual(main)


@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (Check("/a"), Check("/a"), True),
        (Check("/a"), SetData("/a", b"1"), False),
        (SetData("/a", b"1"), Check("/a"), False),
        (SetData("/a", b"1"), SetData("/a", b"2"), False),
        (Create("/a/x"), Create("/a/y"), True),
        (Create("/a/x"), SetData("/a", b"1"), True),
        (Create("/a/x"), Delete("/a"), False),
        (Delete("/a/c"), Delete("/a"), False),
        (Delete("/b"), Create("/b/x"), False),
        (Create("/n"), Create("/n/x"), False),
        (SetData("/a/c", b"1"), SetData("/a", b"2"), True),
        (SetData("/a", b"1"), SetData("/ab", b"2"), True),
    ],
)
def test_only_submissions_that_do_not_depend_on_each_other_share_a_transaction(
    first: Operation, second: Operation, together: bool
) -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a", "/a/c", "/b", "/ab"))
        await b.outcomes([first], [second])
        assert b.registry.sent == ([[first, second]] if together else [[first], [second]])

    run_virtual(main)


def test_nobody_is_blamed_for_a_neighbour_that_was_not_applied() -> None:
    """Merged, the second fails because of the first; then another worker's change makes the first fail, too."""

    class Raced(RecordingRegistry):
        async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
            try:
                return await super().commit(operations, timeout=timeout)
            finally:
                if self._store.read("/enabled") is not None:
                    self._store.commit(0, [Delete("/enabled")])

    async def main(loop: VirtualLoop) -> None:
        clock = LoopClock(loop)
        store = MemoryStore(clock)
        store.commit(0, nodes("/a", "/enabled"))
        registry = Raced(store, clock)
        await registry.start(1)
        group = GroupCommit(registry, clock=clock, loop=loop)
        submissions = [
            operations(Check("/enabled"), SetData("/a", b"1", version=0)),
            operations(SetData("/a", b"2", version=0)),
        ]
        first, second = await asyncio.gather(*(group.commit(each) for each in submissions), return_exceptions=True)
        assert isinstance(first, Committed)
        assert isinstance(second, GuardFailed)
        node = store.read("/a")
        assert node is not None
        assert node.data == b"1"

    run_virtual(main)


def test_a_submission_that_builds_on_an_earlier_one_comes_after_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        outcomes = await b.outcomes(nodes("/a"), nodes("/a/b"), nodes("/a/b/c"), [Delete("/a/b/c")], [Check("/a/b/c")])
        assert [seen(each) for each in outcomes] == [(0,), (0,), (0,), (-1,), (0, "/a/b/c", GuardFailure.NO_NODE)]

    run_virtual(main)


def test_siblings_and_common_checks_do_share_a_transaction() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/p", "/i"))
        await b.outcomes(*(operations(Check("/i", 0), Create(f"/p/{k}")) for k in range(50)))
        assert b.group.transactions == 1

    run_virtual(main)


def test_an_independent_submission_does_not_wait_for_those_before_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a", "/b"))
        await b.outcomes([SetData("/a", b"1")], [SetData("/a", b"2")], [SetData("/b", b"1")])
        assert b.registry.sent == [[SetData("/a", b"1"), SetData("/b", b"1")], [SetData("/a", b"2")]]

    run_virtual(main)


def test_nothing_is_sent_after_its_last_instant() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a", "/b", "/c"), window=1)
        now = loop.time()

        async def late(operations: list[Operation], not_after: float) -> Committed:
            return await b.group.commit(operations, not_after=not_after)

        in_time, too_late, blocked_too_long, other = await asyncio.gather(
            late([SetData("/a", b"1")], now + 1.5),
            late([SetData("/b", b"1")], now + 0.5),
            late([SetData("/a", b"2")], now + 1 + ROUND_TRIP / 2),  # waits for the first one's reply
            b.group.commit([SetData("/c", b"1")]),
            return_exceptions=True,
        )
        assert isinstance(in_time, Committed)
        assert isinstance(too_late, RegistryUnavailable)
        assert isinstance(blocked_too_long, RegistryUnavailable)
        assert isinstance(other, Committed)
        assert [o.path for each in b.registry.sent for o in each] == ["/a", "/c"]
        # also what waits for a submission that was not sent goes on
        assert isinstance(await b.group.commit([SetData("/b", b"3")]), Committed)

    run_virtual(main)


def test_what_goes_again_is_held_to_its_last_instant_too() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a"), window=1)
        submission = loop.create_task(b.group.commit([SetData("/a", b"1")], not_after=loop.time() + 1 + ROUND_TRIP / 2))
        with pytest.raises(GuardFailed):
            await b.group.commit([Check("/missing")])
        with pytest.raises(RegistryUnavailable):
            await submission
        assert b.group.transactions == 1

    run_virtual(main)


def test_a_lost_reply_is_unknown_to_all_of_its_transaction_and_to_no_others() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        b.registry.max_operations = 2
        b.registry.lose_replies = True
        losing = loop.create_task(b.outcomes(nodes("/a"), nodes("/b")))
        await asyncio.sleep(0.003 + ROUND_TRIP * 1.1)
        b.registry.lose_replies = False
        assert [type(each) for each in await losing] == [OutcomeUnknown, OutcomeUnknown]
        assert [seen(each) for each in await b.outcomes(nodes("/c"), nodes("/d"))] == [(0,), (0,)]
        assert b.group.transactions == 2

    run_virtual(main)


@pytest.mark.parametrize("alone", [True, False])
def test_an_error_names_a_node_of_ones_own(alone: bool) -> None:
    """Of a transaction of several jobs, the one that is told of a lost reply must not look for it at another job's node."""

    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        b.registry.lose_replies = True
        submissions = [nodes("/a", "/a/x")] if alone else [nodes("/a", "/a/x"), nodes("/b"), nodes("/c")]
        outcomes = await b.outcomes(*submissions)
        assert [type(each) for each in outcomes] == [OutcomeUnknown] * len(submissions)
        assert [str(each).partition(":")[0] for each in outcomes] == ["/a", "/b", "/c"][: len(submissions)]

    run_virtual(main)


def test_without_connection_and_after_expiry_everybody_is_told() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop)
        b.registry.disconnect()
        assert {type(each) for each in await b.outcomes(nodes("/a"), nodes("/b"))} == {RegistryUnavailable}
        b.registry.reconnect()
        await asyncio.sleep(1)
        session_id = b.registry.session_id
        assert session_id is not None
        b.store.close_session(session_id)  # the client has not heard of it
        assert {type(each) for each in await b.outcomes(nodes("/a"), nodes("/b"))} == {SessionExpired}
        assert b.store.children("/") == []

    run_virtual(main)


def test_one_denied_submission_does_not_take_the_others_with_it() -> None:
    class Guarded(RecordingRegistry):
        async def commit(self, operations: Sequence[Operation], *, timeout: float | None = None) -> Committed:
            if any(operation.path == "/secret" for operation in operations):
                raise AccessDenied("/secret: not allowed")
            return await super().commit(operations, timeout=timeout)

    async def main(loop: VirtualLoop) -> None:
        clock = LoopClock(loop)
        registry = Guarded(MemoryStore(clock), clock)
        await registry.start(1)
        group = GroupCommit(registry, clock=clock, loop=loop)
        paths = ["/a", "/secret", "/b"]
        outcomes = await asyncio.gather(*(group.commit([Create(path)]) for path in paths), return_exceptions=True)
        assert [type(each) for each in outcomes] == [Committed, AccessDenied, Committed]

    run_virtual(main)


def test_a_cancelled_call_is_not_sent_and_blocks_nobody() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a"))
        cancelled = loop.create_task(b.group.commit([SetData("/a", b"1")]))
        later = loop.create_task(b.group.commit([SetData("/a", b"2", version=0)]))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert (await later).versions == (1,)
        assert b.registry.sent == [[SetData("/a", b"2", version=0)]]

        in_flight = loop.create_task(b.group.commit([SetData("/a", b"3")]))
        later = loop.create_task(b.group.commit([SetData("/a", b"4", version=2)]))
        await asyncio.sleep(0.003 + ROUND_TRIP / 4)
        in_flight.cancel()  # too late: it is on its way, and the later one still comes after it
        assert (await later).versions == (3,)

    run_virtual(main)


def test_close_sends_what_was_gathered_and_waits_for_all_of_it() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a"), window=10)
        tasks = [loop.create_task(b.group.commit([SetData("/a", b"1")])) for _ in range(3)]
        await asyncio.sleep(0)
        await b.group.close()
        await asyncio.sleep(0)  # the callers' turn
        assert [task.result().versions for task in tasks] == [(1,), (2,), (3,)]
        with pytest.raises(RegistryUnavailable, match="closing"):
            await b.group.commit([Check("/a")])
        await b.group.close()

    run_virtual(main)


def test_nothing_is_kept_of_what_has_ended() -> None:
    async def main(loop: VirtualLoop) -> None:
        b = await bench(loop, *nodes("/a"))
        await b.outcomes(*([SetData("/a", b"1", version=i % 2)] for i in range(10)), nodes("/x"), nodes("/x/y"))
        kept = {name: value for name, value in vars(b.group).items() if isinstance(value, (list, dict, set)) and value}
        assert kept == {}

    run_virtual(main)


# ---- equivalence with sending each alone --------------------------------------------------------------------------

PATHS = ["/a", "/b", "/a/x", "/a/y", "/b/x", "/a/x/1"]
versions = st.one_of(st.none(), st.integers(0, 2))
any_operation = st.one_of(
    st.builds(Create, st.sampled_from(PATHS), st.sampled_from([b"", b"1"]), st.booleans()),
    st.builds(SetData, st.sampled_from(PATHS), st.sampled_from([b"", b"2"]), versions),
    st.builds(Delete, st.sampled_from(PATHS), versions),
    st.builds(Check, st.sampled_from(PATHS), versions),
)


@settings(max_examples=200, deadline=None)
@given(
    existing=st.sets(st.sampled_from(PATHS[:3]), max_size=3),
    submissions=st.lists(
        st.tuples(st.lists(any_operation, min_size=1, max_size=3), st.sampled_from([0.0, 0.001, 0.002])), max_size=14
    ),
    most_operations=st.sampled_from([3, 5, 1000]),
)
def test_merged_or_alone_the_outcomes_and_the_tree_are_the_same(
    existing: set[str], submissions: list[tuple[list[Operation], float]], most_operations: int
) -> None:
    async def merged(loop: VirtualLoop) -> tuple[list[object], dict[str, tuple[bytes, int, bool]]]:
        b = await bench(loop, *(Create(path) for path in sorted(existing | {"/a"})))
        b.registry.max_operations = most_operations
        tasks = []
        for each, pause in submissions:
            tasks.append(loop.create_task(b.group.commit(each)))
            await asyncio.sleep(pause)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        return [seen(each) for each in outcomes], tree(b.store)

    async def alone(loop: VirtualLoop) -> tuple[list[object], dict[str, tuple[bytes, int, bool]]]:
        b = await bench(loop, *(Create(path) for path in sorted(existing | {"/a"})))
        outcomes: list[object] = []
        for each, _ in submissions:
            try:
                outcomes.append(seen(await b.registry.commit(each)))
            except GuardFailed as failed:
                outcomes.append(seen(failed))
        return outcomes, tree(b.store)

    assert run_virtual(merged) == run_virtual(alone)


def tree(store: MemoryStore) -> dict[str, tuple[bytes, int, bool]]:
    return {path: (node.data, node.version, node.session_id is None) for path, node in store.tree("/").items()}
