"""Forest plots: ratios with interval and range, groups by system or by case, and what is said of few pairs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from wavetank.report.charts import Drawing, draw_forest
from wavetank.report.charts.forest import ROWS
from wavetank.run.comparison import Comparison
from wavetank.study.answer import Answer
from wavetank.study.answer import Comparison as Pair
from wavetank.study.effects import effect

Compared = Callable[..., Comparison]
Texts = Callable[[Drawing], list[str]]
Described = Callable[[Drawing], str]


@pytest.fixture
def forest(plain: Compared) -> Callable[..., Drawing]:
    """Draw comparisons that are written down here: (system, case, ratios of the pairs, outcome)."""

    def build(*pairs: tuple[str, str, list[float], str], best: str = "", baseline: str = "base") -> Drawing:
        systems = tuple(dict.fromkeys(("base", *(pair[0] for pair in pairs))))
        run = plain(("base", "wait_s", 1.0), systems=systems)
        comparisons = tuple(
            Pair(system, baseline, "wait_s", case, effect(ratios), outcome) for system, case, ratios, outcome in pairs
        )
        most = max(len(pair[2]) for pair in pairs)
        run.__dict__["answer"] = Answer("So it is.", (), "wait_s", baseline, best, comparisons, most)
        drawing = draw_forest(run, "f")
        assert drawing is not None
        return drawing

    return build


SIX = [0.5, 0.51, 0.52, 0.5, 0.51, 0.49]


def test_a_row_has_the_ratio_its_interval_and_its_range(
    forest: Callable[..., Drawing], texts: Texts, described: Described
) -> None:
    drawing = forest(("left", "", SIX, "better"), ("right", "", [1.02, 0.99, 1.01, 1.0, 0.98, 1.03], "undecided"))
    (panel,) = drawing.panels
    assert drawing.title == "Wait against base"
    assert {"left", "right", "1", "ratio (lower is better, log scale)"} <= set(texts(drawing))
    assert any(re.fullmatch(r"×0.505 \(0.4\d\d–0.5\d\d\)", text) for text in texts(drawing))
    assert "left ×0.505" in described(drawing)
    assert "undecided" in described(drawing)
    assert drawing.body[0][0] == "left"
    assert drawing.body[0][-2:] == ("6", "better")
    assert any(note.startswith("Thick lines are 95 % intervals") for note in drawing.notes)
    assert "Hollow points are undecided." in drawing.notes
    assert not any("no interval" in note for note in drawing.notes)
    assert [round(mark.median, 3) for mark in panel.marks] == [0.505, 1.005]
    assert panel.marks[0].x < panel.marks[1].x


def test_below_six_pairs_the_range_is_drawn_thin_and_said(forest: Callable[..., Drawing]) -> None:
    few = forest(("left", "", [0.5, 0.6, 0.55], "better"))
    assert "3 pairs give no interval: 6 pairs are the fewest for one of 95 %." in few.notes
    assert "stroke-width: 2.6" not in few.panels[0].svg
    assert few.body[0][2:4] == ("-", "-")
    assert few.panels[0].marks[0].low == 0.5
    assert "stroke-width: 2.6" in forest(("left", "", SIX, "better")).panels[0].svg
    assert (
        "1 pair gives no interval: 6 pairs are the fewest for one of 95 %."
        in forest(("left", "", [0.5], "undecided")).notes
    )


def test_cases_are_headings_unless_systems_are_fewer(forest: Callable[..., Drawing], texts: Texts) -> None:
    cases = [("left", f"case {number}", SIX, "better") for number in range(4)]
    assert texts(forest(*cases)).count("left") == 1
    systems = [(f"s{number}", case, SIX, "better") for number in range(4) for case in ("one", "two")]
    assert texts(forest(*systems)).count("one") == 1


def test_more_rows_than_have_room_are_counted(forest: Callable[..., Drawing], texts: Texts) -> None:
    pairs = [(f"s{number}", f"c{case}", SIX, "better") for number in range(8) for case in range(6)]
    drawing = forest(*pairs, best="s7")
    assert len(drawing.panels[0].marks) == ROWS
    assert "s7" in texts(drawing)
    assert len(drawing.body) == 48
    assert "Not drawn: 18 further comparisons (of 3 systems); the table has all." in drawing.notes
    one = forest(*[("s", f"c{case}", SIX, "better") for case in range(50)])
    assert "Not drawn: 20 further comparisons; the table has all." in one.notes


def test_what_has_no_place_on_a_log_axis_is_said(forest: Callable[..., Drawing], texts: Texts) -> None:
    drawing = forest(("left", "", [0.0], "better"), ("right", "", [float("inf")], "worse"))
    assert {"infinite", "not above zero, which a log scale cannot show"} <= set(texts(drawing))
    assert drawing.panels[0].marks == ()


def test_without_comparisons_there_is_no_plot(routing: Comparison) -> None:
    drawing = draw_forest(routing, "f")
    assert drawing is not None
    assert [row[0] for row in drawing.body] == [name for name in routing.plan.systems if name != "vllm-default"]
    assert draw_forest(routing, "f") == drawing
    answer = routing.answer
    assert answer is not None
    for other in (None, replace(answer, comparisons=())):
        routing.__dict__["answer"] = other
        assert draw_forest(routing, "f") is None
