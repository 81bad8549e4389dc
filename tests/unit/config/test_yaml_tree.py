"""The YAML reader on its own: with libyaml's parser and with PyYAML's, which word their errors differently."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ejpy.config import yaml_tree
from ejpy.config.yaml_tree import DEEPEST, ListNode, MapNode, Scalar, YamlError, YamlNode

PARSERS = sorted({yaml.SafeLoader, yaml_tree.FASTEST}, key=lambda parser: parser.__name__)


@pytest.fixture(params=PARSERS, ids=lambda parser: str(parser.__name__))
def parser(request: pytest.FixtureRequest) -> Any:
    return request.param


def plain(node: YamlNode | None) -> object:
    if isinstance(node, MapNode):
        return {str(plain(key)): plain(value) for key, value in node.entries}
    if isinstance(node, ListNode):
        return [plain(item) for item in node.items]
    return None if node is None else node.text


def test_scalars_stay_texts_and_know_their_line(parser: Any) -> None:
    root = yaml_tree.read("a: 010\nb: no\nc: 2026-01-01\nd: 1e3\n\ne: [~, 'x']\nf: 0x1f\n", parser)
    assert plain(root) == {"a": "010", "b": "no", "c": "2026-01-01", "d": "1e3", "e": ["~", "x"], "f": "0x1f"}
    assert isinstance(root, MapNode)
    assert [key.line for key, _ in root.entries] == [1, 2, 3, 4, 6, 7]


def test_nothing_given_is_told_from_a_quoted_text(parser: Any) -> None:
    root = yaml_tree.read("[ , ~, null, Null, '', \"~\", 'null', nil]".replace("[ ,", "[~,"), parser)
    assert isinstance(root, ListNode)
    assert [isinstance(item, Scalar) and item.is_null for item in root.items] == [True] * 4 + [False] * 4


def test_aliases_stand_for_what_they_name(parser: Any) -> None:
    assert plain(yaml_tree.read("a: &x {k: v}\nb: *x\nc: [*x, &x y, *x]\n", parser)) == {
        "a": {"k": "v"},
        "b": {"k": "v"},
        "c": [{"k": "v"}, "y", "y"],
    }


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: *x\n", 2, "the alias *x has no anchor &x before it"),
        ("a: &x [*x]\n", 1, "the alias *x stands inside what it names"),
        ("a: 1\n---\nb: 2\n", 2, "more than one YAML document"),
        ("a:\n\tb: 1\n", 2, "a tab; YAML is indented with blanks"),
        ("a: 1\nb: \x07\n", 2, "the character U+0007 is not allowed in YAML"),
        ("a: 'x\n", 1, "not valid YAML: while scanning a quoted scalar of line 1: found unexpected end of stream"),
        ("a: b: c\n", 1, "not valid YAML: mapping values are not allowed"),
        ("a: " + "[" * (DEEPEST + 1), 1, f"nested deeper than {DEEPEST} levels"),
        ("- " * 50_000 + "x", 1, f"nested deeper than {DEEPEST} levels"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(parser: Any, text: str, line: int, said: str) -> None:
    with pytest.raises(YamlError) as caught:
        yaml_tree.read(text, parser)
    assert (caught.value.line, caught.value.message[: len(said)]) == (line, said)
    assert caught.value.message.isprintable()


def test_a_document_of_aliases_does_not_explode(parser: Any) -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]\n" for n in range(1, 30))
    with pytest.raises(YamlError, match="more than 500000 nodes, aliases expanded"):
        yaml_tree.read("l0: &l0 x\n" + levels, parser)


def test_tags_construct_nothing_and_are_found(parser: Any) -> None:
    root = yaml_tree.read(
        "a: !!python/object/apply:os.system ['x']\nb: !own 1\nc: !!int 1\nd: [!!str x, {e: !!java.Foo {}}]\n", parser
    )
    assert root is not None
    found = [(node.line, node.tag) for node in yaml_tree.with_foreign_tags(root)]
    assert found == [(1, "tag:yaml.org,2002:python/object/apply:os.system"), (2, "!own"), (4, "tag:yaml.org,2002:java.Foo")]


def test_a_tree_is_written_as_it_was_read(parser: Any) -> None:
    text = "a: plain\nb: 'quoted'\nc: \"double\"\nd:\n- !!org.example.Foo\n  e: 5\n- [1, '2']\nf: {}\ng: |\n  two\n  lines\n"
    root = yaml_tree.read(text, parser)
    assert isinstance(root, MapNode)
    assert yaml_tree.write(root) == text


@pytest.mark.parametrize(
    "text", ["", "true", "No", "123", "1.5", "0x1f", "1:30", "~", "null", "2026-01-01", "*/5", "? x", "a: b", "=", "<<"]
)
def test_a_text_that_looks_like_something_else_is_quoted(text: str) -> None:
    assert yaml_tree.write(MapNode(((Scalar("k"), yaml_tree.text_scalar(text)),))) == f"k: '{text}'\n"


BREAKS = ["\n", "\r", "\r\n", "\x85", "\u2028", "\u2029", " ", "\t", "\ufeff", "\x00", "x", "'", '"', "#", ":", "é", "😀"]


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])) | st.lists(st.sampled_from(BREAKS)).map("".join))
def test_a_text_is_read_back_by_every_parser_as_it_was_written(text: str) -> None:
    scalar = yaml_tree.text_scalar(text)
    written = yaml_tree.write(MapNode(((Scalar("k"), scalar), (scalar, Scalar("v")))))
    for each in PARSERS:
        root = yaml_tree.read(written, each)
        assert isinstance(root, MapNode)
        (_, value), (key, _) = root.entries
        assert (plain(value), plain(key)) == (text, text)
