"""Bars: values, groups, and what is said in place of a bar."""

from __future__ import annotations

import math
from collections.abc import Callable

from wavetank.report.charts import Drawing
from wavetank.run.comparison import Comparison

Compared = Callable[..., Comparison]
Drawn = Callable[..., Drawing]
Texts = Callable[[Drawing], list[str]]
Described = Callable[[Drawing], str]


def test_bars_show_systems_values_and_the_unit(
    plain: Compared, drawn: Drawn, texts: Texts, described: Described
) -> None:
    drawing = drawn(
        plain(("base", "wait_s", [0.9, 1.0]), ("left", "wait_s", [0.2, 0.3]), ("right", "wait_s", [2.0, 2.1])),
        "bars",
    )
    for text in ("base", "left", "right", "950", "250", "2,050", "wait (ms, lower is better)"):
        assert text in texts(drawing)
    assert drawing.body[1] == ("left", "250", "200", "300", "2")
    assert "left 250 (200 to 300)" in described(drawing)


def test_bars_say_what_cannot_be_drawn(plain: Compared, drawn: Drawn, texts: Texts) -> None:
    drawing = drawn(plain(("base", "wait_s", math.inf), ("left", "wait_s", math.nan)), "bars")
    assert {"infinite", "not a number", "no records"} <= set(texts(drawing))


def test_bars_on_a_log_scale_are_points(plain: Compared, drawn: Drawn, texts: Texts) -> None:
    drawing = drawn(
        plain(("base", "wait_s", 1.0), ("left", "wait_s", 100.0), ("right", "wait_s", 0.0)), "bars", log="x"
    )
    assert "wait (s, lower is better, log scale)" in texts(drawing)
    assert "not above zero, which a log scale cannot show" in texts(drawing)


def test_bars_are_grouped_by_a_coordinate(plain: Compared, drawn: Drawn, texts: Texts) -> None:
    rows = [(name, "wait_s", 1.0 + load, {"load": load}) for load in (0.5, 0.9) for name in ("base", "left", "right")]
    drawing = drawn(plain(*rows), "bars", by="load")
    assert {"load: 0.500", "load: 0.900"} <= set(texts(drawing))
    assert drawing.head[:2] == ("load", "system")
    many = [("base", "wait_s", 1.0, {"load": load}) for load in range(1, 20)]
    assert "Drawn are the first 12 of 19 groups; the table has all." in drawn(plain(*many), "bars", by="load").notes


def test_bars_begin_at_zero_and_shares_end_at_one(plain: Compared, drawn: Drawn, texts: Texts) -> None:
    high = texts(drawn(plain(("base", "wait_s", 9.0), ("left", "wait_s", 10.0)), "bars"))
    assert {"0", "2", "10"} <= set(high)
    shares = texts(drawn(plain(("base", "late_share", 0.97), ("left", "late_share", 1.0)), "bars", y="late_share"))
    assert {"0", "0.2", "1"} <= set(shares)
    assert not {"1.05", "1.1", "1.2"} & set(shares)


def test_every_bar_can_be_pointed_at(plain: Compared, drawn: Drawn) -> None:
    rows = [(name, "wait_s", [value, value + 1], {"load": 1.0}) for name, value in (("base", 1.0), ("left", 2.0))]
    drawing = drawn(plain(*rows), "bars", by="load")
    (panel,) = drawing.panels
    assert [(mark.at, mark.median, mark.low, mark.high) for mark in panel.marks] == [("1", 1.5, 1, 2), ("1", 2.5, 2, 3)]
    left, top, right, bottom = panel.box
    assert all(left <= mark.x <= right and top <= mark.y <= bottom for mark in panel.marks)
    assert [name for _, name, _ in drawing.series] == ["base", "left"]


def test_a_bar_that_no_group_asked_for_is_left_out(plain: Compared, drawn: Drawn, texts: Texts) -> None:
    rows = [
        ("base", "wait_s", 1.0, {"load": 1}),
        ("left", "wait_s", 1.0, {"load": 2}),
        ("base", "wait_s", 2.0, {"load": 2}),
    ]
    drawing = drawn(plain(*rows), "bars", by="load")
    assert [row[:2] for row in drawing.body if row[1] != "right"] == [("1", "base"), ("2", "base"), ("2", "left")]
    assert "no records" not in texts(drawing)
    assert "Without records of it: right." in drawing.notes
