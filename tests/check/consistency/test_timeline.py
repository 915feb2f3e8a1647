"""The timeline of a violation."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from wavetank.check.consistency.engine import Judgement, judge
from wavetank.check.consistency.generate import kv_history
from wavetank.check.consistency.timeline import timeline_page, timeline_svg
from wavetank.sim.history import History, Operation

SVG = "{http://www.w3.org/2000/svg}"
STALE = History(
    operations=(
        Operation(process="<a>", action="write", key="x", value="<b>", invoked=0.0, returned=1.0),
        Operation(process="c", action="cas", key="x", value=[1, 2], invoked=1.5),
        Operation(process="d", action="read", key="x", result=0, invoked=2.0, returned=3.0),
    ),
    initial=0,
)


def bars(svg):
    found = {}
    for group in ET.fromstring(svg).iter(SVG + "g"):
        number = group.find(SVG + "title").text.split(":")[0]
        found[number] = group.find(SVG + "rect").get("class")
    return found


def test_operations_are_bars_and_the_culprit_is_marked():
    found = bars(timeline_svg(STALE, culprit=2, cycle=(0,)))
    assert found == {"0": "fill-green line-warm", "1": "fill-green line-leaf dashed", "2": "fill-red line-bad"}


def test_processes_are_lanes():
    texts = ET.fromstring(timeline_svg(STALE)).iter(SVG + "text")
    names = [each.text for each in texts if each.get("text-anchor") == "end"]
    assert names == ["<a>", "c", "d"]


def test_the_page_holds_everything_itself_and_escapes_what_it_shows():
    page = timeline_page(STALE, [judge(STALE, "linearizable")], "<title>")
    assert page.startswith("<!doctype html>")
    assert "<b>" not in page
    assert "&lt;title&gt;" in page
    assert "<script" not in page
    assert re.findall(r"(?:src|href)=\S*", page) == ['href="data:,">']
    assert set(re.findall(r"https?://[^\" ]+", page)) == {"http://www.w3.org/2000/svg"}


def test_equal_pictures_are_drawn_once():
    found = [judge(STALE, name) for name in ("linearizable", "strict-serializable")]
    assert timeline_page(STALE, found, "x").count("<svg") == 1
    assert timeline_page(STALE, [Judgement(model="weak", outcome="holds")], "x").count("<svg") == 0


def test_of_a_long_history_the_part_around_the_culprit_is_drawn():
    history = kv_history(clients=20, operations=1000, keys=3, seed=0)
    found = bars(timeline_svg(history, culprit=700))
    assert "700" in found
    assert len(found) < 200
    assert all(abs(int(number) - 700) < 200 for number in found)


def test_names_and_values_are_text_whatever_they_hold():
    hostile = ["<script>", "\"'&", "\x00\x1b[31m\ud800", "\U0001f41b" * 30, "w" * 2000]
    history = History(
        operations=tuple(
            Operation(process=text, action="write", key=text, value=text, invoked=float(at), returned=at + 0.5)
            for at, text in enumerate(hostile)
        )
    )
    page = timeline_page(history, [Judgement(model="m", outcome="violated", says=hostile[2], culprit=4)], hostile[2])
    page.encode("utf-8")
    assert "<script" not in page
    assert not re.search("[\x00-\x08\x0b-\x1f]", page)
    svg = ET.fromstring(page[page.index("<svg") : page.index("</svg>") + len("</svg>")])
    shown = [each.text for each in svg.iter(SVG + "text")]
    assert max(map(len, shown)) < 40
    # All of a long value is there for a pointer that rests on its bar.
    assert any("w" * 39 in each.text for each in svg.iter(SVG + "title"))


def test_an_empty_history_has_an_empty_picture():
    assert bars(timeline_svg(History(operations=()))) == {}
