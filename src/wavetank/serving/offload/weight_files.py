"""Weights of blocks in a folder: one file a block, safetensors or ``.npy``, with checksums beside them.

A file is described once, when the folder is opened: where its tensors are, and which file it was.  Readers ask again
before and after they read, so that weights that changed under them are named and never used.  Files are read, not
mapped: a map of a file that somebody shortens ends the process.

Source: the format of Hugging Face's safetensors, and of ``.npy`` files by numpy.

Differs from the source:

1. bfloat16 and 8-bit floats, which numpy has not, are whole numbers of their bits.
2. Checksums stand in a file of their own, ``weights.json``; a folder without one is taken as it is.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wavetank.errors import BadFileError, BadValueError
from wavetank.files import write_atomic

MANIFEST = "weights.json"
_ENDINGS = (".safetensors", ".npy")
_LONGEST_HEADER = 100_000_000
_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "F8_E4M3": "u1", "F8_E5M2": "u1", "I64": "<i8",
    "I32": "<i4", "I16": "<i2", "I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_WORDS = {"f8": "F64", "f4": "F32", "f2": "F16", "i8": "I64", "i4": "I32", "i2": "I16", "i1": "I8", "u8": "U64",
          "u4": "U32", "u2": "U16", "u1": "U8", "b1": "BOOL"}  # fmt: skip


class StoredTensor(NamedTuple):
    """A tensor in a file.

    Attributes
    ----------
    name : str
    dtype : numpy.dtype
    shape : tuple of int
    start, n_bytes : int
        Place in the file, and size.
    crc32 : int
        Of its bytes; -1 where nobody said.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    n_bytes: int
    crc32: int


class Identity(NamedTuple):
    """What a file was when it was opened: another one is another file, or the same one with other bytes."""

    device: int
    number: int
    n_bytes: int
    changed_ns: int


def identity_of(found: os.stat_result) -> Identity:
    """Return the identity that a call of stat gives.

    Parameters
    ----------
    found : os.stat_result
    """
    return Identity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


@dataclass(frozen=True)
class BlockFile:
    """The file of a block.

    Parameters
    ----------
    path : Path
    identity : Identity
    tensors : tuple of StoredTensor
        In the order in which they stand in the file.
    """

    path: Path
    identity: Identity
    tensors: tuple[StoredTensor, ...]

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(each.n_bytes for each in self.tensors)

    def check(self, descriptor: int) -> None:
        """Refuse a file that is no longer the one that was described.

        Parameters
        ----------
        descriptor : int
            Of the file, open.

        Raises
        ------
        BadFileError
        """
        try:
            same = identity_of(os.fstat(descriptor)) == self.identity == identity_of(self.path.stat())
        except OSError:
            same = False
        if not same:
            raise BadFileError("Weights have changed while they were in use.", where=str(self.path),
                               hint="open the folder again")  # fmt: skip


def open_blocks(folder: str | Path) -> tuple[BlockFile, ...]:
    """Return the blocks of a folder, in the order of the names of their files.

    Parameters
    ----------
    folder : path

    Raises
    ------
    BadFileError
        Without files of weights; for a file that is cut short or says what cannot be; for checksums of other files.
    """
    folder = Path(folder)
    try:
        paths = sorted(each for each in folder.iterdir() if each.suffix in _ENDINGS)
    except OSError as error:
        raise BadFileError("The folder of weights cannot be read.", given=str(error), where=str(folder)) from error
    if not paths:
        raise BadFileError("There are no weights here.", where=str(folder), allowed="files .safetensors or .npy")
    sums = _checksums(folder)
    if sums is not None and set(sums) != {each.name for each in paths}:
        odd = sorted(set(sums) ^ {each.name for each in paths})
        raise BadFileError("Checksums and files are not of the same blocks.", given=odd[0],
                           where=str(folder / MANIFEST))  # fmt: skip
    return tuple(_described(each, None if sums is None else sums[each.name]) for each in paths)


