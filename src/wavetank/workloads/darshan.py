"""Logs of Darshan, the recorder of file operations: read into arrays, with hard limits on what is unpacked.

A log is a header of offsets, a packed record of the job, packed names of files, and one packed region a module with a
record of counters for each file (and rank).  Regions are unpacked piece by piece under one budget, so that neither a
bomb nor a log with traces of every request (DXT) fills memory; those regions are passed over unless they are asked for.
Counters that older versions of a module did not have are -1, as Darshan's own tools show them.

Source: the format's documentation in the headers ``darshan-*-log-format.h`` of Darshan (logs 3.00 to 3.41, which
releases 3.0 to 3.5 write).  Differs from Darshan's reader: records of version 1 of POSIX with counters of ``fopen`` are
counted, not passed over in silence; the flags of incomplete modules are read in the byte order of the log.
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadFileError, BadTraceError, BadValueError

MAGIC = 6567223
MODULES = (
    "NULL", "POSIX", "MPI-IO", "H5F", "H5D", "PNETCDF_FILE", "PNETCDF_VAR", "BG/Q", "LUSTRE", "STDIO", "DXT_POSIX",
    "DXT_MPIIO", "MDHIM", "APXC", "APMPI", "HEATMAP", "DFS", "DAOS",
)  # fmt: skip
"""Modules in the order of their numbers, as logs of version 3.41 have them."""

LARGEST_BYTES = 256 << 20
"""What the packed regions of one log may come to by default."""
MOST_PROCESSES = 1 << 40
_VERSIONS = {(3, 0), (3, 10), (3, 20), (3, 21), (3, 41)}
_JOB_BYTES = 4096
_JOB_METADATA_BYTES = 1024
# Small pieces: what follows the end of a packed stream is copied, once a stream.
_PIECE_BYTES = 8 << 10
_UNPACKED_BYTES = 128 << 10
_MOST_STREAMS = 1_000_000
_LONGEST_NAME_BYTES = 1 << 16
_MOST_STRIPES = 1 << 20
_SHOWN_NAMES = 1 << 20

_SIZES = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
SIZE_BOUNDS_BYTES = (100, 1024, 10_240, 102_400, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30)
"""The largest request, in bytes, of each but the last class of sizes."""


def _sizes(prefix: str) -> list[str]:
    return [f"{prefix}_{size}" for size in _SIZES]


def _times(*words: str) -> list[str]:
    return [f"F_{word}" for word in words]


_STAMPS = (
    "OPEN_START_TIMESTAMP", "READ_START_TIMESTAMP", "WRITE_START_TIMESTAMP", "CLOSE_START_TIMESTAMP",
    "OPEN_END_TIMESTAMP", "READ_END_TIMESTAMP", "WRITE_END_TIMESTAMP", "CLOSE_END_TIMESTAMP",
)  # fmt: skip
_DURATIONS = (
    "READ_TIME", "WRITE_TIME", "META_TIME", "MAX_READ_TIME", "MAX_WRITE_TIME", "FASTEST_RANK_TIME",
    "SLOWEST_RANK_TIME", "VARIANCE_RANK_TIME", "VARIANCE_RANK_BYTES",
)  # fmt: skip
_RANKS = ["FASTEST_RANK", "FASTEST_RANK_BYTES", "SLOWEST_RANK", "SLOWEST_RANK_BYTES"]
_FOUR = range(1, 5)
_POSIX = [
    "OPENS", "FILENOS", "DUPS", "READS", "WRITES", "SEEKS", "STATS", "MMAPS", "FSYNCS", "FDSYNCS", "RENAME_SOURCES",
    "RENAME_TARGETS", "RENAMED_FROM", "MODE", "BYTES_READ", "BYTES_WRITTEN", "MAX_BYTE_READ", "MAX_BYTE_WRITTEN",
    "CONSEC_READS", "CONSEC_WRITES", "SEQ_READS", "SEQ_WRITES", "RW_SWITCHES", "MEM_NOT_ALIGNED", "MEM_ALIGNMENT",
    "FILE_NOT_ALIGNED", "FILE_ALIGNMENT", "MAX_READ_TIME_SIZE", "MAX_WRITE_TIME_SIZE", *_sizes("SIZE_READ"),
    *_sizes("SIZE_WRITE"), *(f"STRIDE{k}_STRIDE" for k in _FOUR), *(f"STRIDE{k}_COUNT" for k in _FOUR),
    *(f"ACCESS{k}_ACCESS" for k in _FOUR), *(f"ACCESS{k}_COUNT" for k in _FOUR), *_RANKS,
]  # fmt: skip
_MPIIO = [
    "INDEP_OPENS", "COLL_OPENS", "INDEP_READS", "INDEP_WRITES", "COLL_READS", "COLL_WRITES", "SPLIT_READS",
    "SPLIT_WRITES", "NB_READS", "NB_WRITES", "SYNCS", "HINTS", "VIEWS", "MODE", "BYTES_READ", "BYTES_WRITTEN",
    "RW_SWITCHES", "MAX_READ_TIME_SIZE", "MAX_WRITE_TIME_SIZE", *_sizes("SIZE_READ_AGG"), *_sizes("SIZE_WRITE_AGG"),
    *(f"ACCESS{k}_ACCESS" for k in _FOUR), *(f"ACCESS{k}_COUNT" for k in _FOUR), *_RANKS,
]  # fmt: skip
_STDIO = [
    "OPENS", "FDOPENS", "READS", "WRITES", "SEEKS", "FLUSHES", "BYTES_WRITTEN", "BYTES_READ", "MAX_BYTE_READ",
    "MAX_BYTE_WRITTEN", *_RANKS,
]  # fmt: skip
_STDIO_TIMES = _times(
    "META_TIME", "WRITE_TIME", "READ_TIME", "OPEN_START_TIMESTAMP", "CLOSE_START_TIMESTAMP", "WRITE_START_TIMESTAMP",
    "READ_START_TIMESTAMP", "OPEN_END_TIMESTAMP", "CLOSE_END_TIMESTAMP", "WRITE_END_TIMESTAMP", "READ_END_TIMESTAMP",
    "FASTEST_RANK_TIME", "SLOWEST_RANK_TIME", "VARIANCE_RANK_TIME", "VARIANCE_RANK_BYTES",
)  # fmt: skip
_SHAPES = [
    f"ACCESS{k}_{part}"
    for k in _FOUR
    for part in ("ACCESS", *(f"LENGTH_D{d}" for d in range(1, 6)), *(f"STRIDE_D{d}" for d in range(1, 6)))
]
_H5D = [
    "OPENS", "READS", "WRITES", "FLUSHES", "BYTES_READ", "BYTES_WRITTEN", "RW_SWITCHES", "REGULAR_HYPERSLAB_SELECTS",
    "IRREGULAR_HYPERSLAB_SELECTS", "POINT_SELECTS", "MAX_READ_TIME_SIZE", "MAX_WRITE_TIME_SIZE",
    *_sizes("SIZE_READ_AGG"), *_sizes("SIZE_WRITE_AGG"), *_SHAPES, *(f"ACCESS{k}_COUNT" for k in _FOUR),
    "DATASPACE_NDIMS", "DATASPACE_NPOINTS", "DATATYPE_SIZE", *(f"CHUNK_SIZE_D{d}" for d in range(1, 6)),
    "USE_MPIIO_COLLECTIVE", "USE_DEPRECATED", *_RANKS,
]  # fmt: skip
_PNETCDF_VAR = [
    "OPENS", "INDEP_READS", "INDEP_WRITES", "COLL_READS", "COLL_WRITES", "NB_READS", "NB_WRITES", "BYTES_READ",
    "BYTES_WRITTEN", "RW_SWITCHES",
    *(f"{verb}_VAR{kind}" for verb in ("PUT", "GET") for kind in ("", "1", "A", "S", "M", "N", "D")),
    *(f"{verb}_VAR{kind}" for verb in ("IPUT", "IGET", "BPUT") for kind in ("", "1", "A", "S", "M", "N")),
    "MAX_READ_TIME_SIZE", "MAX_WRITE_TIME_SIZE", *_sizes("SIZE_READ_AGG"), *_sizes("SIZE_WRITE_AGG"), *_SHAPES,
    *(f"ACCESS{k}_COUNT" for k in _FOUR), "NDIMS", "NPOINTS", "DATATYPE_SIZE", "IS_RECORD_VAR", *_RANKS,
]  # fmt: skip
_OPEN_CLOSE = ("OPEN_START_TIMESTAMP", "CLOSE_START_TIMESTAMP", "OPEN_END_TIMESTAMP", "CLOSE_END_TIMESTAMP")


@dataclass(frozen=True)
class _Layout:
    """What a record has after its identifier and rank: a further identifier or none, whole numbers, floats."""

    prefix: str
    counters: list[str]
    times: list[str]
    parent: bool = False

    def without(self, *names: str) -> _Layout:
        return _Layout(
            self.prefix,
            [each for each in self.counters if each not in names],
            [each for each in self.times if each not in names],
            self.parent,
        )


_NEW_STAMPS = ("F_CLOSE_START_TIMESTAMP", "F_OPEN_END_TIMESTAMP")
_POSIX_4 = _Layout("POSIX", _POSIX, _times(*_STAMPS, *_DURATIONS))
_POSIX_3 = _POSIX_4.without("FILENOS", "DUPS", "RENAME_SOURCES", "RENAME_TARGETS", "RENAMED_FROM")
_POSIX_2 = _POSIX_3.without(*_NEW_STAMPS)
# The sixth to the ninth counter of version 1 belong to fopen, fread, fwrite and fseek.
_POSIX_1 = _Layout(
    "POSIX", [*_POSIX_2.counters[:6], "FOPENS", "FREADS", "FWRITES", "FSEEKS", *_POSIX_2.counters[6:]], _POSIX_2.times
)
_MPIIO_3 = _Layout("MPIIO", _MPIIO, _times(*_STAMPS, *_DURATIONS))
_STDIO_2 = _Layout("STDIO", _STDIO, _STDIO_TIMES)
_H5F_3 = _Layout("H5F", ["OPENS", "FLUSHES", "USE_MPIIO"], _times(*_OPEN_CLOSE, "META_TIME"))
_H5F_2 = _H5F_3.without("FLUSHES", "USE_MPIIO", "F_META_TIME")
_H5D_2 = _Layout("H5D", _H5D, _times(*_STAMPS, *_DURATIONS), parent=True)
_PNETCDF_3 = _Layout(
    "PNETCDF_FILE",
    ["CREATES", "OPENS", "REDEFS", "INDEP_WAITS", "COLL_WAITS", "SYNCS", "BYTES_READ", "BYTES_WRITTEN",
     "WAIT_FAILURES"],
    _times("OPEN_START_TIMESTAMP", "CLOSE_START_TIMESTAMP", "WAIT_START_TIMESTAMP", "OPEN_END_TIMESTAMP",
           "CLOSE_END_TIMESTAMP", "WAIT_END_TIMESTAMP", "META_TIME", "WAIT_TIME"),
)  # fmt: skip
_PNETCDF_2 = _Layout("PNETCDF_FILE", ["INDEP_OPENS", "COLL_OPENS"], _times(*_OPEN_CLOSE))
_PNETCDF_VAR_1 = _Layout("PNETCDF_VAR", _PNETCDF_VAR, _times(*_STAMPS, *_DURATIONS), parent=True)

# By module, layouts from version 1 on; the last one is what all are brought to.
_LAYOUTS: dict[str, tuple[_Layout, ...]] = {
    "POSIX": (_POSIX_1, _POSIX_2, _POSIX_3, _POSIX_4),
    "MPI-IO": (_MPIIO_3.without(*_NEW_STAMPS), _MPIIO_3.without(*_NEW_STAMPS), _MPIIO_3),
    "STDIO": (_STDIO_2.without("FDOPENS"), _STDIO_2),
    "H5F": (_H5F_2.without(*_NEW_STAMPS), _H5F_2, _H5F_3),
    "H5D": (_Layout("H5D", _H5D, _H5D_2.times), _H5D_2),
    "PNETCDF_FILE": (_PNETCDF_2.without(*_NEW_STAMPS), _PNETCDF_2, _PNETCDF_3),
    "PNETCDF_VAR": (_PNETCDF_VAR_1,),
}
RECORD_MODULES = (*_LAYOUTS, "LUSTRE")
"""Modules whose records are read."""
TRACE_MODULES = ("DXT_POSIX", "DXT_MPIIO")
"""Modules with one entry for every request, which are read by :func:`iter_traces` alone."""
_LUSTRE_PARTS = (
    "STRIPE_SIZE", "STRIPE_COUNT", "STRIPE_PATTERN", "FLAGS", "EXT_START", "EXT_END", "MIRROR_ID",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleRecords:
    """The records of one module.

    Parameters
    ----------
    name : str
    version : int
        Of the module's format in the log.
    incomplete : bool
        Whether the recorder ran out of memory, so that files are missing.
    file : array of uint64, shape (records,)
        Identifiers of files.
    rank : array of int64, shape (records,)
        -1 where one record sums what all ranks did with a shared file.
    counters : mapping of str to array of int64, shape (records,)
        By Darshan's names, in requests, bytes or ranks.
    times : mapping of str to array of float64, shape (records,)
        Likewise, in s.
    parent : array of uint64, shape (records,)
        The file that a data set or variable is in; zeros elsewhere.
    left_out : int
        Records that mix counters of POSIX and STDIO, of version 1.
    """

    name: str
    version: int
    incomplete: bool
    file: NDArray[np.uint64]
    rank: NDArray[np.int64]
    counters: Mapping[str, NDArray[np.int64]]
    times: Mapping[str, NDArray[np.float64]]
    parent: NDArray[np.uint64]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.file)


@dataclass(frozen=True, kw_only=True, eq=False)
class StripeRecords:
    """Where files of a Lustre file system lie.

    Parameters
    ----------
    version : int
    incomplete : bool
    file : array of uint64, shape (records,)
    rank : array of int64, shape (records,)
    stripe_bytes : array of int64, shape (records,)
        Of the largest component of the layout.
    stripe_count : array of int64, shape (records,)
        Servers that the widest component is spread over.
    components : tuple of array of int64, shape (components, 7)
        By record: the seven counters of each component, in the order of the log.
    servers : tuple of array of int64, shape (stripes,)
        By record: numbers of object storage targets.
    """

    version: int
    incomplete: bool
    file: NDArray[np.uint64]
    rank: NDArray[np.int64]
    stripe_bytes: NDArray[np.int64]
    stripe_count: NDArray[np.int64]
    components: tuple[NDArray[np.int64], ...] = ()
    servers: tuple[NDArray[np.int64], ...] = ()

    def __len__(self) -> int:
        return len(self.file)


@dataclass(frozen=True, kw_only=True, eq=False)
class DarshanLog:
    """What a log says of a job.

    Parameters
    ----------
    version : str
        Of the log's format.
    processes : int
    run_time_s : float
    program : str
        The command line.
    library : str
        Version of the recorder.
    names : mapping of int to str
        Paths by identifier.
    modules : mapping of str to ModuleRecords
    stripes : StripeRecords or None
    passed_over : mapping of str to int
        Modules that are not read, with the bytes that they take packed.
    incomplete : tuple of str
        Modules with files missing, read or not.
    """

    version: str
    processes: int
    run_time_s: float
    program: str = ""
    library: str = ""
    names: Mapping[int, str] = field(default_factory=dict)
    modules: Mapping[str, ModuleRecords] = field(default_factory=dict)
    stripes: StripeRecords | None = None
    passed_over: Mapping[str, int] = field(default_factory=dict)
    incomplete: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, eq=False)
class TracePiece:
    """Requests of one file by one rank, from a module with traces: at most as many as were asked for at a time.

    Parameters
    ----------
    file : int
    rank : int
    writes : bool
    offset_bytes : array of int64, shape (requests,)
        -1 where the format does not say.
    size_bytes : array of int64, shape (requests,)
    start_s : array of float64, shape (requests,)
    end_s : array of float64, shape (requests,)
    """

    file: int
    rank: int
    writes: bool
    offset_bytes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]


def empty_records(module: str, count: int) -> ModuleRecords:
    """Return records of a module, in its newest version, in which every counter is 0.

    Parameters
    ----------
    module : str
        One of :data:`RECORD_MODULES` but LUSTRE.
    count : int
        Of records.

    Raises
    ------
    BadValueError
        If the module has no such records.
    """
    if module not in _LAYOUTS or count < 0:
        raise BadValueError("There are no such records.", given=(module, count), allowed=list(_LAYOUTS))
    layout = _LAYOUTS[module][-1]
    return ModuleRecords(
        name=module, version=len(_LAYOUTS[module]), incomplete=False, file=np.zeros(count, np.uint64),
        rank=np.zeros(count, np.int64), parent=np.zeros(count, np.uint64),
        counters={f"{layout.prefix}_{each}": np.zeros(count, np.int64) for each in layout.counters},
        times={f"{layout.prefix}_{each}": np.zeros(count) for each in layout.times},
    )  # fmt: skip


def looks_like_darshan(head: bytes) -> bool:
    """Return whether the first bytes begin a log.

    Parameters
    ----------
    head : bytes
    """
    return len(head) >= 16 and any(struct.unpack(f"{order}q", head[8:16])[0] == MAGIC for order in "<>")


def read_darshan(path: Path, *, largest_bytes: int = LARGEST_BYTES) -> DarshanLog:
    """Return the records of a log; traces of requests (DXT) are passed over.

    Parameters
    ----------
    path : Path
    largest_bytes : int
        What all regions that are read may come to when they are unpacked.

    Raises
    ------
    BadTraceError
        If it is no log, is damaged, or unpacks to more than allowed; the message says which part.
    """
    with _opened(path) as file:
        header = _Header(file, path)
        budget = _Budget(largest_bytes, path)
        job = _job(header, b"".join(header.pieces(header.job_region(), "the job", budget)))
        names = _names(header, b"".join(header.pieces(header.name_region, "the names of files", budget)))
        modules: dict[str, ModuleRecords] = {}
        stripes = None
        passed_over: dict[str, int] = {}
        for name, (offset, length, version) in header.regions.items():
            if name == "LUSTRE" and version in (1, 2):
                raw = b"".join(header.pieces((offset, length), f"module {name}", budget))
                stripes = _stripes(header, raw, version)
            elif name in _LAYOUTS and 1 <= version <= len(_LAYOUTS[name]):
                raw = b"".join(header.pieces((offset, length), f"module {name}", budget))
                modules[name] = _records(header, name, version, raw)
            else:
                passed_over[name] = length
        return DarshanLog(
            version=header.version, names=names, modules=modules, stripes=stripes, passed_over=passed_over,
            incomplete=tuple(name for name in header.regions if name in header.incomplete), **job,
        )  # fmt: skip


def iter_traces(
    path: Path, module: str, *, most_requests: int = 1 << 16, largest_bytes: int = 1 << 40
) -> Iterator[TracePiece]:
    """Yield the requests of a module with traces, never more than a given number in memory.

    Parameters
    ----------
    path : Path
    module : str
        One of :data:`TRACE_MODULES`.
    most_requests : int
        Of a piece.
    largest_bytes : int
        What the region may come to when it is unpacked.

    Raises
    ------
    BadTraceError
        If the log is damaged.
    BadValueError
        If there is no such module, or pieces are empty.
    """
    if module not in TRACE_MODULES or most_requests < 1:
        raise BadValueError("These traces cannot be read.", given=(module, most_requests), allowed=TRACE_MODULES)
    with _opened(path) as file:
        header = _Header(file, path)
        if module not in header.regions:
            return
        offset, length, version = header.regions[module]
        newest = {"DXT_POSIX": 2, "DXT_MPIIO": 3}[module]
        if not 1 <= version <= newest:
            raise header.bad(f"Version {version} of module {module} is unknown.")
        has_thread = version == newest
        row = np.dtype(
            [("offset", "i8"), ("size", "i8"), ("start", "f8"), ("end", "f8"), *([("thread", "u8")] * has_thread)]
        ).newbyteorder(header.order)
        budget = _Budget(largest_bytes, path)
        stream = _Taker(header.pieces((offset, length), f"module {module}", budget))
        while head := stream.take(104):
            if len(head) < 104:
                raise header.bad(f"Module {module} ends inside a record.")
            number, rank, _ = struct.unpack(f"{header.order}Qqq", head[:24])
            writes, reads = struct.unpack(f"{header.order}qq", head[88:])
            for is_write, count in ((True, writes), (False, reads)):
                if count < 0:
                    raise header.bad(f"Module {module} counts {count} requests.")
                while count > 0:
                    now = min(count, most_requests)
                    raw = stream.take(now * row.itemsize)
                    if len(raw) < now * row.itemsize:
                        raise header.bad(f"Module {module} ends inside the requests of a file.")
                    rows = np.frombuffer(raw, row)
                    unknown = module == "DXT_MPIIO" and version == 1
                    yield TracePiece(
                        file=number, rank=rank, writes=is_write,
                        offset_bytes=np.full(now, -1) if unknown else rows["offset"].astype(np.int64),
                        size_bytes=rows["size"].astype(np.int64),
                        start_s=rows["start"].astype(np.float64), end_s=rows["end"].astype(np.float64),
                    )  # fmt: skip
                    count -= now


def _opened(path: Path) -> IO[bytes]:
    if not path.is_file():
        raise BadTraceError("There is no such log.", given=str(path))
    try:
        return path.open("rb")
    except OSError as error:
        raise BadFileError("The log cannot be read.", given=str(error.strerror or error), where=str(path)) from error


class _Budget:
    """Bytes that may still be unpacked, and packed streams that may still be begun."""

    def __init__(self, largest_bytes: int, path: Path) -> None:
        self.largest_bytes, self.left_bytes, self.left_streams = largest_bytes, largest_bytes, _MOST_STREAMS
        self.path = path

    def spend(self, size: int) -> None:
        self.left_bytes -= size
        if self.left_bytes < 0:
            raise BadTraceError(
                "The log unpacks to more than is allowed.", allowed=f"up to {self.largest_bytes} bytes",
                where=str(self.path),
            )  # fmt: skip

    def begin(self) -> None:
        self.left_streams -= 1
        if self.left_streams < 0:
            raise BadTraceError(
                "The log consists of too many packed streams.", allowed=f"up to {_MOST_STREAMS}", where=str(self.path)
            )


class _Header:
    """The offsets at the beginning of a log."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self.file, self.path = file, path
        self.size = file.seek(0, 2)
        file.seek(0)
        head = file.read(2048)
        if not looks_like_darshan(head):
            raise self.bad("This is no log of Darshan: its first bytes are others.")
        self.order: Literal["<", ">"] = "<" if struct.unpack("<q", head[8:16])[0] == MAGIC else ">"
        self.version = head[:8].split(b"\0")[0].decode("ascii", "replace")
        major, _, minor = self.version.partition(".")
        known = major.isdecimal() and minor.isdecimal() and len(self.version) < 8
        self.number = (int(major), int(minor)) if known else (0, 0)
        if self.number not in _VERSIONS:
            raise BadTraceError(
                "The log is of a version that is not known.", given=self.version,
                allowed=[f"{first}.{second:02d}" for first, second in sorted(_VERSIONS)], where=str(path),
            )  # fmt: skip
        wide = self.number >= (3, 41)
        count, maps_at = (64, 48) if wide else (16, 40)
        self.end = maps_at + 20 * count
        if len(head) < self.end:
            raise self.bad("The log ends inside its header.")
        self.packing = head[16]
        if self.packing > 2:
            raise self.bad(f"The regions are packed by a method that is not known ({self.packing}).")
        flags, name_at = (24, 32) if wide else (20, 24)
        partial = struct.unpack_from(f"{self.order}{'Q' if wide else 'I'}", head, flags)[0]
        self.name_region: tuple[int, int] = struct.unpack_from(f"{self.order}QQ", head, name_at)
        maps = np.frombuffer(head, f"{self.order}u8", 2 * count, maps_at).reshape(count, 2)
        versions = np.frombuffer(head, f"{self.order}u4", count, maps_at + 16 * count)
        self.regions: dict[str, tuple[int, int, int]] = {}
        self.incomplete: set[str] = set()
        for index in range(count):
            name = self._module(index)
            if maps[index, 1]:
                self.regions[name] = (int(maps[index, 0]), int(maps[index, 1]), int(versions[index]))
            if partial >> index & 1:
                self.incomplete.add(name)

    def _module(self, index: int) -> str:
        # H5D came with 3.20, PNETCDF_VAR with 3.41: what stood behind them moved up.
        if self.number < (3, 20) and index >= 4:
            index += 1
        if self.number < (3, 41) and index >= 6:
            index += 1
        return MODULES[index] if index < len(MODULES) else f"module {index}"

    def bad(self, problem: str) -> BadTraceError:
        return BadTraceError(problem, where=str(self.path))

    def job_region(self) -> tuple[int, int]:
        """Where the record of the job lies: from the header's end to what comes next."""
        if self.name_region[0]:
            after = self.name_region[0]
        else:
            after = next((offset for offset, _, _ in self.regions.values() if offset), self.size)
        if not self.end < after <= self.size:
            raise self.bad("The record of the job is missing.")
        return self.end, after - self.end

    def pieces(self, region: tuple[int, int], what: str, budget: _Budget) -> Iterator[bytes]:
        """Yield a region, unpacked, in pieces."""
        offset, length = region
        if length == 0:
            return
        if offset < self.end or offset + length > self.size:
            raise self.bad(f"The log is cut: {what} should lie at {offset} to {offset + length}, of {self.size} bytes.")
        self.file.seek(offset)
        make: Callable[[], Any] | None = (zlib.decompressobj, bz2.BZ2Decompressor, None)[self.packing]
        unpack = make() if make else None
        begun = False
        try:
            while length > 0:
                piece = self.file.read(min(length, _PIECE_BYTES))
                if not piece:
                    raise self.bad(f"The log became shorter while {what} was read.")
                length -= len(piece)
                if unpack is None or make is None:
                    budget.spend(len(piece))
                    yield piece
                    continue
                more = True
                while piece or more:
                    begun = begun or bool(piece)
                    found = unpack.decompress(piece, _UNPACKED_BYTES)
                    budget.spend(len(found))
                    yield found
                    # A full piece may hide more, also where all that is packed was taken.
                    more = len(found) == _UNPACKED_BYTES
                    if unpack.eof:
                        piece = unpack.unused_data
                        unpack, begun, more = make(), False, False
                        budget.begin()
                    else:
                        piece = unpack.unconsumed_tail if self.packing == 0 else b""
        except (zlib.error, OSError, EOFError, ValueError) as error:
            raise self.bad(f"{what[:1].upper()}{what[1:]} cannot be unpacked: {error}") from error
        if begun:
            raise self.bad(f"{what[:1].upper()}{what[1:]} ends inside a packed stream.")


