"""Fixtures for every test."""

from tests.support.fixtures import zookeeper

__all__ = ["zookeeper"]
