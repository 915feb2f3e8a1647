"""The page: whole, self-contained, safe, small, and the same for the same records."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from typing import Any, ClassVar

import pytest

from wavetank.errors import BadValueError
from wavetank.ledger.catalog import Catalog
from wavetank.ledger.verdicts import (
    ANOTHER,
    CONSISTENT,
    CONTRADICTED,
    EXCEEDS,
    NOT_RUN,
    REACHED,
    SHORT,
    UNDECIDED,
    VERDICTS,
)
from wavetank.report import page, render
from wavetank.run.comparison import Comparison
from wavetank.run.execute import FailedTrial
from wavetank.settings import setting
from wavetank.study.records import Record
from wavetank.study.study import Chart, Metric, Study

Compared = Callable[..., Comparison]
VOID = {"meta", "link", "br", "hr", "img", "input"}


class Checker(HTMLParser):
    """Collects what a browser would silently repair or load."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.faults: list[str] = []
        self.ids: Counter[str] = Counter()
        self.wanted: set[str] = set()
        self.loaded: list[str] = []
        self.words: list[str] = []
        self.tags: Counter[str] = Counter()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._note(tag, attrs)

    def _note(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        names = [name for name, _ in attrs]
        if len(set(names)) < len(names):
            self.faults.append(f"an attribute twice in <{tag}>")
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids[given["id"]] += 1
        self.wanted |= set(given.get("aria-labelledby", "").split())
        for name in ("href", "src", "xlink:href"):
            address = given.get(name, "")
            if address.startswith("#"):
                self.wanted.add(address[1:])
            elif address and tag != "a":
                self.loaded.append(address)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> closes nothing")

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))


def checked(html: str) -> Checker:
    found = Checker(html)
    assert found.faults == []
    assert found.open == []
    assert [name for name, count in found.ids.items() if count > 1] == []
    assert found.wanted - set(found.ids) == set()
    assert [address for address in found.loaded if not address.startswith("data:")] == []
    assert not re.search(r"@import|url\(\s*['\"]?(?:https?:)?//", html)
    return found


