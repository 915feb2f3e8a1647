"""``wavetank list``: the systems of the papers by problem, or what a few words find; imports no system."""

from __future__ import annotations

import sys

import click

from wavetank.errors import BadValueError, NothingHereYetError, UnknownNameError, nearest_of
from wavetank.ledger import catalog
from wavetank.ledger.catalog import Catalog, StudyEntry, SystemEntry
from wavetank.terminal import is_terminal, say, say_heading, say_json, style, width, wrapped

AREAS = {
    "serving": "serving language models to many users",
    "training": "training models on many machines",
    "continuum": "work spread from devices to clouds",
    "protocols": "agreement, replication and their histories",
    "kernels": "the inner loops: layouts, matrix products, solvers, sorting, sparse products, stencils",
    "storage": "stores, caches and their devices",
    "federated": "learning without moving the data",
    "insight": "explaining logs and traces",
    "ledgers": "ledgers, shards and what they cost",
}
# As many as fit a screen beside the prompt; --verbose shows all.
_SHOWN = 12


@click.command()
@click.argument("words", nargs=-1, metavar="[AREA | WORDS]...")
@click.option("--studies", "of_studies", is_flag=True, help="List the studies instead of the systems.")
@click.option("--papers", "of_papers", is_flag=True, help="List the papers instead of the systems.")
@click.option("-v", "--verbose", is_flag=True, help="Also rivals, baselines, peers, oracles and mechanisms.")
@click.option("--shape", type=click.Choice(list(catalog.SHAPES)), help="Only systems of this shape.")
@click.option("--role", type=click.Choice(list(catalog.ROLES)), help="Only systems in this role.")
@click.option("--find", "text", metavar="TEXT", help="Only entries that TEXT finds, best first.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def command(
    words: tuple[str, ...],
    of_studies: bool,
    of_papers: bool,
    verbose: bool,
    shape: str | None,
    role: str | None,
    text: str | None,
    as_json: bool,
) -> None:
    """List the papers' systems by problem, one line each; with WORDS, what they find among all that is there.

    AREA (serving, protocols, kernels) or a problem of one (serving/routing) narrows the list.
    """
    everything = catalog.everything()
    rooms = {room for entry in (*everything, *everything.studies.values()) for room in (entry.area, entry.room)}
    place = words[0] if words and (words[0] in rooms or words[0] in AREAS) else None
    if place is not None and place not in rooms:
        raise NothingHereYetError(
            f"The area {place!r} ({AREAS[place]}) holds no systems in this version.",
            allowed=sorted({room for room in rooms if "/" not in room}) or "no area holds systems",
            hint="wavetank list" + (f" {min(rooms)}" if rooms else ""),
        )
    asked = (
        None if text is None and not words[place is not None :] else " ".join([*words[place is not None :], text or ""])
    )
    if asked is not None and not asked.strip():
        raise BadValueError(
            "Nothing was asked for.", given=asked, hint='wavetank list, or wavetank list "tail latency"'
        )
    kinds = ("study",) if of_studies else ("paper",) if of_papers else ("system",) if shape or role else ()
    order = None if asked is None else _found(asked, kinds, rooms, filtered=text is not None)
    if words[place is not None :] and not kinds and not as_json:
        _say_matches(everything, place, order or {}, verbose=verbose)
        return
    if of_studies:
        _say_studies(everything, place, order, as_json=as_json)
        return
    if of_papers:
        _say_papers(everything, place, order, as_json=as_json)
        return
    systems = [
        entry
        for entry in everything
        if place in (None, entry.area, entry.room)
        and shape in (None, entry.shape)
        and role in (None, entry.role)
        and (order is None or ("system", entry.name) in order)
    ]
    if order is not None:
        systems.sort(key=lambda entry: list(order).index(("system", entry.name)))
    if as_json:
        say_json([_system_row(entry) for entry in systems])
        return
    if order is not None:
        _say_groups([(entry.area, entry.name, entry.does) for entry in systems], "system", "show NAME")
        return
    shown = [entry for entry in systems if verbose or shape or role or entry.role == "system"] or systems
    more = f"  ({len(systems) - len(shown)} rivals, baselines and others with -v)" if len(shown) < len(systems) else ""
    _say_by_problem(shown, more)


def _found(asked: str, kinds: tuple[str, ...], rooms: set[str], *, filtered: bool) -> dict[tuple[str, str], str]:
    """Return what the words find, best first, with the passage that matches; a filter may find nothing."""
    from wavetank.ledger.search import KINDS, index

    found = {(match.kind, match.name): match.passage for match in index().search(asked, kinds or KINDS)}
    if not found and not filtered:
        raise UnknownNameError(
            "Nothing in the catalog matches these words.",
            given=asked,
            nearest=nearest_of(asked, rooms - {""}) or index().nearest_problem(asked),
            hint="wavetank list for the systems, wavetank list --studies for the questions",
        )
    return found


