"""``wavetank check``: verify a model, a history, a session protocol, or a small instance of a protocol."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from wavetank import settings, units
from wavetank.check.report import Budget, CheckReport, Verdict
from wavetank.cli.commands import kind_of, maker_of, write_page
from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.exits import DOES_NOT_HOLD, UNDECIDED
from wavetank.ledger import catalog
from wavetank.ledger.catalog import CommandEntry
from wavetank.terminal import say, say_error, say_heading, say_json, say_wrapped, style, wrapped

_COLOURS = {"holds": "green", "violated": "red", "undecided": "cyan"}
_WIDTH = max(map(len, _COLOURS))


@click.command()
@click.argument("files", nargs=-1, metavar="FILE...")
@click.option(
    "--kind", metavar="KIND", default="", help="Kind of the files, in place of the kind that their names show."
)
@click.option("--set", "pairs", metavar="KEY=VALUE", multiple=True, help="A setting of the checker; repeatable.")
@click.option(
    "--settings", "show", is_flag=True, help="Print the settings of the checker of KIND, or of all checkers, and exit."
)
@click.option("--seconds", default="60s", show_default=True, metavar="TIME", help="Budget of each file.")
@click.option("--memory", default="2GiB", show_default=True, metavar="SIZE", help="Memory limit of the check.")
@click.option("--page", metavar="FILE.html", help="Write the findings as an HTML page with pictures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    files: tuple[str, ...],
    kind: str,
    pairs: tuple[str, ...],
    show: bool,
    seconds: str,
    memory: str,
    page: str | None,
    as_json: bool,
) -> int:
    """Verify each FILE: a threshold automaton, a recorded history, a session protocol, an instance to explore.

    Exit code 0: all holds; 1: something is violated; 2: something stayed undecided within the budget.
    """
    if show:
        _say_settings(kind)
        return 0
    if not files:
        raise BadValueError(
            "There is no file to check.",
            allowed=[f"{name}: {facts.says} ({' '.join(facts.endings)})" for name, facts in _kinds().items()],
            hint="wavetank check --help",
        )
    if page is not None and len(files) > 1:
        raise BadValueError("A page shows one file.", given=f"{len(files)} files", where="--page")
    budget = Budget(
        seconds=_quantity(seconds, "s", "--seconds"), memory_bytes=int(_quantity(memory, "bytes", "--memory"))
    )
    given = {key.replace("-", "_"): value.strip() for key, value in settings.assigned(pairs).items()}
    reports: list[CheckReport] = []
    failed: WavetankError | None = None
    for name in files:
        try:
            report = _checked(Path(name), kind, given, budget)
        except WavetankError as error:
            if len(files) == 1:
                raise
            # The other files are checked all the same.
            say_error(error)
            failed = error
            continue
        reports.append(report)
        # The page first: a reader of the text may go away.
        if page is not None:
            write_page(Path(page), report.page)
        if not as_json:
            _say_report(report, name, of_many=len(files) > 1)
    if as_json:
        say_json([_as_json(report) for report in reports])
    elif len(files) > 1:
        say()
        say_wrapped(_tally(reports, len(files)))
    return failed.exit_code if failed is not None else _exit_code(reports)


def _checked(path: Path, kind: str, given: dict[str, str], budget: Budget) -> CheckReport:
    found = _kind_that_works(path, kind)
    if not path.is_file() and not any((path / name).is_file() for name in found.files):
        raise BadFileError("There is no such file." if not path.exists() else "This is no file.", given=str(path))
    maker = maker_of(found, "check")
    checker = maker(**settings.check_parameters(maker, given, where=f"check --kind {found.name}", what="setting"))
    report: CheckReport = checker.check(path, budget)
    return report


def _kinds() -> dict[str, CommandEntry]:
    return catalog.commands("check")


def _kind_of(path: Path, given: str, kinds: dict[str, CommandEntry]) -> CommandEntry:
    """Return what checks a file, or a folder that stands for a file in it."""
    for entry in kinds.values():
        if not given and any((path / name).is_file() for name in entry.files):
            return entry
    return kind_of(path.name, kinds, given, verb="check")


def _kind_that_works(path: Path, given: str) -> CommandEntry:
    """Return what checks a file; where that cannot be loaded, say so and return the next kind that takes the file."""
    kinds = dict(_kinds())
    while True:
        found = _kind_of(path, given, kinds)
        try:
            maker_of(found, "check")
            return found
        except BadFileError as error:
            del kinds[found.name]
            try:
                if given:
                    raise error
                _kind_of(path, given, kinds)
            except WavetankError:
                # Nothing else takes the file.
                raise error from None
            say_error(error)


def _say_settings(kind: str) -> None:
    for entry in [_kind_of(Path(), kind, _kinds())] if kind else _kinds().values():
        try:
            maker = maker_of(entry, "check")
        except WavetankError as error:
            if kind:
                raise
            # The other kinds are shown all the same.
            say_error(error)
            continue
        say_heading(f"{entry.name}: {entry.says}")
        say(f"  files: {' '.join(entry.endings)}")
        for field in dataclasses.fields(maker):
            allowed = field.metadata.get("choices") or ()
            unit = field.metadata.get("unit", "")
            default = ", ".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
            default = default if default != "" else "none"
            text = f"{field.name} ({', '.join(filter(None, (unit, f'by default {default}')))}): "
            text += field.metadata.get("says", "") + (f"; one of {', '.join(map(str, allowed))}" if allowed else "")
            say_wrapped(text, first="  ", rest="      ")


def _quantity(text: str, unit: str, where: str) -> float:
    number = units.parse_quantity(text, unit, where=where)
    if not number > 0 or math.isinf(number):
        raise BadValueError("A budget is a positive quantity.", given=text, where=where)
    return number


def _say_report(report: CheckReport, name: str, *, of_many: bool) -> None:
    if of_many:
        say()
    say(style(f"{report.subject}", bold=True) + (f"  ({name})" if Path(name).stem != report.subject else ""))
    for label, text in report.facts:
        say_wrapped(f"{label}: {text}", first="  ", rest="      ")
    for verdict in report.verdicts:
        _say_verdict(verdict)


def _say_verdict(verdict: Verdict) -> None:
    indent = " " * (_WIDTH + 4)
    took = "" if math.isnan(verdict.seconds) else f" in {units.show(verdict.seconds, 's')}"
    by = f" ({verdict.by}{took})" if verdict.by else ""
    text = wrapped(f"{verdict.name}{f': {verdict.says}' if verdict.says else ''}{by}", first=indent)
    word = verdict.outcome.ljust(_WIDTH)
    say("  " + style(word, fg=_COLOURS[verdict.outcome]) + text[_WIDTH + 2 :])
    for line in verdict.evidence.splitlines():
        # Counterexamples are drawn: their lines are not for wrapping.
        say(f"{indent}{line}".rstrip())


def _as_json(report: CheckReport) -> dict[str, Any]:
    return {
        "subject": report.subject,
        "kind": report.kind,
        "facts": dict(report.facts),
        "verdicts": [
            {**dataclasses.asdict(verdict), "seconds": None if math.isnan(verdict.seconds) else verdict.seconds}
            for verdict in report.verdicts
        ],
    }


def _tally(reports: Sequence[CheckReport], files: int) -> str:
    outcomes = Counter[str](verdict.outcome for report in reports for verdict in report.verdicts)
    parts = [f"{outcomes[outcome]} {outcome}" for outcome in _COLOURS if outcomes[outcome]]
    unread = files - len(reports)
    return f"{files} files: {', '.join(parts) or 'no verdicts'}" + (
        f"; {unread} could not be checked" if unread else ""
    )


def _exit_code(reports: Sequence[CheckReport]) -> int:
    outcomes = {verdict.outcome for report in reports for verdict in report.verdicts}
    return DOES_NOT_HOLD if "violated" in outcomes else UNDECIDED if "undecided" in outcomes else 0
