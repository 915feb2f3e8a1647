"""``wavetank launch router-key``: makes a key for a client of the router, and its entry in the keys file."""

from __future__ import annotations

import fcntl
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from wavetank.errors import BadFileError, BadValueError
from wavetank.files import write_atomic
from wavetank.serving.proxy.access import KeySettings, digest_of, new_key, read_keys
from wavetank.settings import check_parameters, options
from wavetank.terminal import say

_ASKED = tuple(each.name for each in fields(KeySettings) if each.name not in ("name", "sha256"))


@click.command()
@click.argument("name")
@click.option("--file", "path", metavar="FILE", default="keys.toml", show_default=True, help="Keys file; made if new.")
@options(KeySettings, *_ASKED, typed=False)
def command(name: str, path: str, **settings: str | None) -> int:
    """Make a key named NAME, print it once, and put its digest into the keys file of the router.

    The file never holds the key itself.  A running router reads the file again on SIGHUP or POST /admin/reload.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    key = new_key()
    made = KeySettings(
        name=name, sha256=digest_of(key), **check_parameters(KeySettings, given, where="launch router-key")
    )
    add_key(Path(path).expanduser(), made)
    say(key)
    return 0


def add_key(path: Path, key: KeySettings) -> None:
    """Append a key to a keys file; two calls at once both have their effect.

    Parameters
    ----------
    path : Path
        Made where it does not exist, for its owner alone.
    key : KeySettings

    Raises
    ------
    WavetankError
        If the file is damaged or has a key of that name.
    """
    try:
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            if any(each.name == key.name for each in read_keys(path)):
                raise BadValueError("There is a key of this name.", given=key.name, where=str(path))
            mode = path.stat().st_mode & 0o777
            text = path.read_text(encoding="utf-8")
            write_atomic(path, f"{text.rstrip()}\n\n{entry_of(key)}" if text.strip() else entry_of(key))
            path.chmod(mode)
    except OSError as error:
        raise BadFileError(f"The keys file cannot be written: {error.strerror or error}.", where=str(path)) from None


def entry_of(key: KeySettings) -> str:
    """Return the TOML table of a key, without what is as by default."""
    lines = ["[[keys]]"]
    for each in fields(KeySettings):
        value = getattr(key, each.name)
        if value != each.default:
            lines.append(f"{each.name} = {_toml(value)}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        escaped = "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
        return f'"{escaped}"'
    return repr(value)
