"""``wavetank diagnose``: explain a trace, a log or a history, with evidence that is read from the file again."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from wavetank import settings, units
from wavetank.cli.commands import maker_of, write_page
from wavetank.diagnosis.findings import Diagnosis, Evidence, Finding, verify
from wavetank.errors import BadFileError, BadValueError, UnknownNameError, WavetankError, nearest_of
from wavetank.exits import DOES_NOT_HOLD, UNDECIDED
from wavetank.files import head_of
from wavetank.ledger import catalog
from wavetank.ledger.catalog import CommandEntry
from wavetank.terminal import say, say_error, say_heading, say_json, say_wrapped, style

_COLOURS = {"note": "cyan", "warning": "yellow", "critical": "red"}
_HEAD_BYTES = 1 << 16
# Files of a folder that are looked at before it is said to be of no kind.
_MOST_HEADS = 100
# Of a folder with traces of many ranks: more are facts of the page and of the JSON document.
_MOST_FACTS = 12


@click.command()
@click.argument("files", nargs=-1, metavar="FILE|FOLDER...")
@click.option("--kind", metavar="KIND", default="", help="Kind of the files, in place of the kind that they show.")
@click.option("--set", "pairs", metavar="KEY=VALUE", multiple=True, help="A setting of the analyser; repeatable.")
@click.option(
    "--settings", "show", is_flag=True, help="Print the settings of the analyser of KIND, or of all, and exit."
)
@click.option("--page", metavar="FILE.html", help="Write the diagnosis as an HTML page with pictures.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    files: tuple[str, ...], kind: str, pairs: tuple[str, ...], show: bool, page: str | None, as_json: bool
) -> int:
    """Explain each FILE, or FOLDER of files that belong together: what is wrong, where, and the evidence.

    Every figure is read from the file a second time before it is shown.  Exit code 0: nothing was found; 1: something
    was found; 2: the file has too little to say.
    """
    if show:
        _say_settings(kind)
        return 0
    if not files:
        raise BadValueError(
            "There is no file to diagnose.",
            allowed=[f"{name}: {entry.says}" for name, entry in _kinds().items()],
            hint="wavetank diagnose --help",
        )
    if page is not None and len(files) > 1:
        raise BadValueError("A page shows one file or folder.", given=f"{len(files)} files", where="--page")
    given = {key.replace("-", "_"): value.strip() for key, value in settings.assigned(pairs).items()}
    found: list[Diagnosis] = []
    failed: WavetankError | None = None
    for name in files:
        try:
            diagnosis = _diagnosed(Path(name), kind, given)
        except WavetankError as error:
            if len(files) == 1:
                raise
            # The other files are diagnosed all the same.
            say_error(error)
            failed = error
            continue
        found.append(diagnosis)
        # The page first: a reader of the text may go away.
        if page is not None:
            write_page(Path(page), diagnosis.page)
        if not as_json:
            _say(diagnosis, apart=len(files) > 1)
    if as_json:
        say_json([_as_json(each) for each in found])
    elif len(files) > 1:
        say()
        say_wrapped(_tally(found, len(files)))
    return failed.exit_code if failed is not None else _exit_code(found)


def _diagnosed(path: Path, kind: str, given: dict[str, str]) -> Diagnosis:
    entry = _kind_of(path, kind)
    maker = maker_of(entry, "diagnose")
    analyser = maker(**settings.check_parameters(maker, given, where=f"diagnose --kind {entry.name}", what="setting"))
    diagnosis: Diagnosis = dataclasses.replace(analyser.diagnose(path), kind=entry.name)
    verify(diagnosis, analyser.source(path))
    return diagnosis


def _kinds() -> dict[str, CommandEntry]:
    return catalog.commands("diagnose")


def _kind_of(path: Path, given: str) -> CommandEntry:
    """Return what explains a file, or a folder by any of its files: the kind given, or one that its content shows."""
    kinds = _kinds()
    if given:
        if given not in kinds:
            raise UnknownNameError(
                f"There is no kind of file named {given!r}.", allowed=list(kinds), nearest=nearest_of(given, kinds)
            )
        return kinds[given]
    if not path.exists():
        raise BadFileError("There is no such file or folder.", given=str(path))
    failed: WavetankError | None = None
    for entry in kinds.values():
        try:
            takes = maker_of(entry, "diagnose").takes
            if any(takes(each, head_of(each, _HEAD_BYTES)) for each in _candidates(path, entry)):
                return entry
        except WavetankError as error:
            # Another kind may take it.
            failed = error
    if failed is not None:
        raise failed
    raise BadFileError(
        "The content is of no kind that can be explained.", given=str(path),
        allowed=[f"{name}: {entry.says}" for name, entry in kinds.items()],
        hint=f"wavetank diagnose --kind {next(iter(kinds), 'KIND')} {path}",
    )  # fmt: skip


def _candidates(path: Path, entry: CommandEntry) -> Iterator[Path]:
    """Yield the file, or the first ones of a folder, whose names may be of this kind."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
    except OSError as error:
        raise BadFileError("The folder cannot be read.", given=str(error), where=str(path)) from error
    named = (
        each
        for each in files
        if each.is_file() and (not entry.endings or each.name.lower().removesuffix(".gz").endswith(entry.endings))
    )
    yield from itertools.islice(named, _MOST_HEADS)


