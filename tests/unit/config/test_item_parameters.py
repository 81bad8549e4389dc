"""C7: values with `,` or `=` (JSON, SQL) break ElasticJob's text form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.config import item_parameters


@pytest.mark.parametrize(
    "text", ["0=a=b", "0=", "x=1", "0=a,0=b", '0={"a":1,"b":2}', "a", ",0=a", "0=a,,1=b", "-1=a", "=a", "00=a"]
)
def test_c7_a_text_that_is_not_item_equals_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not of the form|is not an item number|is given twice"):
        item_parameters.parse_unique(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" 0=Beijing, 1=Shanghai ", {0: "Beijing", 1: "Shanghai"}),
        ("0 = Beijing", {0: "Beijing"}),
        ("0=a,2=c,", {0: "a", 2: "c"}),
        ("0=a b", {0: "a b"}),
        ("", {}),
        (" ", {}),
    ],
)
def test_c7_blanks_and_a_trailing_comma_do_not_count(text: str, expected: dict[int, str]) -> None:
    assert item_parameters.parse_unique(text) == expected


def test_an_item_may_occur_twice_where_elasticjob_wrote_it() -> None:
    assert item_parameters.parse("0=a,0=b") == [(0, "a"), (0, "b")]


@settings(deadline=None)
@given(st.dictionaries(st.integers(0, 99_999), st.text()))
def test_what_the_text_form_can_hold_comes_back_the_same(values: dict[int, str]) -> None:
    values = {item: value for item, value in values.items() if item_parameters.expressible(value)}
    assert item_parameters.parse_unique(item_parameters.write(values)) == values


@settings(deadline=None)
@given(st.text(alphabet=" ,=\t\nab"))
def test_what_the_text_form_cannot_hold_is_known(value: str) -> None:
    if item_parameters.expressible(value):
        return
    try:
        read = item_parameters.parse_unique(f"0={value}")
    except ValueError:
        return
    assert read != {0: value}
