"""Adapters in files: one a task, replaced as a whole, and read without running anything that they hold.

A file is JSON: a format, the task's name, the version, every array as its shape and its bytes in base64, and a
checksum of all that.  What is read is held against the shapes that the rank asks for, and every number must be finite.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.errors import BadFileError, BadValueError
from wavetank.files import read_bytes, write_atomic
from wavetank.training.tenants.policy import NAMES, Adapter, Weights, shapes

FORMAT = "wavetank-adapter-1"
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LONGEST_NAME = 64
_LARGEST_BYTES = 16 << 20
_MOST_RANK = 1024
_PARTS = ("weights", "mean", "square")


def check_name(name: str) -> str:
    """Return the name of a task, which is the name of a file.

    Parameters
    ----------
    name : str

    Raises
    ------
    BadValueError
    """
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise BadValueError(
            "This is no name of a task.", given=name,
            allowed=f"lower-case words and numbers with hyphens, at most {_LONGEST_NAME} characters",
        )  # fmt: skip
    return name


def checkpoint_path(folder: Path, name: str) -> Path:
    """Return the file of a task's adapter.

    Parameters
    ----------
    folder : Path
    name : str
    """
    return folder / f"{check_name(name)}.adapter.json"


def save_adapter(folder: Path, name: str, adapter: Adapter) -> Path:
    """Write an adapter; who reads meanwhile sees the old one or the new one.

    Parameters
    ----------
    folder : Path
        Exists.
    name : str
        Of the task.
    adapter : Adapter

    Returns
    -------
    Path

    Raises
    ------
    BadFileError
        If it cannot be written; the file stays as it was.
    """
    path = checkpoint_path(folder, name)
    content: dict[str, Any] = {"format": FORMAT, "task": name, "version": adapter.version, "rank": adapter.rank}
    for part in _PARTS:
        arrays = zip(NAMES, getattr(adapter, part), strict=True)
        content[part] = {key: base64.b64encode(each.astype("<f8").tobytes()).decode() for key, each in arrays}
    content["sha256"] = _checksum(content)
    try:
        write_atomic(path, json.dumps(content))
    except OSError as error:
        raise BadFileError("The adapter cannot be written.", given=str(error.strerror), where=str(path)) from error
    return path


def load_adapter(folder: Path, name: str) -> Adapter | None:
    """Read the adapter of a task; None where it has no file.

    Parameters
    ----------
    folder : Path
    name : str

    Raises
    ------
    BadFileError
        If the file is damaged, of another task or of another format.
    """
    path = checkpoint_path(folder, name)
    if not path.exists():
        return None
    text = read_bytes(path, largest_bytes=_LARGEST_BYTES, what="The adapter")
    try:
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is no table")
        given = content.pop("sha256", None)
        if content.get("format") != FORMAT:
            raise ValueError(f"its format is {str(content.get('format'))[:40]!r}, not {FORMAT!r}")
        if given != _checksum(content):
            raise ValueError("its checksum is that of another content")
        if content["task"] != name:
            raise ValueError("it is of another task")
        version, rank = content["version"], content["rank"]
        if type(version) is not int or type(rank) is not int or version < 0 or not 1 <= rank <= _MOST_RANK:
            raise ValueError("version or rank is no number of an adapter")
        parts = {part: _weights(content[part], rank) for part in _PARTS}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise BadFileError("The file holds no adapter.", given=str(error), where=str(path),
                           hint="delete it to train the task from its beginning") from error  # fmt: skip
    return Adapter(version=version, **parts)


def _weights(given: dict[str, str], rank: int) -> Weights:
    arrays = []
    for name, shape in zip(NAMES, shapes(rank), strict=True):
        numbers = np.frombuffer(base64.b64decode(given[name], validate=True), dtype="<f8").astype(np.float64)
        if numbers.size != shape[0] * shape[1] or not np.isfinite(numbers).all():
            raise ValueError(f"{name} has other numbers than an adapter of rank {rank}")
        array = numbers.reshape(shape)
        array.flags.writeable = False
        arrays.append(array)
    return Weights(*arrays)


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
