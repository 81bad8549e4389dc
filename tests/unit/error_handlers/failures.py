"""Failures to tell of, a clock that a test sets, and handlers that note what they are told."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

from ejpy.clock import Clock
from ejpy.error_handlers import JobErrorHandler, JobFailure
from ejpy.terms import Reason

INSTANT = datetime(2026, 3, 1, 12, 0, 30, tzinfo=timezone.utc)

FAILURE = JobFailure(
    job_name="shop",
    sharding_item=3,
    scheduled_time=INSTANT,
    attempt=2,
    reason=Reason.OWNER_LOST,
    instance_id="10.0.0.7@-@4242.k3",
    failed_at=INSTANT + timedelta(seconds=5),
    error="ValueError: no such order",
    traceback="Traceback (most recent call last):\n  File …\nValueError: no such order",
    fencing_token=17,
    idempotency_key="shop/2026-03-01T12:00:30+00:00/3",
)


def failure(**changes: Any) -> JobFailure:
    return replace(FAILURE, **changes)


@contextlib.contextmanager
def in_a_thread(deed: Callable[[], None]) -> Iterator[list[Exception]]:
    """Have something done that might never end; at the end of the context it must have. Gives what it raised."""
    raised: list[Exception] = []

    def do() -> None:
        try:
            deed()
        except Exception as error:  # noqa: BLE001 - it is for the test to judge
            raised.append(error)

    thread = threading.Thread(target=do, daemon=True)
    thread.start()
    yield raised
    thread.join(20)
    assert not thread.is_alive()


class SetClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return INSTANT + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


class Told:
    """What handlers were told, in order; a test waits until it is as expected."""

    def __init__(self) -> None:
        self.all: list[JobFailure] = []
        self.threads: set[int] = set()
        self.made = 0
        self._changed = threading.Condition()

    def add(self, failure: JobFailure) -> None:
        with self._changed:
            self.all.append(failure)
            self.threads.add(threading.get_ident())
            self._changed.notify_all()

    def until(self, condition: Callable[[list[JobFailure]], bool]) -> list[JobFailure]:
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self.all), 20), f"told so far: {self.all}"
            return list(self.all)


class Recording(JobErrorHandler):
    """Notes what it is told in the `Told` of that name, and then does what the failure's error says.

    It is provided as an entry point by a distribution that the tests make up.
    """

    told: ClassVar[dict[str, Told]] = {}
    gates: ClassVar[dict[str, threading.Event]] = {}

    def __init__(self, props: Mapping[str, str], clock: Clock) -> None:
        super().__init__(props, clock)
        self._told = self.told[props["recording"]]
        self._told.made += 1

    @classmethod
    def validate(cls, props: Mapping[str, str]) -> list[str]:
        return [] if "recording" in props else ["props: recording: required; give the name of a record"]

    def handle(self, failure: JobFailure) -> None:
        self._told.add(failure)
        if "blocks" in failure.error:
            assert self.gates[self.props["recording"]].wait(20)
        if "raises" in failure.error:
            raise ValueError(f"cannot tell {self.props.get('api.token')}")
        if "exits" in failure.error:
            raise SystemExit(3)


class Each(Recording):
    deduplicated = False


class Unmakeable(JobErrorHandler):
    def __init__(self, props: Mapping[str, str], clock: Clock) -> None:
        raise RuntimeError("cannot be made")

    def handle(self, failure: JobFailure) -> None:
        raise AssertionError


class NoHandler:
    pass
