"""Completion in bash, zsh and fish: verbs and options by click; studies, systems, papers and settings by the catalog.

Nothing of an area is imported: the settings of a study are read from its source.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, shell_complete

from wavetank.errors import BadValueError, nearest_of
from wavetank.ledger import catalog

SHELLS = ("bash", "zsh", "fish")


def answer_shell(verbs: click.Group, variable: str, instruction: str) -> int:
    """Print a shell's script, or the completions of the command line that the shell describes; return the exit code.

    Parameters
    ----------
    verbs : click.Group
        The whole command line.
    variable : str
        The environment variable that the scripts set.
    instruction : str
        ``bash_source``, ``bash_complete``, and so on for zsh and fish.

    Raises
    ------
    BadValueError
        For any other instruction.
    """
    allowed = [f"{shell}_{what}" for what in ("source", "complete") for shell in SHELLS]
    if instruction not in allowed:
        raise BadValueError(
            "This is no instruction for completion.",
            given=instruction,
            allowed=allowed,
            nearest=nearest_of(instruction, allowed),
            where=variable,
            hint=f'eval "$({variable}=bash_source wavetank)"',
        )
    return shell_complete(verbs, {}, "wavetank", variable, instruction)


def add_completion(verb: str, command: click.Command) -> None:
    """Let the arguments and options of a verb that name something of the catalog complete it.

    Parameters
    ----------
    verb : str
        As it is typed.
    command : click.Command
        What it runs.
    """
    for parameter in command.params:
        complete = _BY_NAME.get((verb, str(parameter.name)))
        if complete is not None:
            parameter._custom_shell_complete = complete


def settings_named(entry: catalog.StudyEntry) -> list[str]:
    """Return the names of a study's settings, read from its source; empty where that cannot be read.

    Parameters
    ----------
    entry : StudyEntry
        The study.
    """
    module, _, name = entry.object.partition(":")
    return list(dict.fromkeys(_fields(module, name)))


def _fields(module: str, name: str) -> list[str]:
    """Return the annotated fields of a class, those of its bases first."""
    try:
        found = importlib.util.find_spec(module)
        tree = ast.parse(Path(found.origin).read_text(encoding="utf-8")) if found and found.origin else None
    except (ImportError, OSError, SyntaxError, ValueError):
        return []
    if tree is None:
        return []
    homes = {
        alias.asname or alias.name: (each.module, alias.name)
        for each in tree.body
        if isinstance(each, ast.ImportFrom) and each.module
        for alias in each.names
    }
    for each in tree.body:
        if isinstance(each, ast.ClassDef) and each.name == name:
            names: list[str] = []
            for base in each.bases:
                if isinstance(base, ast.Name):
                    names += _fields(*homes.get(base.id, (module, base.id)))
            return names + [
                line.target.id
                for line in each.body
                if isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and "ClassVar" not in ast.unparse(line.annotation)
            ]
    return []


_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _items(names: dict[str, str], typed: str) -> list[CompletionItem]:
    return [CompletionItem(name, help=says) for name, says in names.items() if name.startswith(typed)]


def _systems() -> dict[str, str]:
    return {entry.name: entry.does for entry in catalog.everything()}


def _studies() -> dict[str, str]:
    return {entry.name: entry.asks for entry in catalog.everything().studies.values()}


def _of_studies(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    return _items(_studies(), typed)


def _of_all(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    papers = {entry.name: str(entry.source.get("title", "")) for entry in catalog.everything().papers.values()}
    return _items({**papers, **_systems(), **_studies()}, typed)


def _of_words(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the first word: an area, a problem's folder or a study; a file by the shell where none fits."""
    studies = catalog.everything().studies.values()
    rooms = {room: "" for entry in studies for room in (entry.area, entry.room) if room}
    found = _items({**(rooms if ctx.info_name == "list" else {}), **_studies()}, typed)
    return found or [CompletionItem(typed, type="file")]


def _of_files(_ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Let the shell complete a file."""
    return [CompletionItem(typed, type="file")]


def _of_lists(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the last of A,B,...: the systems of the study."""
    before, comma, last = typed.rpartition(",")
    studies = [str(ctx.params.get("study") or ""), *ctx.args]
    names = next(filter(None, map(catalog.everything().systems_of, studies)), tuple(_systems()))
    taken = before.split(",")
    return [CompletionItem(before + comma + name) for name in names if name.startswith(last) and name not in taken]


def _of_settings(ctx: click.Context, _param: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete KEY=: the settings of the study on the line, which click may have left among the words."""
    from wavetank.cli.advise import OF_TRACES

    studies = catalog.everything().studies
    given = [str(ctx.params.get("study") or ""), *ctx.args]
    study = next((studies[word] for word in given if word in studies), None)
    if ctx.info_name == "advise":
        study = studies[OF_TRACES]
    names = settings_named(study) if study is not None else []
    return [CompletionItem(f"{name}=") for name in names if name.startswith(typed)]


_BY_NAME: dict[tuple[str, str], _Complete] = {
    ("compare", "study"): _of_studies,
    ("compare", "systems"): _of_lists,
    ("compare", "policies"): _of_files,
    ("compare", "pairs"): _of_settings,
    ("show", "name"): _of_all,
    ("claims", "names"): _of_all,
    ("list", "words"): _of_words,
    ("advise", "words"): _of_words,
    ("advise", "pairs"): _of_settings,
}
