"""The SQL registry on a SQLite file: the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from ejpy.clock import SystemClock
from ejpy.registry.sql import SqlRegistry
from tests.registry.contract import NewRegistry, RegistryContract


class TestSqliteContract(RegistryContract):
    @pytest.fixture
    def new_registry(self, tmp_path: Path) -> NewRegistry:
        url = f"sqlite:///{tmp_path}/registry.db"
        return lambda: SqlRegistry(url, clock=SystemClock(), session_timeout=10)
