"""``wavetank compare``: put a study's question to its systems."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from wavetank.cli.progress import last_line, progress_for, say_table
from wavetank.cli.verdicts import exit_code, say_findings, tally
from wavetank.errors import BadValueError, WavetankError, unknown_name
from wavetank.exits import DEFECT, INTERRUPTED
from wavetank.extras import install_command
from wavetank.files import write_atomic
from wavetank.ledger import catalog
from wavetank.run import comparison, own, runfolder
from wavetank.run.comparison import Comparison
from wavetank.run.compiling import CompileWatch, saying_once
from wavetank.run.execute import FailedTrial, check_place
from wavetank.run.own import OwnSystem
from wavetank.run.runfolder import Plan
from wavetank.run.until import Goal, run_until
from wavetank.study.records import read_log
from wavetank.study.study import Study
from wavetank.terminal import say, say_error, say_heading, say_json, say_wrapped, style, wrapped
from wavetank.units import parse_quantity

_LATEST = "(the latest run)"


@click.command()
@click.argument("study", required=False)
@click.option("--set", "pairs", metavar="KEY=VALUE", multiple=True, help="A setting, or SYSTEM.PARAMETER; repeatable.")
@click.option("--systems", metavar="A,B,...", help="The systems; the study's own list by default.")
@click.option(
    "--policy",
    "policies",
    metavar="FILE.py:CLASS",
    multiple=True,
    help="A system of your own that takes part: a class of a file, or package.module:CLASS; repeatable.",
)
@click.option("--seeds", metavar="N", help="Number of seeds (5), or a list of seeds (0,3,7).")
@click.option(
    "--on",
    "place",
    metavar="PLACE",
    default="local",
    show_default=True,
    help="here, local, local:N, ray://ADDRESS or dask://ADDRESS; the ADDRESS local starts a cluster.",
)
@click.option("--out", metavar="DIR", default="runs", show_default=True, help="Folder in which run folders are stored.")
@click.option(
    "--resume",
    metavar="[FOLDER]",
    is_flag=False,
    flag_value=_LATEST,
    help="Continue an interrupted run: the latest, or the one in FOLDER.",
)
@click.option("--until", "width", metavar="PERCENT", help="Add seeds until the primary interval is this narrow: 2%.")
@click.option("--budget", metavar="TIME", help="Add seeds until this time is spent, or until --until is reached: 2min.")
@click.option("--check", is_flag=True, help="Exit with 1 when a claim falls short, with 2 when one is undecided.")
@click.option("--evidence", metavar="LABEL", help="Keep the run's records as evidence behind the claims.")
@click.option("--plain", is_flag=True, help="Print plain lines and a plain table, also on a terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    study: str | None,
    pairs: tuple[str, ...],
    systems: str | None,
    policies: tuple[str, ...],
    seeds: str | None,
    place: str,
    out: str,
    resume: str | None,
    width: str | None,
    budget: str | None,
    check: bool,
    evidence: str | None,
    plain: bool,
    as_json: bool,
) -> int:
    """Compare the systems of STUDY (a name, or the path of a study.toml) on its question.

    Prints one table and the verdicts on the claims that the run decides, and writes a report; Ctrl-C keeps the
    finished trials.
    """
    if evidence is not None:
        comparison.check_label(evidence)
    goal = _goal(width, budget)
    check_place(place)
    # A study may run its own code when it checks its settings, and compile it; so may a system of the user's own.
    with CompileWatch(saying_once()):
        added = [own.from_reference(text) for text in policies]
        owned = [each.name for each in added]
        if evidence is not None:
            comparison.check_evidence(owned)
        settings, parameters = _assignments(pairs, owned)
        planned = partial(
            comparison.make_plan,
            systems=None if systems is None else [name.strip() for name in systems.split(",") if name.strip()],
            seeds=None if seeds is None else _seeds(seeds),
            parameters=parameters,
            settings=settings,
            added=added,
        )
        if resume is not None:
            plan, built, folder = _resumed(study, resume, Path(out), planned, added)
        elif study is not None:
            plan, built = planned(study)
            folder = runfolder.create(Path(out), plan)
        else:
            raise _no_study()
        for line in built.opening():
            say_wrapped(line, rest="  ", err=True)
    show = partial(run_shown, study=built, folder=folder, place=place, plain=plain or as_json)
    result = show(plan) if goal is None else run_until(plan, folder, goal, show)
    if result is None:
        return INTERRUPTED
    if as_json:
        say_json(result.as_json())
    else:
        _say_result(result, plain=plain)
    if result.failures:
        _say_failures(result, place)
        return DEFECT
    if evidence is not None:
        say(f"Kept as evidence in {comparison.keep_as_evidence(result, evidence)}", err=True)
    return exit_code(result.findings) if check else 0


def _goal(width: str | None, budget: str | None) -> Goal | None:
    """Read ``--until`` and ``--budget``; None when neither was given."""
    if width is None and budget is None:
        return None
    share = 0.0
    if width is not None:
        share = parse_quantity(width.removesuffix("%").strip(), "", where="--until") / (100 if "%" in width else 1)
    return Goal(share, math.inf if budget is None else parse_quantity(budget, "s", where="--budget"))


def run_shown(plan: Plan, study: Study, folder: Path, *, place: str, plain: bool) -> Comparison | None:
    """Run a plan with progress on standard error; None, and a line on standard error, when Ctrl-C ended it."""
    try:
        with progress_for(folder, plain=plain) as progress:
            return comparison.run_plan(plan, study, folder, on=place, progress=progress)
    except (comparison.Interrupted, KeyboardInterrupt):
        total = len(study.trials(plan.systems, plan.seeds))
        headline = f"Interrupted: {_kept(folder)} of {total} trials are safe in {folder}"
        say(style(headline, err=True, bold=True), err=True)
        say(f"  next: {_go_on(plan, folder, place)}", err=True)
        return None
    except WavetankError as error:
        say_error(error)
        say(f"  kept: {_kept(folder)} finished trials in {folder}", err=True)
        say(f"  then: {_go_on(plan, folder, place)}", err=True)
        raise click.exceptions.Exit(error.exit_code) from error


def _kept(folder: Path) -> int:
    try:
        return len(read_log(folder / "records.jsonl"))
    except WavetankError:
        return 0


def _go_on(plan: Plan, folder: Path, place: str) -> str:
    words = ["wavetank", "compare", plan.study, *own.options(plan.own.values()), "--resume", str(folder)]
    return shlex.join(words if place == "local" else [*words, "--on", place])


def _assignments(pairs: Sequence[str], owned: Collection[str]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Split ``--set`` pairs into settings and parameters of systems."""
    settings: dict[str, Any] = {}
    parameters: dict[str, dict[str, Any]] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not equals or not key:
            raise BadValueError(
                "This is not a setting.",
                given=pair,
                allowed="KEY=VALUE, as in refresh_s=100ms",
                where="--set",
            )
        system, dot, name = key.partition(".")
        if dot:
            known = {*catalog.everything().systems, *owned}
            if system not in known:
                raise unknown_name("system", system, known, where=f"--set {key}")
            parameters.setdefault(system, {})[name] = value
        else:
            settings[key] = value
    return settings, parameters


