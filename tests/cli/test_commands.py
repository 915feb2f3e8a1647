"""Commands that catalogs name, and the kinds of file that they take."""

from __future__ import annotations

import click
import pytest

from wavetank.cli.commands import kind_of, loaded
from wavetank.errors import BadFileError, UnknownNameError
from wavetank.ledger import catalog
from wavetank.ledger.catalog import CommandEntry

ENTRIES = {
    name: CommandEntry(name=name, object="nowhere:nothing", says="", endings=endings)
    for name, endings in (("trace", (".csv", ".tsv")), ("log", (".log",)))
}


@pytest.mark.parametrize("table", catalog.COMMANDS)
def test_every_command_of_the_catalogs_can_be_loaded(table: str) -> None:
    for entry in catalog.commands(table).values():
        if table in ("check", "diagnose", "profile"):
            assert isinstance(entry.load(), type)
        else:
            assert isinstance(loaded(entry), click.Command)


@pytest.mark.parametrize("path", ["wavetank.errors:nothing", "wavetank.nowhere:command", "wavetank.errors:nearest_of"])
def test_an_entry_that_points_nowhere_is_named_with_its_file_and_line(path: str) -> None:
    entry = CommandEntry(name="lost", object=path, says="", where="some/catalog.toml, line 7, launch.lost")
    with pytest.raises(BadFileError) as caught:
        loaded(entry)
    assert caught.value.given == path
    assert caught.value.where == "some/catalog.toml, line 7, launch.lost"


@pytest.mark.parametrize(("name", "kind"), [("a.csv", "trace"), ("A.TSV.gz", "trace"), ("x.csv.log", "log")])
def test_a_files_name_shows_its_kind(name: str, kind: str) -> None:
    assert kind_of(name, ENTRIES, verb="check").name == kind


def test_the_kind_that_is_given_wins_over_the_name() -> None:
    assert kind_of("a.csv", ENTRIES, "log", verb="check").name == "log"
    with pytest.raises(UnknownNameError) as caught:
        kind_of("a.csv", ENTRIES, "lug", verb="check")
    assert caught.value.nearest == "log"


@pytest.mark.parametrize(("name", "nearest"), [("a.cvs", ".csv"), ("noname", None), ("", None)])
def test_a_name_that_shows_nothing_is_refused_with_what_would(name: str, nearest: str | None) -> None:
    with pytest.raises(BadFileError) as caught:
        kind_of(name, ENTRIES, verb="check")
    assert caught.value.nearest == nearest
    assert caught.value.hint == f"wavetank check --kind trace {name}"
