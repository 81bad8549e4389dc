"""From a registry's address to the registry; each kind is imported only where it is used."""

from __future__ import annotations

from ejpy.clock import Clock
from ejpy.config.registry_url import RegistryAddress
from ejpy.registry.base import Registry


def open_registry(address: RegistryAddress, clock: Clock) -> Registry:
    """The registry at an address, not started. Raises ConfigError if the location cannot be right."""
    if address.scheme == "zookeeper":
        from ejpy.registry.zookeeper import ZooKeeperRegistry

        return ZooKeeperRegistry(
            address.location,
            session_timeout=address.session_timeout_seconds,
            clock=clock,
            credentials=address.credentials,
        )
    if address.scheme == "sqlite":
        from ejpy.registry.sql import SqlRegistry

        return SqlRegistry(address.location, clock=clock, session_timeout=address.session_timeout_seconds)
    from ejpy.registry.memory import MemoryRegistry, MemoryStore

    return MemoryRegistry(MemoryStore(clock), clock=clock, session_timeout=address.session_timeout_seconds)
