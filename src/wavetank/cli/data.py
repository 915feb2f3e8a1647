"""``wavetank data``: the real data sets, on this machine and at their public addresses."""

from __future__ import annotations

import click

from wavetank import units
from wavetank.terminal import say, say_json, say_wrapped, style
from wavetank.workloads import datasets


@click.group()
def command() -> None:
    """List, fetch, find and verify the real data sets.

    They are looked for in $WAVETANK_DATA, then in the user's cache; only `fetch` uses the network.
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array.")
def _list(as_json: bool) -> None:
    """List the data sets: content, size, and whether they are on this machine."""
    rows = []
    for entry in datasets.entries():
        state = datasets.status(entry.name)
        rows.append(
            {
                "name": entry.name,
                "about": entry.about,
                "size_bytes": entry.size_bytes,
                "files": [file.path for file in entry.files],
                "licence": entry.licence,
                "citation": entry.citation,
                "home": entry.home,
                "place": state.place,
                "path": None if state.path is None else str(state.path),
                "missing": list(state.missing),
            }
        )
    if as_json:
        say_json(rows)
        return
    for row, entry in zip(rows, datasets.entries(), strict=True):
        size = units.show(entry.size_bytes, "bytes")
        say(f"{style(entry.name, bold=True)}  {size}, {_where(datasets.status(entry.name))}")
        say_wrapped(str(row["about"]), first="  ")
        say_wrapped(f"licence: {entry.licence}", first="  ", rest="    ")


def _where(state: datasets.DataStatus) -> str:
    if state.path is None:
        return "not on this machine"
    lacks = f", {len(state.missing)} files missing" if state.missing else ""
    return f"in {state.path}{lacks}"


@command.command("fetch")
@click.argument("name")
def _fetch(name: str) -> None:
    """Download the data set NAME into the cache and verify its checksums."""

    def progress(path: str, done: int, total: int) -> None:
        say(f"{name}: {done} of {total} files, {path}", err=True)

    say(str(datasets.fetch(name, progress=progress)))


@command.command("path")
@click.argument("name")
def _path(name: str) -> None:
    """Print the folder of the data set NAME on this machine."""
    say(str(datasets.find(name)))


@command.command("verify")
@click.argument("name")
def _verify(name: str) -> None:
    """Check every file of the data set NAME against its checksum."""
    folder = datasets.verify(name)
    count = len(datasets.entry(name).files)
    say(f"{name}: {'1 file is' if count == 1 else f'all {count} files are'} as published, in {folder}")
