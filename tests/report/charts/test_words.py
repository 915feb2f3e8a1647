"""What is said instead of drawing, and what explains the marks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wavetank.report.charts import Drawing, draw
from wavetank.run.comparison import Comparison

Compared = Callable[..., Comparison]
Drawn = Callable[..., Drawing]


@pytest.mark.parametrize(
    ("kind", "more", "says"),
    [
        ("bars", {}, "no records of wait_s."),
        ("sweep", {"by": "load"}, "no records of wait_s along load."),
        ("distribution", {}, "no records of wait_s along quantile."),
        ("timeline", {}, "no records of wait_s along time_s."),
        ("pareto", {"x": "steps"}, "no records of steps and wait_s together."),
        ("pareto", {}, "the study has no metric named ''."),
        ("bars", {"y": "nothing"}, "the study has no metric named 'nothing'."),
        ("pie", {}, "draws no charts of the kind 'pie'."),
    ],
)
def test_a_chart_without_figures_is_a_sentence(
    plain: Compared, kind: str, more: dict[str, str], says: str, drawn: Drawn
) -> None:
    drawing = drawn(plain(), kind, **more)
    assert drawing.panels == ()
    assert len(drawing.notes) == 1
    assert drawing.notes[0].endswith(says)


def test_papers_figures_are_hollow_and_explained(routing: Comparison) -> None:
    bars = draw(routing, routing.study.charts[1], "c")
    assert "fill: none; stroke: currentColor" in bars.panels[0].svg
    assert (
        "Hollow diamonds are the papers' figures; ratios stand at that multiple of our median of vllm-default."
        in bars.notes
    )
    sweep = draw(routing, routing.study.charts[2], "c")
    assert any("Hollow diamonds" in note for note in sweep.notes)
    stale = draw(routing, routing.study.charts[3], "c")
    assert not any("Hollow diamonds" in note for note in stale.notes)
