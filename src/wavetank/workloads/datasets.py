"""The real data sets: which there are, where they lie on this machine, how to get and to check them.

This is the border between Wavetank and the outside world's data, and the only part of it that reads the environment
or the network for data.  A set is looked for in ``$WAVETANK_DATA/<name>``, then in the user's cache; nothing is
downloaded unless :func:`fetch` is called.  What the sets are is written down in ``datasets.toml``.
"""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import importlib.resources
import io
import os
import tempfile
import tomllib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from wavetank.cache_folder import cache_folder
from wavetank.errors import BadFileError, DataUnavailableError, unknown_name

_TIMEOUT_S = 30.0
_LARGEST_DOWNLOAD_BYTES = 64 * 2**20

Progress = Callable[[str, int, int], None]
"""Called after each file of a fetch with its path in the set, how many files are done, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One file of a data set.

    Parameters
    ----------
    path : str
        Path in the data set's folder; a ``.gz`` at its end means that the content is compressed.
    size_bytes : int
        Size of the content in bytes, decompressed.
    sha256 : str
        Checksum (hexadecimal) of the content, decompressed.
    address : str or None
        Public address of the original; None where there is none.
    convert : str or None
        Name of the conversion that makes the content of the original's.
    """

    path: str
    size_bytes: int
    sha256: str
    address: str | None = None
    convert: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSet:
    """One data set of the registry: what it is, whose it is, and its files."""

    name: str
    about: str
    licence: str
    citation: str
    home: str
    files: tuple[DataFile, ...]

    @property
    def size_bytes(self) -> int:
        """Size of all files in bytes, decompressed."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStatus:
    """Where a data set is.

    Parameters
    ----------
    place : str
        ``"WAVETANK_DATA"``, ``"cache"`` or ``"absent"``.
    path : Path or None
        The set's folder, None when absent.
    missing : tuple of str
        Listed files that the folder lacks.
    """

    name: str
    place: str
    path: Path | None
    missing: tuple[str, ...]


@functools.cache
def entries() -> tuple[DataSet, ...]:
    """Return all data sets of the registry."""
    text = importlib.resources.files("wavetank.workloads").joinpath("datasets.toml").read_text(encoding="utf-8")
    return tuple(
        DataSet(
            name=name,
            about=facts["about"],
            licence=facts["licence"],
            citation=facts["citation"],
            home=facts["home"],
            files=tuple(
                DataFile(
                    path=file["path"],
                    size_bytes=file["size_bytes"],
                    sha256=file["sha256"],
                    address=facts["raw"] + file["original"] if "original" in file else None,
                    convert=file.get("convert"),
                )
                for file in facts["files"]
            ),
        )
        for name, facts in tomllib.loads(text).items()
    )


def entry(name: str) -> DataSet:
    """Return one data set of the registry.

    Raises
    ------
    UnknownNameError
        If the registry has none of that name.
    """
    by_name = {dataset.name: dataset for dataset in entries()}
    if name not in by_name:
        raise unknown_name("data set", name, by_name, hint="wavetank data list")
    return by_name[name]


def find(name: str, file: str | None = None) -> Path:
    """Return the folder of a data set on this machine, or one file in it.

    Parameters
    ----------
    name : str
        A data set of the registry.
    file : str, optional
        Path of a file in the set.

    Raises
    ------
    UnknownNameError
        If there is no such data set.
    DataUnavailableError
        If it, or the file, is neither in ``$WAVETANK_DATA`` nor in the cache.
    """
    dataset = entry(name)
    listed = [each for each in dataset.files if file in (None, each.path)]
    folders = [root / name for _, root in _roots()]
    for folder in folders:
        wanted = folder if file is None else folder / file
        if wanted.exists():
            return wanted
    if file is not None and not listed:
        raise unknown_name(f"file of the data set {name!r}", file, [each.path for each in dataset.files])
    public = any(each.address for each in listed)
    raise DataUnavailableError(
        f"The data set {name!r} is not on this machine."
        if file is None
        else f"The file {file!r} of the data set {name!r} is not on this machine.",
        where=f"looked for {', '.join(map(str, folders))}",
        hint=f"wavetank data fetch {name}" if public else _by_hand(dataset),
    )


def status(name: str) -> DataStatus:
    """Return where a data set is and what its folder lacks; reads no file's content.

    Raises
    ------
    UnknownNameError
        If there is no such data set.
    """
    files = [file.path for file in entry(name).files]
    for place, root in _roots():
        folder = root / name
        if folder.is_dir():
            missing = tuple(file for file in files if not (folder / file).is_file())
            return DataStatus(name=name, place=place, path=folder, missing=missing)
    return DataStatus(name=name, place="absent", path=None, missing=tuple(files))


def verify(name: str) -> Path:
    """Check every file of a data set against the registry and return the set's folder.

    Raises
    ------
    UnknownNameError
        If there is no such data set.
    DataUnavailableError
        If the set or one of its files is not on this machine.
    BadFileError
        If a file's content is not the one on record.
    """
    folder = find(name)
    for file in entry(name).files:
        path = folder / file.path
        if not path.is_file():
            raise DataUnavailableError(
                f"The file {file.path!r} of the data set {name!r} is missing.",
                where=str(folder),
                hint=f"wavetank data fetch {name}" if file.address else _by_hand(entry(name)),
            )
        problem = _mismatch(file, _content(path))
        if problem:
            own = folder.parent == _cache()
            raise BadFileError(
                f"This file of the data set {name!r} is damaged or another version: {problem}.",
                where=str(path),
                hint=f"wavetank data fetch {name} replaces it"
                if own and file.address
                else f"replace it, or take its folder out of $WAVETANK_DATA and run: wavetank data fetch {name}"
                if file.address
                else _by_hand(entry(name)),
            )
    return folder


def fetch(name: str, *, progress: Progress | None = None) -> Path:
    """Download a data set into the cache and return its folder there.

    Files already in the cache and sound are kept.  The others are downloaded, converted and checked together, and
    moved to their place only when all are sound, so that an interrupted fetch leaves the cache as it was.  Files
    without a public original are left out; :func:`status` names them.

    Parameters
    ----------
    name : str
        A data set of the registry.
    progress : callable, optional
        Called as ``progress(path, done, total)`` after each file.

    Raises
    ------
    UnknownNameError
        If there is no such data set.
    DataUnavailableError
        If the set has no public address, the network does not answer, or the cache cannot be written.
    BadFileError
        If what arrived is not what the registry has on record.
    """
    dataset = entry(name)
    public = [(file, file.address) for file in dataset.files if file.address]
    if not public:
        raise DataUnavailableError(
            f"The data set {name!r} has no public address: its files were cut or counted from larger ones.",
            given=name,
            hint=_by_hand(dataset),
        )
    folder = _cache() / name
    try:
        _cache().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=_cache()) as scratch:
            for done, (file, address) in enumerate(public, start=1):
                kept = folder / file.path
                if not kept.is_file() or _mismatch(file, _content(kept)):
                    _write(Path(scratch) / file.path, _downloaded(dataset, file, address))
                if progress is not None:
                    progress(file.path, done, len(public))
            for file, _ in public:
                arrived = Path(scratch) / file.path
                if arrived.is_file():
                    (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
                    arrived.replace(folder / file.path)
    except OSError as error:
        raise DataUnavailableError(
            "The cache of data sets cannot be written.",
            given=str(error),
            where=str(_cache()),
            hint="point XDG_CACHE_HOME to a folder with room that you may write to",
        ) from error
    return folder


def _cache() -> Path:
    return cache_folder() / "data"


def _roots() -> list[tuple[str, Path]]:
    given = os.environ.get("WAVETANK_DATA")
    own = [("WAVETANK_DATA", Path(given).expanduser())] if given else []
    return [*own, ("cache", _cache())]


def _by_hand(dataset: DataSet) -> str:
    return (
        f"it stems from {dataset.home}; put its files into a folder {dataset.name} and set WAVETANK_DATA to the folder "
        "around it"
    )


def _content(path: Path) -> bytes | None:
    """Return a file's content, decompressed; None when it does not decompress."""
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error):
        return None


