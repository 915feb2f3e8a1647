"""Drawings: escaped text, text that fits, and colours that can be read on every page."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank import svg

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = [
    "<script>alert(1)</script>",
    "\"'&<>]]>",
    "\x00\x07\x1b[31m\x7f\x85",
    "\ud800\uffff",
    "\U0001f41b👩‍🔬",
    "é" * 3000,
]


def contrast(one: str, other: str) -> float:
    def light(colour: str) -> float:
        values = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
        parts = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values)
        return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_text(text: str) -> None:
    shown = svg.drawing(10, 10, [svg.text(1, 2, text)], title=text, says=text)
    assert "<script" not in shown
    root = ElementTree.fromstring(shown.encode("utf-8"))
    found = [root.get("aria-label"), *(root.find(f"{SVG}{name}").text for name in ("title", "desc", "text"))]
    assert found == [svg.printable(text)] * 4


# A parser of XML takes a carriage return for a line feed, and any white space of an attribute for a blank.
@given(st.text(st.characters(exclude_characters="\r")))
def test_any_text_comes_back_from_a_parser(text: str) -> None:
    root = ElementTree.fromstring(svg.element("a", svg.escape(text), name=text).encode("utf-8"))
    assert (root.text or "") == svg.printable(text)
    assert root.get("name", "") == re.sub("[\t\n]", " ", svg.printable(text))


def test_control_characters_are_shown_by_their_pictures() -> None:
    assert svg.printable("a\x00b\x1bc\td\n") == "a␀b␛c\td\n"
    assert svg.printable("\x7f\ud800\uffff") == "\ufffd" * 3


def test_attributes_that_are_empty_are_left_out_and_zero_is_kept() -> None:
    assert svg.element("g", a=None, b="", c=0, d=0.0, stroke_width=1.5, class_="x") == (
        '<g c="0" d="0" stroke-width="1.5" class="x"/>'
    )


@given(st.text(max_size=60), st.floats(0, 400), st.sampled_from([11.0, 12.0, 15.0]))
def test_fitted_text_is_no_wider_than_its_room(text: str, room: float, size: float) -> None:
    shown = svg.fitted(text, room, size)
    assert svg.width_of(shown, size) <= room + 1e-6
    assert shown in ("", text) or (shown.endswith("…") and text.startswith(shown[:-1]))


def test_wide_signs_count_twice_and_joined_ones_not_at_all() -> None:
    letter = svg.width_of("x")
    assert svg.width_of("漢字") == pytest.approx(4 * letter)
    assert svg.width_of("\U0001f41b") == pytest.approx(2 * letter)
    assert svg.width_of("e\u0301") == pytest.approx(letter)
    assert svg.width_of("\U0001f469\u200d\U0001f52c") == pytest.approx(4 * letter)


@pytest.mark.parametrize(("x", "y"), [(100, 0), (-100, 0), (60, 80), (0, -50)])
def test_the_head_of_an_arrow_lies_on_its_line_and_ends_at_its_tip(x: float, y: float) -> None:
    root = ElementTree.fromstring(f"<g>{svg.arrow(0, 0, x, y)}</g>")
    line, head = root
    places = [tuple(map(float, pair.split())) for pair in re.findall(r"-?[\d.]+ -?[\d.]+", str(head.get("d")))]
    assert places[0] == (x, y)
    (left, right), end = places[1:], (float(line.get("x2", "")), float(line.get("y2", "")))
    assert math.dist(left, (x, y)) == pytest.approx(math.dist(right, (x, y)), abs=0.2)
    assert math.dist(end, (x, y)) == pytest.approx(5, abs=0.02)
    between = ((left[0] + right[0]) / 2, (left[1] + right[1]) / 2)
    for place in (end, between):
        assert abs(place[0] * y - place[1] * x) / math.hypot(x, y) < 0.1


def test_every_tone_has_its_rules_for_light_and_for_dark() -> None:
    style = ElementTree.fromstring(svg.drawing(1, 1, [], title="t")).find(f"{SVG}style").text
    light, dark = style.split("@media screen and (prefers-color-scheme: dark)")
    for name, tones in svg.TONES.items():
        for part, tone in zip((light, dark), tones, strict=True):
            assert f".fill-{name} {{ fill: {tone}; }}" in part
            assert f".line-{name} {{ stroke: {tone}; }}" in part


@pytest.mark.parametrize("dark", [0, 1])
def test_text_can_be_read_on_every_ground(dark: int) -> None:
    tones = {name: pair[dark] for name, pair in svg.TONES.items()}
    assert all(contrast(tones["ink"], tones[ground]) >= 7 for ground in ("paper", "panel", "blue", "green", "red"))
    assert all(contrast(tones[name], tones["paper"]) >= 4.5 for name in ("quiet", "accent", "bad"))
    assert all(contrast(tones[name], tones["paper"]) >= 3 for name in ("warm", "cool", "leaf"))


def test_a_drawing_needs_nothing_from_outside_and_has_no_ids() -> None:
    shown = svg.drawing(20, 10.5, [svg.arrow(0, 0, 9, 9), svg.path("M0 0h9", stroke="bad")], title="t", says="more")
    assert 'role="img"' in shown
    assert 'viewBox="0 0 20 10.5"' in shown
    assert not re.search(r"\bid=|url\(|href=|@import|src=", shown)
