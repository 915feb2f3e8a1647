"""What a log of Darshan says of a job's I/O: families of files, and what each issue would save by estimate.

Files of one family (names that differ in digits alone) are one step of a program: it takes as long as its slowest rank,
and all families together are the job's I/O time.  Inside a family the time of reads, writes and metadata is known, and
what the requests of a trait take of it is estimated from counters by one rule of thumb, a latency stated in bytes:
a request of s bytes takes as long as ``latency_bytes + s`` bytes of a stream.  An issue's figure is the share of the
job's I/O time that its requests would save; no count alone makes an issue.

Records of rank -1 sum all ranks already; shares use the totals of their own module.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import WavetankError
from wavetank.insight.io.labels import CODES
from wavetank.workloads.darshan import DarshanLog, ModuleRecords

Floats = NDArray[np.float64]
SMALL = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M")
_DIGITS = re.compile(r"\d+")
PREFIX = {"POSIX": "POSIX", "STDIO": "STDIO", "MPI-IO": "MPIIO", "H5D": "H5D"}
WORD = {"read": "READ", "write": "WRITE"}
MOVED = {"read": "BYTES_READ", "write": "BYTES_WRITTEN"}
KIB = 1 << 10
LATENCY_BYTES = 256 * KIB
SEEK_BYTES = 1024 * KIB
"""Further bytes that take as long as a request which does not follow the one before it."""
BLOCK_BYTES = 512 * KIB
"""Likewise for a request that crosses blocks, or that takes a block from another rank."""
ONE_SERVER_BYTES = 1 << 30
"""What one rank may leave on one server."""
_MOST_FAMILIES = 1000
WIDE = 8
"""Servers from which on a step is not held back by their number."""


class TooLittleError(WavetankError):
    """The log has nothing of which the quantity could be read."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Family:
    """Files whose names differ in digits alone, in one module.

    Parameters
    ----------
    name : str
        With # in place of digits.
    module : str
        POSIX or STDIO.
    time_s : float
        Of its slowest rank.
    parts : mapping of str to float
        Shares of read, write and meta in the time that all ranks spent together.
    total : mapping of str to float
        Sums of counters, without the module's prefix.
    records : int
    together : bool
        Whether several ranks use one of its files.
    width : float
        Servers that its files are spread over, each file weighed by its time; 0 where that is not known.
    uneven : float
        1 - mean / largest number of bytes of a rank.
    uneven_time : float
        Likewise of time.
    repeat : float
        Bytes read over bytes up to the highest offset read.
    collective : float
        Share of collective calls in those of MPI-IO on its files; -1 without any.
    """

    name: str
    module: str
    time_s: float
    parts: Mapping[str, float]
    total: Mapping[str, float]
    records: int
    together: bool
    width: float
    uneven: float
    uneven_time: float
    repeat: float
    collective: float

    def of(self, op: str) -> tuple[float, float, float, float]:
        """Return requests, bytes, small requests and the share of consecutive ones.

        Parameters
        ----------
        op : str
            read or write.
        """
        word = WORD[op]
        count = self.total[f"{word}S"]
        small = sum(self.total.get(f"SIZE_{word}_{size}", 0.0) for size in SMALL)
        joined = min(1.0, self.total.get(f"CONSEC_{word}S", 0.0) / count) if count else 0.0
        return count, self.total[MOVED[op]], small, joined


