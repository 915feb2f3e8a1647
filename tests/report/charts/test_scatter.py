"""Scatters: every point, the diagonal, and the points that no scale can show."""

from __future__ import annotations

from collections.abc import Callable

from wavetank.report.charts import Drawing
from wavetank.run.comparison import Comparison

Compared = Callable[..., Comparison]
Drawn = Callable[..., Drawing]
Texts = Callable[[Drawing], list[str]]
Described = Callable[[Drawing], str]


def test_a_scatter_shows_every_point_and_the_diagonal(
    plain: Compared, drawn: Drawn, texts: Texts, described: Described
) -> None:
    rows = [
        (name, "wait_s", factor * place, {"measured_s": place})
        for name, factor in (("base", 0.9), ("left", 1.1))
        for place in (1.0, 2.0, 8.0)
    ]
    drawing = drawn(plain(*rows), "scatter", by="measured_s")
    (panel,) = drawing.panels
    assert panel.svg.count('class="series"') == 2
    assert [key.system for key in drawing.legend] == ["base", "left"]
    assert "The dashed line is where both axes agree." in drawing.notes
    assert drawing.head == ("measured (s)", "base", "left")
    assert drawing.body[-1] == ("8", "7.20", "8.80")
    assert "base: 3 points, from 0.900 for 1 to 7.20 for 8 s" in described(drawing)
    assert {"measured (s)", "wait (s, lower is better)"} <= set(texts(drawing))


def test_a_scatter_has_a_panel_a_case_and_one_scale_for_both_axes(plain: Compared, drawn: Drawn, texts: Texts) -> None:
    rows = [("base", "wait_s", 0.002 * x, {"measured_s": 0.001 * x, "run": run}) for run in "ab" for x in (1, 5)]
    drawing = drawn(plain(*rows), "scatter", by="measured_s", log="xy")
    assert [panel.heading for panel in drawing.panels] == ["run: a", "run: b"]
    assert drawing.head[:2] == ("case", "measured (ms)")
    assert "measured (ms, log scale)" in texts(drawing)


def test_a_scatter_says_how_many_points_it_cannot_show(plain: Compared, drawn: Drawn) -> None:
    rows = [("base", "wait_s", value, {"measured_s": place}) for place, value in ((1.0, 2.0), (2.0, 0.0), (3.0, 4.0))]
    drawing = drawn(plain(*rows), "scatter", by="measured_s", log="xy")
    assert "Not drawn: 1 points that the scale cannot show." in drawing.notes
    assert drawn(plain(), "scatter", by="measured_s").panels == ()
    assert drawn(plain(("base", "wait_s", 1.0, {"measured_s": "soon"})), "scatter", by="measured_s").panels == ()
