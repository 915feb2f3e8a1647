"""Tokens with their places, and files that cannot be read."""

from __future__ import annotations

import re

import pytest

from wavetank.errors import BadFileError
from wavetank.protocols.threshold.source_text import Tokens

PATTERN = re.compile(r"(?P<skip>\s+|/\*(?s:.*?)\*/)|/\*|[a-z_]+|\d+|[;(]")


def tokens(text: str) -> Tokens:
    return Tokens(text, "model", PATTERN, {"/*": "*/"})


def test_every_token_knows_its_line_and_column() -> None:
    found = tokens("ab 12\n  /* c\n */ d;")
    assert found.words == ["ab", "12", "d", ";", Tokens.END]
    assert [found.line_and_column(at) for at in range(5)] == [(1, 1), (1, 4), (3, 5), (3, 6), (3, 7)]


def test_the_cursor_moves_over_what_is_expected() -> None:
    found = tokens("ab 12 ; c")
    assert found.name("a name") == "ab"
    assert found.number("a number") == 12
    assert not found.take("(")
    assert found.take(";")
    assert found.after() == Tokens.END
    assert found.next() == "c"
    assert found.next() == Tokens.END
    assert found.next() == Tokens.END


@pytest.mark.parametrize(
    ("text", "act", "says", "where"),
    [
        ("ab", lambda found: found.expect("abc"), "Expected abc", "line 1, column 1"),
        ("ab\n 1", lambda found: (found.next(), found.name("a counter")), "Expected a counter", "line 2, column 2"),
        ("ab", lambda found: found.number("a count"), "Expected a count", "line 1, column 1"),
        ("", lambda found: found.name("a name"), "Expected a name", "line 1, column 1"),
        ("1" * 30, lambda found: found.number("a count"), "too large", "line 1, column 1"),
    ],
)
def test_what_was_expected_is_said_with_its_place(text: str, act, says: str, where: str) -> None:
    with pytest.raises(BadFileError, match=says) as caught:
        act(tokens(text))
    assert caught.value.where == f"model, {where}"


def test_a_stray_character_and_an_endless_comment_are_pointed_at() -> None:
    with pytest.raises(BadFileError, match="means nothing") as caught:
        tokens("ab\n $ c")
    assert caught.value.where == "model, line 2, column 2"
    with pytest.raises(BadFileError, match="means nothing"):
        tokens("ab §")
    with pytest.raises(BadFileError, match="does not end") as caught:
        tokens("ab\n /* c")
    assert caught.value.where == "model, line 2, column 2"