class IoFacts:
    """The quantities of one log.

    Parameters
    ----------
    log : DarshanLog
    """

    def __init__(self, log: DarshanLog) -> None:
        self.log = log
        self.sound: dict[str, NDArray[np.bool_]] = {
            name: _sound(each) for name, each in log.modules.items() if name in PREFIX
        }

    @functools.cached_property
    def families(self) -> tuple[Family, ...]:
        """Families of files, those that take longest first."""
        found = [each for module in ("POSIX", "STDIO") for each in self._families(module)]
        return tuple(sorted(found, key=lambda each: (-each.time_s, each.name)))

    @functools.cached_property
    def io_time_s(self) -> float:
        """The job's I/O time: all families, one after another."""
        return sum(each.time_s for each in self.families)

    def column(self, module: str, name: str) -> Floats:
        """Return a counter of a module, of its sound records.

        Parameters
        ----------
        module : str
        name : str
            Without the module's prefix.
        """
        records = self.log.modules[module]
        key = f"{PREFIX[module]}_{name}"
        values = records.times[key] if key in records.times else records.counters[key]
        return np.asarray(values[self.sound[module]], np.float64)

    def total(self, module: str, name: str) -> float:
        """Return the sum of a counter; 0 where the log has no such module.

        Parameters
        ----------
        module : str
        name : str
        """
        return float(self.column(module, name).sum()) if module in self.log.modules else 0.0

    def _families(self, module: str) -> list[Family]:
        if module not in self.log.modules:
            return []
        sound, records = self.sound[module], self.log.modules[module]
        files, ranks = records.file[sound], records.rank[sound]
        if not len(files):
            return []
        names = [self._family(int(number)) for number in files]
        spent = {
            part: np.maximum(self.column(module, f"F_{part.upper()}_TIME"), 0.0) for part in ("read", "write", "meta")
        }
        whole = spent["read"] + spent["write"] + spent["meta"]
        moved = self.column(module, "BYTES_READ") + self.column(module, "BYTES_WRITTEN")
        columns = {
            name: self.column(module, name)
            for name in ("READS", "WRITES", "BYTES_READ", "BYTES_WRITTEN", "OPENS")
        }  # fmt: skip
        if module == "POSIX":
            more = ["CONSEC_READS", "CONSEC_WRITES", "SEQ_READS", "SEQ_WRITES", "FILE_NOT_ALIGNED", "STATS"]
            more += [f"SIZE_{word}_{size}" for word in ("READ", "WRITE") for size in SMALL]
            columns |= {name: self.column(module, name) for name in more}
        slowest = self.column(module, "F_SLOWEST_RANK_TIME")
        slowest_moved = self.column(module, "SLOWEST_RANK_BYTES")
        highest = self.column(module, "MAX_BYTE_READ")
        groups: dict[str, list[int]] = {}
        for index, name in enumerate(names):
            groups.setdefault(name, []).append(index)
        if len(groups) > _MOST_FAMILIES:
            spent_by = {name: float(whole[members].sum()) for name, members in groups.items()}
            order = sorted(groups, key=lambda name: (-spent_by[name], name))
            rest = [member for name in order[_MOST_FAMILIES:] for member in groups.pop(name)]
            groups["other files"] = sorted(rest)
        result = []
        processes = self.log.processes
        for name, members in groups.items():
            at = np.array(members)
            joint = at[ranks[at] < 0]
            single = at[ranks[at] >= 0]
            _, place = np.unique(ranks[single], return_inverse=True)
            by_rank = np.bincount(place, whole[single]) if len(single) else np.zeros(1)
            bytes_by_rank = np.bincount(place, moved[single]) if len(single) else np.zeros(1)
            longest = np.where(slowest[joint] > 0, slowest[joint], whole[joint] / processes)
            most = np.maximum(slowest_moved[joint], moved[joint] / processes)
            time_s = float(by_rank.max() + longest.sum())
            all_s = float(whole[at].sum())
            if not time_s > 0:
                continue
            # Of the slowest rank where it is known, else of the mean one: what all ranks wait for at an open together
            # is little of what the slowest rank does.
            meta_s = float(spent["meta"][joint].sum()) / processes
            if len(single):
                meta_s += float(np.bincount(place, spent["meta"][single])[int(by_rank.argmax())])
            meta = min(1.0, meta_s / time_s)
            data_s = max(float(spent["read"][at].sum() + spent["write"][at].sum()), 1e-300)
            parts = {part: (1 - meta) * float(spent[part][at].sum()) / data_s for part in ("read", "write")}
            many = len(np.unique(files[at]))
            largest = float(bytes_by_rank.max() + most.sum())
            collective = self._collective(files[at]) if module == "POSIX" else -1.0
            uneven = _uneven(float(moved[at].sum()) / processes, largest)
            # Aggregators move the bytes of others; they are few only where one does all.
            if collective >= 0.5 and float(moved[at].sum()) >= 2 * largest:
                uneven = self._uneven_calls(files[at])
            read = self._repeat(files[at], columns["BYTES_READ"][at], highest[at])
            result.append(Family(
                name=name, module=module, time_s=time_s, records=len(at),
                parts={**parts, "meta": meta},
                total={key: float(values[at].sum()) for key, values in columns.items()},
                together=processes > 1 and (len(joint) > 0 or many < len(single)),
                width=self._width(files[at], whole[at]) if module == "POSIX" else 0.0,
                uneven=uneven, uneven_time=_uneven(all_s / processes, time_s), repeat=read, collective=collective,
            ))  # fmt: skip
        return result

    def _family(self, number: int) -> str:
        name = self.log.names.get(number, "")
        return _DIGITS.sub("#", name) if name else "files without a name"

    def _width(self, files: NDArray[np.uint64], seconds: Floats) -> float:
        """Return how many servers hold files, as many as if their times were equal."""
        if self.log.stripes is None or not len(self.log.stripes):
            return 0.0
        number, place = np.unique(files, return_inverse=True)
        spent = np.bincount(place, seconds)
        wide = np.array([self._stripes.get(int(each), 0) for each in number], np.float64)
        if not (wide > 0).any() or not spent.sum() > 0:
            return 0.0
        alike = float(spent.sum() ** 2 / (spent**2).sum())
        return alike * float((wide * spent).sum() / spent.sum())

    @functools.cached_property
    def _stripes(self) -> dict[int, int]:
        stripes = self.log.stripes
        return {} if stripes is None else dict(zip(stripes.file.tolist(), stripes.stripe_count.tolist(), strict=True))

    def _repeat(self, files: NDArray[np.uint64], read: Floats, highest: Floats) -> float:
        number, place = np.unique(files, return_inverse=True)
        total = np.bincount(place, read)
        reach = np.zeros(len(number))
        np.maximum.at(reach, place, highest + 1)
        used = total > 0
        return float(total[used].sum() / np.maximum(reach[used], 1.0).sum()) if used.any() else 0.0

    def _collective(self, files: NDArray[np.uint64]) -> float:
        if "MPI-IO" not in self.log.modules:
            return -1.0
        inside = np.isin(self.log.modules["MPI-IO"].file[self.sound["MPI-IO"]], files)
        calls = {
            way: sum(float(self.column("MPI-IO", f"{way}_{word}S")[inside].sum()) for word in ("READ", "WRITE"))
            for way in ("COLL", "INDEP", "NB", "SPLIT")
        }
        every = sum(calls.values())
        return (calls["COLL"] + calls["SPLIT"]) / every if every else -1.0

    def _uneven_calls(self, files: NDArray[np.uint64]) -> float:
        """Return how uneven the bytes of ranks are in calls of MPI-IO."""
        records = self.log.modules["MPI-IO"]
        inside = np.isin(records.file[self.sound["MPI-IO"]], files)
        ranks = records.rank[self.sound["MPI-IO"]][inside]
        moved = (self.column("MPI-IO", "BYTES_READ") + self.column("MPI-IO", "BYTES_WRITTEN"))[inside]
        slowest = self.column("MPI-IO", "SLOWEST_RANK_BYTES")[inside]
        _, place = np.unique(ranks[ranks >= 0], return_inverse=True)
        single = np.bincount(place, moved[ranks >= 0]) if len(place) else np.zeros(1)
        joint = np.maximum(slowest[ranks < 0], moved[ranks < 0] / self.log.processes)
        return _uneven(float(moved.sum()) / self.log.processes, float(single.max() + joint.sum()))

    # --- what issues would save ---

    @functools.cached_property
    def saved(self) -> dict[str, dict[str, float]]:
        """By code, what each family would save of the job's I/O time, by estimate."""
        found: dict[str, dict[str, float]] = {code: {} for code in CODES}
        for family in self.families:
            share = family.time_s / self.io_time_s
            for code, saves in _saved(family).items():
                if saves > 0:
                    key = f"{family.module}:{family.name}"
                    found[code][key] = found[code].get(key, 0.0) + share * min(1.0, saves)
        return found

    def scores(self) -> dict[str, float]:
        """Return by code the share of the I/O time that would be saved."""
        return {code: min(1.0, sum(each.values())) for code, each in self.saved.items()}


