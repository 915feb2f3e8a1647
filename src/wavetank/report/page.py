"""The report: one HTML page that holds everything about a run and loads nothing.

Verdicts come first, then who leads, the figures, the charts, what was run and how, and where the figures come from.
The page computes nothing new: it shows records, their summaries and the findings on claims.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetank import html_page, units
from wavetank.ledger import catalog, verdicts
from wavetank.ledger.facts import Parameter, cited, parameters_of, setup_of
from wavetank.report.scale import labels, scale_for, spread
from wavetank.report.tables import GLYPHS, main_table
from wavetank.study.records import canonical_at, json_number

if TYPE_CHECKING:
    import jinja2

    from wavetank.ledger.catalog import SystemEntry
    from wavetank.ledger.claims import Finding
    from wavetank.report.charts import Drawing
    from wavetank.run.comparison import Comparison
    from wavetank.study.summary import Row

# Bytes of embedded figures beyond which the page leaves out what only the run's Parquet file then has.
MOST_NUMBERS = 400_000
_BADGES = {
    verdicts.REACHED: ("holds", "✓"),
    verdicts.EXCEEDS: ("holds", "↑"),
    verdicts.CONSISTENT: ("holds", "≈"),
    verdicts.SHORT: ("part", "◐"),
    verdicts.ANOTHER: ("part", "≠"),
    verdicts.CONTRADICTED: ("fails", "✗"),
    verdicts.UNDECIDED: ("open", "?"),
    verdicts.NOT_RUN: ("open", "–"),
}
_KINDS = {
    "measured": "taken from a real run on the machine named below",
    "counted": "exact counts of bytes, rounds, steps or instructions",
    "simulated": "out of an event simulation, not of real hardware",
    "modelled": "out of a formula",
}


def render(comparison: Comparison) -> str:
    """Return the report of a run as one HTML page."""
    from wavetank.report.charts import draw, draw_forest

    study = comparison.study
    table = main_table(comparison)
    systems = comparison.plan.systems
    here = Path(__file__).parent
    entries = [_system(name, comparison) for name in systems]
    question = catalog.study(comparison.plan.study).asks
    charts = [draw(comparison, chart, f"chart-{number}") for number, chart in enumerate(study.charts, 1)]
    forest = draw_forest(comparison, "forest")
    shown = dict(zip(_slugs([chart.title for chart in charts]), charts, strict=True))
    shown = {slug: chart for slug, chart in shown.items() if chart.panels}
    drawn = {**({"forest": forest} if forest is not None else {}), **shown}
    body = _template().render(
        js=_inline(here / "page.js"),
        question=question,
        study=comparison.plan.study,
        background=list(filter(None, setup_of(type(study)).split("\n\n"))),
        about=comparison.about,
        systems=systems,
        claims=[_claim(finding, comparison) for finding in comparison.findings if finding.verdict != verdicts.NOT_RUN],
        other_claims=[
            _claim(finding, comparison) for finding in comparison.findings if finding.verdict == verdicts.NOT_RUN
        ],
        tuned=[name for name in comparison.plan.of_catalog if comparison.plan.parameters.get(name)],
        answer=comparison.answer,
        spread=spread([cell.row for line in table.lines for cell in line.cells if cell.row is not None]),
        kinds={kind: _KINDS.get(kind, "") for kind in dict.fromkeys(row.kind for row in comparison.rows)},
        table=table,
        table_html=table.as_html(styled=False),
        legend=table.legend(GLYPHS, "×"),
        forest=forest,
        launch=_launch(comparison),
        charts=shown,
        undrawn=[chart for chart in charts if not chart.panels],
        settings=_settings(comparison),
        entries=entries,
        runs={word: says for word, says in catalog.RUNS.items() if any(word in each["runs"] for each in entries)},
        metrics=_metrics(comparison),
        notes=comparison.notes,
        failures=comparison.failures,
        provenance=_provenance(comparison),
        numbers=_numbers(comparison, drawn),
    )
    return html_page.page(
        f"{comparison.plan.study}: {question}",
        body,
        style=_inline(here / "page.css"),
        made_by=f"wavetank {comparison.about.get('versions', {}).get('wavetank', '')}".rstrip(),
    )


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string((Path(__file__).parent / "page.html.jinja").read_text(encoding="utf-8"))


def _inline(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _slugs(titles: Sequence[str]) -> list[str]:
    """Return an id for every title, for links that stay when charts are added; equal ones are numbered."""
    found: list[str] = []
    for title in titles:
        slug = f"chart-{'-'.join(re.findall('[a-z0-9]+', title.lower()))[:60].strip('-')}".rstrip("-")
        number = sum(re.sub(r"--[0-9]+$", "", other) == slug for other in found)
        found.append(f"{slug}--{number + 1}" if number else slug)
    return found


def _launch(comparison: Comparison) -> str:
    """Return the command that puts the best system to real work; empty without one."""
    best = comparison.answer.best if comparison.answer is not None else ""
    return comparison.entry(best).launch if best else ""


def _claim(finding: Finding, comparison: Comparison) -> dict[str, Any]:
    claim = finding.claim
    style, glyph = _BADGES[finding.verdict]
    metric = next((metric for metric in comparison.study.metrics if metric.name == claim.metric), None)
    unit = metric.unit if metric is not None else ""
    found = finding.found
    if finding.versus is not None:
        unit, times, of = "", "×", f" of {finding.versus}"
    else:
        times, of = "", ""
    scale = scale_for(unit, [found.centre, claim.paper or math.nan])

    def figure(value: float, write: Callable[[float], str] = units.show) -> str:
        return f"{times}{write(scale.of(value))} {scale.unit}".rstrip()

    bars = [
        f"{word} {figure(bar, units.stated)}"
        for word, bar in (("at least", claim.at_least), ("at most", claim.at_most))
        if bar is not None
    ]
    return {
        "style": style,
        "glyph": glyph,
        "verdict": finding.verdict,
        "system": claim.system,
        "says": claim.says,
        "metric": claim.metric,
        "at": ", ".join(f"{name} = {value}" for name, value in claim.at.items()),
        "better": claim.better,
        "ours": "" if math.isnan(found.centre) else figure(found.centre) + of,
        "interval": found.within(figure),
        "paper": "" if claim.paper is None else figure(claim.paper, units.stated) + of,
        "bar": " and ".join(bars),
        "note": claim.note,
    }


def _settings(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        _parameter(item, comparison.plan.settings.get(item.name, item.default))
        for item in parameters_of(type(comparison.study))
    ]


def _parameter(item: Parameter, value: Any) -> dict[str, Any]:
    return {
        "name": item.name,
        "value": units.typed(value, ", "),
        "unit": item.unit,
        "default": "" if item.required else units.typed(item.default, ", "),
        "changed": not item.required and units.typed(value) != units.typed(item.default),
        "says": item.says,
    }


def _system(name: str, comparison: Comparison) -> dict[str, Any]:
    entry = comparison.entry(name)
    text, address = cited(entry.source)
    return {
        "name": name,
        "baseline": name == comparison.study.baseline,
        "role": entry.role,
        "does": entry.does,
        "source": {"text": text, "address": address},
        "runs": entry.runs,
        "differs": entry.differs,
        "parameters": _parameters(entry, comparison),
    }


def _parameters(entry: SystemEntry, comparison: Comparison) -> list[dict[str, Any]]:
    """Return the parameters of a system with their values; of its user's own, as the run has kept them."""
    if entry.name in comparison.plan.own:
        kept = comparison.about.get("own", {}).get(entry.name, {}).get("parameters", [])
        return [{**row, "changed": row["value"] != row["default"]} for row in kept]
    built = entry.build(**comparison.plan.parameters.get(entry.name, {}))
    return [_parameter(item, getattr(built, item.name)) for item in parameters_of(type(built), entry.parameters)]


