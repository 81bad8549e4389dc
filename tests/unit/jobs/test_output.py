"""Lines of any length, cut anywhere; and the last ones."""

from __future__ import annotations

import random

import pytest

from ejpy.jobs.output import LINE_CHARACTERS, TAIL_CHARACTERS, TAIL_LINES, Lines, Tail


def cut(text: bytes, *places: int) -> list[str]:
    lines = Lines()
    result: list[str] = []
    for begin, end in zip((0, *places), (*places, len(text)), strict=True):
        result += lines.feed(text[begin:end])
    return [*result, *lines.feed(b"", final=True)]


@pytest.mark.parametrize("seed", range(20))
def test_it_does_not_matter_where_the_bytes_are_cut(seed: int) -> None:
    text = ("one\r\n\nzwölf 北京\n" + "x" * (2 * LINE_CHARACTERS + 3) + "\nlast").encode()
    places = sorted(random.Random(seed).sample(range(1, len(text)), 12))
    long = ["x" * LINE_CHARACTERS] * 2 + ["xxx"]
    assert cut(text, *places) == ["one", "", "zwölf 北京", *long, "last"]


def test_an_end_of_line_at_the_end_makes_no_empty_line() -> None:
    assert cut(b"a\n") == ["a"]
    assert cut(b"a\n\r\n\n") == ["a", "", ""]
    assert cut(b"") == []


def test_a_line_without_an_end_comes_in_pieces_before_the_end_of_the_output() -> None:
    lines = Lines()
    assert list(lines.feed(b"x" * (LINE_CHARACTERS + 1))) == ["x" * LINE_CHARACTERS]
    assert list(lines.feed(b"y\n")) == ["xy"]
    assert list(lines.feed(b"x" * LINE_CHARACTERS)) == ["x" * LINE_CHARACTERS]
    assert list(lines.feed(b"\r\n\n")) == [""]


def test_what_is_no_utf_8_is_replaced() -> None:
    assert cut(b"a\xffb\n\xc3") == ["a\ufffdb", "\ufffd"]


def test_the_tail_is_bounded_in_lines_and_in_characters() -> None:
    tail = Tail()
    for number in range(100):
        tail.add(str(number))
    assert tail.lines == tuple(str(number) for number in range(100 - TAIL_LINES, 100))
    tail.add("x" * (TAIL_CHARACTERS - 2))
    assert tail.lines == ("99", "x" * (TAIL_CHARACTERS - 2))
    tail.add("y" * (TAIL_CHARACTERS + 5))
    assert list(tail.lines) == ["y" * TAIL_CHARACTERS]
