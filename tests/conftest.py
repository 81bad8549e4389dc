"""Fixtures for every test."""

import pytest

from tests.support.fixtures import zookeeper

__all__ = ["zookeeper"]

# Its assertions are to say what they compared, as those of test modules do. Nothing above imports it.
pytest.register_assert_rewrite("tests.registry.contract")
