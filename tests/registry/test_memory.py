"""The in-memory registry: the contract, and what it offers tests and simulation beyond it."""

from __future__ import annotations

import pytest

from ejpy.clock import SystemClock
from ejpy.registry.memory import MemoryRegistry, MemoryStore
from tests.registry.contract import NewRegistry, RegistryContract


class TestMemoryContract(RegistryContract):
    @pytest.fixture
    def new_registry(self) -> NewRegistry:
        clock = SystemClock()
        store = MemoryStore(clock)
        return lambda: MemoryRegistry(store, clock=clock, session_timeout=3)
