"""OwnStrategy: loads and asks somebody else's strategy in threads, and survives all that it does."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import pytest

from ejpy.logs import FieldsAdapter
from ejpy.scheduler import own_strategy
from ejpy.scheduler.own_strategy import OwnStrategy
from ejpy.sharding_strategies import ShardingInstance, ShardingStrategy
from tests.support.loop import eventually, run

HERE = "tests.unit.scheduler.test_own_strategy"
A, B = ShardingInstance("a", "10.0.0.1"), ShardingInstance("b", "10.0.0.2")
T = TypeVar("T")


class Dealing(ShardingStrategy):
    calls: ClassVar[list[tuple[object, ...]]] = []
    threads: ClassVar[set[int]] = set()
    answers: ClassVar[list[Callable[[], Any]]] = []
    """What the next calls do; after them each item goes to the first instance."""
    gate: ClassVar[threading.Event] = threading.Event()

    def __init__(self) -> None:
        assert self.gate.wait(20)

    def assign(
        self, job_name: str, sharding_total_count: int, instances: Sequence[ShardingInstance], current: Mapping[int, str]
    ) -> Mapping[int, str]:
        self.calls.append((job_name, sharding_total_count, [instance.instance_id for instance in instances], dict(current)))
        self.threads.add(threading.get_ident())
        if self.answers:
            answer: Mapping[int, str] = self.answers.pop(0)()
            return answer
        return dict.fromkeys(range(sharding_total_count), instances[0].instance_id)


class Lazy(Mapping[int, str]):
    """Works out what it holds when it is asked, and ends the program."""

    def __getitem__(self, item: int) -> str:
        raise SystemExit("too lazy")

    def __iter__(self) -> Any:
        raise SystemExit("too lazy")

    def __len__(self) -> int:
        return 1


class Breaks(Dealing):
    def __init__(self) -> None:
        raise SystemExit("no such table")


@pytest.fixture(autouse=True)
def fresh() -> None:
    Dealing.calls.clear()
    Dealing.threads.clear()
    Dealing.answers.clear()
    Dealing.gate.set()


class Asking:
    """An OwnStrategy with what it is told by. To be made on a running loop."""

    def __init__(self) -> None:
        self._again = asyncio.Event()
        self.own = OwnStrategy(self._again.set, FieldsAdapter(logging.getLogger("ejpy.test"), {}))

    async def usable(self, name: str | None = f"{HERE}:Dealing") -> bool:
        return await self._seen(lambda: self.own.usable(name))

    async def dealt(
        self, total: int, *instances: ShardingInstance, current: Mapping[int, str] | None = None
    ) -> Mapping[int, str]:
        return await self._seen(lambda: self.own.dealt("shop", total, list(instances), current or {}))

    async def _seen(self, look: Callable[[], T | None]) -> T:
        while (seen := look()) is None:
            await self._again.wait()
            self._again.clear()
        return seen


def test_ejpys_own_need_nothing() -> None:
    async def scenario() -> None:
        assert Asking().own.usable(None) is True

    run(scenario())


def test_it_is_asked_in_a_thread_with_the_instances_in_descending_order_and_once_for_the_same_ones() -> None:
    async def scenario() -> None:
        asking = Asking()
        assert await asking.usable()
        assert asking.own.dealt("shop", 2, [A, B], {0: "gone"}) is None, "not known yet"
        assert await asking.dealt(2, A, B) == {0: "b", 1: "b"}
        assert await asking.dealt(2, B, A, current={0: "b", 1: "b"}) == {0: "b", 1: "b"}
        assert Dealing.calls == [("shop", 2, ["b", "a"], {0: "gone"})]
        assert threading.get_ident() not in Dealing.threads
        assert await asking.dealt(3, A) == {0: "a", 1: "a", 2: "a"}
        assert await asking.dealt(3, A, B) == {0: "b", 1: "b", 2: "b"}
        assert len(Dealing.calls) == 3

    run(scenario())


def test_an_answer_to_a_question_of_before_is_not_taken() -> None:
    async def scenario() -> None:
        held = threading.Event()
        Dealing.answers.append(lambda: held.wait(20) and {0: "a"})
        asking = Asking()
        assert await asking.usable()
        assert asking.own.dealt("shop", 1, [A], {}) is None
        assert asking.own.dealt("shop", 1, [A, B], {}) is None, "it waits for the first answer"
        held.set()
        assert await asking.dealt(1, A, B) == {0: "b"}

    run(scenario())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MINE", "job_sharding_strategy_type: 'MINE' is not allowed; allowed: AVG_ALLOCATION, "),
        (
            f"{HERE}:Breaks",
            f"job_sharding_strategy_type: {HERE}:Breaks cannot be made: SystemExit: no such table; ",
        ),
    ],
)
def test_one_that_cannot_be_used_is_said_once(name: str, said: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        asking = Asking()
        assert not await asking.usable(name)
        assert not await asking.usable(name)
        assert await asking.usable(None)

    run(scenario())
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith(said)
    assert line.endswith("; this worker does not lead the job")


def _raises(error: BaseException) -> Callable[[], Any]:
    def raising() -> Any:
        raise error

    return raising


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (_raises(LookupError("no table")), "LookupError: no table"),
        (_raises(SystemExit(3)), "SystemExit: 3"),
        (_raises(asyncio.CancelledError()), "CancelledError"),
        (lambda: Lazy(), "SystemExit: too lazy"),
        (lambda: {0: "c"}, "ValueError: it gave item 0 to 'c', which is not among the instances"),
    ],
)
def test_one_that_fails_is_said_and_asked_again(
    answer: Callable[[], Any], said: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_strategy, "AGAIN_SECONDS", 0.01)

    async def scenario() -> None:
        Dealing.answers.append(answer)
        asking = Asking()
        assert await asking.usable()
        assert await asking.dealt(1, A) == {0: "a"}
        assert len(Dealing.calls) == 2

    run(scenario())
    [line] = [record.getMessage() for record in caplog.records]
    expected = f"sharding strategy {HERE}:Dealing failed: {said}; the assignment stays as it is, and it is asked again in 0.01 s"
    assert line == expected


def test_other_instances_are_asked_for_at_once_after_a_failure() -> None:
    async def scenario() -> None:
        Dealing.answers.append(_raises(LookupError("no table")))
        asking = Asking()
        assert await asking.usable()
        assert asking.own.dealt("shop", 1, [A], {}) is None
        assert await asking.dealt(1, A, B) == {0: "b"}
        asking.own.close()

    run(scenario())


def test_one_that_hangs_is_said_and_closing_does_not_wait_for_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_strategy, "LONG_SECONDS", 0.01)
    Dealing.gate.clear()

    async def scenario() -> None:
        asking = Asking()
        assert asking.own.usable(f"{HERE}:Dealing") is None
        await eventually(lambda: bool(caplog.records))
        assert asking.own.usable(f"{HERE}:Dealing") is False, "another worker may do better"
        asking.own.close()
        assert asking.own.usable(None)

    run(scenario())
    Dealing.gate.set()
    assert caplog.records[0].getMessage() == f"sharding strategy {HERE}:Dealing has not answered within 0.01 s, and is waited for"
