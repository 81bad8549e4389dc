"""Listeners by name."""

from __future__ import annotations

import pytest

from ejpy.errors import ConfigError
from ejpy.listeners import DistributeOnceListener, JobListener, listener_class
from tests.unit.listeners.listening import Telling


@pytest.mark.usefixtures("provided")
@pytest.mark.parametrize("name", ["Telling", "TELLING", "telling", "tests.unit.listeners.listening:Telling"])
def test_by_entry_point_in_any_case_or_as_module_and_class(name: str) -> None:
    assert listener_class(name) is Telling


def test_ejpys_own_classes_are_found_as_module_and_class() -> None:
    assert listener_class("ejpy.listeners:DistributeOnceListener") is DistributeOnceListener


@pytest.mark.usefixtures("provided")
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tellin", "listener 'Tellin' is unknown; did you mean Telling?"),
        ("x", "listener 'x' is unknown; give module:Class, or one of: Telling, missing, no_listener"),
        (
            "missing",
            "entry point ejpy.listeners 'missing = tests.unit.listeners.listening:Tellng' (hooks 1.2) cannot be loaded:"
            " AttributeError: module 'tests.unit.listeners.listening' has no attribute 'Tellng'",
        ),
        (
            "no_listener",
            "entry point ejpy.listeners 'no_listener = tests.unit.listeners.listening:Bench' (hooks 1.2) is not a subclass of"
            " JobListener",
        ),
        ("not there:Class", "'not there:Class' is not of the form module:Class"),
        ("not_there:Class", "not_there:Class cannot be loaded: ModuleNotFoundError: No module named 'not_there'"),
        ("ejpy.job:ShardedJob", "ejpy.job:ShardedJob is not a subclass of JobListener"),
        (
            "ejpy.listeners:GROUP",
            "ejpy.listeners:GROUP cannot be loaded: AttributeError: module 'ejpy.listeners' has no attribute 'GROUP'",
        ),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_it(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as raised:
        listener_class(name)
    assert list(raised.value.problems) == [expected]


def test_without_any_provided_the_form_is_told() -> None:
    with pytest.raises(ConfigError, match=r"^listener 'x' is unknown; give module:Class$"):
        listener_class("x")


def test_a_listener_need_not_write_what_it_does_not_need() -> None:
    class Nothing(JobListener):
        pass

    assert Nothing().order == 0
