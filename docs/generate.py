"""Writes ``docs/generated``: one page a system and a study, and the ledger, from the catalog and the evidence alone."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wavetank import units
from wavetank.ledger import catalog, claims
from wavetank.ledger.facts import cited, documented, idea_of, parameters_of, setup_of
from wavetank.report.charts import draw
from wavetank.report.tables import main_table
from wavetank.run import comparison

DOCS = Path(__file__).parent
# Light and dark pages both: the drawings take their colours from these.
_STYLE = (
    "<style>.wt svg{max-width:100%;height:auto;color:var(--color-foreground-primary,#222)}.wt{overflow-x:auto}</style>"
)


def write_pages(folder: Path, *, charts: bool = True) -> list[Path]:
    """Write every page, with or without its charts, and return where they are."""
    _evidence.cache_clear()
    _drawing.cache_clear()
    (folder / "systems").mkdir(parents=True, exist_ok=True)
    (folder / "studies").mkdir(exist_ok=True)
    ledger = {}
    for finding in claims.ledger():
        ledger.setdefault(finding.claim.system, []).append(finding)
    pages = {}
    for entry in catalog.built_in():
        pages[folder / "systems" / f"{entry.name}.md"] = _system_page(entry, ledger.get(entry.name, []), charts)
    for study in catalog.built_in().studies.values():
        pages[folder / "studies" / f"{study.name}.md"] = _study_page(study, charts)
    pages[folder / "systems" / "index.md"] = _system_index()
    pages[folder / "studies" / "index.md"] = _study_index()
    pages[folder / "ledger.md"] = _ledger_page(ledger)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return list(pages)


def _text(value: object) -> str:
    """Return text that a Markdown table cell shows as it is."""
    return re.sub(r"([|<>*_`\\])", r"\\\1", str(value)).replace("\n", " ")


def _table(head: list[str], rows: list[list[object]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(_text(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def _source(source: Any) -> str:
    words, address = cited(source)
    return f"[{_text(words)}]({address})" if address else _text(words)


def _parameters(kind: type, given: Mapping[str, Any] | None = None) -> str:
    rows: list[list[object]] = [
        [item.name, units.typed(item.default), item.unit, item.allowed(), item.says]
        for item in parameters_of(kind, given)
    ]
    return _table(["name", "default", "unit", "allowed", "meaning"], rows) if rows else "None."


def _findings(found: list[claims.Finding]) -> str:
    rows: list[list[object]] = []
    for finding in found:
        claim = finding.claim
        centre = finding.found.centre
        ours = "-" if math.isnan(centre) else f"{units.show(centre)} ({finding.found.within(units.show)})"
        against = f"{claim.metric}, ratio to {finding.versus}" if finding.versus else claim.metric
        asked = [
            f"{word} {units.stated(bar)}"
            for word, bar in (("paper", claim.paper), ("at least", claim.at_least), ("at most", claim.at_most))
            if bar is not None
        ]
        rows.append(
            [
                claim.says,
                against,
                ", ".join(asked) or claim.better,
                ours,
                finding.verdict,
                claim.level,
                ", ".join(finding.evidence) or "-",
                finding.machine or "-",
                claim.note,
            ]
        )
    return _table(["claim", "figure", "asked", "ours", "verdict", "level", "records", "machine", "note"], rows)


def _system_page(entry: catalog.SystemEntry, found: list[claims.Finding], charts: bool) -> str:
    kind = entry.load()
    parts = [f"# {entry.name}", entry.does, f"**Source.** {_source(entry.source)}"]
    parts.append("**What is real.** " + "; ".join(f"{word}: {catalog.RUNS[word]}" for word in entry.runs) + ".")
    why = DOCS / "why" / f"{entry.name}.md"
    # A page of its own where there is more to say than the module's first paragraphs do.
    idea = "\n\n".join(_text(paragraph) for paragraph in idea_of(kind).split("\n\n"))
    if why.exists():
        # The page made of it is a folder further down.
        idea = why.read_text(encoding="utf-8").strip().replace("](../", "](../../")
    parts += ["## Why it works", idea]
    parts += ["## Parameters", _parameters(kind, entry.parameters)]
    if entry.differs:
        parts += ["## What differs from the source", "\n".join(f"1. {_text(line)}" for line in entry.differs)]
    if found:
        parts += ["## Claims", _findings(found)]
    for name in entry.studies:
        parts.append(f"## In the study [{name}](../studies/{name}.md)")
        parts.append(_chart_of(name, charts) or "Nothing has been measured yet.")
    lines = inspect.getdoc(sys.modules[kind.__module__]) or ""
    parts += ["## Notes of its module", f"```text\n{lines}\n```", f"Code: `{kind.__module__}`"]
    return "\n\n".join(parts) + "\n"


# A study's evidence is read, and its chart drawn, once for the pages of all its systems.
@functools.cache
def _evidence(study: str) -> list[comparison.Comparison]:
    folders = sorted(path.parent for path in (claims.evidence_folder() / study).glob("*/run.json"))
    return [comparison.load(folder) for folder in folders]


def _chart_of(study: str, charts: bool) -> str:
    runs = _evidence(study)
    if not runs or not runs[0].study.charts:
        return ""
    return _drawing(study, 0) if charts else _title(study, 0)


def _title(study: str, number: int) -> str:
    chart = _evidence(study)[0].study.charts[number]
    return f"**{_text(chart.title)}.** {_text(chart.says)}"


@functools.cache
def _drawing(study: str, number: int) -> str:
    run = _evidence(study)[0]
    drawing = draw(run, run.study.charts[number], f"{study}-{number}")
    panels = "".join(
        (f"<p>{panel.heading}</p>" if panel.heading else "") + re.sub(r"\n\s*\n", "\n", panel.svg)
        for panel in drawing.panels
    )
    legend = " ".join(f"{key.swatch} {key.system}" for key in drawing.legend)
    notes = " ".join(drawing.notes)
    return (
        f"**{_text(drawing.title)}.** {_text(drawing.says)} {_text(notes)}\n\n"
        f'```{{raw}} html\n{_STYLE}<div class="wt">{panels}<p>{legend}</p></div>\n```'
    )


def _study_page(entry: catalog.StudyEntry, charts: bool) -> str:
    kind: Any = entry.load()
    parts = [f"# {entry.name}", entry.asks, setup_of(kind), f"```text\nwavetank compare {entry.name}\n```"]
    parts += ["## Settings", _parameters(kind), "## Systems"]
    parts.append("\n".join(f"- [{name}](../systems/{name}.md)" for name in catalog.built_in().plain_run(entry.name)))
    metrics = [[m.name, m.unit, m.better or "-", m.kind, m.of] for m in kind.metrics]
    parts += ["## Metrics", _table(["name", "unit", "better", "kind", "definition"], metrics)]
    runs = _evidence(entry.name)
    parts.append("## Evidence")
    if not runs:
        parts.append("Nothing has been measured yet.")
    for number, run in enumerate(runs):
        about = run.about
        parts.append(f"### {run.folder.name}")
        machine = about.get("machine", {})
        parts.append(
            f"`{about.get('command', '')}` on {_text(machine.get('processor', ''))}, {machine.get('cores', '')} cores, "
            f"{about.get('started', '')[:10]}, commit {about.get('commit', '') or '-'}, "
            f"{len(run.plan.seeds)} seeds."
        )
        parts.append("\n".join(f"- {_text(note)}" for note in run.notes))
        parts.append(main_table(run).as_markdown())
        if number == 0:
            parts += [(_drawing if charts else _title)(entry.name, i) for i in range(len(run.study.charts))]
    return "\n\n".join(part for part in parts if part) + "\n"


def _system_index() -> str:
    parts = ["# Systems"]
    for area in catalog.areas():
        entries = [entry for entry in catalog.built_in() if entry.area == area]
        parts.append(f"## {area}")
        parts.append(
            "\n".join(
                ["| system | role | does |", "| --- | --- | --- |"]
                + [f"| [{entry.name}]({entry.name}.md) | {entry.role} | {_text(entry.does)} |" for entry in entries]
            )
        )
    names = "\n".join(entry.name for entry in catalog.built_in())
    return "\n\n".join([*parts, f"```{{toctree}}\n:hidden:\n\n{names}\n```"]) + "\n"


def _study_index() -> str:
    studies = catalog.built_in().studies.values()
    rows = [f"| [{study.name}]({study.name}.md) | {study.area} | {_text(study.asks)} |" for study in studies]
    table = "\n".join(["| study | area | question |", "| --- | --- | --- |", *rows])
    names = "\n".join(study.name for study in studies)
    return f"# Studies\n\n{table}\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"


def questions() -> str:
    """Return the page of what can be asked: every study by area, and its question."""
    parts = [
        "# What can be asked",
        "`wavetank compare STUDY` puts a question to all systems that answer it; `wavetank advise` takes a question in "
        "your own words. Made from the catalogs by `python docs/generate.py`.",
    ]
    studies = sorted(catalog.built_in().studies.values(), key=lambda entry: (entry.area, entry.problem, entry.name))
    for area in dict.fromkeys(study.area for study in studies):
        rows = [f"| `{study.name}` | {study.asks} |" for study in studies if study.area == area]
        parts.append("\n".join([f"## {area}\n", "| study | question |", "|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _ledger_page(ledger: dict[str, list[claims.Finding]]) -> str:
    parts = ["# The claims ledger", "Verdicts from the committed records; `wavetank claims` prints the same."]
    for system, found in ledger.items():
        parts += [f"## {system}", _findings(found)]
    return "\n\n".join(part for part in parts if part) + "\n"


def catalog_keys() -> str:
    """Return what every key of a catalog means, as tables, from the docstrings of the ledger's dataclasses."""
    parts = []
    commands = ", ".join(f"`[{table}.NAME]`" for table in catalog.COMMANDS)
    for head, kind, given in (
        ("`[NAME]`, a system", catalog.SystemEntry, ("name", "area", "problem", "where")),
        ("`[[NAME.claims]]`", catalog.Claim, ("system",)),
        ("`[studies.NAME]`", catalog.StudyEntry, ("name", "area", "problem", "where")),
        (commands, catalog.CommandEntry, ("name", "where")),
    ):
        says = documented(kind)
        rows: list[list[object]] = []
        for item in dataclasses.fields(kind):
            if item.name not in given:
                must = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
                rows.append([item.name, "yes" if must else "", says[item.name]])
        parts += [f"{head}:", _table(["key", "must be given", "what it is"], rows)]
    for head, words in (
        ("shape", catalog.SHAPES),
        ("runs", catalog.RUNS),
        ("role", catalog.ROLES),
        ("level", catalog.LEVELS),
    ):
        parts.append(f"Words of `{head}`:\n\n" + "\n".join(f"* `{word}`: {says}" for word, says in words.items()))
    return "\n\n".join(parts)


if __name__ == "__main__":
    write_pages(DOCS / "generated")
    (DOCS / "questions.md").write_text(questions(), encoding="utf-8")
