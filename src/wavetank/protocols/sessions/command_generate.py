"""``wavetank generate programs``: turn a session protocol into programs, Erlang or Python."""

from __future__ import annotations

from pathlib import Path

import click

from wavetank.errors import BadFileError, BadValueError
from wavetank.files import write_atomic
from wavetank.terminal import say, say_json

LANGUAGES = ("erlang", "python")


@click.command()
@click.argument("file", metavar="FILE")
@click.option("--to", "language", required=True, type=click.Choice(LANGUAGES), help="Language of the programs.")
@click.option("--out", required=True, metavar="FOLDER", help="Folder for the programs; created if it is missing.")
@click.option("--protocol", default="", metavar="NAME", help="Protocol of FILE; by default the first that is not aux.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(file: str, language: str, out: str, protocol: str, force: bool, as_json: bool) -> None:
    """Write the roles of the session protocol FILE as programs.

    Erlang: one gen_statem module per role and one that all share, for OTP 25 and later. Python: one module with one
    class per role, which run over TCP. Protocols that break a rule are refused; `wavetank check FILE` explores all
    interleavings.
    """
    from wavetank.protocols.sessions.generate_erlang import erlang_files
    from wavetank.protocols.sessions.generate_python import python_files
    from wavetank.protocols.sessions.global_types import global_type
    from wavetank.protocols.sessions.parser import read_protocols
    from wavetank.protocols.sessions.projection import project_all
    from wavetank.protocols.sessions.refinements import check_refinements

    module = read_protocols(file)
    chosen = global_type(module, protocol)
    machines = project_all(chosen)
    check_refinements(chosen, module)
    make = erlang_files if language == "erlang" else python_files
    files = make(machines, source=module.path)
    folder = Path(out)
    _check_free(folder, files, force)
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_atomic(folder / name, text)
            written.append({"file": str(folder / name), "lines": text.count("\n")})
    except OSError as error:
        raise BadFileError(
            "The folder cannot be written to.",
            given=error.strerror or str(error),
            where=str(error.filename or folder),
            hint=f"{len(written)} of {len(files)} files were written; choose another --out",
        ) from error
    if as_json:
        say_json({"protocol": chosen.name, "roles": list(chosen.roles), "language": language, "files": written})
        return
    for each in written:
        say(f"{each['file']}  {each['lines']} lines")
    lines = sum(text.count("\n") for text in files.values())
    say(f"{chosen.name}: {len(machines)} roles, {len(files)} files, {lines} lines")


def _check_free(folder: Path, files: dict[str, str], force: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise BadValueError("The folder to write to is a file.", given=str(folder), where="--out")
    taken = [name for name in files if (folder / name).exists()]
    if taken and not force:
        raise BadValueError(
            "Files of these names exist; nothing was written.",
            given=", ".join(taken),
            where=str(folder),
            hint="--force",
        )
