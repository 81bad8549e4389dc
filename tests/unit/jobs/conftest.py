"""The log of the job `report`."""

from collections.abc import Iterator

import pytest

from tests.unit.jobs.contexts import Logged, logged


@pytest.fixture
def log() -> Iterator[Logged]:
    with logged() as handler:
        yield handler