def _mismatch(file: DataFile, content: bytes | None) -> str | None:
    if content is None:
        return "it does not decompress"
    if len(content) != file.size_bytes:
        return f"{len(content)} bytes, {file.size_bytes} expected"
    digest = hashlib.sha256(content).hexdigest()
    return None if digest == file.sha256 else f"SHA-256 {digest[:12]}..., {file.sha256[:12]}... expected"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def _downloaded(dataset: DataSet, file: DataFile, address: str) -> bytes:
    """Return the content of a file as the registry has it on record."""
    content = _download(address, dataset)
    try:
        if file.convert is not None:
            content = _CONVERSIONS[file.convert](content)
        problem = _mismatch(file, content)
    except (ValueError, LookupError, csv.Error) as error:
        problem = f"the conversion {file.convert!r} does not fit it ({error})"
    if problem:
        raise BadFileError(
            f"What arrived for {file.path!r} is not what is on record: {problem}.",
            where=address,
            hint="nothing was kept; try again, and if it stays so the original has changed: see " + dataset.home,
        )
    return content


def _download(address: str, dataset: DataSet) -> bytes:
    import http.client

    try:
        with _open(address) as response:
            content: bytes = response.read(_LARGEST_DOWNLOAD_BYTES + 1)
    except (OSError, http.client.HTTPException) as error:
        raise DataUnavailableError(
            f"The data set {dataset.name!r} cannot be downloaded.",
            given=str(error),
            where=address,
            hint=f"try again when the network is there, or: {_by_hand(dataset)}",
        ) from error
    if len(content) > _LARGEST_DOWNLOAD_BYTES:
        raise DataUnavailableError(
            "The file at this address is larger than any file of the data sets; it was not kept.",
            allowed=f"up to {_LARGEST_DOWNLOAD_BYTES} bytes",
            where=address,
        )
    return content


