"""The contract of a registry, on a real ZooKeeper server."""

from __future__ import annotations

import pytest

from ejpy.clock import SystemClock
from ejpy.registry.zookeeper import ZooKeeperRegistry
from tests.registry.contract import NewRegistry, RegistryContract


class TestZooKeeperContract(RegistryContract):
    @pytest.fixture
    def new_registry(self, zookeeper: str) -> NewRegistry:
        return lambda: ZooKeeperRegistry(zookeeper, session_timeout=6, clock=SystemClock())


class TestZooKeeperContractWithCredentials(RegistryContract):
    @pytest.fixture
    def new_registry(self, zookeeper: str) -> NewRegistry:
        return lambda: ZooKeeperRegistry(zookeeper, session_timeout=6, clock=SystemClock(), credentials=("contract", "secret"))
