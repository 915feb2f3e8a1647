"""How to install the libraries of an extra for this installation: a hint must work where it is read.

The package is on no index, where anybody could take its name: no command here asks an index for it.
"""

from __future__ import annotations

import sys
from pathlib import Path

# What these ask for contradicts constraints.txt, so that pip would refuse both together.
_UNPINNED = frozenset({"kernel-peers"})


def install_command(*extras: str) -> str:
    """Return the shell command that installs the libraries of extras beside this installation.

    A checkout is installed again, with the extras and with its constraints; beside an installed wheel, the libraries
    are installed that its metadata names.

    Parameters
    ----------
    *extras : str
        Names of extras of this package.

    Returns
    -------
    str
        One line for a shell; a sentence, where nothing to install is known for this system.
    """
    found = checkout()
    if found is None:
        libraries = _libraries(extras)
        if not libraries:
            return f"nothing to install is known for {' and '.join(map(repr, extras))} on this system"
        return pip_command(*libraries)
    pins = [] if _UNPINNED.intersection(extras) else ["-c", str(found / "constraints.txt")]
    return pip_command(*pins, "-e", f"{found}[{','.join(extras)}]")


def pip_command(*words: str) -> str:
    """Return the shell command by which pip installs ``words`` into the environment of this interpreter.

    Parameters
    ----------
    *words : str
        What follows ``pip install``.
    """
    import importlib.util
    import shlex
    import shutil

    beside = shutil.which("pip")
    if beside is not None and Path(beside).parent == Path(sys.executable).parent:
        command = ["pip", "install"]
    elif importlib.util.find_spec("pip") is None and shutil.which("uv") is not None:
        command = ["uv", "pip", "install", "--python", sys.executable]
    else:
        # The `pip` of the shell, if there is one, installs into another environment.
        command = [sys.executable, "-m", "pip", "install"]
    return shlex.join([*command, *words])


def checkout() -> Path | None:
    """Return the folder of the checkout that this package runs from; None when it runs from an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    is_one = all((root / name).is_file() for name in ("pyproject.toml", "constraints.txt", "src/wavetank/extras.py"))
    return root if is_one else None


def _libraries(extras: tuple[str, ...]) -> list[str]:
    """Return the requirements of extras, by the metadata of the installed wheel, that hold for this system."""
    import importlib.metadata

    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires("wavetank") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = dict.fromkeys(
        f"{each.name}{each.specifier}"
        for each in map(Requirement, lines)
        if each.marker is not None and any(each.marker.evaluate({"extra": extra}) for extra in extras)
    )
    return list(found)
