"""``wavetank profile``: what this machine can do, measured when you ask for it, shown and deleted."""

from __future__ import annotations

import contextlib
import inspect
import sys
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import click

from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.exits import USAGE
from wavetank.ledger import catalog
from wavetank.ledger.catalog import load_object
from wavetank.machine import profiles
from wavetank.terminal import is_terminal, say, say_error, say_heading, say_json, say_wrapped, style

KINDS = tuple(dict.fromkeys(("machine", *catalog.commands("profile"))))


@click.command("profile")
@click.option("--show", is_flag=True, help="Show the stored profile, and measure nothing.")
@click.option("--delete", is_flag=True, help="Delete the stored profile.")
@click.option("--only", type=click.Choice(KINDS), help="Measure, show or delete this kind alone.")
@click.option(
    "--threads",
    type=click.IntRange(1, 1024),
    multiple=True,
    help="Numbers of threads of products; by default 1 and all.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64"]),
    multiple=True,
    help="Element types of products; by default both.",
)
@click.option("--json", "as_json", is_flag=True, help="With --show: print one JSON object.")
def command(
    show: bool, delete: bool, only: str | None, threads: tuple[int, ...], dtype: tuple[str, ...], as_json: bool
) -> int:
    """Measure this machine: its limits, what products cost by which library, its solvers' devices, and its GPU if any.

    The measurement takes some minutes and needs an otherwise idle machine: a disturbed profile is refused, and the
    stored profile stays.  Without a profile, products use the shipped defaults for the family of processors.
    """
    if show and delete:
        raise BadValueError("Show or delete, not both.", given="--show --delete", allowed="one of them")
    if as_json and not show:
        raise BadValueError("--json requires --show.", given="--json", hint="wavetank profile --show --json")
    if delete:
        return _delete(only)
    if show:
        return _show(only, as_json)
    return _measure(only, threads, dtype)


def _delete(only: str | None) -> int:
    try:
        removed = profiles.delete(only or "")
    except OSError as error:
        raise WavetankError("A profile cannot be deleted.", given=str(error), where=str(profiles.folder())) from None
    say(f"{_count(len(removed))} deleted from {profiles.folder()}")
    return 0


def _count(number: int) -> str:
    return "1 profile" if number == 1 else f"{number} profiles"


# --- measuring ----------------------------------------------------------------------------------------------------


def _measure(only: str | None, threads: tuple[int, ...], dtypes: tuple[str, ...]) -> int:
    report = _progress if is_terminal(sys.stderr) else _quiet
    counts, refused = _counts(threads), 0
    steps = [
        step
        for name, kind in _kinds(only).items() if only in (None, name)
        for step in kind.steps(counts, dtypes, only is not None, report)
    ]  # fmt: skip
    with _alone():
        for step in steps:
            say(f"measuring: {step.name}", err=True)
            try:
                path, figures = step.measure()
            except BadValueError as error:
                # What was kept before stays, and so does what the other steps keep.
                say_error(error)
                refused += 1
            else:
                say(f"{style(step.name, bold=True)}: {'kept' if path is not None else 'not kept'}")
                say_wrapped(figures, first="  ")
    return USAGE if refused else 0


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    with profiles.locked("profile", wait_s=0.0) as held:
        if not held:
            raise WavetankError(
                "Another process is measuring this machine; two at once would disturb each other.",
                hint="wait until it is done, then wavetank profile --show",
            )
        yield


def _counts(threads: tuple[int, ...]) -> tuple[int, ...]:
    from wavetank.machine.threads import allowed_threads

    most = allowed_threads()
    too_many = [count for count in threads if count > most]
    if too_many:
        raise BadValueError(
            "The number of threads exceeds those that the program may use.", given=too_many[0], allowed=f"1 to {most}",
            where="wavetank profile --threads", hint="limits: affinity, quotas, OMP_NUM_THREADS",
        )  # fmt: skip
    return tuple(dict.fromkeys(threads or (1, most)))


def _quiet(_: str) -> None:
    """Say nothing: off a terminal each step is one line."""


def _progress(text: str) -> None:
    click.echo(f"\r  {text:<60}", nl=False, err=True)


# --- showing ------------------------------------------------------------------------------------------------------


def _show(only: str | None, as_json: bool) -> int:
    good, bad = profiles.kept(only or "")
    if as_json:
        say_json({
            "folder": str(profiles.folder()),
            "profiles": [
                {"kind": each.kind, "version": each.version, "measured": each.measured, "path": str(each.path),
                 "conditions": dict(each.conditions), "content": dict(each.content)} for each in good
            ],
            "unusable": [{"path": str(path), "why": why} for path, why in bad],
        })  # fmt: skip
        return 0
    kinds = _kinds(only)
    say(f"{_count(len(good))} in {profiles.folder()}")
    for each in good:
        say()
        say_heading(each.kind)
        say_wrapped(f"measured {each.measured}", first="  ")
        say_wrapped(", ".join(f"{key} {value}" for key, value in each.conditions.items()), first="  for ", rest="    ")
        say_wrapped(_words(each, kinds), first="  ", rest="    ")
    for path, why in bad:
        say()
        say_wrapped(f"{path} is not used: {why}.")
    for sentence in filter(None, (kind.fallback() for kind in kinds.values())):
        say()
        say_wrapped(sentence)
    return 0


def _kinds(only: str | None = None) -> dict[str, profiles.ProfileKind[Any]]:
    """Return the kinds of profile by the beginning of their names: the machine's own, and those that catalogs name.

    One that cannot be loaded is left out with a warning, and is an error where it was asked for by name.
    """
    from wavetank.machine.limits import MachineLimits

    found: dict[str, profiles.ProfileKind[Any]] = {"machine": MachineLimits()}
    for name, entry in catalog.commands("profile").items():
        try:
            if name in found:
                raise BadFileError("This kind of profile is there already.", given=name, where=entry.where)
            kind = load_object(entry.object, name, entry.where, profiles.ProfileKind)
            if inspect.isabstract(kind):
                raise BadFileError(
                    f"The object of {name!r} lacks methods of a kind of profile.",
                    given=entry.object, allowed=sorted(kind.__abstractmethods__), where=entry.where,
                )  # fmt: skip
            found[name] = kind()
        except WavetankError as error:
            if name == only and name not in found:
                raise
            warnings.warn(f"{error}", stacklevel=2)
    return found


def _words(found: profiles.Profile, kinds: Mapping[str, profiles.ProfileKind[Any]]) -> str:
    """Return the figures of a profile in a line or two; why it is not used where it has none."""
    kind = next((kind for name, kind in kinds.items() if f"{found.kind}-".startswith(f"{name}-")), None)
    figures = None if kind is None else kind.figures(found)
    if kind is None or figures is None:
        return f"version {found.version}: this version of Wavetank does not use it"
    return kind.words(figures)
