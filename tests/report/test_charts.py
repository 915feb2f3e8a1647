"""Charts: what is drawn, what is said instead of drawing, and what accompanies a drawing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest

from wavetank.catalog import Catalog
from wavetank.comparison import Comparison
from wavetank.records import Record
from wavetank.report.charts import POINTS, TABLE_ROWS, Drawing, draw, styles
from wavetank.study import Chart, Metric, Study

Compared = Callable[..., Comparison]


@dataclass(frozen=True, kw_only=True)
class Plain(Study):
    """What is where?"""

    name: ClassVar[str] = "plain"
    systems: ClassVar[tuple[str, ...]] = ("base", "left", "right")
    baseline: ClassVar[str] = "base"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("wait_s", "s", "lower"),
        Metric("rate_per_s", "requests/s", "higher"),
        Metric("steps", "steps", ""),
    )


@pytest.fixture
def plain(compared: Compared) -> Callable[..., Comparison]:
    """Build a run of one metric from (system, value, coordinates) rows, without claims."""

    def build(*rows: tuple[object, ...], systems: tuple[str, ...] = Plain.systems) -> Comparison:
        units = {metric.name: metric.unit for metric in Plain.metrics}
        records = []
        for system, metric, value, *at in rows:
            values = value if isinstance(value, list) else [value]
            records += [
                Record("plain", system, seed, metric, each, units[metric], "simulated", at[0] if at else {})
                for seed, each in enumerate(values)
            ]
        comparison = compared(Plain(), records, systems=systems)
        comparison.__dict__["findings"] = []
        return comparison

    return build


def drawn(comparison: Comparison, kind: str, **more: str) -> Drawing:
    return draw(comparison, Chart(kind, "A chart", **{"y": "wait_s", **more}), "c")


def texts(drawing: Drawing) -> list[str]:
    return re.findall(r">([^<>\n]+)</text>", "".join(panel.svg for panel in drawing.panels))


def described(drawing: Drawing) -> str:
    return " ".join(re.search(r"<desc[^>]*>(.*?)</desc>", panel.svg, re.DOTALL)[1] for panel in drawing.panels)


def test_every_chart_of_a_study_is_drawn_with_name_and_description(routing: Comparison, sorting: Comparison) -> None:
    for comparison in (routing, sorting):
        for chart in comparison.study.charts:
            drawing = draw(comparison, chart, "c")
            assert drawing.panels
            for panel in drawing.panels:
                title = re.search(r"<title[^>]*>(.*?)</title>", panel.svg)[1].replace("&#x27;", "'")
                assert title == chart.title + (f", {panel.heading}" if panel.heading else "")
                assert 'role="img"' in panel.svg
                assert len(panel.svg) < 90_000
            assert chart.says.replace("'", "&#x27;") in described(drawing)
            assert drawing.body
            assert all(len(row) == len(drawing.head) for row in drawing.body)


def test_equal_records_give_equal_drawings(routing: Comparison) -> None:
    for chart in routing.study.charts:
        assert draw(routing, chart, "c") == draw(routing, chart, "c")


def test_a_system_looks_alike_in_every_run_of_a_study(known_systems: Catalog, routing: Comparison) -> None:
    looks = styles(routing)
    assert looks["vllm-default"].colour == 0
    assert len({(style.colour, style.marker) for style in looks.values()}) == 9
    part = Comparison(
        routing.study,
        type(routing.plan)(study="llm-routing", settings={}, systems=("balance-route", "random")),
        routing.records,
        {},
        (),
        routing.folder,
    )
    assert styles(part)["balance-route"] == looks["balance-route"]


def test_bars_show_systems_values_and_the_unit(plain: Callable[..., Comparison]) -> None:
    drawing = drawn(
        plain(("base", "wait_s", [0.9, 1.0]), ("left", "wait_s", [0.2, 0.3]), ("right", "wait_s", [2.0, 2.1])),
        "bars",
    )
    for text in ("base", "left", "right", "950", "250", "2,050", "wait (ms, lower is better)"):
        assert text in texts(drawing)
    assert drawing.body[1] == ("left", "250", "200", "300", "2")
    assert "left 250 (200 to 300)" in described(drawing)


def test_bars_say_what_cannot_be_drawn(plain: Callable[..., Comparison]) -> None:
    drawing = drawn(plain(("base", "wait_s", math.inf), ("left", "wait_s", math.nan)), "bars")
    assert {"infinite", "not a number", "no records"} <= set(texts(drawing))


def test_bars_on_a_log_scale_are_points(plain: Callable[..., Comparison]) -> None:
    drawing = drawn(
        plain(("base", "wait_s", 1.0), ("left", "wait_s", 100.0), ("right", "wait_s", 0.0)), "bars", log="x"
    )
    assert "wait (s, lower is better, log scale)" in texts(drawing)
    assert "not above zero, which a log scale cannot show" in texts(drawing)


def test_bars_are_grouped_by_a_coordinate(plain: Callable[..., Comparison]) -> None:
    rows = [(name, "wait_s", 1.0 + load, {"load": load}) for load in (0.5, 0.9) for name in Plain.systems]
    drawing = drawn(plain(*rows), "bars", by="load")
    assert {"load: 0.500", "load: 0.900"} <= set(texts(drawing))
    assert drawing.head[:2] == ("load", "system")
    many = [("base", "wait_s", 1.0, {"load": load}) for load in range(1, 20)]
    assert "Drawn are the first 12 of 19 groups; the table has all." in drawn(plain(*many), "bars", by="load").notes


def test_a_bar_that_no_group_asked_for_is_left_out(plain: Callable[..., Comparison]) -> None:
    rows = [
        ("base", "wait_s", 1.0, {"load": 1}),
        ("left", "wait_s", 1.0, {"load": 2}),
        ("base", "wait_s", 2.0, {"load": 2}),
    ]
    drawing = drawn(plain(*rows), "bars", by="load")
    assert [row[:2] for row in drawing.body if row[1] != "right"] == [("1", "base"), ("2", "base"), ("2", "left")]
    assert texts(drawing).count("no records") == 2


def test_a_pareto_chart_joins_the_systems_that_nobody_beats(plain: Callable[..., Comparison]) -> None:
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


def test_a_pareto_chart_without_a_better_side_has_no_front(plain: Callable[..., Comparison]) -> None:
    rows = [(name, metric, 1.0) for name in Plain.systems for metric in ("wait_s", "steps")]
    drawing = drawn(plain(*rows), "pareto", x="steps")
    assert 'class="front"' not in drawing.panels[0].svg
    assert "beats" not in described(drawing)


def test_a_pareto_chart_says_which_systems_are_missing(plain: Callable[..., Comparison]) -> None:
    rows = [
        ("base", "wait_s", 1.0),
        ("base", "rate_per_s", 5.0),
        ("left", "wait_s", math.inf),
        ("left", "rate_per_s", 5.0),
    ]
    drawing = drawn(plain(*rows), "pareto", x="rate_per_s")
    assert "Not drawn: left, its wait is infinite." in drawing.notes


def test_few_curves_are_named_at_their_end_and_many_in_a_legend(
    plain: Callable[..., Comparison], routing: Comparison
) -> None:
    rows = [(name, "wait_s", [1.0 + load, 1.1 + load], {"load": load}) for name in Plain.systems for load in (0.5, 0.9)]
    few = drawn(plain(*rows), "sweep", by="load")
    assert few.legend == ()
    assert {"base", "left", "right", "load"} <= set(texts(few))
    assert "Bands are 95 % intervals over seeds." in few.notes
    many = draw(routing, routing.study.charts[2], "c")
    assert [key.system for key in many.legend] == list(routing.plan.systems)
    for key in many.legend:
        assert f'data-series="{key.index}"' in many.panels[0].svg


def test_curves_beyond_the_palette_are_grey_and_named(compared: Compared) -> None:
    names = tuple(f"system-{number:02d}" for number in range(20))
    records = [
        Record("plain", name, 0, "wait_s", 1.0 + number + load, "s", "simulated", {"load": load})
        for number, name in enumerate(names)
        for load in (0.1, 0.5, 0.9)
    ]
    comparison = compared(Plain(), records, systems=names)
    comparison.__dict__["findings"] = []
    drawing = drawn(comparison, "sweep", by="load")
    assert len(drawing.legend) == 20
    assert "var(--rest, " in drawing.panels[0].svg
    assert "system-19" in texts(drawing)
    assert "system-03" not in texts(drawing)


def test_holes_of_curves_are_named(plain: Callable[..., Comparison]) -> None:
    rows = [
        ("base", "wait_s", 1.0, {"load": 0.5}),
        ("base", "wait_s", math.inf, {"load": 0.9}),
        ("left", "wait_s", math.nan, {"load": 0.5}),
        ("left", "wait_s", 0.0, {"load": 0.9}),
        ("right", "wait_s", 2.0, {"load": 0.0}),
        ("right", "wait_s", 2.0, {"load": 0.9}),
    ]
    notes = drawn(plain(*rows), "sweep", by="load", log="xy").notes
    below = "not above zero, which a log scale cannot show"
    assert notes[:4] == (
        "Not drawn: base at load 0.9, infinite.",
        "Not drawn: left at load 0.5, not a number.",
        f"Not drawn: left at load 0.9, {below}.",
        f"Not drawn: right at load 0, {below}.",
    )


def test_a_sweep_may_run_along_words(plain: Callable[..., Comparison]) -> None:
    rows = [("base", "wait_s", 1.0, {"network": name}) for name in ("wan", "lan", "rack")]
    drawing = drawn(plain(*rows), "sweep", by="network")
    assert [text for text in texts(drawing) if text in ("wan", "lan", "rack")] == ["wan", "lan", "rack"]
    assert [row[0] for row in drawing.body] == ["wan", "lan", "rack"]


def test_other_coordinates_become_panels(plain: Callable[..., Comparison]) -> None:
    rows = [("base", "wait_s", load * size, {"load": load, "size": size}) for size in (8, 16) for load in (0.5, 0.9)]
    drawing = drawn(plain(*rows), "sweep", by="load")
    assert [panel.heading for panel in drawing.panels] == ["size: 8", "size: 16"]
    assert drawing.head == ("case", "load", "base")
    many = [("base", "wait_s", load, {"load": load, "size": size}) for size in range(11) for load in (0.5, 0.9)]
    crowded = drawn(plain(*many), "sweep", by="load")
    assert len(crowded.panels) == 8
    assert "Drawn are the first 8 of 11 cases; the table has all." in crowded.notes


def test_coordinates_are_shown_with_their_unit(routing: Comparison) -> None:
    drawing = draw(routing, routing.study.charts[3], "c")
    assert "refresh (ms, log scale)" in texts(drawing)
    assert drawing.body[0][0] == "1"
    assert drawing.body[-1][0] == "1,000"


def test_a_distribution_may_count_in_nines(plain: Callable[..., Comparison]) -> None:
    rows = [("base", "wait_s", 1 / (1.001 - q), {"quantile": q}) for q in (0.5, 0.9, 0.99, 0.999, 1.0)]
    drawing = drawn(plain(*rows), "distribution", by="quantile", log="x")
    assert {"50 %", "90 %", "99 %", "99.9 %", "quantile, counted in nines"} <= set(texts(drawing))
    assert "Not drawn: base at quantile 1, the end of the scale." in drawing.notes
    straight = drawn(plain(*rows), "distribution")
    assert "quantile" in texts(straight)


def test_a_long_timeline_keeps_its_spikes(plain: Callable[..., Comparison]) -> None:
    rows = [("base", "wait_s", 50.0 if second == 777 else 1.0, {"time_s": second}) for second in range(5000)]
    rows += [("left", "wait_s", math.nan if second == 4000 else 2.0, {"time_s": second}) for second in range(5000)]
    drawing = drawn(plain(*rows), "timeline")
    assert len(drawing.panels[0].svg) < 40_000
    assert "at most 50 s at time 777" in described(drawing)
    assert len(drawing.body) == TABLE_ROWS
    assert f"The table of figures shows {TABLE_ROWS} of 5000 rows, evenly spread." in drawing.notes
    assert "Not drawn: left at time 4,000, not a number." in drawing.notes
    path = re.search(r'data-series="0">\s*<path d="([^"]*)"', drawing.panels[0].svg)[1]
    heights = [float(height) for height in re.findall(r"[ML] [\d.]+ ([\d.]+)", path)]
    assert min(heights) < 50
    assert len(heights) <= POINTS + 2


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
    plain: Callable[..., Comparison], kind: str, more: dict[str, str], says: str
) -> None:
    drawing = drawn(plain(), kind, **more)
    assert drawing.panels == ()
    assert len(drawing.notes) == 1
    assert drawing.notes[0].endswith(says)


def test_papers_figures_are_hollow_and_explained(routing: Comparison) -> None:
    bars = draw(routing, routing.study.charts[1], "c")
    assert 'class="paper"' in bars.panels[0].svg
    assert (
        "Hollow diamonds are the papers' figures; ratios stand at that multiple of our median of vllm-default."
        in bars.notes
    )
    sweep = draw(routing, routing.study.charts[2], "c")
    assert any("Hollow diamonds" in note for note in sweep.notes)
    stale = draw(routing, routing.study.charts[3], "c")
    assert not any("Hollow diamonds" in note for note in stale.notes)


def test_names_are_text_whatever_they_hold(plain: Callable[..., Comparison]) -> None:
    names = ("base", "<script>alert(1)</script>", "a & $b$ \"c\" 'd'")
    rows = [(name, "wait_s", [1.0, 2.0]) for name in names]
    svg = drawn(plain(*rows, systems=names), "bars").panels[0].svg
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
    assert "a &amp; $b$" in svg


def test_huge_and_tiny_figures_are_drawn_or_named(plain: Callable[..., Comparison]) -> None:
    rows = [("base", "wait_s", 1e-300), ("left", "wait_s", 1e300), ("right", "wait_s", -5.0)]
    assert "too large to draw" in texts(drawn(plain(*rows), "bars"))
    assert drawn(plain(*rows), "bars", log="x").panels


def test_a_scatter_shows_every_point_and_the_diagonal(plain: Callable[..., Comparison]) -> None:
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


def test_a_scatter_has_a_panel_a_case_and_one_scale_for_both_axes(plain: Callable[..., Comparison]) -> None:
    rows = [("base", "wait_s", 0.002 * x, {"measured_s": 0.001 * x, "run": run}) for run in "ab" for x in (1, 5)]
    drawing = drawn(plain(*rows), "scatter", by="measured_s", log="xy")
    assert [panel.heading for panel in drawing.panels] == ["run: a", "run: b"]
    assert drawing.head[:2] == ("case", "measured (ms)")
    assert "measured (ms, log scale)" in texts(drawing)


def test_a_scatter_says_how_many_points_it_cannot_show(plain: Callable[..., Comparison]) -> None:
    rows = [("base", "wait_s", value, {"measured_s": place}) for place, value in ((1.0, 2.0), (2.0, 0.0), (3.0, 4.0))]
    drawing = drawn(plain(*rows), "scatter", by="measured_s", log="xy")
    assert "Not drawn: 1 points that the scale cannot show." in drawing.notes
    assert drawn(plain(), "scatter", by="measured_s").panels == ()
    assert drawn(plain(("base", "wait_s", 1.0, {"measured_s": "soon"})), "scatter", by="measured_s").panels == ()
