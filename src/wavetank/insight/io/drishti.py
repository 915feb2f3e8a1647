"""Drishti's rules on counters, in our words: totals of a module against thresholds.

The rules ask how large a share of requests has a trait and how many there are; what they cost is not asked.  They are
those of drishti-io 0.8 without its backtraces (which need traces of requests) and without the number of aggregators
(which needs a batch system).  ``redundant`` as shipped compares in the direction of the program: it fires where the
highest offset exceeds the bytes; fitting turns it round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.scoreboard import label_counts, micro
from wavetank.insight.io.measures import SMALL
from wavetank.settings import check_ranges, setting
from wavetank.workloads.darshan import DarshanLog, ModuleRecords

KIND_OF = {
    "S01": "LLL", "P05": "SML", "P06": "SML", "P08": "MSL", "P09": "RDA", "P11": "RMA", "P13": "RMA", "P15": "SHF",
    "P16": "SHF", "P17": "HMD", "P18": "RLIM", "P19": "RLIM", "P21": "RLIM", "P22": "RLIM", "M01": "MPNM", "M02": "NC",
    "M03": "NC",
}  # fmt: skip
"""Kinds of issues by Drishti's codes; the other codes name no issue of these kinds, and it has none for servers."""
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 0.95)
_COUNTS = (10.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0)
_GRID: dict[str, tuple[float, ...]] = {
    "small": _SHARES, "small_count": _COUNTS, "misaligned": _SHARES, "metadata_s": (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
    "random": _SHARES, "random_count": _COUNTS, "stragglers": _SHARES, "sizes": _SHARES, "stdio": _SHARES,
    "collective_count": _COUNTS, "redundant": (0.0, 1.01, 1.1, 1.2, 1.5, 2.0),
    "shared_small": (0.0, 1.0), "no_mpi": (0.0, 1.0),
}  # fmt: skip
_ROUNDS = 2


@dataclass(frozen=True, kw_only=True)
class Drishti:
    """Rules on totals of counters, with thresholds as shipped."""

    small: float = setting(0.1, says="Share of requests below 1 MiB that is an issue", low=0.0, high=1.0)
    small_count: float = setting(1000.0, says="Requests below 1 MiB, at least", low=0.0)
    misaligned: float = setting(0.1, says="Share of misaligned requests that is an issue", low=0.0, high=1.0)
    metadata_s: float = setting(30.0, unit="s", says="Metadata time of a record that is an issue", low=0.0)
    random: float = setting(0.2, says="Share of random requests that is an issue", low=0.0, high=1.0)
    random_count: float = setting(1000.0, says="Random requests, at least", low=0.0)
    stragglers: float = setting(0.15, says="Difference of fastest and slowest rank, over the total", low=0.0, high=1.0)
    sizes: float = setting(0.3, says="Difference of ranks of one file, over the largest", low=0.0, high=1.0)
    stdio: float = setting(0.1, says="Share of bytes through STDIO that is an issue", low=0.0, high=1.0)
    collective_count: float = setting(1000.0, says="Calls of MPI-IO without a collective one, at least", low=0.0)
    redundant: float = setting(
        0.0, says="Bytes read over the highest offset that is an issue; 0 for the rule as shipped", low=0.0
    )
    shared_small: float = setting(1.0, says="1 where small requests to shared files are an issue", low=0.0, high=1.0)
    no_mpi: float = setting(1.0, says="1 where a log without MPI-IO is an issue", low=0.0, high=1.0)
    fits: bool = setting(False, says="Whether the thresholds with the best F1 on given logs are looked for")

    def __post_init__(self) -> None:
        check_ranges(self)

    def codes(self, log: DarshanLog) -> frozenset[str]:
        """Return Drishti's codes for a log, those of what is in order left out.

        Parameters
        ----------
        log : DarshanLog
        """
        return self._codes(_Totals(log))

    def said(self, log: DarshanLog) -> frozenset[str]:
        """Return the kinds of issues of a log.

        Parameters
        ----------
        log : DarshanLog
        """
        return _kinds(self.codes(log))

    def fitted(self, logs: Sequence[DarshanLog], kinds: Sequence[frozenset[str]]) -> Drishti:
        """Return the rules with the thresholds that are best on given logs, where ``fits`` says so.

        Parameters
        ----------
        logs : sequence of DarshanLog
        kinds : sequence of frozenset of str
        """
        if not self.fits:
            return self
        totals = [_Totals(log) for log in logs]
        best, score = self, self._f1(totals, kinds)
        for _ in range(_ROUNDS):
            for name, values in _GRID.items():
                for value in values:
                    tried = replace(best, **{name: value})  # type: ignore[arg-type]
                    found = tried._f1(totals, kinds)
                    if found > score + 1e-12:
                        best, score = tried, found
        return best

    def _f1(self, totals: Sequence[_Totals], kinds: Sequence[frozenset[str]]) -> float:
        found = micro(label_counts(list(kinds), [_kinds(self._codes(each)) for each in totals])).f1
        return found if found == found else 0.0

    def _codes(self, of: _Totals) -> frozenset[str]:
        found = set()
        if of.all_bytes and of.stdio_bytes / of.all_bytes > self.stdio:
            found.add("S01")
        if self.no_mpi and not of.has_mpi:
            found.add("M01")
        if of.has_posix:
            found |= self._of_posix(of)
        for code, (collective, independent) in (("M02", of.reads_mpi), ("M03", of.writes_mpi)):
            if of.has_mpi and collective == 0 and independent > self.collective_count:
                found.add(code)
        return frozenset(found)

    def _of_posix(self, of: _Totals) -> set[str]:
        found = set()
        for code, shared, random, at in (("P05", "P15", "P11", 0), ("P06", "P16", "P13", 1)):
            count, small, jumps = of.requests[at], of.small[at], of.jumps[at]
            if count and small / count > self.small and small > self.small_count:
                found.add(code)
            if count and jumps / count > self.random and jumps > self.random_count:
                found.add(random)
            joint, joint_small = of.joint[at], of.joint_small[at]
            if self.shared_small and joint and joint_small / joint > self.small and joint_small > self.small_count:
                found.add(shared)
        every = sum(of.requests)
        if every and of.misaligned / every > self.misaligned:
            found.add("P08")
        moved, highest = of.read_bytes, of.highest_read
        if (moved > self.redundant * (highest + 1) > 0) if self.redundant else highest > moved:
            found.add("P09")
        if of.longest_metadata_s > self.metadata_s:
            found.add("P17")
        if of.straggling_bytes > self.stragglers:
            found.add("P18")
        if of.straggling_time > self.stragglers:
            found.add("P19")
        if of.uneven_written > self.sizes:
            found.add("P21")
        if of.uneven_read > self.sizes:
            found.add("P22")
        return found


def _kinds(codes: frozenset[str]) -> frozenset[str]:
    return frozenset(KIND_OF[code] for code in codes if code in KIND_OF)


class _Totals:
    """The totals of a log that the rules look at."""

    def __init__(self, log: DarshanLog) -> None:
        def total(module: str, prefix: str, name: str) -> int:
            return int(log.modules[module].counters[f"{prefix}_{name}"].sum()) if module in log.modules else 0

        moved = {
            module: total(module, prefix, "BYTES_READ") + total(module, prefix, "BYTES_WRITTEN")
            for module, prefix in (("STDIO", "STDIO"), ("POSIX", "POSIX"), ("MPI-IO", "MPIIO"))
        }
        self.stdio_bytes = moved["STDIO"]
        # What MPI-IO moves is counted by POSIX once more.
        posix = moved["POSIX"] - moved["MPI-IO"] if moved["POSIX"] >= moved["MPI-IO"] else moved["POSIX"]
        self.all_bytes = moved["STDIO"] + posix + moved["MPI-IO"]
        self.has_posix, self.has_mpi = "POSIX" in log.modules, "MPI-IO" in log.modules
        self.reads_mpi = (total("MPI-IO", "MPIIO", "COLL_READS"), total("MPI-IO", "MPIIO", "INDEP_READS"))
        self.writes_mpi = (total("MPI-IO", "MPIIO", "COLL_WRITES"), total("MPI-IO", "MPIIO", "INDEP_WRITES"))
        if self.has_posix:
            self._posix(log.modules["POSIX"])

    def _posix(self, records: ModuleRecords) -> None:
        def column(name: str) -> NDArray[np.float64]:
            key = f"POSIX_{name}"
            return np.asarray(records.times[key] if key in records.times else records.counters[key], np.float64)

        joint = records.rank == -1
        words = (("READ", "READ"), ("WRITE", "WRITTEN"))
        small = [sum(column(f"SIZE_{word}_{size}") for size in SMALL) for word, _ in words]
        self.requests = [float(column(f"{word}S").sum()) for word, _ in words]
        self.small = [float(np.sum(each)) for each in small]
        self.jumps = [float((column(f"{word}S") - column(f"SEQ_{word}S")).sum()) for word, _ in words]
        self.joint = [float(column(f"{word}S")[joint].sum()) for word, _ in words]
        self.joint_small = [float(np.asarray(each)[joint].sum()) for each in small]
        self.misaligned = float(column("FILE_NOT_ALIGNED").sum())
        self.read_bytes = float(column("BYTES_READ").sum())
        self.highest_read = float(column("MAX_BYTE_READ").max(initial=0))
        self.longest_metadata_s = float(column("F_META_TIME").max(initial=0))
        moved = column("BYTES_READ") + column("BYTES_WRITTEN")
        spent = column("F_READ_TIME") + column("F_WRITE_TIME") + column("F_META_TIME")
        self.straggling_bytes = _largest(
            np.abs(column("SLOWEST_RANK_BYTES") - column("FASTEST_RANK_BYTES"))[joint], moved[joint]
        )
        self.straggling_time = _largest(
            np.abs(column("F_SLOWEST_RANK_TIME") - column("F_FASTEST_RANK_TIME"))[joint], spent[joint]
        )
        files = records.file[~joint]
        self.uneven_read, self.uneven_written = (
            _uneven(files, column(f"BYTES_{word}")[~joint]) for word in ("READ", "WRITTEN")
        )


def _largest(difference: NDArray[np.float64], whole: NDArray[np.float64]) -> float:
    used = whole > 0
    return float((difference[used] / whole[used]).max(initial=0.0))


def _uneven(files: NDArray[np.uint64], moved: NDArray[np.float64]) -> float:
    """Return the largest difference between ranks of one file, over the larger."""
    if not len(files):
        return 0.0
    number, place = np.unique(files, return_inverse=True)
    most, least = np.zeros(len(number)), np.full(len(number), np.inf)
    np.maximum.at(most, place, moved)
    np.minimum.at(least, place, moved)
    return _largest(most - least, most)