class _Taker:
    """Bytes of pieces, as many as are asked for."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._held = pieces, bytearray()

    def take(self, size: int) -> bytes:
        while len(self._held) < size and (piece := next(self._pieces, None)) is not None:
            self._held += piece
        found = bytes(self._held[:size])
        del self._held[:size]
        return found


def _job(header: _Header, raw: bytes) -> dict[str, Any]:
    exact = header.number >= (3, 41)
    numbers = 7 if exact else 5
    if len(raw) <= 8 * numbers + _JOB_METADATA_BYTES:
        raise header.bad("The record of the job is too short.")
    fields = struct.unpack_from(f"{header.order}{numbers}q", raw)
    if exact:
        start_s, end_s, processes = fields[1] + fields[2] * 1e-9, fields[3] + fields[4] * 1e-9, fields[5]
        run_time_s = (fields[3] - fields[1]) + (fields[4] - fields[2]) * 1e-9
    else:
        start_s, end_s, processes = float(fields[1]), float(fields[2]), fields[3]
        # Whole seconds: a job that began and ended in the same one ran for up to one.
        run_time_s = float(fields[2] - fields[1] + 1)
    if not 1 <= processes <= MOST_PROCESSES:
        raise header.bad(f"A job of {processes} processes is none.")
    if end_s < start_s:
        run_time_s = 0.0
    pairs = raw[8 * numbers : 8 * numbers + _JOB_METADATA_BYTES].split(b"\0")[0].decode("utf-8", "replace")
    said = dict(line.partition("=")[::2] for line in pairs.splitlines())
    program = raw[8 * numbers + _JOB_METADATA_BYTES : _JOB_BYTES].split(b"\n")[0].split(b"\0")[0]
    return {
        "processes": processes, "run_time_s": run_time_s, "library": said.get("lib_ver", ""),
        "program": program.decode("utf-8", "replace"),
    }  # fmt: skip


def _names(header: _Header, raw: bytes) -> dict[int, str]:
    names: dict[int, str] = {}
    place = 0
    while place < len(raw):
        if len(raw) - place < 9:
            raise header.bad("The names of files end inside an entry.")
        number = struct.unpack_from(f"{header.order}Q", raw, place)[0]
        if header.number == (3, 0):
            if len(raw) - place < 12:
                raise header.bad("The names of files end inside an entry.")
            length = struct.unpack_from(f"{header.order}I", raw, place + 8)[0]
            start = place + 12
            place = end = start + length
        else:
            start = place + 8
            end = raw.find(b"\0", start)
            place = end + 1
        if not start <= end <= len(raw) or end - start > _LONGEST_NAME_BYTES:
            raise header.bad("The names of files end inside an entry.")
        names.setdefault(number, raw[start:end].decode("utf-8", "replace"))
        if len(names) > _SHOWN_NAMES:
            raise header.bad(f"The log has names of more than {_SHOWN_NAMES} files.")
    return names


def _records(header: _Header, name: str, version: int, raw: bytes) -> ModuleRecords:
    layout, newest = _LAYOUTS[name][version - 1], _LAYOUTS[name][-1]
    row = np.dtype(
        [("file", "u8"), ("rank", "i8"), *([("parent", "u8")] * layout.parent),
         *((each, "i8") for each in layout.counters), *((each, "f8") for each in layout.times)]
    ).newbyteorder(header.order)  # fmt: skip
    if len(raw) % row.itemsize:
        raise header.bad(f"Module {name} ends inside a record: {len(raw)} bytes, records of {row.itemsize}.")
    rows = np.frombuffer(raw, row)
    left_out = 0
    if name == "POSIX" and version == 1:
        mixed = rows["FOPENS"] > 0
        left_out, rows = int(mixed.sum()), rows[~mixed]
    count = len(rows)

    def column(each: str, kind: Any) -> NDArray[Any]:
        if each in layout.counters or each in layout.times:
            return rows[each].astype(kind)
        return np.full(count, 0 if each == "RENAMED_FROM" else -1, kind)

    counters = {f"{newest.prefix}_{each}": column(each, np.int64) for each in newest.counters}
    if name == "PNETCDF_FILE" and version < 3:
        counters["PNETCDF_FILE_OPENS"] = rows["INDEP_OPENS"].astype(np.int64) + rows["COLL_OPENS"].astype(np.int64)
    return ModuleRecords(
        name=name, version=version, incomplete=name in header.incomplete, left_out=left_out,
        file=rows["file"].astype(np.uint64), rank=rows["rank"].astype(np.int64), counters=counters,
        times={f"{newest.prefix}_{each}": column(each, np.float64) for each in newest.times},
        parent=rows["parent"].astype(np.uint64) if layout.parent else np.zeros(count, np.uint64),
    )  # fmt: skip


def _stripes(header: _Header, raw: bytes, version: int) -> StripeRecords:
    files, ranks, sizes, counts = list[int](), list[int](), list[int](), list[int]()
    components, servers = list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    place = 0
    head_bytes = 56 if version == 1 else 32
    while place < len(raw):
        if len(raw) - place < head_bytes:
            raise header.bad("Module LUSTRE ends inside a record.")
        number, rank = struct.unpack_from(f"{header.order}Qq", raw, place)
        if version == 1:
            size, stripes = struct.unpack_from(f"{header.order}qq", raw, place + 40)
            parts, part_bytes = 0, 0
        else:
            parts, stripes = struct.unpack_from(f"{header.order}qq", raw, place + 16)
            part_bytes = 8 * len(_LUSTRE_PARTS) + 16
        place += head_bytes
        if not (0 <= stripes <= _MOST_STRIPES and 0 <= parts <= _MOST_STRIPES):
            raise header.bad(f"Module LUSTRE has a file of {parts} components and {stripes} stripes.")
        end = place + parts * part_bytes + stripes * 8
        if end > len(raw):
            raise header.bad("Module LUSTRE ends inside a record.")
        if version == 1:
            layout = np.array([[size, stripes, -1, -1, 0, -1, -1]], np.int64)
        else:
            row = np.dtype([("counters", "i8", (len(_LUSTRE_PARTS),)), ("pool", "S16")]).newbyteorder(header.order)
            layout = np.frombuffer(raw, row, parts, place)["counters"].astype(np.int64)
            # From the first component without a size on, they were not in use.
            unused = np.flatnonzero(layout[:, 0] == -1)
            layout = layout[: unused[0]] if len(unused) else layout
        wide = layout[:, 1].max(initial=0)
        files.append(number)
        ranks.append(rank)
        sizes.append(int(layout[:, 0].max(initial=0)))
        counts.append(int(wide))
        components.append(layout)
        listed = np.frombuffer(raw, f"{header.order}i8", stripes, place + parts * part_bytes).astype(np.int64)
        servers.append(listed)
        place = end
    return StripeRecords(
        version=version, incomplete="LUSTRE" in header.incomplete, file=np.array(files, np.uint64),
        rank=np.array(ranks, np.int64), stripe_bytes=np.array(sizes, np.int64), stripe_count=np.array(counts, np.int64),
        components=tuple(components), servers=tuple(servers),
    )  # fmt: skip
