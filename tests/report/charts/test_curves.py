"""Curves: labels, holes, coordinates, panels and the length of what is drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from wavetank.report.charts import POINTS, TABLE_ROWS, Drawing, draw
from wavetank.run.comparison import Comparison
from wavetank.study.records import Record

Compared = Callable[..., Comparison]
Drawn = Callable[..., Drawing]
Texts = Callable[[Drawing], list[str]]
Described = Callable[[Drawing], str]


def test_few_curves_are_named_at_their_end_and_many_in_a_legend(
    plain: Compared, routing: Comparison, drawn: Drawn, texts: Texts
) -> None:
    rows = [
        (name, "wait_s", [1.0 + load, 1.1 + load], {"load": load})
        for name in ("base", "left", "right")
        for load in (0.5, 0.9)
    ]
    few = drawn(plain(*rows), "sweep", by="load")
    assert few.legend == ()
    assert {"base", "left", "right", "load"} <= set(texts(few))
    assert "Bands show least to most." in few.notes
    enough = [(name, "wait_s", [value + seed / 10 for seed in range(6)], at) for name, _, (value, _), at in rows]
    assert "Bands show 95 % intervals." in drawn(plain(*enough), "sweep", by="load").notes
    both = drawn(plain(*enough[:4], *rows[4:]), "sweep", by="load")
    assert "Bands show 95 % intervals, or least to most of fewer than 6." in both.notes
    many = draw(routing, routing.study.charts[2], "c")
    assert [key.system for key in many.legend] == list(routing.plan.systems)
    for key in many.legend:
        assert f'data-series="{key.index}"' in many.panels[0].svg


def test_curves_beyond_the_palette_are_grey_and_named(
    compared: Compared, plain: Compared, drawn: Drawn, texts: Texts
) -> None:
    names = tuple(f"system-{number:02d}" for number in range(20))
    records = [
        Record("plain", name, 0, "wait_s", 1.0 + number + load, "s", "simulated", {"load": load})
        for number, name in enumerate(names)
        for load in (0.1, 0.5, 0.9)
    ]
    comparison = compared(plain().study, records, systems=names)
    comparison.__dict__["findings"] = []
    drawing = drawn(comparison, "sweep", by="load")
    assert len(drawing.legend) == 20
    assert "var(--rest, " in drawing.panels[0].svg
    assert "system-19" in texts(drawing)
    assert "system-03" not in texts(drawing)


def test_holes_of_curves_are_named(plain: Compared, drawn: Drawn) -> None:
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


def test_a_sweep_may_run_along_words(plain: Compared, drawn: Drawn, texts: Texts) -> None:
    rows = [("base", "wait_s", 1.0, {"network": name}) for name in ("wan", "lan", "rack")]
    drawing = drawn(plain(*rows), "sweep", by="network")
    assert [text for text in texts(drawing) if text in ("wan", "lan", "rack")] == ["wan", "lan", "rack"]
    assert [row[0] for row in drawing.body] == ["wan", "lan", "rack"]


def test_other_coordinates_become_panels(plain: Compared, drawn: Drawn) -> None:
    rows = [("base", "wait_s", load * size, {"load": load, "size": size}) for size in (8, 16) for load in (0.5, 0.9)]
    drawing = drawn(plain(*rows), "sweep", by="load")
    assert [panel.heading for panel in drawing.panels] == ["size: 8", "size: 16"]
    assert drawing.head == ("case", "load", "base")
    many = [("base", "wait_s", load, {"load": load, "size": size}) for size in range(11) for load in (0.5, 0.9)]
    crowded = drawn(plain(*many), "sweep", by="load")
    assert len(crowded.panels) == 8
    assert "Drawn are the first 8 of 11 cases; the table has all." in crowded.notes


def test_coordinates_are_shown_with_their_unit(routing: Comparison, texts: Texts) -> None:
    drawing = draw(routing, routing.study.charts[3], "c")
    assert "refresh (ms, log scale)" in texts(drawing)
    assert drawing.body[0][0] == "1"
    assert drawing.body[-1][0] == "1,000"


def test_a_distribution_may_count_in_nines(plain: Compared, drawn: Drawn, texts: Texts) -> None:
    rows = [("base", "wait_s", 1 / (1.001 - q), {"quantile": q}) for q in (0.5, 0.9, 0.99, 0.999, 1.0)]
    drawing = drawn(plain(*rows), "distribution", by="quantile", log="x")
    assert {"50 %", "90 %", "99 %", "99.9 %", "quantile, counted in nines"} <= set(texts(drawing))
    assert "Not drawn: base at quantile 1, the end of the scale." in drawing.notes
    assert "quantile, counted in nines" in texts(drawn(plain(*rows), "distribution"))
    straight = drawn(plain(*rows[:2], *rows[4:]), "distribution")
    assert "quantile" in texts(straight)


def test_what_is_missing_of_every_curve_is_said_once(plain: Compared, drawn: Drawn) -> None:
    rows = [(name, "wait_s", 0.0, {"load": load}) for name in ("base", "left", "right", "x") for load in (1, 2)]
    rows += [(name, "wait_s", 5.0, {"load": 3}) for name in ("base", "left", "right", "x")]
    notes = drawn(plain(*rows, systems=("base", "left", "right", "x")), "sweep", by="load", log="y").notes
    assert "Not drawn: all systems at load 1 and load 2, not above zero, which a log scale cannot show." in notes


def test_a_long_timeline_keeps_its_spikes(plain: Compared, drawn: Drawn, described: Described) -> None:
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
