"""A deed runs alone, and a fault in it silences nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest

from ejpy.errors import RegistryError
from ejpy.logs import FieldsAdapter
from ejpy.scheduler.host import RETRY_SECONDS, Deed
from ejpy.testing.virtual_loop import VirtualLoop, run_virtual

log = FieldsAdapter(logging.getLogger("ejpy.test"), {"job": "j"})


async def returning(result: bool) -> bool:
    return result


async def failing(error: BaseException) -> bool:
    raise error


@pytest.mark.parametrize(("result", "after"), [(True, 0.0), (False, RETRY_SECONDS)])
def test_asks_for_another_look_at_once_or_later(result: bool, after: float) -> None:
    async def main(loop: VirtualLoop) -> None:
        looked: asyncio.Future[float] = loop.create_future()
        deed = Deed("testing", lambda: looked.set_result(loop.time()), log)
        deed.begin(returning(result))
        assert deed.under_way
        assert await looked == pytest.approx(after)
        assert not deed.under_way

    run_virtual(main)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), RegistryError("not foreseen"), KeyError("x")])
def test_a_fault_is_logged_with_its_trace_and_tried_again(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    """J11: one job of several silently stopped."""

    async def main(loop: VirtualLoop) -> None:
        looked: asyncio.Future[float] = loop.create_future()
        deed = Deed("testing", lambda: looked.set_result(loop.time()), log)
        deed.begin(failing(error))
        assert await looked == pytest.approx(RETRY_SECONDS)
        assert not deed.under_way

    run_virtual(main)
    [record] = caplog.records
    assert "fault while testing" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_a_cancelled_deed_asks_for_nothing() -> None:
    async def main(loop: VirtualLoop) -> None:
        looks: list[float] = []
        deed = Deed("testing", lambda: looks.append(loop.time()), log)

        async def waiting() -> bool:
            await loop.create_future()
            return True

        deed.begin(waiting())
        await asyncio.sleep(0)
        await deed.cancel()
        await deed.cancel()
        await asyncio.sleep(10 * RETRY_SECONDS)
        assert looks == []

    run_virtual(main)
