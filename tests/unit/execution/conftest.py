from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.execution.harness import Gate


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    made = Gate(tmp_path / "gate")
    yield made
    made.close()
