from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from wavetank.check.explore import AnyOf, Environment, explore
from wavetank.check.explore.chart import as_svg, as_text, message_in_words
from wavetank.check.explore.counterexample import Path, follow
from wavetank.check.explore.parts import Action
from wavetank.check.explore.system import System
from wavetank.protocols.exploration.two_phase_commit import Prepared, TwoPhaseCommit
from wavetank.sim.node import Message

SVG = "{http://www.w3.org/2000/svg}"


class Pair(Message, frozen=True):
    """Two things."""

    one: object
    other: object


def path(*actions: Action, size: int = 3, **environment: object) -> Path:
    system = System(TwoPhaseCommit(), size, environment=Environment(**environment))  # type: ignore[arg-type]
    return follow(system, actions)


EVERYTHING = (
    Action("timer", 1, -1, "prepare"),
    Action("duplicate", 0, 1, Prepared()),
    Action("drop", 0, 1, Prepared()),
    Action("crash", 0),
    Action("deliver", 0, 1, Prepared()),
    Action("recover", 0),
)


def everything() -> Path:
    return path(*EVERYTHING, drops=1, duplicates=1, crashes=1, recoveries=1)


def test_a_chart_in_text_draws_every_step_on_its_line() -> None:
    text = as_text(everything(), says="it went wrong")
    lines = [line.rstrip() for line in text.splitlines()]
    assert lines == [
        "    0       1       2",
        "1   |       *       |  1 timer 'prepare'",
        "2   |2------o       |  1->0 Prepared will come twice",
        "3   |x------o       |  1->0 Prepared is lost",
        "4   X       |       |  0 crashes",
        "5   :x------o       |  1->0 Prepared (node is down)",
        "6   ^       |       |  0 recovers",
        "It went wrong.",
    ]


@pytest.mark.parametrize("width", [40, 66, 80])
def test_no_line_of_a_chart_is_wider_than_asked(width: int) -> None:
    found = explore(TwoPhaseCommit(missing=1), 4, environment=Environment(channels="set"))
    assert found.counterexample is not None
    assert max(map(len, found.counterexample.chart(width).splitlines())) <= width


def test_a_cycle_is_marked() -> None:
    text = as_text(path(Action("timer", 1, -1, "prepare"), Action("deliver", 0, 1, Prepared())), cycle=1)
    assert text.splitlines()[2].startswith("2 ~")
    assert "repeat for ever (1 of them)" in text


def test_an_svg_is_well_formed_and_draws_what_happened() -> None:
    root = ElementTree.fromstring(as_svg(everything(), says='a "<bad>" end'))
    assert root.tag == f"{SVG}svg"
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert {"node 0", "node 1", "node 2", "0 crashes", 'a "<bad>" end'} <= set(texts)
    dashed = [line for line in root.iter(f"{SVG}line") if line.get("class") == "line-faint dashed"]
    assert len(dashed) == 1
    assert "http" not in as_svg(everything()).replace("http://www.w3.org/2000/svg", "")


def test_an_arrow_slants_from_where_its_message_was_sent() -> None:
    sent = Action("timer", 1, -1, "prepare")
    between = Action("timer", 2, -1, "prepare")
    root = ElementTree.fromstring(as_svg(path(sent, between, Action("deliver", 0, 1, Prepared()))))
    (arrow,) = [line for line in root.iter(f"{SVG}line") if line.get("class") == "line-accent"]
    marks = [circle.get("cy") for circle in root.iter(f"{SVG}circle")]
    assert arrow.get("y1") == marks[0]
    assert float(str(arrow.get("y2"))) > int(str(marks[1]))


def test_what_a_node_sends_is_text_whatever_it_holds() -> None:
    hostile = "<script>\x00\U0001f41b " + "x" * 500
    shown = as_svg(path(Action("crash", 0), crashes=1), says=hostile)
    root = ElementTree.fromstring(shown)
    assert "<script" not in shown
    assert root.get("aria-label") == hostile.replace("\x00", "\u2400")
    assert int(root.get("width", "")) > 500 * 7


def test_a_faulty_node_is_named_so() -> None:
    found = explore(TwoPhaseCommit(), 2, faults=(AnyOf(members=(1,), menu=(Prepared(),)),))
    shown = found.terminal[0]
    assert "node 1 (faulty)" in as_svg(shown)


def test_messages_are_told_by_name_and_fields() -> None:
    assert message_in_words(Prepared()) == "Prepared"
    assert message_in_words(Pair(1, ("a", Pair(2, ())))) == "Pair(one=1, other=('a', Pair(one=2, other=())))"