def _metrics(comparison: Comparison) -> list[dict[str, str]]:
    recorded = {row.metric for row in comparison.rows}
    named = labels(comparison.study.metrics)
    return [
        {
            "name": metric.name,
            "label": named[metric.name],
            "unit": metric.unit,
            "better": metric.better,
            "kind": metric.kind,
            "of": metric.of,
            "missing": "" if metric.name in recorded else "no figure in this run",
        }
        for metric in comparison.study.metrics
    ]


def _provenance(comparison: Comparison) -> list[tuple[str, str, bool]]:
    """Return label, text and whether the text is to be shown as code."""
    about = comparison.about
    machine = about.get("machine", {})
    memory = machine.get("memory_bytes")
    description = [
        str(machine.get("processor") or ""),
        f"{machine['cores']} cores" if machine.get("cores") else "",
        f"{units.show(memory, 'bytes')} of memory" if memory else "",
        str(machine.get("system") or ""),
    ]
    walls = (("wall_s", "Wall time"), ("trial_wall_s", "Time in trials, added up"))
    rows: list[tuple[str, Any, bool]] = [
        ("Started", about.get("started"), False),
        *((name, units.show(float(about[key]), "s"), False) for key, name in walls if key in about),
        ("Machine", ", ".join(filter(None, description)), False),
        (
            "Ran",
            {"local": "on this machine's cores", "here": "in one process"}.get(about.get("on", ""), about.get("on")),
            False,
        ),
        ("Versions", ", ".join(f"{name} {version}" for name, version in about.get("versions", {}).items()), False),
        ("Commit", about.get("commit"), True),
        ("Seeds", ", ".join(map(str, comparison.plan.seeds)), False),
        *((f"Data: {name}", checksum, True) for name, checksum in about.get("data", {}).items()),
    ]
    return [(name, str(text), code) for name, text, code in rows if text]


