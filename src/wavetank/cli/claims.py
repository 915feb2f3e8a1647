"""``wavetank claims``: what the sources claim, what was measured, whether it held."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import click

from wavetank import catalog, comparison, runfolder
from wavetank import claims as ledger
from wavetank.catalog import Claim
from wavetank.claims import Finding
from wavetank.cli.exits import DEFECT, INTERRUPTED
from wavetank.cli.terminal import say, say_heading, say_json, style, wrapped
from wavetank.cli.verdicts import exit_code, say_findings, tally
from wavetank.execute import check_place


@click.command()
@click.argument("systems", nargs=-1, metavar="[SYSTEM]...")
@click.option("--run", "fresh", is_flag=True, help="Run the studies behind the claims again and judge on that.")
@click.option("--on", "place", metavar="PLACE", default="local", show_default=True, help="Where --run runs trials.")
@click.option("--out", metavar="DIR", default="runs", show_default=True, help="Where --run puts run folders.")
@click.option("--plain", is_flag=True, help="With --run: plain lines, also on a terminal.")
@click.option("--check", is_flag=True, help="Exit with 1 when a claim does not hold here, 2 when one is undecided.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def command(
    systems: tuple[str, ...], fresh: bool, place: str, out: str, plain: bool, check: bool, as_json: bool
) -> int:
    """Show the ledger: every claim (of the named systems) with its figures, verdict and evidence."""
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
    elif findings:
        if len({finding.claim.system for finding in findings}) == 1:
            say(style(findings[0].claim.system, bold=True))
        say_findings(findings, where=True)
        say_heading(wrapped(tally(findings), rest="  "))
    else:
        say("No claim is registered" + (f" for {', '.join(systems)}." if systems else "."), err=True)
    if failed:
        return DEFECT
    return exit_code(findings) if check else 0


def _run(claims: Sequence[Claim], place: str, out: Path, plain: bool) -> tuple[list[Finding], bool] | None:
    """Run every study once for each set of conditions; return the findings in the claims' order, None on Ctrl-C."""
    from wavetank.cli.compare import run_told

    runs: dict[tuple[str, str], list[Claim]] = defaultdict(list)
    for claim in claims:
        runs[claim.study, json.dumps(dict(claim.where), sort_keys=True)].append(claim)
    found: dict[int, Finding] = {}
    failed = False
    for (name, _), group in runs.items():
        kind = catalog.study(name).load()
        needed = {kind.baseline} | {system for claim in group for system in (claim.system, claim.versus) if system}
        contenders = [*(system for system in kind.systems if system in needed)]
        contenders += sorted(needed - set(contenders))
        plan, study = comparison.make_plan(name, systems=contenders, settings=group[0].where)
        result = run_told(plan, study, runfolder.create(out, plan), place=place, plain=plain)
        if result is None:
            return None
        failed = failed or bool(result.failures)
        for claim in group:
            found[id(claim)] = ledger.judge(claim, result.records, str(result.folder))
    return [found[id(claim)] for claim in claims], failed