def _say_settings(kind: str) -> None:
    for name, entry in _kinds().items():
        if kind and name != kind:
            continue
        say_heading(f"{name}: {entry.says}")
        for field in dataclasses.fields(maker_of(entry, "diagnose")):
            unit = field.metadata.get("unit", "")
            text = f"{field.name} ({', '.join(filter(None, (unit, f'by default {field.default}')))}): "
            say_wrapped(text + field.metadata.get("says", ""), first="  ", rest="      ")
    if kind and kind not in _kinds():
        raise UnknownNameError(
            f"There is no kind of file named {kind!r}.", allowed=list(_kinds()), nearest=nearest_of(kind, _kinds())
        )


def _say(diagnosis: Diagnosis, *, apart: bool) -> None:
    if apart:
        say()
    say(style(diagnosis.subject, bold=True) + f"  ({diagnosis.kind})")
    for fact in diagnosis.facts[:_MOST_FACTS]:
        say_wrapped(f"{_named(fact)}: {fact.shown}", first="  ", rest="      ")
    if len(diagnosis.facts) > _MOST_FACTS:
        say_wrapped(f"and {len(diagnosis.facts) - _MOST_FACTS} more figures; --page or --json show all", first="  ")
    for finding in diagnosis.findings:
        _say_finding(finding)
    for each in diagnosis.too_little:
        say_wrapped(f"could not be said: {each}", first="  ", rest="      ")
    if not diagnosis.findings and not diagnosis.too_little:
        say("  nothing was found")


def _say_finding(finding: Finding) -> None:
    head = f"{finding.severity}: {finding.label}, {finding.where}"
    say("  " + style(head, fg=_COLOURS[finding.severity]) + f" (confidence {units.show(finding.confidence)})")
    say_wrapped(finding.sentence(finding.says), first="      ", rest="      ")
    if finding.advice:
        say_wrapped(finding.sentence(finding.advice), first="      ", rest="      ")


def _named(fact: Evidence) -> str:
    of = ", ".join(f"{key} {value}" for key, value in fact.of.items())
    return f"{fact.name} ({of})" if of else fact.name


def _as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "subject": diagnosis.subject,
        "kind": diagnosis.kind,
        "facts": [dataclasses.asdict(each) for each in diagnosis.facts],
        "findings": [
            {
                **dataclasses.asdict(each),
                "says": each.sentence(each.says),
                "advice": each.sentence(each.advice),
            }
            for each in diagnosis.findings
        ],
        "too_little": list(diagnosis.too_little),
    }


def _tally(found: Sequence[Diagnosis], files: int) -> str:
    severities = Counter[str](finding.severity for each in found for finding in each.findings)
    parts = [f"{severities[word]} {word}{'s' * (severities[word] > 1)}" for word in _COLOURS if severities[word]]
    unread = files - len(found)
    return f"{files} files: {', '.join(parts) or 'nothing was found'}" + (
        f"; {unread} could not be read" if unread else ""
    )


def _exit_code(found: Sequence[Diagnosis]) -> int:
    if any(each.findings for each in found):
        return DOES_NOT_HOLD
    return UNDECIDED if any(each.too_little for each in found) else 0