def _checksums(folder: Path) -> dict[str, dict[str, int]] | None:
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["crc32"]
        return {str(name): {str(key): int(value) for key, value in each.items()} for name, each in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadFileError("The checksums of weights cannot be read.", where=str(path)) from error


def _described(path: Path, sums: Mapping[str, int] | None) -> BlockFile:
    try:
        with path.open("rb") as file:
            identity = identity_of(os.fstat(file.fileno()))
            read = _safetensors if path.suffix == ".safetensors" else _npy
            tensors = read(file, identity.n_bytes)
    except BadFileError as error:
        error.where = str(path)
        raise
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error) as error:
        raise BadFileError("This is no file of weights.", given=str(error)[:200], where=str(path)) from error
    for each in tensors:
        if each.n_bytes != math.prod(each.shape) * each.dtype.itemsize or each.start + each.n_bytes > identity.n_bytes:
            raise BadFileError(f"The tensor {each.name!r} is not whole.", where=str(path))
    if sums is not None:
        if set(sums) != {each.name for each in tensors}:
            raise BadFileError("Checksums are of other tensors.", where=str(path))
        tensors = [each._replace(crc32=sums[each.name]) for each in tensors]
    return BlockFile(path, identity, tuple(sorted(tensors, key=lambda each: each.start)))


def _safetensors(file: Any, n_bytes: int) -> list[StoredTensor]:
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(n_bytes - 8, _LONGEST_HEADER):
        raise BadFileError("The header of a file of weights is longer than the file.", given=length)
    found = []
    for name, each in json.loads(file.read(length)).items():
        if name == "__metadata__":
            continue
        start, end = _whole_numbers(each["data_offsets"])
        shape = _whole_numbers(each["shape"])
        if each["dtype"] not in _DTYPES or not 0 <= start <= end or any(size < 0 for size in shape):
            raise BadFileError(f"The tensor {name!r} is none.", given=str(each)[:200])
        found.append(StoredTensor(name, np.dtype(_DTYPES[each["dtype"]]), shape, 8 + length + start, end - start, -1))
    return found


def _whole_numbers(given: Any) -> tuple[int, ...]:
    if not isinstance(given, list) or any(type(each) is not int for each in given):
        raise BadFileError("Sizes and places of tensors are whole numbers.", given=str(given)[:200])
    return tuple(given)


def _npy(file: Any, n_bytes: int) -> list[StoredTensor]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if (fortran and len(shape) > 1) or dtype.hasobject:
        raise BadFileError("Weights are stored row by row, as numbers.", given=f"{dtype}, {shape}")
    start = file.seek(0, os.SEEK_CUR)
    return [StoredTensor("weights", dtype, shape, start, math.prod(shape) * dtype.itemsize, -1)]


def write_blocks(folder: str | Path, blocks: Sequence[Mapping[str, npt.NDArray[Any]]]) -> None:
    """Write blocks as safetensors, and their checksums last: a folder with these is whole.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    blocks : sequence of mapping of str to ndarray
        Tensors of each block by name, of numbers.

    Raises
    ------
    BadValueError
        Without blocks, and for what is no array of numbers.
    """
    if not blocks:
        raise BadValueError("There are no blocks to write.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    sums: dict[str, dict[str, int]] = {}
    digits = max(4, len(str(len(blocks) - 1)))
    for number, block in enumerate(blocks):
        header: dict[str, Any] = {}
        parts: list[bytes] = []
        place = 0
        name = f"{number:0{digits}}.safetensors"
        sums[name] = {}
        for key, tensor in block.items():
            word = _WORDS.get(tensor.dtype.str[1:])
            if word is None:
                raise BadValueError("Weights are numbers.", given=str(tensor.dtype), where=f"block {number}, {key}")
            raw = np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).tobytes()
            header[key] = {"dtype": word, "shape": list(tensor.shape), "data_offsets": [place, place + len(raw)]}
            place += len(raw)
            parts.append(raw)
            sums[name][key] = zlib.crc32(raw)
        text = json.dumps(header).encode()
        partial = folder / f"{name}.{os.getpid()}.partial"
        with partial.open("wb") as file:
            file.writelines([struct.pack("<Q", len(text)), text, *parts])
            file.flush()
            os.fsync(file.fileno())
        partial.replace(folder / name)
    write_atomic(folder / MANIFEST, json.dumps({"crc32": sums}))
