"""The skeleton of every page: whole, loading nothing, for light, dark and paper."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from wavetank import html_page, svg

HOSTILE = ["<script>x</script>", "\"'&</title></style>", "\x00\x1b\ud800", "\U0001f41b", "w" * 3000]


class Reader(HTMLParser):
    """Collects the elements of a page, and the text of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """A tag that closes itself leaves nothing open."""

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))


def text_of(page: str, tag: str) -> list[str]:
    reader = Reader(page)
    assert reader.open == []
    return [text for name, text in reader.texts if name == tag]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    page = html_page.findings(text, html_page.table([(text, text, 1)]))
    page.encode("utf-8")
    shown = [svg.printable(text)]
    assert text_of(page, "title") == text_of(page, "h1") == text_of(page, "th") == shown
    assert text_of(page, "td") == [*shown, "1"]
    assert "<script" not in page
    assert page.count("</style>") == 1


def test_markup_that_holds_control_characters_is_cleaned_too() -> None:
    assert "<p>a␀b\ufffd</p>" in html_page.page("t", "<p>a\x00b\ud800</p>")


def test_a_page_loads_nothing() -> None:
    page = html_page.page("t", "<p>text</p>", style=".x { color: red; }")
    assert page.startswith("<!doctype html>")
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == ["data:,"]
    assert not re.search(r"@import|url\(|<script", page)
    # What a page adds stands after what all pages share.
    assert page.index(".x { color: red; }") > page.index(html_page.STYLE)


def test_a_page_has_colours_for_light_and_dark_and_a_layout_for_paper() -> None:
    light, dark = html_page.STYLE.split("@media screen and (prefers-color-scheme: dark)")
    dark, paper = dark.split("@media print")
    names = [set(re.findall(r"--([a-z]+): #", part)) for part in (light, dark)]
    assert names[0] == names[1] >= {"bg", "text", "muted"}
    assert "--bg: #fff;" in paper
    assert "--text: #000;" in paper


def test_what_made_a_page_is_said() -> None:
    assert '<meta name="generator" content="wavetank">' in html_page.page("t", "")
    assert text_of(html_page.findings("t"), "footer") == ["Made by wavetank; this file needs nothing else."]
    assert '<meta name="generator" content="wavetank 9&quot;">' in html_page.page("t", "", made_by='wavetank 9"')


def test_two_drawings_stand_in_one_page() -> None:
    picture = svg.drawing(9, 9, [svg.text(1, 1, "x")], title="t")
    assert text_of(html_page.findings("two", picture, picture), "text") == ["x", "x"]
