"""The commands that catalogs name: one group for each table, which imports a command when it runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from wavetank.errors import BadFileError, UnknownNameError, nearest_of
from wavetank.files import write_atomic
from wavetank.ledger import catalog
from wavetank.ledger.catalog import CommandEntry
from wavetank.terminal import say, say_wrapped


def loaded(entry: CommandEntry) -> click.Command:
    """Return the click command behind an entry of a catalog.

    Raises
    ------
    BadFileError
        If it cannot be imported or is no command, with file and line of the entry.
    """
    command = entry.load()
    if not isinstance(command, click.Command):
        raise BadFileError("The entry's object is not a click command.", given=entry.object, where=entry.where)
    return command


class CatalogGroup(click.Group):
    """A group whose commands are the entries of one table of the catalogs.

    Parameters
    ----------
    table : str
        One of :data:`wavetank.ledger.catalog.COMMANDS`.
    """

    def __init__(self, *arguments: Any, table: str, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands in the order of help."""
        return list(catalog.commands(self.table))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, None where there is none of this name."""
        from wavetank.cli.entry import add_trace_option

        entries = catalog.commands(self.table)
        if cmd_name not in entries:
            return None
        command = loaded(entries[cmd_name])
        add_trace_option(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with what the catalogs say of them."""
        entries = catalog.commands(self.table)
        if entries:
            with formatter.section("Commands"):
                formatter.write_dl([(name, entry.says) for name, entry in entries.items()])


def kind_of(name: str, entries: dict[str, CommandEntry], given: str = "", *, verb: str) -> CommandEntry:
    """Return the entry that takes a file: the one given, or the one that the file's name shows.

    Parameters
    ----------
    name : str
        The file's name.
    entries : dict of str to CommandEntry
    given : str, optional
        Name of an entry, which decides.
    verb : str
        The verb of the command line, for the hint.

    Raises
    ------
    UnknownNameError, BadFileError
    """
    if given:
        if given not in entries:
            raise UnknownNameError(
                f"There is no kind of file named {given!r}.", allowed=list(entries), nearest=nearest_of(given, entries)
            )
        return entries[given]
    lower = name.lower().removesuffix(".gz")
    for entry in entries.values():
        if lower.endswith(entry.endings):
            return entry
    endings = [ending for entry in entries.values() for ending in entry.endings]
    ending = f".{lower.rpartition('.')[2]}"
    raise BadFileError(
        "The file's name does not show what it is.",
        given=name,
        allowed=[*endings, "each also with .gz"],
        nearest=nearest_of(ending, endings),
        hint=f"wavetank {verb} --kind {next(iter(entries), 'KIND')} {name}",
    )


def maker_of(entry: CommandEntry, verb: str) -> Any:
    """Return the class of settings behind an entry whose object does the verb's work.

    Parameters
    ----------
    entry : CommandEntry
    verb : str
        The verb, which is the method's name: ``check`` or ``diagnose``.

    Raises
    ------
    BadFileError
        If the entry's object is no dataclass with that method, with file and line of the entry.
    """
    maker = entry.load()
    if not (isinstance(maker, type) and dataclasses.is_dataclass(maker) and hasattr(maker, verb)):
        raise BadFileError(
            f"The entry's object is no dataclass with a method {verb}.", given=entry.object, where=entry.where
        )
    return maker


def write_page(path: Path, page: str) -> None:
    """Write what was found as a page and name the file, or say that there is nothing to draw.

    Parameters
    ----------
    path : Path
    page : str
        The page; empty where there is none.

    Raises
    ------
    BadFileError
        If it cannot be written.
    """
    if not page:
        say_wrapped(f"There is nothing to draw: no page was written to {path}.", err=True)
        return
    try:
        write_atomic(path, page)
    except OSError as error:
        raise BadFileError("The page cannot be written.", given=str(error), where=str(path)) from error
    say(f"  page: {path}", err=True)
