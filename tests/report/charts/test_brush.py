"""Every chart: name and description, steady looks, hostile names and figures."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from wavetank.ledger import catalog
from wavetank.ledger.catalog import Catalog
from wavetank.report.canvas import PALETTE
from wavetank.report.charts import Drawing, draw, styles
from wavetank.run.comparison import Comparison
from wavetank.run.runfolder import Plan

Compared = Callable[..., Comparison]
Drawn = Callable[..., Drawing]
Texts = Callable[[Drawing], list[str]]
Described = Callable[[Drawing], str]


def test_every_chart_of_a_study_is_drawn_with_name_and_description(
    routing: Comparison, sorting: Comparison, described: Described
) -> None:
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


def test_where_colours_run_out_the_systems_that_a_study_is_about_have_one() -> None:
    study = catalog.study("llm-routing").load()()
    systems = (*catalog.built_in().plain_run("llm-routing"), "mine")
    run = Comparison(study, Plan(study="llm-routing", settings={}, systems=systems), (), {}, (), Path("nowhere"))
    looks = styles(run)
    assert len(systems) > len(PALETTE) + 1
    for name in ("balance-route", "balance-route-0", "mine"):
        assert looks[name].colour > 0
    assert sorted(style.colour for style in looks.values() if style.colour >= 0) == list(range(len(PALETTE)))
    assert [looks[name].index for name in systems] == list(range(len(systems)))


def test_names_are_text_whatever_they_hold(plain: Compared, drawn: Drawn) -> None:
    names = ("base", "<script>alert(1)</script>", "a & $b$ \"c\" 'd'")
    rows = [(name, "wait_s", [1.0, 2.0]) for name in names]
    svg = drawn(plain(*rows, systems=names), "bars").panels[0].svg
    assert "<script" not in svg
    assert "&lt;script&gt;" in svg
    assert "a &amp; $b$" in svg


def test_huge_and_tiny_figures_are_drawn_or_named(plain: Compared, drawn: Drawn, texts: Texts) -> None:
    rows = [("base", "wait_s", 1e-300), ("left", "wait_s", 1e300), ("right", "wait_s", -5.0)]
    assert "too large to draw" in texts(drawn(plain(*rows), "bars"))
    assert drawn(plain(*rows), "bars", log="x").panels
