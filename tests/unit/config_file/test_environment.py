"""G11: placeholders from the environment, secrets outside the file."""

from __future__ import annotations

import pytest

from ejpy.config_file.environment import expand

ENVIRON = {"HOST": "zk1", "EMPTY": "", "NESTED": "${HOST}", "YAML": "a\nb: c", "_x9": "y"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${HOST}:2181", "zk1:2181"),
        ("${HOST}${_x9}", "zk1y"),
        ("${HOST:other}", "zk1"),
        ("${NOT_SET:other}", "other"),
        ("${NOT_SET:http://a:80/}", "http://a:80/"),
        ("${NOT_SET:}", ""),
        ("${EMPTY}", ""),
        ("${EMPTY:other}", ""),
        ("$${HOST}", "${HOST}"),
        ("$$${HOST}", "$${HOST}"),
        ("$HOST $ $$ {HOST}", "$HOST $ $$ {HOST}"),
        ("${NESTED}", "${HOST}"),
        ("${YAML}", "a\nb: c"),
    ],
)
def test_references_are_replaced(text: str, expected: str) -> None:
    assert expand(text, ENVIRON) == expected


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ValueError, match=r"the environment variable NOT_SET is not set; .* \$\{NOT_SET:default\}"):
        expand("a ${NOT_SET}", ENVIRON)


@pytest.mark.parametrize("text", ["${", "${HOST", "${}", "${:x}", "${A B}", "${1}", "${A-b}"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"write \$\$\{ for a literal"):
        expand(text, ENVIRON)
