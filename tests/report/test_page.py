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

from wavetank.catalog import Catalog
from wavetank.comparison import Comparison
from wavetank.errors import BadValueError
from wavetank.execute import FailedTrial
from wavetank.records import Record
from wavetank.report import page, render
from wavetank.report.page import question_of
from wavetank.settings import setting
from wavetank.study import Chart, Metric, Study

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
        assert html.startswith("<!DOCTYPE html>")
        checked(html)


def test_the_same_records_give_the_same_page(sorting: Comparison, sorting_page: str) -> None:
    again = Comparison(sorting.study, sorting.plan, sorting.records, sorting.about, (), sorting.folder)
    assert render(again) == sorting_page


def test_the_question_comes_first_then_verdicts_then_figures(routing_page: str) -> None:
    text = checked(routing_page).text()
    parts = [
        "Which worker should a request go to, so that no data-parallel replica waits for another?",
        "Verdicts",
        "holds in part",
        "balance-route leads on imbalance, idle share, ttft p99 and tpot p99.",
        "Figures",
        "Charts",
        "Set-up",
        "Provenance",
    ]
    start = text.index("Verdicts Figures Charts Set-up Provenance") + 40
    at = [text.index(part, start) for part in parts[1:]]
    assert at == sorted(at)
    assert f"<h1>{parts[0]}</h1>" in routing_page


def test_every_verdict_is_a_word_with_our_figure_and_the_paper_s(routing_page: str) -> None:
    text = checked(routing_page).text()
    for word in ("holds", "holds in part", "undecided", "not run"):
        assert f"</span> {word}</span>" in routing_page
    assert "ours ×0.476 of vllm-default" in text
    assert "paper ×0.62 of vllm-default" in text
    assert "ours 533 ms" in text
    assert "asked at most 650 ms" in text
    assert "The paper breaks ties at random" in text
    assert "ttft_p99_s at load = 0.95" in text
    assert "Claims that involve balance-route-0 are not judged: parameters were changed." in text


def test_a_failed_claim_is_shown(routing: Comparison) -> None:
    routing.__dict__["findings"] = [replace(routing.findings[0], verdict="does not hold here")]
    assert '<li class="claim fails">' in render(routing)


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
        "0, 1, 2, 3, 4",
    ):
        assert part in text


def test_figures_are_embedded(routing: Comparison, routing_page: str) -> None:
    found = numbers(routing_page)
    assert found["study"] == "llm-routing"
    assert found["rows_left_out"] == 0
    assert len(found["rows"]) == len(routing.rows)
    first = dict(zip(found["columns"], found["rows"][0], strict=True))
    assert first["median"] == routing.rows[0].median
    assert [value for _, value in first["values by seed"]] == [record.value for record in routing.records if (
        record.system, record.metric, record.at) == ("round-robin", "imbalance_tokens", {})]  # fmt: skip
    assert len(found["claims"]) == len(routing.findings)


def test_every_chart_is_there_with_text_alternatives(routing_page: str) -> None:
    found = checked(routing_page)
    assert set(re.findall(r'<figure [^>]*data-kind="(\w+)"', routing_page)) == {
        "pareto",
        "bars",
        "sweep",
        "distribution",
        "timeline",
    }
    assert found.tags["desc"] == 6
    assert len(re.findall(r'<svg [^>]*role="img"[^>]*aria-labelledby="[^"]+"', routing_page)) == 6
    assert routing_page.count("The plotted figures as a table") == 6


def test_cases_have_headings(sorting_page: str) -> None:
    text = checked(sorting_page).text()
    assert sorting_page.count('<tr class="case">') == 6
    assert "keys: two-valued" in text
    assert "7 rounds" in text
    assert "No claim of a paper is decided by this run" in text


@dataclass(frozen=True, kw_only=True)
class Wide(Study):
    """Does it stay small?"""

    name: ClassVar[str] = "wide"
    systems: ClassVar[tuple[str, ...]] = ()
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
    assert found["rows_left_out"] == (0 if seconds == 300 else 10 * seconds / 3)


@pytest.mark.parametrize("count", [1, 20])
def test_one_system_and_twenty(
    compared: Compared, known_systems: Catalog, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    pattern = next(iter(known_systems.systems.values()))
    names = [f"a-system-with-quite-a-long-name-{number}" for number in range(count)]
    systems = {name: replace(pattern, name=name) for name in names}
    monkeypatch.setattr("wavetank.catalog.built_in", lambda: Catalog(systems=systems, studies={}))
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
    assert {row[6] for row in rows} == {None, "inf", "-inf"}


@dataclass(frozen=True, kw_only=True)
class Hostile(Study):
    """What if <script>alert("question")</script> & names are hostile?"""

    name: ClassVar[str] = "hostile"
    systems: ClassVar[tuple[str, ...]] = ("</script><script>alert(1)</script>", "b")
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
        for name in Hostile.systems
    }
    monkeypatch.setattr("wavetank.catalog.built_in", lambda: Catalog(systems=systems, studies={}))
    records = [
        Record("hostile", name, seed, "x<img src=y>_s", 1.0 + seed, "s", "simulated", at)
        for name in Hostile.systems
        for seed in (0, 1)
        for at in ({}, {"<by>": "</desc><script>"})
    ]
    failures = [FailedTrial("b#1", None, "</pre><script>alert(3)</script>")]
    html = render(compared(Hostile(), records, seeds=2, failures=failures))
    found = checked(html)
    assert found.tags["script"] == 2
    assert found.tags["img"] == found.tags["b"] == found.tags["i"] == found.tags["u"] == 0
    assert "javascript:" not in "".join(re.findall(r'href="([^"]*)"', html))
    assert numbers(html)["settings"] == {"word": "<!--<script>", "ratio": "inf"}


def test_a_study_without_a_docstring_is_called_by_its_name() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Silent(Study):
        name: ClassVar[str] = "silent"

    assert question_of(Silent()) == "silent"
    assert question_of(Hostile()).startswith("What if <script>")


def test_sections_of_a_docstring_stay_out_of_the_page(routing_page: str) -> None:
    text = checked(routing_page).text()
    assert "so one overloaded replica idles the rest." in text
    assert "Parameters ----" not in text


def test_a_mapping_without_provenance_is_enough(routing: Comparison) -> None:
    bare = Comparison(routing.study, routing.plan, (), {}, (), routing.folder)
    checked(render(bare))


def test_words_for_values() -> None:
    assert [page._word(value) for value in (None, True, 0.1 + 0.2, (1, 2.5), "text", 3)] == [
        "none",
        "true",
        "0.3",
        "1, 2.5",
        "text",
        "3",
    ]


def test_importing_the_package_imports_no_heavy_library() -> None:
    code = (
        "import sys, wavetank.report, wavetank.report.charts, wavetank.report.canvas;"
        "print(sorted({'matplotlib', 'jinja2', 'rich', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
