"""Pareto charts: the front, and who is missing from it."""

from __future__ import annotations

import math
from collections.abc import Callable

from wavetank.report.charts import Drawing
from wavetank.run.comparison import Comparison

Compared = Callable[..., Comparison]
Drawn = Callable[..., Drawing]
Texts = Callable[[Drawing], list[str]]
Described = Callable[[Drawing], str]


def test_a_pareto_chart_joins_the_systems_that_nobody_beats(
    plain: Compared, drawn: Drawn, texts: Texts, described: Described
) -> None:
    points = {"base": (1.0, 10.0), "left": (0.5, 8.0), "right": (2.0, 9.0)}
    rows = [
        (name, metric, [value, value * 1.01])
        for name, pair in points.items()
        for metric, value in zip(("wait_s", "rate_per_s"), pair, strict=True)
    ]
    drawing = drawn(plain(*rows), "pareto", x="rate_per_s")
    assert "No other system beats on both: left and base." in described(drawing)
    assert 'class="front"' in drawing.panels[0].svg
    assert {"base", "left", "right"} <= set(texts(drawing))
    assert drawing.legend == ()


def test_a_pareto_chart_without_a_better_side_has_no_front(plain: Compared, drawn: Drawn, described: Described) -> None:
    rows = [(name, metric, 1.0) for name in ("base", "left", "right") for metric in ("wait_s", "steps")]
    drawing = drawn(plain(*rows), "pareto", x="steps")
    assert 'class="front"' not in drawing.panels[0].svg
    assert "beats" not in described(drawing)


def test_a_pareto_chart_says_which_systems_are_missing(plain: Compared, drawn: Drawn) -> None:
    rows = [
        ("base", "wait_s", 1.0),
        ("base", "rate_per_s", 5.0),
        ("left", "wait_s", math.inf),
        ("left", "rate_per_s", 5.0),
    ]
    drawing = drawn(plain(*rows), "pareto", x="rate_per_s")
    assert "Not drawn: left, its wait is infinite." in drawing.notes
