from __future__ import annotations

from pathlib import Path

import pytest

ENTRY_POINTS = """\
[ejpy.listeners]
Telling = tests.unit.listeners.listening:Telling
missing = tests.unit.listeners.listening:Tellng
no_listener = tests.unit.listeners.listening:Bench
"""


@pytest.fixture
def provided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution that provides listeners."""
    metadata = tmp_path / "hooks-1.2.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: hooks\nVersion: 1.2\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