def _seeds(text: str) -> int | list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    # Python reads numbers of a few thousand digits at most.
    if not parts or not all(part.isascii() and part.isdigit() and len(part) < 100 for part in parts):
        raise BadValueError(
            "The seeds must be a count or a list of numbers from 0.",
            given=text,
            allowed="5 for the seeds 0 to 4, or 0,3,7",
            where="--seeds",
        )
    return [int(part) for part in parts] if "," in text else int(parts[0])


def _no_study() -> WavetankError:
    return BadValueError("No study was named.", allowed="a study's name or file", hint="wavetank list --studies")


def _resumed(
    study: str | None,
    resume: str,
    out: Path,
    planned: Callable[[str], tuple[Plan, Study]],
    added: Sequence[OwnSystem],
) -> tuple[Plan, Study, Path]:
    """Return the plan of the run to go on with; options that ask for another one are refused."""
    if study is None and not (Path(resume) / "study.toml").exists() and resume in catalog.everything().studies:
        # `--resume STUDY`: the order of the words, not the user's wish, made the study the folder.
        study, resume = resume, _LATEST
    from_file = study is not None and (study.endswith(".toml") or "/" in study)
    name = runfolder.load_plan(Path(study)).study if study is not None and from_file else study
    if resume != _LATEST:
        folder = Path(resume)
    elif name is not None:
        folder = runfolder.latest(out, catalog.study(name).name)
    else:
        raise _no_study()
    file = str(folder / "study.toml")
    plan, built = comparison.make_plan(file, added=added)
    own.check_same(runfolder.load_plan(Path(file)).own, plan.own, folder)
    if name is not None and name != plan.study:
        raise BadValueError(
            f"The run is one of the study {plan.study!r}, not of {name!r}.",
            where=str(folder),
            hint=f"wavetank compare {plan.study} --resume {folder}",
        )
    wanted, _ = planned(study if study is not None and from_file else file)
    if wanted != plan:
        raise BadValueError(
            "The options differ from those of the run to continue.",
            where=str(folder),
            hint=f"wavetank compare {plan.study} --resume {folder}, or the same command without --resume",
        )
    return plan, built, folder


def _say_result(result: Comparison, *, plain: bool) -> None:
    if result.answer is not None:
        say(style(wrapped(result.answer.sentence), bold=True))
        for caveat in result.answer.caveats:
            say_wrapped(caveat)
        say()
    say_table(result, plain=plain)
    notes = result.notes
    if notes:
        say()
    for note in notes:
        say_wrapped(f"note: {note}", rest="      ")
    if result.findings:
        say_heading(wrapped(tally(result.findings), rest="  "))
        say_findings(result.findings, where=False)
    say()
    for extra in comparison.extras_left_out(result.study, result.plan.systems):
        say(f"install {install_command(extra)}")
    if result.records:
        say(f"report  {result.folder / 'report.html'}")
    say(f"again   {result.about['command']}")


def _say_failures(result: Comparison, place: str) -> None:
    """Name the failed trials and keep their traces."""
    count = len(result.failures)
    names = ", ".join(failure.trial for failure in result.failures[:5]) + (", ..." if count > 5 else "")
    planned = len(result.study.trials(result.plan.systems, result.plan.seeds))
    log = result.folder / "failures.log"
    headline = f"{count} of {planned} trials failed: {names}"
    say(style(headline, err=True, fg="red", bold=True), err=True)
    say(f"  cause: {last_line(result.failures[0])}", err=True)
    try:
        write_atomic(log, "\n".join(map(_trace, result.failures)))
        say(f"  where: {log}", err=True)
    except OSError as error:
        say(f"  where: nowhere, {log} cannot be written: {error.strerror or error}", err=True)
    if click.get_current_context().meta.get("wavetank.trace"):
        say("\n".join(map(_trace, result.failures)), err=True)
    say(f"  next: {_go_on(result.plan, result.folder, place)}", err=True)


def _trace(failure: FailedTrial) -> str:
    return f"trial {failure.trial}\n{failure.traceback}"
