from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.error_handlers.failures import Recording, SetClock, Told

ENTRY_POINTS = """\
[ejpy.error_handlers]
Pager = tests.unit.error_handlers.failures:Recording
each = tests.unit.error_handlers.failures:Each
unmakeable = tests.unit.error_handlers.failures:Unmakeable
log = tests.unit.error_handlers.failures:Recording
twice = tests.unit.error_handlers.failures:Recording
TWICE = tests.unit.error_handlers.failures:Each
missing_module = shop_that_is_not_there:Pager
missing_class = tests.unit.error_handlers.failures:Pagr
no_handler = tests.unit.error_handlers.failures:NoHandler
abstract = ejpy.error_handlers:JobErrorHandler
"""


@pytest.fixture
def provided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution that provides error handlers."""
    metadata = tmp_path / "alerts-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: alerts\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Iterator[Told]:
    """What handlers with `recording: <name of the test>` are told."""
    name = request.node.name
    made = Recording.told[name] = Told()
    Recording.gates[name] = threading.Event()
    yield made
    Recording.gates.pop(name).set()
    del Recording.told[name]


@pytest.fixture
def clock() -> SetClock:
    return SetClock()