def numbers(html: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="numbers">(.*?)</script>', html, re.DOTALL)
    return json.loads(text)


@pytest.fixture(scope="module")
def cache() -> dict[str, str]:
    return {}


@pytest.fixture
def routing_page(routing: Comparison, cache: dict[str, str]) -> str:
    if "routing" not in cache:
        cache["routing"] = render(routing)
    return cache["routing"]


@pytest.fixture
def sorting_page(sorting: Comparison, cache: dict[str, str]) -> str:
    if "sorting" not in cache:
        cache["sorting"] = render(sorting)
    return cache["sorting"]


def test_pages_are_well_formed_and_load_nothing(routing_page: str, sorting_page: str) -> None:
    for html in (routing_page, sorting_page):
        assert html.startswith("<!doctype html>")
        checked(html)


def test_the_same_records_give_the_same_page(sorting: Comparison, sorting_page: str) -> None:
    again = Comparison(sorting.study, sorting.plan, sorting.records, sorting.about, (), sorting.folder)
    assert render(again) == sorting_page


def test_the_question_comes_first_then_verdicts_then_figures(routing_page: str) -> None:
    text = checked(routing_page).text()
    parts = [
        "Which worker should a request go to, so that no data-parallel replica waits for another?",
        "Answer",
        "balance-route has 0.471 times the imbalance of vllm-default (0.463 times to 0.478 times at 95 % over 8 "
        "pairs), and 13 % less imbalance than the strongest rival, balance-route-0",
        "Also better than vllm-default: power-of-two (9.4 % less)",
        "At the same time, balance-route has 0.419 times the ttft p99",
        "66 % more decision time",
        "Verdicts",
        "short of it",
        "Figures",
        "Charts",
        "Set-up",
        "Provenance",
    ]
    start = text.index("Answer Verdicts Figures Charts Set-up Provenance") + 47
    at = [text.index(part, start) for part in parts[1:]]
    assert at == sorted(at)
    assert f"<h1>{parts[0]}</h1>" in routing_page


def test_every_verdict_is_a_word_with_our_figure_and_the_paper_s(routing_page: str) -> None:
    text = checked(routing_page).text()
    for word in VERDICTS:
        assert f"</span> {word}</span>" in routing_page
    assert "ours ×0.471 of vllm-default (×0.466 to ×0.475 at 95 %, 8 runs)" in text
    assert "paper ×0.62 of vllm-default" in text
    assert "ours 525 ms (512 ms to 537 ms at 95 %, 8 runs)" in text
    assert "our goal at most 650 ms" in text
    assert "our goal at least ×0.6 and at most ×0.7" in text
    assert "ours no figure paper 0.2" in text
    assert "The paper breaks ties at random" in text
    assert "ttft_p99_s at load = 0.95" in text
    assert "Claims that involve balance-route-0 are not judged: parameters were changed." in text


@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_verdict_has_a_badge_of_its_own(routing: Comparison, verdict: str) -> None:
    routing.__dict__["findings"] = [replace(routing.findings[0], verdict=verdict)]
    style = {
        REACHED: "holds", EXCEEDS: "holds", CONSISTENT: "holds", SHORT: "part", ANOTHER: "part",
        CONTRADICTED: "fails", UNDECIDED: "open", NOT_RUN: "open",
    }[verdict]  # fmt: skip
    html = render(routing)
    assert html.count('<li class="claim ') == html.count(f'<li class="claim {style}">') == 1
    (glyph,) = re.findall(rf'<span class="badge {style}"><span aria-hidden="true">(.)</span> {verdict}</span>', html)
    others = {each for name, (_, each) in page._BADGES.items() if name != verdict}
    assert glyph not in others


def test_the_best_rival_is_named_where_a_claim_asks_for_it(
    routing: Comparison, known_systems: Catalog, compared: Compared
) -> None:
    plain = compared(routing.study, routing.records)
    text = checked(render(plain)).text()
    assert "ours ×0.885 of balance-route-0" in text
    assert "of best" not in text


def test_without_an_answer_there_is_no_section_for_one(routing: Comparison) -> None:
    routing.__dict__["answer"] = None
    html = render(routing)
    assert 'id="answer"' not in html
    assert "#answer" not in html
    checked(html)


@pytest.mark.parametrize(
    ("seeds", "words"),
    [(1, "Median over 1 seed."), (3, "Median over 3 seeds; below it least to most."),
     (6, "Median over 6 seeds; below it 95 % intervals.")],
)  # fmt: skip
def test_what_stands_below_a_median_is_an_interval_from_six_seeds_on(
    routing: Comparison, compared: Compared, seeds: int, words: str
) -> None:
    records = [record for record in routing.records if record.seed < seeds]
    text = checked(render(compared(routing.study, records, seeds=seeds))).text()
    assert words in text
    assert ("leads: better" in text) == (seeds >= 6)
    if seeds < 6:
        assert "95 % interval" not in text.replace("carry no 95 % interval", "")


def test_the_set_up_marks_what_was_changed(routing_page: str) -> None:
    text = checked(routing_page).text()
    assert "workers 32 changed workers 16 data-parallel replicas behind the router" in text
    assert "refresh_s 0.05 s 0.05 age" in text
    assert "alpha 0.7 changed 0.5 weight of predicted against present load" in text
    assert "horizon_steps 32 steps 32" in text
    assert "Ties go to the lowest worker, not to a random one." in text
    assert '<a href="https://arxiv.org/abs/2605.06113" rel="noopener noreferrer">' in routing_page
    assert "mean over steps of (largest - mean) KV tokens of a worker" in text
    assert "no GPU was used." in text
    assert "Runs simulated : the system's own code decides" in text


def test_kinds_of_figures_are_named(routing_page: str, sorting_page: str) -> None:
    assert "simulated : out of an event simulation" in checked(routing_page).text()
    assert "measured : taken from a real run" in checked(routing_page).text()
    assert "simulated" not in checked(sorting_page).text().replace("simulators", "")


def test_provenance_is_complete(routing_page: str) -> None:
    text = checked(routing_page).text()
    for part in (
        "wavetank compare llm-routing --set workers=32",
        "12.4 s",
        "A processor, 8 cores, 33 GB of memory, Linux x86_64",
        "numpy 2.4.0",
        "0123456789ab",
        "sha256:3f0c5a",
        "0, 1, 2, 3, 4, 5, 6, 7",
    ):
        assert part in text


def test_figures_are_embedded(routing: Comparison, routing_page: str) -> None:
    found = numbers(routing_page)
    assert found["study"] == "llm-routing"
    along_time = [row for row in routing.rows if "time_s" in row.at]
    assert found["rows_left_out"] == len(along_time) > 0
    assert len(found["rows"]) == len(routing.rows) - len(along_time)
    first = dict(zip(found["columns"], found["rows"][0], strict=True))
    assert first["median"] == pytest.approx(routing.rows[0].median, rel=1e-8)
    assert found["systems"][first["system"]] == "round-robin"
    assert found["metrics"][first["metric"]] == ["imbalance_tokens", "tokens", "simulated"]
    assert found["places"][first["at"]] == {}
    values = [record.value for record in routing.records if (record.system, record.metric, record.at) == (
        "round-robin", "imbalance_tokens", {})]  # fmt: skip
    assert first["values by seed"] == pytest.approx(values, rel=1e-8)
    assert len(found["claims"]) == len(routing.findings)


def test_what_charts_show_is_embedded_with_its_place_in_the_drawing(routing: Comparison, routing_page: str) -> None:
    charts = numbers(routing_page)["charts"]
    assert list(charts)[:3] == ["forest", "chart-throughput-against-tail-latency", "chart-imbalance"]
    for slug, chart in charts.items():
        assert f'<figure id="{slug}"' in routing_page
        systems = {index: name for index, name, _ in chart["series"]}
        for panel in chart["panels"]:
            left, top, right, bottom = panel["box"]
            assert panel["marks"]
            for index, x, y, *_ in panel["marks"]:
                assert index in systems
                assert left - 1 <= x <= right + 1
                assert top - 1 <= y <= bottom + 1
    bars = charts["chart-imbalance"]
    names = {index: name for index, name, _ in bars["series"]}
    medians = {row.system: row.median for row in routing.rows if (row.metric, row.at) == ("imbalance_tokens", {})}
    assert {names[mark[0]]: mark[4] for mark in bars["panels"][0]["marks"]} == pytest.approx(medians, rel=1e-5)
    time_line = charts["chart-imbalance-over-time"]["panels"][0]["marks"]
    assert len(time_line) < 10 * 170


def test_the_answer_has_its_forest_plot_and_the_line_that_launches_the_best(
    routing: Comparison, known_systems: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    html = render(routing)
    assert "is put to work with" not in html
    assert html.index('<figure id="forest"') < html.index('id="verdicts"')
    systems = dict(known_systems.systems)
    systems["balance-route"] = replace(systems["balance-route"], launch="wavetank launch router --policy <balance>")
    monkeypatch.setattr("wavetank.ledger.catalog.everything", lambda: replace(known_systems, systems=systems))
    monkeypatch.setattr("wavetank.ledger.catalog.built_in", lambda: replace(known_systems, systems=systems))
    assert "<code>wavetank launch router --policy &lt;balance&gt;</code>" in render(routing)


def test_claims_that_the_run_does_not_concern_are_folded(routing: Comparison) -> None:
    html = render(routing)
    others = sum(finding.verdict == NOT_RUN for finding in routing.findings)
    assert others
    open_part, _, folded = html[html.index('id="verdicts"') : html.index('id="figures"')].partition("<details>")
    assert f"{others} claim{'s' if others > 1 else ''} that this run does not concern" in folded
    assert NOT_RUN not in open_part
    assert folded.count('<li class="claim ') == others


def test_every_table_has_a_caption(routing_page: str, sorting_page: str) -> None:
    for html in (routing_page, sorting_page):
        found = checked(html)
        assert found.tags["caption"] == found.tags["table"] > 5
    assert "<caption>" not in routing_page


def test_ids_of_charts_come_from_their_titles() -> None:
    assert page._slugs(["Time, in s", "time in S", "<b>", "Time in s 2"]) == [
        "chart-time-in-s", "chart-time-in-s--2", "chart-b", "chart-time-in-s-2",
    ]  # fmt: skip
    assert page._slugs(["", "…"]) == ["chart", "chart--2"]


def test_every_chart_is_there_with_text_alternatives(routing_page: str) -> None:
    found = checked(routing_page)
    assert set(re.findall(r'<figure [^>]*data-kind="(\w+)"', routing_page)) == {
        "pareto",
        "bars",
        "sweep",
        "distribution",
        "timeline",
        "forest",
    }
    assert found.tags["desc"] == 7
    assert len(re.findall(r'<svg [^>]*role="img"[^>]*aria-labelledby="[^"]+"', routing_page)) == 7
    assert routing_page.count("The plotted figures as a table") == 7


def test_cases_have_headings(sorting_page: str) -> None:
    text = checked(sorting_page).text()
    assert sorting_page.count('<tr class="case">') == 6
    assert "keys: two-valued" in text
    assert "7 processes of 3 rounds" in text
    assert "learned has 39 to 40 % less time than numpy in 6 of 6 cases" in text
    assert "No claim of a paper is decided by this run" in text


@dataclass(frozen=True, kw_only=True)
class Wide(Study):
    """Does it stay small?"""

    name: ClassVar[str] = "wide"
    baseline: ClassVar[str] = "round-robin"
    metrics: ClassVar[tuple[Metric, ...]] = tuple(Metric(f"figure_{number}_s", "s", "lower") for number in range(10))
    charts: ClassVar[tuple[Chart, ...]] = (
        *(Chart("sweep", f"Sweep {by}", "figure_0_s", by=by) for by in ("load", "refresh_s", "workers")),
        Chart("timeline", "Timeline", "figure_1_s", by="time_s"),
        Chart("distribution", "Distribution", "figure_2_s", by="quantile"),
        Chart("pareto", "Pareto", "figure_3_s", x="figure_4_s"),
        Chart("bars", "Bars", "figure_5_s"),
    )


@pytest.mark.parametrize("seconds", [300, 1800])
def test_a_large_run_stays_below_a_megabyte(compared: Compared, known_systems: Catalog, seconds: int) -> None:
    names = [*list(known_systems.systems)[:10]]
    records = []
    for system_number, system in enumerate(names):
        for seed in range(5):

            def put(number: int, value: float, **at: float) -> None:
                records.append(Record("wide", system, seed, f"figure_{number}_s", value / 7, "s", "simulated", at))  # noqa: B023

            base = 1 + system_number / 3 + seed / 50
            for number in range(10):
                put(number, base + number)
            for by in ("load", "refresh_s", "workers"):
                for step in range(1, 11):
                    put(0, base * step, **{by: float(step)})
            for second in range(0, seconds, 3):
                put(1, base + math.sin(second), time_s=float(second))
            for percent in range(100):
                put(2, base * percent, quantile=percent / 100)
    html = render(compared(Wide(), records, systems=names, seeds=5))
    checked(html)
    assert len(html.encode()) < 1_000_000
    found = numbers(html)
    assert len(found["rows"]) >= 1400
    assert found["rows_left_out"] == 10 * seconds / 3


@pytest.mark.parametrize("count", [1, 20])
def test_one_system_and_twenty(
    compared: Compared, known_systems: Catalog, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    pattern = next(iter(known_systems.systems.values()))
    names = [f"a-system-with-quite-a-long-name-{number}" for number in range(count)]
    systems = {name: replace(pattern, name=name) for name in names}
    monkeypatch.setattr("wavetank.ledger.catalog.built_in", lambda: replace(known_systems, systems=systems))
    records = [
        Record("wide", name, seed, f"figure_{metric}_s", 1.0 + number + seed / 9, "s", "simulated", at)
        for number, name in enumerate(names)
        for seed in range(3)
        for metric, at in [(0, {}), (0, {"load": 1.0}), (0, {"load": 2.0}), (3, {}), (4, {}), (5, {})]
    ]
    html = render(compared(Wide(), records, systems=names, seeds=3))
    assert checked(html).tags["article"] == count


def test_nothing_recorded_is_said(compared: Compared, known_systems: Catalog) -> None:
    failures = [FailedTrial("radix#0", None, "Traceback: <boom>"), FailedTrial("pdq#0", BadValueError("Too many."), "")]
    html = render(compared(Wide(), [], systems=("radix", "pdq"), seeds=1, failures=failures))
    text = checked(html).text()
    assert "No figures were recorded." in text
    assert "There is nothing to draw: this run has no records of figure_0_s along load." in text
    assert "7 charts of the study without figures in this run" in text
    assert "<figure" not in html
    assert "2 failed trials" in text
    assert "Traceback: <boom>" in text
    assert "Too many." in text
    assert "no figure in this run" in text


def test_nan_and_infinity_survive(compared: Compared, known_systems: Catalog) -> None:
    values = {"radix": math.nan, "pdq": math.inf, "numpy": -math.inf}
    records = [
        Record("wide", system, seed, f"figure_{number}_s", value, "s", "simulated")
        for system, value in values.items()
        for seed in (0, 1)
        for number in (3, 4, 5)
    ]
    html = render(compared(Wide(), records, systems=tuple(values), seeds=2))
    text = checked(html).text()
    assert "infinite" in text
    assert "Not drawn: radix, its figure 4 is not a number." in text
    rows = numbers(html)["rows"]
    assert {row[4] for row in rows} == {None, "inf", "-inf"}


HOSTILE = ("</script><script>alert(1)</script>", "b")


@dataclass(frozen=True, kw_only=True)
class Hostile(Study):
    """All its <script>alert("names")</script> & words are hostile."""

    name: ClassVar[str] = "hostile"
    baseline: ClassVar[str] = "b"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("x<img src=y>_s", "s", "lower", of="<b>bold</b>"),)
    charts: ClassVar[tuple[Chart, ...]] = (
        Chart("bars", "<script>alert('title')</script>", "x<img src=y>_s", says="</svg><script>alert(2)</script>"),
        Chart("sweep", "Sweep", "x<img src=y>_s", by="<by>"),
    )
    word: str = setting("<!--<script>", says="<i>says</i>")
    ratio: float = math.inf

    def notes(self) -> tuple[str, ...]:
        return ("<script>alert('note')</script>",)


def test_text_stays_text(compared: Compared, known_systems: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = next(iter(known_systems.systems.values()))
    systems = {
        name: replace(
            pattern,
            name=name,
            does="<script>does()</script>",
            source={"title": "<u>t</u>", "url": "javascript:alert(1)"},
        )
        for name in HOSTILE
    }
    monkeypatch.setattr("wavetank.ledger.catalog.built_in", lambda: replace(known_systems, systems=systems))
    records = [
        Record("hostile", name, seed, "x<img src=y>_s", 1.0 + seed, "s", "simulated", at)
        for name in HOSTILE
        for seed in (0, 1)
        for at in ({}, {"<by>": "</desc><script>"})
    ]
    failures = [FailedTrial("b#1", None, "</pre><script>alert(3)</script>")]
    html = render(compared(Hostile(), records, systems=HOSTILE, seeds=2, failures=failures))
    found = checked(html)
    assert found.tags["script"] == 2
    assert found.tags["img"] == found.tags["b"] == found.tags["i"] == found.tags["u"] == 0
    assert "javascript:" not in "".join(re.findall(r'href="([^"]*)"', html))
    assert numbers(html)["settings"] == {"word": "<!--<script>", "ratio": "inf"}


def test_sections_of_a_docstring_stay_out_of_the_page(routing_page: str) -> None:
    text = checked(routing_page).text()
    assert "so one overloaded replica idles the rest." in text
    assert "Parameters ----" not in text


def test_a_mapping_without_provenance_is_enough(routing: Comparison) -> None:
    bare = Comparison(routing.study, routing.plan, (), {}, (), routing.folder)
    checked(render(bare))


def test_importing_the_package_imports_no_heavy_library() -> None:
    code = (
        "import sys, wavetank.report, wavetank.report.charts, wavetank.report.canvas;"
        "print(sorted({'matplotlib', 'jinja2', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