def _say_matches(everything: Catalog, place: str | None, order: dict[tuple[str, str], str], *, verbose: bool) -> None:
    """Write what words found: studies first with the problem that matches, then systems, then papers."""
    titles = {"study": "Studies", "system": "Systems", "paper": "Papers"}
    shown = 0
    for kind, title in titles.items():
        names = []
        for each, name in order:
            if each == kind and place in (None, *_rooms(everything, kind, name)):
                names.append(name)
        if not names:
            continue
        if shown:
            say()
        say(style(title, bold=True))
        few = names if verbose else names[: _SHOWN if kind == "system" else _SHOWN // 2]
        wide = max(map(len, few))
        for name in few:
            if kind == "study":
                line = everything.studies[name].asks
            elif kind == "system":
                line = everything.systems[name].does
            else:
                line = str(everything.papers[name].source.get("title", ""))
            _say_line(name, line, wide)
        shown += len(few)
        if len(few) < len(names):
            say(f"  and {len(names) - len(few)} more with -v")
    if not shown:
        say("Nothing of this area matches.", err=True)
    elif is_terminal(sys.stdout):
        say_heading("wavetank show NAME, wavetank advise WORDS")


def _rooms(everything: Catalog, kind: str, name: str) -> tuple[str, ...]:
    if kind == "paper":
        return tuple(room for entry in everything if entry.paper == name for room in (entry.area, entry.room))
    entry = everything.studies[name] if kind == "study" else everything.systems[name]
    return entry.area, entry.room


def _say_by_problem(systems: list[SystemEntry], more: str) -> None:
    if not systems:
        say("No system matches.", err=True)
        return
    wide = max(len(entry.name) for entry in systems)
    for number, area in enumerate(sorted({entry.area for entry in systems})):
        if number:
            say()
        _say_area(area)
        mine = [entry for entry in systems if entry.area == area]
        for problem in dict.fromkeys(entry.problem for entry in mine):
            if problem != area:
                say(f" {problem}")
            for entry in mine:
                if entry.problem == problem:
                    _say_line(entry.name, entry.does, wide)
    if more or is_terminal(sys.stdout):
        say_heading("wavetank show NAME" + more)


def _say_area(area: str) -> None:
    about = f"{area}: {AREAS[area]}" if area in AREAS else area
    # Off a terminal a heading is one line, as the entries are.
    about = wrapped(about, rest="  ") if is_terminal(sys.stdout) else about
    say(style(area, bold=True) + about.removeprefix(area))


def _say_line(name: str, text: str, wide: int) -> None:
    """Write one entry: whole off a terminal, for grep; cut to one line on one."""
    room = width() - wide - 4
    if is_terminal(sys.stdout) and len(text) > room:
        text = text[: room - 1].rsplit(" ", 1)[0] + "…"
    say(f"  {style(name.ljust(wide), fg='cyan')}  {text}")


def _say_studies(
    everything: Catalog, place: str | None, order: dict[tuple[str, str], str] | None, *, as_json: bool
) -> None:
    studies = [
        entry
        for entry in everything.studies.values()
        if place in (None, entry.area, entry.room) and (order is None or ("study", entry.name) in order)
    ]
    if order is not None:
        studies.sort(key=lambda entry: list(order).index(("study", entry.name)))
    of_study = {entry.name: [system.name for system in everything if entry.name in system.studies] for entry in studies}
    if as_json:
        say_json([_study_row(entry, of_study[entry.name]) for entry in studies])
    else:
        _say_groups([(entry.area, entry.name, entry.asks) for entry in studies], "study", "compare STUDY")


def _say_papers(
    everything: Catalog, place: str | None, order: dict[tuple[str, str], str] | None, *, as_json: bool
) -> None:
    rows = []
    for paper in everything.papers.values():
        systems = [entry for entry in everything if entry.paper == paper.name]
        rooms = _rooms(everything, "paper", paper.name)
        if systems and (place is None or place in rooms) and (order is None or ("paper", paper.name) in order):
            rows.append((systems[0].area, paper, [entry.name for entry in systems]))
    if as_json:
        say_json(
            [{"name": paper.name, "area": area, "source": dict(paper.source), "systems": names}
             for area, paper, names in rows]
        )  # fmt: skip
        return
    lines = [
        (area, paper.name, f"{paper.source.get('title', '')} ({paper.source.get('arxiv', 'no arXiv id')})")
        for area, paper, _ in rows
    ]
    _say_groups(lines, "paper", "show PAPER")


def _system_row(entry: SystemEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "area": entry.area,
        "shape": entry.shape,
        "role": entry.role,
        "problem": entry.problem,
        "paper": entry.paper,
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
    on_terminal = is_terminal(sys.stdout)
    wide = max(len(name) for _, name, _ in lines)
    for number, group in enumerate(sorted({area for area, _, _ in lines})):
        if number:
            say()
        _say_area(group)
        for area, name, does in lines:
            if area == group:
                # Off a terminal every line is whole, for grep; on one it is wrapped below its own start.
                line = wrapped(does, first=" " * (wide + 4)).lstrip() if on_terminal else does
                say(f"  {style(name.ljust(wide), fg='cyan')}  {line}")
    if on_terminal:
        say_heading(f"wavetank {then}")
