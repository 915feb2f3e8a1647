"""The report: one HTML page that holds everything about a run and loads nothing.

Verdicts come first, then who leads, the figures, the charts, what was run and how, and where the figures come from.
The page computes nothing new: it shows records, their summaries and the findings on claims.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavetank import catalog, units
from wavetank.claims import FAILS, HOLDS, IN_PART, NOT_RUN, UNDECIDED
from wavetank.docstrings import plain
from wavetank.records import canonical_at, json_number
from wavetank.report.scale import labels, scale_for, stated
from wavetank.report.tables import GLYPHS, main_table

if TYPE_CHECKING:
    import jinja2

    from wavetank.claims import Finding
    from wavetank.comparison import Comparison
    from wavetank.study import Study
    from wavetank.summary import Row

# Bytes of embedded figures beyond which the page leaves out what only the run's Parquet file then has.
MOST_NUMBERS = 400_000
_BADGES = {
    HOLDS: ("holds", "✓"),
    IN_PART: ("part", "◐"),
    FAILS: ("fails", "✗"),
    UNDECIDED: ("open", "?"),
    NOT_RUN: ("open", "–"),
}
_RUNS = {
    "executed": "the system's own code does the work, on a real machine",
    "simulated": "the system's own code decides, while time passes in an event simulator",
    "modelled": "its costs come out of a formula",
    "live": "the same object can be put in front of real processes with wavetank launch",
}
_KINDS = {
    "measured": "taken from a real run on the machine named below",
    "counted": "exact counts of bytes, rounds, steps or instructions",
    "simulated": "out of an event simulation, not of real hardware",
    "modelled": "out of a formula",
}


def render(comparison: Comparison) -> str:
    """Return the report of a run as one HTML page.

    Parameters
    ----------
    comparison : Comparison
    """
    from wavetank.report.charts import draw

    study = comparison.study
    table = main_table(comparison)
    systems = comparison.plan.systems
    here = Path(__file__).parent
    return _template().render(
        css=_inline(here / "page.css"),
        js=_inline(here / "page.js"),
        question=question_of(study),
        study=comparison.plan.study,
        background=_background(study),
        about=comparison.about,
        systems=systems,
        claims=[_claim(finding, comparison) for finding in comparison.findings],
        tuned=[name for name in systems if comparison.plan.parameters.get(name)],
        leading=table.leading(),
        kinds={kind: _KINDS.get(kind, "") for kind in dict.fromkeys(row.kind for row in comparison.rows)},
        table=table,
        table_html=table.as_html(styled=False),
        legend=table.legend(GLYPHS, "×"),
        charts=[draw(comparison, chart, f"chart-{number}") for number, chart in enumerate(study.charts, 1)],
        settings=_settings(comparison),
        entries=[_system(name, comparison) for name in systems],
        runs={word: says for word, says in _RUNS.items() if any(word in catalog.system(name).runs for name in systems)},
        metrics=_metrics(comparison),
        notes=comparison.notes,
        failures=comparison.failures,
        provenance=_provenance(comparison),
        numbers=_numbers(comparison),
    )


def question_of(study: Study) -> str:
    """Return a study's question: the first line of its docstring, or its name."""
    return _docstring(study)[0] or study.name


def _background(study: Study) -> list[str]:
    return _docstring(study)[1]


def _docstring(study: Study) -> tuple[str, list[str]]:
    kind = type(study)
    # A dataclass without a docstring gets its signature for one.
    if not kind.__doc__ or kind.__doc__.startswith(f"{kind.__name__}("):
        return "", []
    first, _, rest = plain(inspect.cleandoc(kind.__doc__)).partition("\n")
    # What follows a section heading of numpydoc describes fields, which the page lists by itself.
    before = rest.split("\n---", 1)
    prose = before[0].rpartition("\n\n")[0] if len(before) > 1 else before[0]
    return first.strip(), [" ".join(part.split()) for part in prose.split("\n\n") if part.strip()]


@cache
def _template() -> jinja2.Template:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string((Path(__file__).parent / "page.html.jinja").read_text(encoding="utf-8"))


def _inline(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()


def _claim(finding: Finding, comparison: Comparison) -> dict[str, Any]:
    claim = finding.claim
    style, glyph = _BADGES[finding.verdict]
    metric = next((metric for metric in comparison.study.metrics if metric.name == claim.metric), None)
    unit = metric.unit if metric is not None else ""
    if claim.versus is not None:
        unit, times, of = "", "×", f" of {claim.versus}"
    else:
        times, of = "", ""
    scale = scale_for(unit, [finding.measured, claim.paper or math.nan])

    def figure(value: float, write: Callable[[float], str] = units.show) -> str:
        return f"{times}{write(scale.of(value))} {scale.unit}".rstrip()

    bars = [
        f"{word} {figure(bar, stated)}"
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
        "ours": "" if math.isnan(finding.measured) else figure(finding.measured) + of,
        "interval": "" if not finding.low < finding.high else f"{figure(finding.low)} to {figure(finding.high)}",
        "paper": "" if claim.paper is None else figure(claim.paper, stated) + of,
        "bar": " and ".join(bars),
        "note": claim.note,
    }


def _settings(comparison: Comparison) -> list[dict[str, Any]]:
    found = []
    for item in dataclasses.fields(comparison.study):
        value = comparison.plan.settings.get(item.name, getattr(comparison.study, item.name))
        default = item.default
        if default is dataclasses.MISSING and item.default_factory is not dataclasses.MISSING:
            default = item.default_factory()
        found.append(_parameter(item.name, value, default, item.metadata))
    return found


def _parameter(name: str, value: Any, default: Any, metadata: Mapping[str, Any]) -> dict[str, Any]:
    known = default is not dataclasses.MISSING
    return {
        "name": name,
        "value": _word(value),
        "unit": metadata.get("unit", ""),
        "default": _word(default) if known else "",
        "changed": known and _word(value) != _word(default),
        "says": metadata.get("says", ""),
    }


def _word(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_word, value))
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.10g}"
    return "none" if value is None else str(value)