def _open(address: str) -> Any:
    """Open an https address; an opener without a handler for other schemes follows no redirection to them either."""
    from urllib import request

    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler, request.UnknownHandler, request.HTTPSHandler, request.HTTPDefaultErrorHandler,
        request.HTTPRedirectHandler, request.HTTPErrorProcessor,
    ):  # fmt: skip
        opener.add_handler(handler())
    return opener.open(address, timeout=_TIMEOUT_S)


def _azure_first_40_minutes(original: bytes) -> bytes:
    """Turn date-times into seconds since the first request and keep the first 2,400 of them."""
    rows = csv.reader(io.StringIO(original.decode("utf-8-sig")))
    if next(rows, None) != ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]:
        raise ValueError("other columns than TIMESTAMP, ContextTokens, GeneratedTokens")
    lines = ["arrival_s,context_tokens,generated_tokens"]
    first = None
    for stamp, prompt, output in rows:
        moment, _, fraction = stamp.partition(".")
        # The trace counts in 100 ns; datetime would cut the last digit off.
        ticks = (datetime.fromisoformat(moment) - datetime.min) // timedelta(seconds=1) * 10**7
        ticks += int(fraction.ljust(7, "0"))
        first = ticks if first is None else first
        if ticks - first < 2_400 * 10**7:
            lines.append(f"{(ticks - first) / 1e7:.6f},{prompt},{output}")
    return ("\n".join(lines) + "\n").encode()


def _vidur_medians(original: bytes) -> bytes:
    """Of the timing columns keep the medians."""
    rows = list(csv.reader(io.StringIO(original.decode("utf-8"))))
    kept = [
        column
        for column, name in enumerate(rows[0])
        if not name.startswith("time_stats.") or name.endswith(".median")
    ]  # fmt: skip
    text = io.StringIO(newline="")
    csv.writer(text).writerows([row[column] for column in kept] for row in rows)
    return text.getvalue().encode()


_CONVERSIONS: dict[str, Callable[[bytes], bytes]] = {
    "azure-first-40-minutes": _azure_first_40_minutes,
    "vidur-medians": _vidur_medians,
}
