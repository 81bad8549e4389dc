"""Processes on the virtual loop: what is frozen waits, what is dead never comes, whatever it was about to do."""

from __future__ import annotations

import asyncio

import pytest

from ejpy.testing.virtual_loop import LoopClock, Process, Stuck, VirtualLoop, run_virtual


def test_time_passes_only_when_nothing_is_ready() -> None:
    async def story(loop: VirtualLoop) -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert run_virtual(story) == pytest.approx(3600, abs=0.001)


def test_waiting_for_nothing_is_an_error() -> None:
    async def story(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(Stuck, match="nothing is ready"):
        run_virtual(story)


def test_what_begins_itself_again_and_again_is_an_error() -> None:
    async def story(loop: VirtualLoop) -> None:
        def again() -> None:
            loop.call_soon(again)

        again()
        await asyncio.sleep(1)

    with pytest.raises(Stuck, match="turns within a second"):
        run_virtual(story)


def test_an_exception_that_nobody_sees_fails_the_run() -> None:
    async def story(loop: VirtualLoop) -> None:
        def broken() -> None:
            raise ValueError("planned")

        loop.call_soon(broken)
        await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="planned"):
        run_virtual(story)


async def ticking(loop: VirtualLoop, seen: list[float]) -> None:
    while True:
        await asyncio.sleep(1)
        seen.append(round(loop.time()))


def test_a_frozen_process_goes_on_where_it_was() -> None:
    async def story(loop: VirtualLoop) -> None:
        seen: list[float] = []
        process = Process(loop)
        process.task(ticking(loop, seen))
        process.run(loop.call_later, 4.5, lambda: seen.append(-1))
        await asyncio.sleep(2.5)
        process.freeze()
        await asyncio.sleep(5)
        assert seen == [1, 2]
        process.thaw()
        await asyncio.sleep(0.1)
        assert seen == [1, 2, 8, -1] or seen == [1, 2, -1, 8]
        await asyncio.sleep(2)
        assert seen[4:] == [9, 10] or seen[4:] == [9]
        assert process.held_seconds == pytest.approx(5)

    run_virtual(story)


def test_what_waited_can_be_done_one_after_the_other() -> None:
    async def story(loop: VirtualLoop) -> None:
        seen: list[float] = []
        process = Process(loop)
        process.freeze()
        for _ in range(3):
            process.run(loop.call_soon, lambda: seen.append(loop.time()))
        await asyncio.sleep(1)
        process.thaw(0.5)
        await asyncio.sleep(2)
        assert seen == pytest.approx([1.0, 1.5, 2.0], abs=0.001)

    run_virtual(story)


def test_a_dead_process_does_nothing_any_more_and_ends_with_the_loop() -> None:
    async def story(loop: VirtualLoop) -> tuple[list[float], list[str]]:
        seen: list[float] = []
        ended: list[str] = []

        async def careful() -> None:
            try:
                await ticking(loop, seen)
            finally:
                ended.append("cancelled")

        process = Process(loop)
        process.task(careful())
        await asyncio.sleep(2.5)
        process.die()
        await asyncio.sleep(5)
        assert not ended
        return seen, ended

    seen, ended = run_virtual(story)
    assert seen == [1, 2]
    assert ended == ["cancelled"]


def test_others_are_not_concerned() -> None:
    async def story(loop: VirtualLoop) -> None:
        seen: list[float] = []
        frozen, free = Process(loop), Process(loop)
        free.task(ticking(loop, seen))
        frozen.freeze()
        await asyncio.sleep(2.5)
        assert seen == [1, 2]

    run_virtual(story)


def test_a_wall_clock_may_be_wrong_and_jump() -> None:
    async def story(loop: VirtualLoop) -> None:
        right, wrong = LoopClock(loop), LoopClock(loop)
        wrong.ahead += 2 * (right.now() - right.now()) + wrong.ahead.resolution * 3
        assert (wrong.now() - right.now()) == wrong.ahead.resolution * 3
        assert wrong.monotonic() == right.monotonic() == loop.time()

    run_virtual(story)
