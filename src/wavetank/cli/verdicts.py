"""Findings on claims, as text and as an exit code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from wavetank import exits, units
from wavetank.ledger.claims import Finding
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
from wavetank.terminal import say, say_wrapped, style, wrapped

_COLOURS = {
    REACHED: "green", EXCEEDS: "green", CONSISTENT: "green", SHORT: "yellow", ANOTHER: "yellow",
    CONTRADICTED: "red", UNDECIDED: "cyan", NOT_RUN: "bright_black",
}  # fmt: skip
_INDENT = " " * (max(map(len, VERDICTS)) + 4)


def say_findings(findings: Sequence[Finding], *, where: bool) -> None:
    """Write findings: verdict and claim, then the figures; below the name of their system where there are several.

    Parameters
    ----------
    findings : sequence of Finding
    where : bool
        Whether to name the study and the evidence (not needed below the run that decided).
    """
    system = "" if len({finding.claim.system for finding in findings}) > 1 else findings[0].claim.system
    for finding in findings:
        if finding.claim.system != system:
            system = finding.claim.system
            say(style(system, bold=True))
        verdict = finding.verdict.ljust(len(_INDENT) - 4)
        lines = _lines(finding, where=where)
        text = wrapped(lines[0], first=_INDENT)
        say("  " + style(verdict, fg=_COLOURS[finding.verdict]) + text[len(_INDENT) - 2 :])
        for line in lines[1:]:
            say_wrapped(line, first=_INDENT)


def _lines(finding: Finding, *, where: bool) -> list[str]:
    claim = finding.claim
    lines = [claim.says]
    versus = f", ratio to {finding.versus}" if finding.versus else ""
    asked = ", ".join(
        filter(
            None,
            (
                f"paper {units.show(claim.paper)}" if claim.paper is not None else "",
                f"goal at least {units.show(claim.at_least)}" if claim.at_least is not None else "",
                f"goal at most {units.show(claim.at_most)}" if claim.at_most is not None else "",
            ),
        )
    )
    lines.append(f"{claim.metric}{versus}{f': {asked}' if asked else ''}{figures(finding)}")
    if where:
        under = "".join(f" --set {name}={units.typed(value)}" for name, value in claim.where.items())
        kept = f", in {', '.join(finding.evidence)}" if finding.evidence else ""
        lines.append(f"study {claim.study}{under}{kept}" + (f", on {finding.machine}" if finding.machine else ""))
    if claim.note:
        lines.append(f"note: {claim.note}")
    return lines


def figures(finding: Finding) -> str:
    """Return our figure with its interval, empty when there is none."""
    if math.isnan(finding.found.centre):
        return ""
    return f"; ours {units.show(finding.found.centre)} ({finding.found.within(units.show)})"


def tally(findings: Sequence[Finding]) -> str:
    """Return how many claims have which verdict, in words."""
    counts = Counter(finding.verdict for finding in findings)
    claims = "1 claim" if len(findings) == 1 else f"{len(findings)} claims"
    return f"{claims}: " + ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 1 when a claim falls short or is contradicted, 2 when one is undecided or was not run, else 0."""
    verdicts = {finding.verdict for finding in findings}
    if verdicts & {SHORT, CONTRADICTED, ANOTHER}:
        return exits.DOES_NOT_HOLD
    return exits.UNDECIDED if verdicts & {UNDECIDED, NOT_RUN} else 0