def _system(name: str, comparison: Comparison) -> dict[str, Any]:
    entry = catalog.system(name)
    built, usual = entry.build(**comparison.plan.parameters.get(name, {})), entry.build()
    fields = [item for item in dataclasses.fields(built) if item.init] if dataclasses.is_dataclass(built) else []
    return {
        "name": name,
        "baseline": name == comparison.study.baseline,
        "role": entry.role,
        "does": entry.does,
        "source": _source(entry.source),
        "runs": entry.runs,
        "differs": entry.differs,
        "parameters": [
            _parameter(item.name, getattr(built, item.name), getattr(usual, item.name), item.metadata)
            for item in fields
        ],
    }


def _source(source: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of a source and the address to read it at, empty when it has none that is safe to link."""
    address = str(source.get("url", ""))
    if "arxiv" in source:
        address = f"https://arxiv.org/abs/{source['arxiv']}"
    elif "doi" in source:
        address = f"https://doi.org/{source['doi']}"
    shown = [source.get("authors", ""), source.get("title", ""), source.get("venue", ""), source.get("year", "")]
    if "arxiv" in source:
        shown.append(f"arXiv {source['arxiv']}")
    words = [_word(part) for part in shown if part]
    return {
        "text": ", ".join(words) or address,
        "address": address if address.startswith(("https://", "http://")) else "",
    }


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
    told = [
        str(machine.get("processor") or ""),
        f"{machine['cores']} cores" if machine.get("cores") else "",
        f"{units.show(memory, 'bytes')} of memory" if memory else "",
        str(machine.get("system") or ""),
    ]
    walls = (("wall_s", "Wall time"), ("trial_wall_s", "Time in trials, added up"))
    rows: list[tuple[str, Any, bool]] = [
        ("Started", about.get("started"), False),
        *((name, units.show(float(about[key]), "s"), False) for key, name in walls if key in about),
        ("Machine", ", ".join(filter(None, told)), False),
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


def _numbers(comparison: Comparison) -> str:
    """Return the figures as JSON that can stand in a script element."""
    everything = _embedded(comparison, comparison.rows, values=True)
    if len(everything) <= MOST_NUMBERS:
        return everything
    kinds: dict[tuple[str, tuple[str, ...]], list[Row]] = {}
    for row in comparison.rows:
        kinds.setdefault((row.metric, tuple(sorted(row.at))), []).append(row)
    kept: set[tuple[str, tuple[str, ...]]] = set()
    summaries = _embedded(comparison, [], values=False)
    # Long curves are what does not fit; the short tables come first.
    for kind in sorted(kinds, key=lambda kind: len(kinds[kind])):
        rows = [row for row in comparison.rows if (row.metric, tuple(sorted(row.at))) in kept | {kind}]
        text = _embedded(comparison, rows, values=False)
        if len(text) <= MOST_NUMBERS:
            kept.add(kind)
            summaries = text
    return summaries


def _embedded(comparison: Comparison, rows: Sequence[Row], *, values: bool) -> str:
    columns = ["system", "metric", "unit", "kind", "at", "seeds", "median", "low", "high", "least", "most"]
    by_place: dict[tuple[str, str, str], list[tuple[int, float]]] = {}
    if values:
        for record in comparison.records:
            place = (record.system, record.metric, canonical_at(record.at))
            by_place.setdefault(place, []).append((record.seed, record.value))
    table = []
    for row in rows:
        cells = [row.system, row.metric, row.unit, row.kind, _plain(row.at), row.seeds]
        cells += [json_number(value) for value in (row.median, row.low, row.high, row.least, row.most)]
        if values:
            found = by_place[row.system, row.metric, canonical_at(row.at)]
            cells.append([[seed, json_number(value)] for seed, value in found])
        table.append(cells)
    whole = {
        "study": comparison.plan.study,
        "settings": _plain(comparison.plan.settings),
        "systems": comparison.plan.systems,
        "parameters": _plain(comparison.plan.parameters),
        "seeds": comparison.plan.seeds,
        "columns": columns + (["values by seed"] if values else []),
        "rows": table,
        "rows_left_out": len(comparison.rows) - len(rows),
        "claims": [finding.as_row() for finding in comparison.findings],
    }
    text = json.dumps(whole, separators=(",", ":"), default=str, allow_nan=False)
    # Neither a closing tag nor a comment may appear inside a script element; JSON may write any sign as an escape.
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _plain(value: Any) -> Any:
    """Return a setting as JSON can hold it."""
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return json_number(value) if isinstance(value, float) else value
