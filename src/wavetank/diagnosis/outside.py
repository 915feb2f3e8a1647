"""Analysers of other projects, which live in an environment of their own and are asked in a process of their own.

``make insight-peers`` makes the environment ``.venv-insight-peers`` in the folder of a checkout.  A script there gets a
question as JSON on its standard input and prints the answer as its last line.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wavetank.errors import WavetankError

ENVIRONMENT = Path(".venv-insight-peers") / "bin"
PYTHON = "python of an environment with {}; empty: .venv-insight-peers/bin/python"
"""What a setting says that names such an environment's Python."""


def outside_python(named: str) -> str:
    """Return the Python of the environment of others; empty where there is none.

    Parameters
    ----------
    named : str
        As a setting names it; empty for the one that ``make insight-peers`` makes.
    """
    return shutil.which(named or str(ENVIRONMENT / "python")) or ""


def ask(
    words: Sequence[str], question: Any, *, name: str, timeout_s: float, environment: Mapping[str, str] | None = None
) -> Any:
    """Ask a process, and return its answer.

    Parameters
    ----------
    words : sequence of str
        Its command line.
    question : object
        Plain values; the process gets them as JSON on its standard input.
    name : str
        For messages.
    timeout_s : float
        After this time it is ended.
    environment : mapping, optional
        Its whole environment; this process's own when left out.

    Returns
    -------
    object
        What the last line that it printed holds as JSON.

    Raises
    ------
    WavetankError
        If it cannot be started, fails, takes longer, or its last line is no JSON.
    """
    try:
        done = subprocess.run(
            list(words), input=json.dumps(question), capture_output=True, text=True, timeout=timeout_s, check=False,
            env=dict(environment) if environment is not None else None,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise WavetankError(f"{name} did not answer in time and was ended.", given=f"{timeout_s:g} s") from error
    except OSError as error:
        raise WavetankError(f"{name} could not be started: {error}.", given=words[0]) from error
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines()
        raise WavetankError(f"{name} failed.", given=said[-1] if said else f"exit code {done.returncode}")
    try:
        return json.loads(lines[-1])
    except ValueError as error:
        raise WavetankError(f"{name} answered with something that is no JSON.", given=lines[-1][:200]) from error
