"""``wavetank claims``: what the papers claim, what was found here, and whether it agrees."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import click

from wavetank.cli.verdicts import exit_code, say_findings, tally
from wavetank.errors import WavetankError, unknown_name
from wavetank.exits import DEFECT, DOES_NOT_HOLD, INTERRUPTED
from wavetank.ledger import catalog
from wavetank.ledger import claims as ledger
from wavetank.ledger.catalog import Claim
from wavetank.ledger.claims import Finding, HeadlineFinding
from wavetank.ledger.verdicts import GOOD, VERDICTS
from wavetank.run import comparison, runfolder
from wavetank.run.execute import check_place
from wavetank.terminal import say, say_error, say_json, say_wrapped, style, wrapped


@click.command()
@click.argument("names", nargs=-1, metavar="[SYSTEM|PAPER]...")
@click.option("--full", is_flag=True, help="Print every claim with its figures, also without a name.")
@click.option(
    "--run",
    "fresh",
    is_flag=True,
    help="Run the studies behind the claims again and judge the claims by the new records.",
)
@click.option(
    "--on", "place", metavar="PLACE", default="local", show_default=True, help="Place where --run runs trials."
)
@click.option(
    "--out", metavar="DIR", default="runs", show_default=True, help="Folder in which --run stores run folders."
)
@click.option("--plain", is_flag=True, help="With --run: print plain lines, also on a terminal.")
@click.option("--check", is_flag=True, help="Exit with 1 when a claim falls short, with 2 when one is undecided.")
@click.option(
    "--verify",
    is_flag=True,
    help="Check the kept records and judge every claim again; exit with 1 for damage or a changed verdict.",
)
@click.option("--accept", is_flag=True, help="With --verify: keep today's verdicts as those to compare with.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def command(
    names: tuple[str, ...],
    full: bool,
    fresh: bool,
    place: str,
    out: str,
    plain: bool,
    check: bool,
    verify: bool,
    accept: bool,
    as_json: bool,
) -> int:
    """Show the ledger: how the papers' headlines stand, or every claim of the named systems and papers."""
    if verify or accept:
        if accept:
            ledger.accept(ledger.ledger())
        return _verify(as_json=as_json)
    systems = [system for name in names for system in _systems(name)]
    failed = False
    if fresh:
        check_place(place)
        entries = [catalog.system(name) for name in systems] or list(catalog.everything())
        judged = _run([claim for entry in entries for claim in entry.claims], place, Path(out), plain or as_json)
        if judged is None:
            return INTERRUPTED
        findings, failed = judged
    else:
        findings = ledger.ledger(systems)
    if as_json:
        say_json([finding.as_row() for finding in findings])
    elif not findings:
        say("No claim is registered" + (f" for {', '.join(names)}." if names else "."), err=True)
    else:
        if names or full or fresh:
            if len({finding.claim.system for finding in findings}) == 1:
                say(style(findings[0].claim.system, bold=True))
            say_findings(findings, where=True)
            say()
        else:
            _say_papers(findings)
        say(style(wrapped(tally(findings), rest="  "), bold=True))
        if not (names or full or fresh):
            say_wrapped("wavetank claims PAPER prints a paper's claims with their figures, --full all of them.")
    if failed:
        return DEFECT
    return exit_code(findings) if check else 0


def _systems(name: str) -> list[str]:
    """Return the systems that a name stands for: one, or all of a paper."""
    everything = catalog.everything()
    if name in everything.systems:
        return [name]
    paper = catalog.paper(name)
    if paper is None:
        raise unknown_name("system or paper", name, {*everything.systems, *everything.papers}, hint="wavetank list")
    return [entry.name for entry in everything if entry.paper == paper.name]


def _say_papers(findings: Sequence[Finding]) -> None:
    """Write how many headlines are reached, then each paper on a line or two."""
    papers = [paper for paper in catalog.everything().papers.values() if paper.headlines]
    if not papers:
        return
    found = {paper.name: ledger.headlines(paper, findings) for paper in papers}
    every = [each for of_paper in found.values() for each in of_paper]
    good = [each for each in every if each.verdict in GOOD]
    proxies = sum(not each.replicated for each in good)
    text = f"{len(good)} of {len(every)} headlines of {len(papers)} papers reached"
    text += f", {proxies} of them on a proxy or a model alone" if proxies else ""
    closed = sum(bool(each.headline.status) for each in every)
    text += f"; {closed} are no figures, cannot be read, or need what is not here" if closed else ""
    say(style(wrapped(text), bold=True))
    wide = max(len(paper.name) for paper in papers)
    for paper in papers:
        say_wrapped(_line(found[paper.name]), first=f"  {paper.name.ljust(wide)}  ", rest=" " * (wide + 4))
    say()


def _line(found: Sequence[HeadlineFinding]) -> str:
    good = sum(each.verdict in GOOD for each in found)
    counts = Counter(each.verdict for each in found)
    words = [verdict for verdict in VERDICTS if counts[verdict]]
    words += [verdict for verdict in counts if verdict not in VERDICTS]
    return f"{good} of {len(found)}: " + ", ".join(f"{counts[word]} {word}" for word in words)


def _verify(*, as_json: bool) -> int:
    """Check every kept run and judge all claims again; print what is wrong or changed, or how much was checked."""
    wrong = [*ledger.verify(), *ledger.changed(ledger.ledger())]
    runs = len(ledger.kept_runs())
    if as_json:
        say_json({"runs": runs, "wrong": wrong})
    else:
        for line in wrong:
            say_wrapped(line, rest="  ")
        say(f"{runs} kept runs: {'nothing wrong' if not wrong else f'{len(wrong)} things wrong'}")
    return DOES_NOT_HOLD if wrong else 0


def _run(claims: Sequence[Claim], place: str, out: Path, plain: bool) -> tuple[list[Finding], bool] | None:
    """Run every study once for each set of conditions; return the findings in the claims' order, None on Ctrl-C."""
    from wavetank.cli.compare import run_shown

    runs: dict[tuple[str, str], list[Claim]] = defaultdict(list)
    for claim in claims:
        runs[claim.study, json.dumps(dict(claim.where), sort_keys=True)].append(claim)
    found: dict[int, Finding] = {}
    failed = False
    for (name, _), group in runs.items():
        try:
            kind = catalog.study(name).load()
        except WavetankError as error:
            # The other studies decide their claims all the same.
            say_error(error)
            failed = True
            found |= {id(claim): ledger.judge(claim, []) for claim in group}
            continue
        named = {system for claim in group for system in (claim.system, claim.versus, *claim.beside) if system}
        needed = {kind.baseline} | named
        known = catalog.everything().systems_of(name)
        if ledger.BEST in needed:
            needed.update(catalog.everything().plain_run(name))
        plan, study = comparison.make_plan(
            name, systems=[system for system in known if system in needed], settings=group[0].where
        )
        result = run_shown(plan, study, runfolder.create(out, plan), place=place, plain=plain)
        if result is None:
            return None
        failed = failed or bool(result.failures)
        for claim in group:
            run = ledger.figures_of(result.about, result.records, str(result.folder))
            found[id(claim)] = ledger.judge(claim, [run])
    return [found[id(claim)] for claim in claims], failed
