"""The timeline of a violation."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from wavetank.protocols.consistency.engine import Judgement, judge
from wavetank.protocols.consistency.generate import kv_history
from wavetank.protocols.consistency.timeline import timeline_page, timeline_svg
from wavetank.protocols.history import History, Operation

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
    assert found == {"0": "bar write circle", "1": "bar write open", "2": "bar culprit"}


def test_processes_are_lanes():
    names = [each.text for each in ET.fromstring(timeline_svg(STALE)).iter(SVG + "text") if each.get("class") == "name"]
    assert names == ["<a>", "c", "d"]


def test_the_page_holds_everything_itself_and_escapes_what_it_shows():
    page = timeline_page(STALE, [judge(STALE, "linearizable")], "<title>")
    assert page.startswith("<!doctype html>")
    assert "<b>" not in page
    assert "&lt;title&gt;" in page
    assert "<script" not in page
    assert re.findall(r"(?:src|href)=", page) == []
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


def test_an_empty_history_has_an_empty_picture():
    assert bars(timeline_svg(History(operations=()))) == {}
