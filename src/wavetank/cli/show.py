"""``wavetank show``: all that is known about one system or study."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from wavetank import catalog, claims
from wavetank.catalog import StudyEntry, SystemEntry
from wavetank.cli.facts import (
    RUNS_IN_WORDS,
    Parameter,
    file_of,
    idea_of,
    parameters_of,
    question_of,
    source_lines,
)
from wavetank.cli.terminal import say, say_heading, say_json, say_wrapped, style
from wavetank.cli.verdicts import say_findings
from wavetank.errors import BadValueError, unknown_name
from wavetank.runfolder import write_atomic


@click.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--picture", metavar="TEXT", help="Draw what TEXT tells as SVG; linear-layouts draws layouts.")
@click.option("--out", metavar="FILE", help="Where the picture goes, otherwise it is printed.")
def command(name: str, as_json: bool, picture: str | None, out: str | None) -> None:
    """Show a system or a study: what it is, its parameters or settings, its claims, where to read on."""
    everything = catalog.built_in()
    if name not in everything.systems and name not in everything.studies:
        everything = catalog.everything()
    if name in everything.systems:
        entry = everything.systems[name]
        if picture is not None:
            _draw(entry, picture, out)
            return
        say_json(_system_facts(entry)) if as_json else _say_system(entry)
    elif name in everything.studies:
        study = everything.studies[name]
        say_json(_study_facts(study)) if as_json else _say_study(study)
    else:
        raise unknown_name("system or study", name, {*everything.systems, *everything.studies}, hint="wavetank list")


def _draw(entry: SystemEntry, text: str, out: str | None) -> None:
    system = entry.build()
    if not hasattr(system, "picture"):
        raise BadValueError(
            "There is nothing to draw for this system.",
            given=entry.name,
            hint="wavetank show linear-layouts --picture 'mma-result(warps=2x1) 32x16' --out layout.svg",
        )
    drawn = system.picture(text)
    if out is None:
        say(drawn)
    else:
        write_atomic(Path(out), drawn)
        say(out)


def _system_facts(entry: SystemEntry) -> dict[str, object]:
    kind = entry.load()
    return {
        "name": entry.name,
        "area": entry.area,
        "object": entry.object,
        "shape": entry.shape,
        "role": entry.role,
        "does": entry.does,
        "source": dict(entry.source),
        "runs": list(entry.runs),
        "studies": list(entry.studies),
        "differs": list(entry.differs),
        "launch": entry.launch,
        "idea": idea_of(kind),
        "parameters": [parameter.as_row() for parameter in parameters_of(kind, entry.parameters)],
        "claims": [finding.as_row() for finding in claims.ledger([entry.name])],
        "file": file_of(kind),
    }


def _study_facts(entry: StudyEntry) -> dict[str, object]:
    kind = entry.load()
    return {
        "name": entry.name,
        "area": entry.area,
        "object": entry.object,
        "asks": entry.asks,
        "question": question_of(kind),
        "systems": list(kind.systems),
        "contenders": _contenders(entry),
        "baseline": kind.baseline,
        "seeds": kind.default_seeds,
        "settings": [parameter.as_row() for parameter in parameters_of(kind)],
        "metrics": [
            {"name": item.name, "unit": item.unit, "better": item.better, "kind": item.kind, "of": item.of}
            for item in kind.metrics
        ],
        "charts": [{"kind": chart.kind, "title": chart.title, "says": chart.says} for chart in kind.charts],
        "file": file_of(kind),
    }


def _contenders(entry: StudyEntry) -> list[str]:
    return [system.name for system in catalog.everything() if entry.name in system.studies]


def _say_system(entry: SystemEntry) -> None:
    kind = entry.load()
    say(f"{style(entry.name, bold=True)}: a {entry.role} of the area {entry.area} ({entry.shape})")
    say_wrapped(entry.does)
    say_heading("Idea")
    for number, paragraph in enumerate(idea_of(kind).split("\n\n")):
        if number:
            say()
        say_wrapped(paragraph, first="  ")
    say_heading("Source")
    for line in source_lines(entry.source):
        say_wrapped(line, first="  ", rest="    ")
    say_heading("How it runs here")
    for word in entry.runs:
        say_wrapped(f"{word}: it {RUNS_IN_WORDS[word]}", first="  ", rest="    ")
    _say_parameters("Parameters", parameters_of(kind, entry.parameters), f"--set {entry.name}.")
    if entry.differs:
        say_heading("Differs from the source")
        for number, text in enumerate(entry.differs, 1):
            say_wrapped(text, first=f"  {number}. ", rest="     ")
    findings = claims.ledger([entry.name])
    if findings:
        say_heading("Claims")
        say_findings(findings, where=True)
    if entry.studies:
        say_heading("Studies")
        for name in entry.studies:
            say_wrapped(f"{name}: {catalog.study(name).asks}", first="  ", rest="    ")
    say_heading("Code")
    say(f"  {file_of(kind)}")
    say(f"  {entry.object.replace(':', '.')}")
    say_heading("Launch")
    say_wrapped(
        entry.launch or "Not in this version: it can be tried in its studies, not yet put in front of real traffic.",
        first="  ",
    )
    if entry.studies:
        say_heading(f"wavetank compare {entry.studies[0]}")


def _say_study(entry: StudyEntry) -> None:
    kind = entry.load()
    say(f"{style(entry.name, bold=True)}: a study of the area {entry.area}")
    for number, paragraph in enumerate(question_of(kind).split("\n\n")):
        if number:
            say()
        say_wrapped(paragraph)
    _say_parameters("Settings", parameters_of(kind), "--set ")
    say_heading("Systems")
    names = [f"{name} (baseline)" if name == kind.baseline else name for name in kind.systems]
    say_wrapped(", ".join(names), first="  ")
    others = [name for name in _contenders(entry) if name not in kind.systems]
    if others:
        say_wrapped(f"also, with --systems: {', '.join(others)}", first="  ")
    say_heading("Metrics")
    for metric in kind.metrics:
        about = ", ".join(
            filter(None, (metric.unit, f"{metric.better} is better" if metric.better else "", metric.kind))
        )
        say(f"  {style(metric.name, fg='cyan')} ({about})")
        if metric.of:
            say_wrapped(metric.of, first="      ")
    if kind.charts:
        say_heading("Charts in the report")
        for chart in kind.charts:
            say_wrapped(f"{chart.title}{f': {chart.says}' if chart.says else ''}", first="  ", rest="    ")
    say_heading("Code")
    say(f"  {file_of(kind)}")
    say_heading(f"wavetank compare {entry.name}")


def _say_parameters(title: str, parameters: Sequence[Parameter], how: str) -> None:
    say_heading(title)
    if not parameters:
        say("  none")
        return
    for parameter in parameters:
        allowed = parameter.allowed()
        say_wrapped(
            f"{parameter.name} = {parameter.value()}{f'  [{allowed}]' if allowed else ''}", first="  ", rest="      "
        )
        if parameter.says:
            say_wrapped(parameter.says, first="      ")
    say(f"  change one with {how}{parameters[0].name}=VALUE")