def _numbers(comparison: Comparison, charts: Mapping[str, Drawing]) -> str:
    """Return the figures as JSON that can stand in a script element.

    Rows along time are there as they are drawn, not one by one; values by seed are those of the table. What does not
    fit then is left out, the longest curves first.
    """
    along_time = {chart.by or "time_s" for chart in comparison.study.charts if chart.kind == "timeline"}
    rows = [row for row in comparison.rows if not along_time & set(row.at)]
    everything = _embedded(comparison, charts, rows)
    if len(everything) <= MOST_NUMBERS:
        return everything
    kinds: dict[tuple[str, tuple[str, ...]], list[Row]] = {}
    for row in rows:
        kinds.setdefault((row.metric, tuple(sorted(row.at))), []).append(row)
    kept: set[tuple[str, tuple[str, ...]]] = set()
    best = _embedded(comparison, charts, [])
    for kind in sorted(kinds, key=lambda kind: len(kinds[kind])):
        chosen = [row for row in rows if (row.metric, tuple(sorted(row.at))) in kept | {kind}]
        text = _embedded(comparison, charts, chosen)
        if len(text) <= MOST_NUMBERS:
            kept.add(kind)
            best = text
    return best


def _embedded(comparison: Comparison, charts: Mapping[str, Drawing], rows: Sequence[Row]) -> str:
    study = comparison.study
    in_table = {metric.name for metric in study.metrics if metric.table}
    seeds = {seed: number for number, seed in enumerate(sorted({record.seed for record in comparison.records}))}
    by_place: dict[tuple[str, str, str], list[float | None]] = {}
    for record in comparison.records:
        if record.metric in in_table and set(record.at) <= {study.cases_by}:
            place = (record.system, record.metric, canonical_at(record.at))
            by_place.setdefault(place, [None] * len(seeds))[seeds[record.seed]] = record.value
    metrics = list(dict.fromkeys((row.metric, row.unit, row.kind) for row in rows))
    places = {canonical_at(row.at): row.at for row in rows}
    system_numbers = {name: number for number, name in enumerate(comparison.plan.systems)}
    metric_numbers = {metric: number for number, metric in enumerate(metrics)}
    place_numbers = {place: number for number, place in enumerate(places)}
    table: list[list[Any]] = []
    for row in rows:
        at = canonical_at(row.at)
        cells: list[Any] = [
            system_numbers.get(row.system, row.system),
            metric_numbers[row.metric, row.unit, row.kind],
            place_numbers[at],
            row.seeds,
            *map(_brief, (row.median, row.low, row.high, row.least, row.most)),
        ]
        if values := by_place.get((row.system, row.metric, at)):
            cells.append([None if value is None else _brief(value) for value in values])
        table.append(cells)
    whole = {
        "study": comparison.plan.study,
        "settings": _plain(comparison.plan.settings),
        "systems": comparison.plan.systems,
        "parameters": _plain(comparison.plan.parameters),
        "seeds": list(seeds),
        "metrics": metrics,
        "places": [_plain(at) for at in places.values()],
        "columns": ["system", "metric", "at", "seeds", "median", "low", "high", "least", "most", "values by seed"],
        "rows": table,
        "rows_left_out": len(comparison.rows) - len(rows),
        "claims": [finding.as_row() for finding in comparison.findings],
        "charts": {slug: chart.marks() for slug, chart in charts.items()},
    }
    text = json.dumps(whole, separators=(",", ":"), default=str, allow_nan=False)
    # Neither a closing tag nor a comment may appear inside a script element; JSON may write any sign as an escape.
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _brief(value: float) -> float | str | None:
    """Return a figure with nine digits: more are noise, and half of the page."""
    return json_number(float(f"{value:.9g}"))


def _plain(value: Any) -> Any:
    """Return a setting as JSON can hold it."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return json_number(value) if isinstance(value, float) else value
