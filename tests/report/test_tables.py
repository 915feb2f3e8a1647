"""The main table: what is in it, and its four renderings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest
from wavetank_toys.studies import ToyTiming

from wavetank.catalog import Catalog
from wavetank.comparison import Comparison
from wavetank.execute import FailedTrial
from wavetank.records import Record
from wavetank.report import Table, main_table
from wavetank.study import Metric, Study

Compared = Callable[..., Comparison]


@dataclass(frozen=True, kw_only=True)
class Queue(Study):
    """Who waits least?"""

    name: ClassVar[str] = "queue"
    systems: ClassVar[tuple[str, ...]] = ("numpy", "radix", "pdq")
    baseline: ClassVar[str] = "numpy"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("wait_s", "s", "lower", of="arrival to service"),
        Metric("served_per_s", "requests/s", "higher"),
        Metric("steps", "steps", "", kind="counted"),
        Metric("detail_s", "s", "lower", table=False),
    )


def rows(values: Mapping[str, list[float]], metric: str = "wait_s", **at: float | str) -> list[Record]:
    unit, kind = {
        "wait_s": ("s", "simulated"),
        "served_per_s": ("requests/s", "simulated"),
        "steps": ("steps", "counted"),
    }[metric]
    return [
        Record("queue", system, seed, metric, value, unit, kind, at)
        for system, given in values.items()
        for seed, value in enumerate(given)
    ]


CLEAR = {"numpy": [1.0, 1.1, 1.2], "radix": [0.2, 0.21, 0.22], "pdq": [0.9, 1.0, 1.1]}


@pytest.fixture
def table_of(known_systems: Catalog, compared: Compared) -> Callable[..., Table]:
    def build(records: list[Record], **more: object) -> Table:
        return main_table(compared(Queue(), records, **{"seeds": 3, **more}))

    return build


def test_the_text_table_shows_median_interval_leader_and_ratio(table_of: Callable[..., Table]) -> None:
    text = table_of(rows(CLEAR)).as_text()
    assert text.splitlines() == [
        "queue: 3 systems, 3 seeds, all figures simulated",
        "",
        "           wait",
        "           s, lower",
        "numpy (b)   1.10  1..1.20",
        "radix      0.210* 0.200..0.220 x0.191",
        "pdq            1  0.900..1.10  x0.909",
        "",
        "(b) the baseline",
        "* leads: its interval lies clear of all others",
        "x ratio to the baseline numpy, seed by seed",
    ]


def test_nothing_is_a_multiple_of_a_baseline_of_0(table_of: Callable[..., Table]) -> None:
    table = table_of(rows({"numpy": [0.0, 0.0], "radix": [0.2, 0.3]}), systems=("numpy", "radix"))
    assert "inf" not in table.as_text()
    assert "ratio to the baseline" not in table.as_text()
    assert "&times;inf" not in table.as_html() and "×inf" not in table.as_html()


def test_no_winner_is_named_where_intervals_overlap(table_of: Callable[..., Table]) -> None:
    table = table_of(rows({"numpy": [1.0, 1.2, 1.4], "radix": [1.1, 1.2, 1.3], "pdq": [5.0, 5.1, 5.2]}))
    assert [line.cells[0].lead for line in table.lines] == ["shared", "shared", ""]
    assert table.leading() == "Nobody leads: on no metric does one system's interval lie clear of all others."
    assert "~ among the best: intervals overlap" in table.as_text()


def test_marks_are_left_out_where_everybody_is_among_the_best(table_of: Callable[..., Table]) -> None:
    table = table_of(rows({"numpy": [1.0, 1.2], "radix": [1.1, 1.2]}), systems=("numpy", "radix"))
    assert {line.cells[0].lead for line in table.lines} == {""}


def test_who_leads_is_said_in_words(table_of: Callable[..., Table]) -> None:
    table = table_of(rows(CLEAR) + rows({name: [1.0, 2.0, 3.0] for name in CLEAR}, "served_per_s"))
    assert table.leading() == "radix leads on wait. On one other metric nobody is clear of all others."


def test_one_seed_has_no_interval_and_no_leader(table_of: Callable[..., Table]) -> None:
    table = table_of(rows({name: values[:1] for name, values in CLEAR.items()}), seeds=1)
    text = table.as_text()
    assert "1 seed," in text
    assert ".." not in text
    assert "*" not in text
    assert table.leading() == "One seed gives no interval, so nobody is said to lead."


def test_a_figure_that_only_explains_has_no_leader(table_of: Callable[..., Table]) -> None:
    table = table_of(rows({name: [10 * v for v in values] for name, values in CLEAR.items()}, "steps"))
    assert not any(line.cells[0].lead for line in table.lines)
    assert "nothing to lead on" in table.leading()


def test_missing_infinite_and_undefined_figures_are_told_apart(table_of: Callable[..., Table]) -> None:
    records = rows({"numpy": [math.nan] * 3, "radix": [math.inf] * 3})
    failures = [FailedTrial(f"pdq#{seed}", None, "Traceback") for seed in range(3)]
    lines = table_of(records, failures=failures).as_text().splitlines()
    assert "numpy (b)    -" in lines
    assert "radix      inf" in lines
    assert "pdq          -" in lines
    assert "pdq: every trial failed" in lines


def test_part_of_a_system_s_trials_may_fail(table_of: Callable[..., Table]) -> None:
    values = {"numpy": [1.0, 1.1, 1.2], "radix": [0.2, 0.21], "pdq": [0.9, 1.0, 1.1]}
    table = table_of(rows(values), failures=[FailedTrial("radix#2", None, "Traceback")])
    assert [line.note for line in table.lines] == ["", "1 of 3 trials failed", ""]
    assert '<span class="few">n = 2</span>' in table.as_html()


def test_failed_cases_of_a_timing_study_count_among_its_cases(compared: Compared) -> None:
    records = [Record("toy-timing", "toy-plain", 0, "time_s", 1.0, "s", "measured", {"case": "100 numbers"})]
    # A case may be named as one likes.
    failures = [FailedTrial("toy-plain+toy-shifted#0/1000 numbers#1", None, "")]
    notes = [line.note for line in main_table(compared(ToyTiming(), records, seeds=1, failures=failures)).lines]
    assert notes == ["1 of 2 trials failed", "every trial failed"]


def test_a_run_without_records_is_a_table_that_says_so(table_of: Callable[..., Table]) -> None:
    table = table_of([])
    assert table.columns == ()
    assert "No figures were recorded." in table.as_text()
    assert "pdq: no figures were recorded" in table.as_text()
    for text in (table.as_html(), table.as_markdown()):
        assert "radix" in text


def test_figures_at_other_coordinates_and_metrics_for_charts_stay_out(table_of: Callable[..., Table]) -> None:
    table = table_of(rows(CLEAR) + rows(CLEAR, load=0.9) + rows(CLEAR, "served_per_s", load=0.9))
    assert [column.metric.name for column in table.columns] == ["wait_s"]


def test_kinds_are_never_mixed_silently(table_of: Callable[..., Table]) -> None:
    records = rows({name: CLEAR[name] for name in ("numpy", "pdq")})
    records += [Record("queue", "radix", seed, "wait_s", 0.1, "s", "measured", {}) for seed in range(3)]
    table = table_of(records + rows(CLEAR, "steps"))
    assert table.columns[0].kind == "mixed: simulated and measured"
    assert [line.cells[0].lead for line in table.lines] == ["", "", ""]
    assert all(math.isnan(line.cells[0].ratio) for line in table.lines)
    assert "counted" in table.as_text()


def test_columns_that_do_not_fit_follow_below(routing: Comparison) -> None:
    text = main_table(routing).as_text()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("balance-route  ") == 5
    assert "balance-route     10,103* 9,733..10,327  x0.476" in text
    assert "balance-route, imbalance: paper x0.62, ours x0.476" in text
    wide = main_table(routing).as_text(width=400)
    assert wide.count("balance-route  ") == 1


def test_long_names_are_shortened_but_stay_apart(compared: Compared, known_systems: Catalog) -> None:
    names = ["a-system-with-a-name-that-goes-on-and-on-and-on", "a-system-with-a-name-that-goes-on-and-on-and-off"]
    records = [Record("queue", name, seed, "wait_s", 1.0 + seed, "s", "simulated") for name in names for seed in (0, 1)]
    comparison = compared(Queue(), records, systems=names, seeds=2)
    comparison.__dict__["findings"] = []
    text = main_table(comparison).as_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "a-system-with-a-…-and-on-and-on" in text or "…" in text
    assert len({line.split("  ")[0] for line in text.splitlines() if line.startswith("a-system")}) == 2


def test_cases_are_grouped(sorting: Comparison) -> None:
    table = main_table(sorting)
    assert [case for case, _ in table.cases()] == ["uniform", "zipf", "sorted", "reversed", "constant", "two-valued"]
    text = table.as_text()
    assert "sort-integers: 6 systems, 7 rounds, all figures measured" in text
    assert "keys: uniform" in text
    assert "  numpy (b)         1                62.5  61.1..64.9" in text
    assert "  radix         0.462* 0.455..0.475  28.2* 27.8..30.5 x0.462" in text
    assert table.leading() == (
        "radix leads on time ratio, time and share of copy (uniform, zipf, two-valued). "
        "learned leads on time ratio, time and share of copy (sorted, reversed, constant)."
    )


def test_cases_may_be_numbers_and_figures_of_all_cases_come_last(compared: Compared, known_systems: Catalog) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sized(Queue):
        """How large?"""

        cases_by: ClassVar[str] = "size"

    records = rows(CLEAR, size=8.0) + rows(CLEAR, size=16.0) + rows(CLEAR)
    table = main_table(compared(Sized(), records, seeds=3))
    assert [table.heading(case) for case, _ in table.cases()] == ["size: 8", "size: 16", "size: all"]
    assert [line.cells[0].lead for line in table.lines].count("sole") == 3


def test_a_system_that_was_not_asked_in_a_case_is_left_out_of_it(compared: Compared, known_systems: Catalog) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Cased(Queue):
        """Where?"""

        cases_by: ClassVar[str] = "place"

    records = rows(CLEAR, place="a place with a name that takes quite some room") + rows({"radix": [1.0]}, place="b")
    table = main_table(compared(Cased(), records, seeds=3))
    assert [(case, len(lines)) for case, lines in table.cases()][1] == ("b", 1)
    assert "place: a place with a name that takes quite some room\n  numpy (b)" in table.as_text()
    assert main_table(compared(Cased(), records, seeds=3, failures=[FailedTrial("pdq#1", None, "")])).lines[-1].note


def test_html_escapes_and_carries_exact_values(table_of: Callable[..., Table]) -> None:
    html = table_of(rows(CLEAR)).as_html()
    assert html.startswith("<style>")
    assert 'data-value="0.21" data-low="0.2" data-high="0.22" data-seeds="3"' in html
    assert "×0.191" in html
    assert "leads: its interval lies clear of all others" in html
    assert "<style>" not in table_of(rows(CLEAR)).as_html(styled=False)


def test_markdown_is_a_pipe_table(table_of: Callable[..., Table]) -> None:
    lines = table_of(rows(CLEAR)).as_markdown().splitlines()
    assert lines[:3] == [
        "| system | wait (s, lower, simulated) |",
        "| --- | ---: |",
        "| numpy (baseline) | 1.10 (1..1.20) |",
    ]
    assert "| radix | **0.210** (0.200..0.220) x0.191 |" in lines
    assert lines[-1].startswith("bold leads: its interval lies clear of all others; x ratio")


def test_rich_shows_the_same_figures(routing: Comparison, sorting: Comparison) -> None:
    from rich.console import Console

    console = Console(width=300, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(main_table(routing).as_rich())
        console.print(main_table(sorting).as_rich())
    text = captured.get()
    assert "10,103 *" in text
    assert "9,733..10,327 x0.476" in text
    assert "paper x0.62" in text
    assert "vllm-default (baseline)" in text
    assert "keys: zipf" in text
