"""The main table: what is in it, and its four renderings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from wavetank_toys.studies import ToyTiming

from wavetank.ledger.catalog import Catalog
from wavetank.report import Table, main_table
from wavetank.run.comparison import Comparison
from wavetank.run.execute import FailedTrial
from wavetank.study.records import Record
from wavetank.study.study import Metric, Study

Compared = Callable[..., Comparison]


@dataclass(frozen=True, kw_only=True)
class Queue(Study):
    """Who waits least?"""

    name: ClassVar[str] = "queue"
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


CLEAR = {
    "numpy": [1.0, 1.1, 1.2, 1.05, 1.15, 1.1],
    "radix": [0.2, 0.21, 0.22, 0.205, 0.215, 0.21],
    "pdq": [0.9, 1.0, 1.1, 0.95, 1.05, 1.0],
}


def few(seeds: int) -> dict[str, list[float]]:
    return {name: values[:seeds] for name, values in CLEAR.items()}


@pytest.fixture
def table_of(known_systems: Catalog, compared: Compared) -> Callable[..., Table]:
    def build(records: list[Record], **more: object) -> Table:
        return main_table(compared(Queue(), records, **{"seeds": 6, "systems": tuple(CLEAR), **more}))

    return build


def test_the_text_table_shows_median_interval_leader_and_ratio(table_of: Callable[..., Table]) -> None:
    text = table_of(rows(CLEAR)).as_text()
    assert text.splitlines() == [
        "queue: 3 systems, 6 seeds, all figures simulated",
        "",
        "           wait",
        "           s, lower",
        "numpy (b)   1.10  1..1.20",
        "radix      0.210* 0.200..0.220 x0.191",
        "pdq            1  0.900..1.10  x0.909",
        "",
        "(b) the baseline",
        "* leads: better than every other system, pair by pair",
        "x ratio to the baseline numpy, seed by seed",
    ]


def test_nothing_is_a_multiple_of_a_baseline_of_0(table_of: Callable[..., Table]) -> None:
    table = table_of(rows({"numpy": [0.0, 0.0], "radix": [0.2, 0.3]}), systems=("numpy", "radix"))
    assert "inf" not in table.as_text()
    assert "ratio to the baseline" not in table.as_text()
    assert "&times;inf" not in table.as_html() and "×inf" not in table.as_html()


@pytest.mark.parametrize(("seeds", "least"), [(2, "0.191"), (3, "0.183"), (5, "0.183")])
def test_below_six_seeds_a_table_shows_least_and_most_and_no_leader(
    table_of: Callable[..., Table], seeds: int, least: str
) -> None:
    table = table_of(rows(few(seeds)), seeds=seeds)
    assert {line.cells[0].lead for line in table.lines} == {""}
    row = table.lines[1].cells[0].row
    assert row is not None
    assert (row.low, row.high) == (min(few(seeds)["radix"]), max(few(seeds)["radix"])) == (row.least, row.most)
    assert not {"*", "~"} & set(table.as_text())
    assert "leads" not in table.as_html()
    assert f'title="the ratio: {least} to 0.200 in {seeds} runs"' in table.as_html()


def test_a_small_gain_leads_where_every_seed_shows_it(table_of: Callable[..., Table]) -> None:
    # Intervals of the figures themselves overlap: what the seeds share cancels pair by pair.
    shared = [1.0, 1.4, 1.8, 1.2, 1.6, 1.5]
    own = [0.001, -0.001, 0.002, 0.0, -0.002, 0.001]
    table = table_of(
        rows({
            "numpy": shared,
            "radix": [0.95 * value * (1 + small) for value, small in zip(shared, own, strict=True)],
            "pdq": [1.05 * value * (1 - small) for value, small in zip(shared, own, strict=True)],
        })
    )  # fmt: skip
    assert [line.cells[0].lead for line in table.lines] == ["", "sole", ""]
    base, best = table.lines[0].cells[0].row, table.lines[1].cells[0].row
    assert base is not None
    assert best is not None
    assert best.high > base.low
    assert 'title="the ratio: 0.949 to 0.952 at 95 %, 6 runs"' in table.as_html()


def test_no_winner_is_named_where_pairs_disagree(table_of: Callable[..., Table]) -> None:
    table = table_of(
        rows({
            "numpy": [1.0, 1.2, 1.4, 1.1, 1.3, 1.2],
            "radix": [1.1, 1.2, 1.3, 1.2, 1.2, 1.1],
            "pdq": [5.0, 5.1, 5.2, 5.0, 5.1, 5.2],
        })
    )  # fmt: skip
    assert [line.cells[0].lead for line in table.lines] == ["shared", "shared", ""]
    assert "~ among the best: nobody is shown to be better, and others are worse" in table.as_text()


def test_the_more_systems_are_compared_the_more_a_leader_must_show(table_of: Callable[..., Table]) -> None:
    values = {"numpy": CLEAR["numpy"]}
    gains = (0.985, 0.99, 0.977, 0.978, 0.992, 0.962)
    values["radix"] = [gain * value for gain, value in zip(gains, CLEAR["numpy"], strict=True)]
    alone = table_of(rows(values), systems=tuple(values))
    assert [line.cells[0].lead for line in alone.lines] == ["", "sole"]
    # Each of the others is what numpy is, so that every pair has the same ratios as before.
    crowd = values | dict.fromkeys(("numpy-stable", "polars", "learned", "pdq"), CLEAR["numpy"])
    assert {line.cells[0].lead for line in table_of(rows(crowd), systems=tuple(crowd)).lines} == {""}


def test_marks_are_left_out_where_everybody_is_among_the_best(table_of: Callable[..., Table]) -> None:
    table = table_of(
        rows({"numpy": [1.0, 1.2, 1.1, 1.0, 1.2, 1.1], "radix": [1.1, 1.2, 1.0, 1.2, 1.0, 1.1]}),
        systems=("numpy", "radix"),
    )
    assert {line.cells[0].lead for line in table.lines} == {""}


def test_an_oracle_leads_nowhere_and_keeps_nobody_from_it(
    table_of: Callable[..., Table], known_systems: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    systems = {**known_systems.systems, "pdq": replace(known_systems.systems["pdq"], role="oracle")}
    monkeypatch.setattr("wavetank.ledger.catalog.built_in", lambda: replace(known_systems, systems=systems))
    table = table_of(rows(CLEAR | {"pdq": [0.1 * value for value in CLEAR["radix"]]}))
    assert [line.cells[0].lead for line in table.lines] == ["", "sole", ""]


def test_one_seed_has_no_interval_and_no_leader(table_of: Callable[..., Table]) -> None:
    table = table_of(rows(few(1)), seeds=1)
    text = table.as_text()
    assert "1 seed," in text
    assert ".." not in text
    assert "*" not in text
    assert 'title="the ratio: 1 run"' in table.as_html()


def test_a_figure_that_only_explains_has_no_leader(table_of: Callable[..., Table]) -> None:
    table = table_of(rows({name: [10 * v for v in values] for name, values in CLEAR.items()}, "steps"))
    assert not any(line.cells[0].lead for line in table.lines)


def test_missing_infinite_and_undefined_figures_are_told_apart(table_of: Callable[..., Table]) -> None:
    records = rows({"numpy": [math.nan] * 6, "radix": [math.inf] * 6})
    failures = [FailedTrial(f"pdq#{seed}", None, "Traceback") for seed in range(6)]
    lines = table_of(records, failures=failures).as_text().splitlines()
    assert "numpy (b)    -" in lines
    assert "radix      inf" in lines
    assert "pdq          -" in lines
    assert "pdq: every trial failed" in lines


def test_part_of_a_system_s_trials_may_fail(table_of: Callable[..., Table]) -> None:
    values = {"numpy": [1.0, 1.1, 1.2], "radix": [0.2, 0.21], "pdq": [0.9, 1.0, 1.1]}
    table = table_of(rows(values), seeds=3, failures=[FailedTrial("radix#2", None, "Traceback")])
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
    records += [Record("queue", "radix", seed, "wait_s", 0.1, "s", "measured", {}) for seed in range(6)]
    table = table_of(records + rows(CLEAR, "steps"))
    assert table.columns[0].kind == "mixed: simulated and measured"
    assert [line.cells[0].lead for line in table.lines] == ["", "", ""]
    assert all(math.isnan(line.cells[0].ratio) for line in table.lines)
    assert "counted" in table.as_text()


def test_columns_that_do_not_fit_follow_below(routing: Comparison) -> None:
    text = main_table(routing).as_text()
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("balance-route  ") == 5
    assert "balance-route      9,747* 9,532..10,327  x0.471" in text
    assert "balance-route, imbalance: paper x0.62, ours x0.471" in text
    wide = main_table(routing).as_text(width=400)
    assert wide.count("balance-route  ") == 1


def test_long_names_are_shortened_but_stay_apart(compared: Compared, known_systems: Catalog) -> None:
    names = ["a-system-with-a-name-that-goes-on-and-on-and-on", "a-system-with-a-name-that-goes-on-and-on-and-off"]
    pattern = known_systems.systems["numpy"]
    known_systems.systems.update({name: replace(pattern, name=name) for name in names})  # type: ignore[attr-defined]
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
    assert "sort-integers: 6 systems, 7 processes of 3 rounds, all figures measured" in text
    assert "keys: uniform" in text
    assert "  numpy (b)         1                61.1  58.1..64.9" in text
    assert "  radix         0.470* 0.462..0.475  28.3* 27.2..30.5 x0.469" in text
    led = {(line.system, line.case) for line in table.lines if {cell.lead for cell in line.cells} == {"sole"}}
    assert led == {("radix", case) for case in ("uniform", "zipf", "two-valued")} | {
        ("learned", case) for case in ("sorted", "reversed", "constant")
    }


def test_rounds_of_few_processes_have_no_leader(compared: Compared, sorting: Comparison) -> None:
    study = sorting.study
    five = [record for record in sorting.records if record.seed < 15]
    table = main_table(compared(study, five, seeds=5))
    assert "5 processes of 3 rounds" in table.as_text()
    assert {cell.lead for line in table.lines for cell in line.cells} == {""}
    assert {cell.row.seeds for line in table.lines for cell in line.cells if cell.row} == {5}


@pytest.mark.parametrize(
    ("seeds", "rounds", "words"),
    [(1, 1, "1 process of 1 round"), (3, 1, "3 processes of 1 round"), (1, 4, "1 process of 4 rounds")],
)
def test_the_sample_of_a_timing_study_is_in_processes(compared: Compared, seeds: int, rounds: int, words: str) -> None:
    records = [Record("toy-timing", "toy-plain", 0, "time_s", 1.0, "s", "measured", {"case": "100 numbers"})]
    assert main_table(compared(ToyTiming(rounds=rounds), records, seeds=seeds)).sample == words


def test_cases_may_be_numbers_and_figures_of_all_cases_come_last(compared: Compared, known_systems: Catalog) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Sized(Queue):
        """How large?"""

        cases_by: ClassVar[str] = "size"

    records = rows(CLEAR, size=8.0) + rows(CLEAR, size=16.0) + rows(CLEAR)
    table = main_table(compared(Sized(), records, systems=tuple(CLEAR), seeds=6))
    assert [table.heading(case) for case, _ in table.cases()] == ["size: 8", "size: 16", "size: all"]
    assert [line.cells[0].lead for line in table.lines].count("sole") == 3


def test_a_system_that_was_not_asked_in_a_case_is_left_out_of_it(compared: Compared, known_systems: Catalog) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Cased(Queue):
        """Where?"""

        cases_by: ClassVar[str] = "place"

    records = rows(CLEAR, place="a place with a name that takes quite some room") + rows({"radix": [1.0]}, place="b")
    table = main_table(compared(Cased(), records, systems=tuple(CLEAR), seeds=6))
    assert [(case, len(lines)) for case, lines in table.cases()][1] == ("b", 1)
    assert "place: a place with a name that takes quite some room\n  numpy (b)" in table.as_text()
    failed = [FailedTrial("pdq#1", None, "")]
    assert main_table(compared(Cased(), records, systems=tuple(CLEAR), seeds=6, failures=failed)).lines[-1].note


def test_html_escapes_and_carries_exact_values(table_of: Callable[..., Table]) -> None:
    html = table_of(rows(CLEAR)).as_html()
    assert html.startswith("<style>")
    assert 'data-value="0.21" data-low="0.2" data-high="0.22" data-seeds="6"' in html
    assert "×0.191" in html
    assert "leads: better than every other system, pair by pair" in html
    assert "<style>" not in table_of(rows(CLEAR)).as_html(styled=False)


def test_markdown_is_a_pipe_table(table_of: Callable[..., Table]) -> None:
    lines = table_of(rows(CLEAR)).as_markdown().splitlines()
    assert lines[:3] == [
        "| system | wait (s, lower, simulated) |",
        "| --- | ---: |",
        "| numpy (baseline) | 1.10 (1..1.20) |",
    ]
    assert "| radix | **0.210** (0.200..0.220) x0.191 |" in lines
    assert lines[-1].startswith("bold leads: better than every other system, pair by pair; x ratio")


def test_rich_shows_the_same_figures(routing: Comparison, sorting: Comparison) -> None:
    from rich.console import Console

    console = Console(width=300, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(main_table(routing).as_rich())
        console.print(main_table(sorting).as_rich())
    text = captured.get()
    assert "9,747 *" in text
    assert "9,532..10,327 x0.471" in text
    assert "paper x0.62" in text
    assert "vllm-default (baseline)" in text
    assert "keys: zipf" in text