def _uneven(mean: float, largest: float) -> float:
    return max(0.0, 1 - mean / largest) if largest > 0 else 0.0


def _sound(records: ModuleRecords) -> NDArray[np.bool_]:
    """Return which records have counters that a program can have made: nothing below 0, no time that is no number."""
    good = np.ones(len(records), np.bool_)
    for name, values in records.counters.items():
        if (
            name.endswith(("_READS", "_WRITES", "BYTES_READ", "BYTES_WRITTEN"))
            or "_SIZE_READ_" in name
            or ("_SIZE_WRITE_" in name)
        ):
            good &= values >= 0
    for name, times in records.times.items():
        if name.endswith(("F_READ_TIME", "F_WRITE_TIME", "F_META_TIME", "SLOWEST_RANK_TIME")):
            # Modules that do not count a time show -1.
            good &= np.isfinite(times) & (times >= -1) & (times < 1e12)
    return good


def _saved(family: Family) -> dict[str, float]:
    """Return by code which share of a family's own time its issue takes."""
    parts = family.parts
    if family.module == "STDIO":
        return {"LLL-R": parts["read"], "LLL-W": parts["write"], "HMD": parts["meta"],
                "RLIM": (parts["read"] + parts["write"]) * family.uneven}  # fmt: skip
    found = {"HMD": parts["meta"]}
    every = family.total["READS"] + family.total["WRITES"]
    for op, mark in (("read", "R"), ("write", "W")):
        count, size, small, joined = family.of(op)
        part = parts[op]
        if not count > 0 or not part > 0:
            continue
        base = count * LATENCY_BYTES + size
        waits = small * (1 - joined) * LATENCY_BYTES
        # The first request of a record follows none.
        jumps = max(0.0, count - family.total[f"SEQ_{WORD[op]}S"] - family.records)
        seeks = jumps * SEEK_BYTES
        # Consecutive requests are joined on their way, so that their bounds do not matter.
        odd = max(0.0, family.total["FILE_NOT_ALIGNED"] * count / every - joined * count)
        crosses = odd * BLOCK_BYTES * (1.0 if op == "write" else 0.5)
        taken = 0.0
        if family.together and op == "write" and family.collective < 0.5:
            taken = max(small * (1 - joined), odd) * BLOCK_BYTES
        whole = base + seeks + crosses + taken
        found[f"SML-{mark}"] = part * (waits + (taken + seeks + crosses) * small / count) / whole
        found[f"RMA-{mark}"] = part * seeks / whole
        found[f"MSL-{mark}"] = part * crosses * (1 - small / count) / whole
        if taken:
            found["SHF"] = part * taken / whole
        if family.together and family.collective < 0:
            found["MPNM"] = found.get("MPNM", 0.0) + part * (waits + seeks + crosses + taken) / whole
        if family.together and family.collective >= 0:
            found[f"NC-{mark}"] = part * (1 - family.collective) * (waits + seeks + crosses + taken) / whole
    if family.repeat > 1:
        found["RDA-R"] = parts["read"] * (1 - 1 / family.repeat)
    data = parts["read"] + parts["write"]
    moved = family.total["BYTES_READ"] + family.total["BYTES_WRITTEN"]
    if 0 < family.width < WIDE and (family.together or moved > ONE_SERVER_BYTES):
        found["SLIM"] = data * (1 - family.width / WIDE)
    found["RLIM"] = data * family.uneven
    return found
