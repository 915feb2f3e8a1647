"""Checkpoints that any number of ranks can read: every rank writes what it holds, by tensor and element.

A checkpoint is a folder with a file of each rank and ``manifest.json``, which is written last, when all files are on
disk: without it there is no checkpoint.  A file is a mark, the length of its header, a header in JSON, and numbers.
Nothing is executed when one is read.  The manifest has the format's version, the tensors, and size and SHA-256 of each
file.  Files are named by what they hold: one of another writer, or of one that died, is never overwritten or mistaken.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadFileError
from wavetank.files import read_bytes, write_atomic
from wavetank.training.layouts.interface import Tensor

FORMAT = 1
MANIFEST = "manifest.json"
_MARK = b"WTSHARD1"
_LENGTH = struct.Struct("<Q")
_TYPES = ("<f8", "|i1", "|u1")
_MOST_BYTES = 1 << 36
Array = npt.NDArray[Any]
# Kind, number of the tensor, first element, content.
Piece = tuple[str, int, int, Array]


def write_part(folder: Path, rank: int, pieces: Sequence[Piece]) -> tuple[int, str]:
    """Write the file of one rank, and return its size and SHA-256.

    Parameters
    ----------
    folder : Path
    rank : int
    pieces : sequence of (str, int, int, array)
        Kind, tensor, first element, and content.

    Raises
    ------
    BadFileError
        If it cannot be written.
    """
    entries, content, at = [], [], 0
    for kind, tensor, start, values in pieces:
        data = np.ascontiguousarray(values).tobytes()
        entries.append([kind, tensor, start, int(values.size), values.dtype.str, at])
        content.append(data)
        at += len(data)
    header = json.dumps(entries).encode()
    data = b"".join([_MARK, _LENGTH.pack(len(header)), header, *content])
    digest = hashlib.sha256(data).hexdigest()
    path = folder / part_name(rank, digest)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise BadFileError("The checkpoint cannot be written.", given=str(error), where=str(path)) from error
    return len(data), digest


def part_name(rank: int, digest: str) -> str:
    """Return the name of a rank's file.

    Parameters
    ----------
    rank : int
    digest : str
        SHA-256 of its content.
    """
    return f"rank-{rank}-{digest[:16]}.part"


def write_manifest(
    folder: Path, *, step: int, tensors: Sequence[Tensor], parts: Mapping[str, tuple[int, str]], optimizer: str
) -> None:
    """Make a checkpoint of files that are all written.

    Parameters
    ----------
    folder : Path
    step : int
        Steps done.
    tensors : sequence of Tensor
    parts : mapping
        Size and SHA-256 by name of file.
    optimizer : str
        Name of its class.

    Raises
    ------
    BadFileError
        If there is one already, or it cannot be written.
    """
    if (folder / MANIFEST).exists():
        raise BadFileError("There is a checkpoint already.", where=str(folder), hint="name another folder")
    manifest = {
        "format": FORMAT, "step": step, "optimizer": optimizer,
        "parts": {name: list(each) for name, each in parts.items()},
        "tensors": [[each.name, list(each.shape), each.block] for each in tensors],
    }  # fmt: skip
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


class Checkpoint:
    """What a folder holds, checked when it is opened.

    Parameters
    ----------
    folder : Path
    tensors : sequence of Tensor
        Of the model that is to go on.
    optimizer : str
        Name of its class.

    Raises
    ------
    BadFileError
        If there is no manifest, of another format, model or optimiser, or a file is missing, truncated or damaged.
    """

    def __init__(self, folder: Path, tensors: Sequence[Tensor], optimizer: str) -> None:
        self.folder = folder
        path = folder / MANIFEST
        try:
            manifest = json.loads(read_bytes(path, largest_bytes=1 << 30, what="The manifest of a checkpoint"))
            version, self.step, kept = manifest["format"], _count(manifest["step"]), manifest["optimizer"]
            parts = {str(name): (_count(size), str(digest)) for name, (size, digest) in manifest["parts"].items()}
            found = [(name, tuple(shape), block) for name, shape, block in manifest["tensors"]]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadFileError("The manifest of a checkpoint is damaged.", given=str(error), where=str(path)) from error
        if version != FORMAT:
            raise BadFileError(
                "The checkpoint has another format.", given=version, allowed=str(FORMAT), where=str(path)
            )
        if kept != optimizer:
            raise BadFileError(
                "The checkpoint is of another optimiser.", given=kept, allowed=optimizer, where=str(path)
            )
        wanted = [(each.name, tuple(each.shape), each.block) for each in tensors]
        if found != wanted:
            other = next((a for a, b in zip(found, wanted, strict=False) if a != b), f"{len(found)} tensors")
            raise BadFileError("The checkpoint is of another model.", given=str(other), where=str(path))
        self._pieces: dict[tuple[str, int], list[tuple[int, Array]]] = {}
        for name, (size, digest) in parts.items():
            self._read(folder / Path(name).name, size, digest)
        for (kind, tensor), pieces in self._pieces.items():
            pieces.sort(key=lambda each: each[0])
            if any(a + values.size > b for (a, values), (b, _) in itertools.pairwise(pieces)):
                raise BadFileError(f"The checkpoint has {kind!r} of tensor {tensor} twice.", where=str(folder))

    def _read(self, path: Path, size: int, digest: str) -> None:
        data = read_bytes(path, largest_bytes=_MOST_BYTES, what="A part of a checkpoint")
        if len(data) != size:
            raise BadFileError("A part of a checkpoint is truncated or too long.", given=f"{len(data)} bytes",
                               allowed=f"{size} bytes", where=str(path), hint="go on from an older one")  # fmt: skip
        if hashlib.sha256(data).hexdigest() != digest or not data.startswith(_MARK):
            raise BadFileError("A part of a checkpoint is damaged.", where=str(path), given="another SHA-256",
                               hint="go on from an older checkpoint")  # fmt: skip
        begin = len(_MARK) + _LENGTH.size
        try:
            (length,) = _LENGTH.unpack_from(data, len(_MARK))
            for kind, tensor, start, count, dtype, at in json.loads(data[begin : begin + length]):
                if dtype not in _TYPES:
                    raise BadFileError(
                        "A part of a checkpoint has numbers of another type.", given=dtype, where=str(path)
                    )
                values = np.frombuffer(data, np.dtype(dtype), _count(count), begin + length + _count(at))
                self._pieces.setdefault((kind, tensor), []).append((_count(start), values))
        except (ValueError, TypeError, OverflowError, RecursionError, struct.error) as error:
            raise BadFileError("A part of a checkpoint is damaged.", given=str(error), where=str(path)) from error

    def read(self, kind: str, tensor: int, start: int, out: Array) -> None:
        """Fill an array with elements of a tensor or state, from whichever ranks had them.

        Parameters
        ----------
        kind : str
        tensor : int
        start : int
            The first.
        out : array (n,)

        Raises
        ------
        BadFileError
            If some are in no file, or have another type.
        """
        filled = 0
        for begin, values in self._pieces.get((kind, tensor), []):
            if values.dtype != out.dtype:
                raise BadFileError(f"The checkpoint has {kind!r} of tensor {tensor} in another type.",
                                   given=values.dtype.str, allowed=out.dtype.str, where=str(self.folder))  # fmt: skip
            low, high = max(begin, start), min(begin + values.size, start + out.size)
            if low < high:
                out[low - start : high - start] = values[low - begin : high - begin]
                filled += high - low
        if filled != out.size:
            raise BadFileError(f"The checkpoint lacks {kind!r} of tensor {tensor}.", given=f"{filled} elements",
                               allowed=f"{out.size}", where=str(self.folder))  # fmt: skip


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is no number of things")
    return value
