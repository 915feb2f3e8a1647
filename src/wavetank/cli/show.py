"""``wavetank show``: what one decides by about a system, a study or a paper, on one screen; all of it with --full."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from wavetank.cli.verdicts import say_findings, tally
from wavetank.errors import BadFileError, BadValueError, unknown_name
from wavetank.files import write_atomic
from wavetank.ledger import catalog, claims
from wavetank.ledger.catalog import RUNS, PaperEntry, StudyEntry, SystemEntry
from wavetank.ledger.claims import Finding
from wavetank.ledger.facts import Parameter, cited, file_of, idea_of, parameters_of, setup_of
from wavetank.terminal import say, say_heading, say_json, say_wrapped, style, width, wrapped

# Of a list on the short page; the whole is on the full one.
_CLAIMS, _PARAMETERS, _LINES, _SYSTEMS = 8, 8, 5, 8
_LABEL = 13
# Characters of a setting's value.
_VALUE = 40


@click.command()
@click.argument("name")
@click.option("--full", is_flag=True, help="Print everything: the idea, every claim, what differs, every setting.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--picture", metavar="TEXT", help="Draw the object that TEXT describes as SVG; linear-layouts draws layouts."
)
@click.option("--out", metavar="FILE", help="File for the picture; otherwise it is printed.")
def command(name: str, full: bool, as_json: bool, picture: str | None, out: str | None) -> None:
    """Show a system, a study or a paper (by its name or arXiv id): what it is, its claims, and further reading."""
    everything = catalog.built_in()
    if name not in everything.systems and name not in everything.studies:
        everything = catalog.everything()
    if name in everything.systems:
        entry = everything.systems[name]
        if picture is not None:
            _draw(entry, picture, out)
            return
        say_json(_system_facts(entry)) if as_json else (_say_system if full else _say_system_short)(entry)
    elif name in everything.studies:
        study = everything.studies[name]
        say_json(_study_facts(study)) if as_json else (_say_study if full else _say_study_short)(study)
    elif (paper := catalog.paper(name)) is not None:
        say_json(_paper_facts(paper)) if as_json else (_say_paper if full else _say_paper_short)(paper)
    else:
        known = {*everything.systems, *everything.studies, *everything.papers}
        raise unknown_name("system, study or paper", name, known, hint="wavetank list")


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
    kind, everything = entry.load(), catalog.everything()
    return {
        "name": entry.name,
        "area": entry.area,
        "object": entry.object,
        "asks": entry.asks,
        "setup": setup_of(kind),
        "plain_run": list(everything.plain_run(entry.name)),
        "systems": list(everything.systems_of(entry.name)),
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


def _systems_of(paper: PaperEntry) -> list[SystemEntry]:
    return [entry for entry in catalog.everything() if entry.paper == paper.name]


def _paper_facts(paper: PaperEntry) -> dict[str, object]:
    systems = _systems_of(paper)
    return {
        "name": paper.name,
        "source": dict(paper.source),
        "systems": [entry.name for entry in systems],
        "studies": list(dict.fromkeys(name for entry in systems for name in entry.studies)),
        "claims": [finding.as_row() for finding in claims.ledger([entry.name for entry in systems])],
    }


def _row(label: str, text: str, lines: int = 0) -> None:
    """Write a labelled paragraph, cut after a number of lines where one is given."""
    if not text:
        return
    found = wrapped(text, first=" " * _LABEL).splitlines()
    if lines and len(found) > lines:
        last = found[lines - 1]
        found = [*found[: lines - 1], (last if len(last) < width() - 1 else last.rsplit(" ", 1)[0]) + " …"]
    say("\n".join([f"{style(label.ljust(_LABEL), fg='cyan')}{found[0][_LABEL:]}", *found[1:]]))


def _rows(label: str, texts: Sequence[str], most: int) -> None:
    """Write a labelled list, one cut line each."""
    for number, text in enumerate(texts[:most]):
        _row("" if number else label, text, lines=1)
    if len(texts) > most:
        _row("", f"and {len(texts) - most} more")


def _setting(parameter: Parameter) -> str:
    """Return KEY=VALUE without the unit; of a long list the beginning."""
    value = parameter.value().split(" ")[0]
    if len(value) > _VALUE:
        value = value[:_VALUE].rpartition(",")[0] + ",..."
    return f"{parameter.name}={value}"


def _say_claims_short(findings: Sequence[Finding]) -> None:
    """Write how many claims have which verdict, then the claims of the paper one line each, goals after them."""
    if not findings:
        return
    say()
    _row("claims", tally(findings).partition(": ")[2])
    # A claim that several machines decided counts once, with the newest verdict.
    newest = {id(finding.claim): finding for finding in findings}.values()
    ordered = sorted(newest, key=lambda finding: finding.claim.basis == "goal")
    _rows("", [f"{finding.verdict}: {finding.claim.says}" for finding in ordered], _CLAIMS)


def _next(name: str, *commands: str) -> None:
    say()
    for number, line in enumerate([*filter(None, commands), f"wavetank show {name} --full"]):
        say(f"{style(('' if number else 'next').ljust(_LABEL), fg='cyan')}{line}")


def _say_system_short(entry: SystemEntry) -> None:
    kind = entry.load()
    say(f"{style(entry.name, bold=True)}: a {entry.role} of {entry.room or entry.area} ({entry.shape})")
    say_wrapped(entry.does)
    say()
    _row("source", cited(entry.source)[0], lines=2)
    _row("idea", idea_of(kind).partition("\n\n")[0], lines=_LINES)
    _row("runs", ", ".join(entry.runs))
    differs = len(entry.differs)
    _row("differs", f"in {differs} {'point' if differs == 1 else 'points'} from the source" if differs else "")
    parameters = parameters_of(kind, entry.parameters)
    if parameters:
        say()
        _rows("parameters", [f"{each.name} = {each.value()}: {each.says}" for each in parameters], _PARAMETERS)
    _say_claims_short(claims.ledger([entry.name]))
    if entry.studies:
        say()
        _rows("studies", [f"{name}: {catalog.study(name).asks}" for name in entry.studies], _LINES)
    compare = f"wavetank compare {entry.studies[0]} --systems {entry.name}" if entry.studies else ""
    # A study of another package that cannot be imported is no reason to hide the system.
    with contextlib.suppress(BadFileError):
        if entry.studies and (baseline := catalog.study(entry.studies[0]).load().baseline) != entry.name:
            compare += f",{baseline}"
    _next(entry.name, compare, entry.launch)


def _say_study_short(entry: StudyEntry) -> None:
    from wavetank.cli.advise import kept_answer

    kind, everything = entry.load(), catalog.everything()
    say(f"{style(entry.name, bold=True)}: a study of {entry.room or entry.area}")
    say_wrapped(entry.asks)
    say()
    _row("set-up", setup_of(kind).partition("\n\n")[0], lines=_LINES)
    label, answer = kept_answer(entry.name)
    _row("so far", f"{answer.sentence} Kept run: {label}." if answer is not None else "no kept run", lines=_LINES)
    plain_run = everything.plain_run(entry.name)
    names = [f"{name} (baseline)" if name == kind.baseline else name for name in plain_run]
    others = len(everything.systems_of(entry.name)) - len(plain_run)
    _row("systems", ", ".join(names) + (f"; {others} more with --systems" if others else ""), lines=_LINES)
    parameters = parameters_of(kind)
    _row("settings", ", ".join(map(_setting, parameters)), lines=_SYSTEMS)
    shown = [metric for metric in kind.metrics if metric.table]
    _row("metrics", ", ".join(f"{metric.name} ({metric.better or 'neutral'})" for metric in shown), lines=_LINES)
    own = next((f" --set {each.name}=FILE" for each in parameters if each.name in ("trace", "file")), "")
    _next(entry.name, f"wavetank compare {entry.name}{own}")


def _say_paper_short(paper: PaperEntry) -> None:
    systems = _systems_of(paper)
    say(f"{style(paper.name, bold=True)}: a paper")
    _say_source(paper.source)
    say()
    _rows("systems", [f"{entry.name} ({entry.role}): {entry.does}" for entry in systems], _SYSTEMS)
    studies = list(dict.fromkeys(name for entry in systems for name in entry.studies))
    _rows("studies", [f"{name}: {catalog.study(name).asks}" for name in studies], _LINES)
    findings = claims.ledger([entry.name for entry in systems])
    headlines = claims.headlines(paper, findings)
    if headlines:
        say()
        _rows("headlines", [f"{each.verdict}: {each.headline.says}" for each in headlines], _CLAIMS)
    _say_claims_short(findings)
    _next(paper.name, f"wavetank claims {paper.name}", f"wavetank show {systems[0].name}" if systems else "")


def _say_paper(paper: PaperEntry) -> None:
    systems = _systems_of(paper)
    say(f"{style(paper.name, bold=True)}: a paper")
    _say_source(paper.source)
    say_heading("Systems")
    for entry in systems:
        say_wrapped(f"{entry.name} ({entry.role}): {entry.does}", first="  ", rest="    ")
    studies = list(dict.fromkeys(name for entry in systems for name in entry.studies))
    say_heading("Studies")
    for name in studies:
        say_wrapped(f"{name}: {catalog.study(name).asks}", first="  ", rest="    ")
    findings = claims.ledger([entry.name for entry in systems])
    if findings:
        say_heading("Claims")
        say_findings(findings, where=False)
    if systems:
        say_heading(f"wavetank show {systems[0].name}")


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
    _say_source(entry.source)
    say_heading("How it runs here")
    for word in entry.runs:
        say_wrapped(f"{word}: {RUNS[word]}", first="  ", rest="    ")
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
    say_wrapped(entry.asks)
    for paragraph in setup_of(kind).split("\n\n"):
        say()
        say_wrapped(paragraph)
    _say_parameters("Settings", parameters_of(kind), "--set ")
    say_heading("Systems")
    plain_run = catalog.everything().plain_run(entry.name)
    names = [f"{name} (baseline)" if name == kind.baseline else name for name in plain_run]
    say_wrapped(", ".join(names), first="  ")
    others = [name for name in catalog.everything().systems_of(entry.name) if name not in plain_run]
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


def _say_source(source: Mapping[str, Any]) -> None:
    for line in filter(None, cited(source)):
        say_wrapped(line, first="  ", rest="    ")


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
