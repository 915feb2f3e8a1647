"""``wavetank list``: systems by area, or studies; reads catalogs and imports no system."""

from __future__ import annotations

import click

from wavetank import catalog
from wavetank.catalog import StudyEntry, SystemEntry
from wavetank.cli.terminal import is_terminal, say, say_heading, say_json, style, wrapped
from wavetank.errors import NothingHereYetError, unknown_name

AREAS = {
    "serving": "serving language models to many users",
    "training": "training models on many machines",
    "continuum": "work spread from devices to clouds",
    "protocols": "agreement, replication and their histories",
    "kernels": "the inner loops: sorting, hashing, attention, joins",
    "storage": "stores, caches and their devices",
    "federated": "learning without moving the data",
    "insight": "explaining logs and traces",
    "ledgers": "ledgers, shards and what they cost",
}


@click.command()
@click.argument("area", required=False)
@click.option("--studies", "of_studies", is_flag=True, help="List the studies instead of the systems.")
@click.option("--shape", type=click.Choice(catalog.SHAPES), help="Only systems of this shape.")
@click.option("--role", type=click.Choice(catalog.ROLES), help="Only systems in this role.")
@click.option("--find", "text", metavar="TEXT", help="Only what mentions TEXT in its name, line or source.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def command(
    area: str | None, of_studies: bool, shape: str | None, role: str | None, text: str | None, as_json: bool
) -> None:
    """List the systems, one line each, grouped by AREA; or the studies."""
    everything = catalog.everything()
    if area is not None:
        _check_area(area, {entry.area for entry in (*everything, *everything.studies.values())})
    if of_studies:
        studies = [
            entry
            for entry in everything.studies.values()
            if area in (None, entry.area) and _mentions(text, entry.name, entry.asks)
        ]
        contenders = {
            entry.name: [system.name for system in everything if entry.name in system.studies] for entry in studies
        }
        if as_json:
            say_json([_study_row(entry, contenders[entry.name]) for entry in studies])
        else:
            _say_groups([(entry.area, entry.name, entry.asks) for entry in studies], "study", "compare STUDY")
        return
    systems = [
        entry
        for entry in everything
        if area in (None, entry.area)
        and shape in (None, entry.shape)
        and role in (None, entry.role)
        and _mentions(text, entry.name, entry.does, str(entry.source.get("title", "")))
    ]
    if as_json:
        say_json([_system_row(entry) for entry in systems])
    else:
        _say_groups([(entry.area, entry.name, entry.does) for entry in systems], "system", "show NAME")


def _check_area(area: str, filled: set[str]) -> None:
    if area in filled:
        return
    if area in AREAS:
        raise NothingHereYetError(
            f"The area {area!r} ({AREAS[area]}) holds nothing in this version.",
            allowed=sorted(filled) or "no area holds anything",
            hint="wavetank list" + (f" {min(filled)}" if filled else ""),
        )
    raise unknown_name("area", area, filled | set(AREAS), hint="wavetank list")


def _mentions(text: str | None, *places: str) -> bool:
    return text is None or any(text.casefold() in place.casefold() for place in places)


def _system_row(entry: SystemEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "area": entry.area,
        "shape": entry.shape,
        "role": entry.role,
        "does": entry.does,
        "runs": list(entry.runs),
        "studies": list(entry.studies),
        "source": dict(entry.source),
    }


def _study_row(entry: StudyEntry, systems: list[str]) -> dict[str, object]:
    return {"name": entry.name, "area": entry.area, "asks": entry.asks, "systems": systems}


def _say_groups(lines: list[tuple[str, str, str]], what: str, then: str) -> None:
    if not lines:
        say(f"No {what} matches.", err=True)
        return
    import sys

    on_terminal = is_terminal(sys.stdout)
    wide = max(len(name) for _, name, _ in lines)
    for number, group in enumerate(sorted({area for area, _, _ in lines})):
        if number:
            say()
        about = f": {AREAS[group]}" if group in AREAS else ""
        say(style(group, bold=True) + about)
        for area, name, does in lines:
            if area == group:
                # Off a terminal every line is whole, for grep; on one it is wrapped below its own start.
                line = wrapped(does, first=" " * (wide + 4)).lstrip() if on_terminal else does
                say(f"  {style(name.ljust(wide), fg='cyan')}  {line}")
    if on_terminal:
        say_heading(f"wavetank {then}")
