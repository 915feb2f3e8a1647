"""Tokens with their places, and files that cannot be read."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from wavetank.errors import BadFileError
from wavetank.protocols.threshold.source_text import Tokens, read_text

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


def test_a_byte_that_is_no_text_is_told_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "model.ta"
    path.write_bytes("skel\n\u00e4b".encode() + b"\xff")
    with pytest.raises(BadFileError, match="not text") as caught:
        read_text(path)
    assert caught.value.where == f"{path}, line 2, column 3"


def test_no_more_of_a_file_is_read_than_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "model.ta"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(BadFileError, match="too large"):
        read_text(path)


def test_a_mark_of_byte_order_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.ta").write_bytes(b"\xef\xbb\xbfskel\n")
    assert read_text(tmp_path / "a.ta") == "skel\n"


def test_files_are_read_packed_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.ta").write_text("skel\n")
    (tmp_path / "a.ta.gz").write_bytes(gzip.compress(b"skel\n"))
    assert read_text(tmp_path / "a.ta") == read_text(tmp_path / "a.ta.gz") == "skel\n"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (gzip.compress(b"skel" * 999)[:40], "damaged"),
        (b"\x1f\x8b\x08garbage", "damaged"),
        (b"ok\n\xff\xfe", "not text"),
        (gzip.compress(bytes(65 * 2**20)), "too large"),
    ],
    ids=["missing", "cut", "garbage", "binary", "bomb"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "model.ta.gz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadFileError, match=says) as caught:
        read_text(path)
    assert str(path) in str(caught.value.where)
