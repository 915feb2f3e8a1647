"""Kernels of our own, counted: what they execute and miss, as a composition of modelled cycles.

Machines of the cloud show no hardware counters.  Cachegrind counts instructions, references, misses of two levels of
caches and mispredicted branches exactly, one function at a time; with the operations, bytes and chains that the source
states, a cost for each event turns the counts into the leaves of a top-down table.  The costs are those of a core like
that of the real profiles, and were fixed before the first count.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import math
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wavetank.cache_folder import cache_folder
from wavetank.errors import BadFileError, BadValueError, WavetankError
from wavetank.files import write_atomic
from wavetank.insight.kernels.interface import Profiles
from wavetank.workloads.topdown import FIVE, MEMORY_LEVELS, SHARES

CODE = "kripke_"
_COMPILE = ("-O2", "-ffp-contract=off", "-fno-math-errno", "-fno-tree-loop-distribute-patterns")
# First-level caches and second-level cache of the core of the real profiles (Broadwell): 32 KiB, 32 KiB, 256 KiB.
_CACHES = ("--I1=32768,8,64", "--D1=32768,8,64", "--LL=262144,8,64")
_TIMEOUT_S = 100.0
_CLOCK_PER_S = 2.1e9
_EVENTS = ("Ir", "I1mr", "ILmr", "Dr", "D1mr", "DLmr", "Dw", "D1mw", "DLmw", "Bc", "Bcm", "Bi", "Bim")
_STATED = ("iterations", "flops", "bytes", "chain")


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Cycles of an event on a core that issues four instructions a cycle.

    Parameters
    ----------
    issue : float
        An instruction.
    mispredict : float
        A branch that went the other way.
    fetch : float
        An instruction that is not in its first-level cache.
    load, store : float
        Of the ports for loads (two a cycle) and stores (one a cycle).
    near_miss : float
        A line of 64 bytes from the second-level cache.
    far_miss : float
        A line from memory: 64 bytes at 10.5 GB/s, the rate of Stream_TRIAD of the real profiles, at 2.1 GHz.
    """

    issue: float = 0.25
    mispredict: float = 15.0
    fetch: float = 12.0
    load: float = 0.5
    store: float = 1.0
    near_miss: float = 4.0
    far_miss: float = 12.8

    def with_memory(self, factor: float) -> Costs:
        """Return the costs with other ones of the caches and the memory.

        Parameters
        ----------
        factor : float
        """
        return replace(self, near_miss=self.near_miss * factor, far_miss=self.far_miss * factor)


# The costs as they were fixed, and how far the answers hang on them.
AS_FIXED = "as fixed"
COSTS = {AS_FIXED: Costs(), "memory half": Costs().with_memory(0.5), "memory twice": Costs().with_memory(2.0)}


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What one kernel did.

    Parameters
    ----------
    events : mapping of str to int
        Counts by cachegrind's names.
    iterations, flops, bytes, chain : float
        As its source states them: chain in cycles of operations that wait for each other.
    """

    name: str
    events: Mapping[str, int]
    iterations: float
    flops: float
    bytes: float
    chain: float

    def cycles(self, costs: Costs) -> dict[str, float]:
        """Return modelled cycles by leaf of the top-down tree.

        Parameters
        ----------
        costs : Costs
        """
        events = self.events
        issue = costs.issue * events["Ir"]
        far = events["DLmr"] + events["DLmw"]
        near = events["D1mr"] + events["D1mw"] - far
        return {
            "retiring": issue,
            "frontend_bound": costs.fetch * events["I1mr"],
            "bad_speculation": costs.mispredict * (events["Bcm"] + events["Bim"]),
            "core_bound": max(self.chain - issue, 0.0),
            "l1_bound": max(costs.load * events["Dr"] + costs.store * events["Dw"] - issue, 0.0),
            "l2_bound": costs.near_miss * near,
            "l3_bound": 0.0,
            "ext_mem_bound": costs.far_miss * far,
        }


def missing_programs() -> tuple[str, ...]:
    """Return which of the programs that counting needs are not installed."""
    return tuple(name for name in ("gcc", "valgrind") if shutil.which(name) is None)


def counted() -> dict[str, Counted]:
    """Compile and count the kernels, or return what was counted before with the same source and programs.

    Returns
    -------
    dict of str to Counted
        By name, in the order of the source.

    Raises
    ------
    WavetankError
        If a program is missing, fails or does not end.
    """
    if missing := missing_programs():
        raise WavetankError(
            "The kernels cannot be counted.", given=f"no {' and no '.join(missing)}",
            hint="install gcc and valgrind, or read the counts of evidence/kernel-matching",
        )  # fmt: skip
    source = importlib.resources.files("wavetank.insight.kernels").joinpath("counted_kernels.c").read_text("utf-8")
    versions = "".join(_ran([name, "--version"], Path.cwd()) for name in ("gcc", "valgrind"))
    key = hashlib.sha256("\0".join((source, versions, *_COMPILE, *_CACHES)).encode()).hexdigest()[:32]
    kept = cache_folder() / "counted-kernels" / f"{key}.json"
    if kept.is_file():
        try:
            return {row["name"]: Counted(**row) for row in json.loads(kept.read_text("utf-8"))}
        except (OSError, ValueError, TypeError, KeyError):
            # A damaged cache is counted anew.
            kept.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        found = _count(source, Path(folder))
    kept.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"name": each.name, "events": dict(each.events), **{name: getattr(each, name) for name in _STATED}}
        for each in found.values()
    ]
    write_atomic(kept, json.dumps(rows))
    return found


def _count(source: str, folder: Path) -> dict[str, Counted]:
    (folder / "kernels.c").write_text(source, encoding="utf-8")
    _ran(["gcc", *_COMPILE, "-o", "kernels", "kernels.c", "-lm"], folder)
    stated = _ran(
        ["valgrind", "--tool=cachegrind", "--cache-sim=yes", "--branch-sim=yes", *_CACHES,
         "--cachegrind-out-file=counts", "./kernels"],
        folder,
    )  # fmt: skip
    return read_counts((folder / "counts").read_text("utf-8"), stated)


def _ran(words: list[str], folder: Path) -> str:
    try:
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WavetankError("A program did not end.", given=f"{words[0]}: {error}") from error
    if done.returncode:
        raise WavetankError("A program failed.", given=f"{words[0]}: {done.stderr[-300:]}")
    return done.stdout


def read_counts(counts: str, stated: str) -> dict[str, Counted]:
    """Return kernels from what cachegrind wrote and the counted program printed.

    Parameters
    ----------
    counts : str
        A file of cachegrind, with an ``events:`` line and sums by ``fn=``.
    stated : str
        Lines of name, iterations, operations, bytes and chain.

    Raises
    ------
    BadFileError
        If either lacks something.
    """
    named = re.search(r"^events: (.*)$", counts, re.MULTILINE)
    if named is None or not set(_EVENTS) <= set(named[1].split()):
        raise BadFileError("These are no counts of cachegrind.", allowed=f"events: {' '.join(_EVENTS)}")
    events = named[1].split()
    sums: dict[str, list[int]] = {}
    function = ""
    for line in counts.splitlines():
        if line.startswith("fn="):
            function = line[3:].lower()
        elif line[:1].isdigit() and function:
            numbers = [int(word) for word in line.split()[1:]]
            numbers += [0] * (len(events) - len(numbers))
            sums[function] = [
                had + new for had, new in zip(sums.get(function, [0] * len(events)), numbers, strict=True)
            ]
    found = {}
    for line in stated.splitlines():
        name, *figures = line.split()
        if name.lower() not in sums or len(figures) != len(_STATED):
            raise BadFileError("A kernel was not counted.", given=name)
        values = dict(zip(_STATED, map(float, figures), strict=True))
        if not all(math.isfinite(value) and value >= 0 for value in values.values()):
            raise BadValueError("What a kernel states of itself is no figure.", given=line)
        found[name] = Counted(name=name, events=dict(zip(events, sums[name.lower()], strict=True)), **values)
    return found


def own_profiles(costs: str) -> tuple[Profiles, Profiles]:
    """Return the profiles of the code's kernels and of the suite's.

    Parameters
    ----------
    costs : str
        A name of :data:`COSTS`.
    """
    every = list(counted().values())
    return (
        profiles_of_counts([each for each in every if each.name.startswith(CODE)], COSTS[costs]),
        profiles_of_counts([each for each in every if not each.name.startswith(CODE)], COSTS[costs]),
    )


def profiles_of_counts(kernels: Sequence[Counted], costs: Costs) -> Profiles:
    """Return kernels with shares of modelled cycles, in one run, for counts are the same in every run.

    Parameters
    ----------
    kernels : sequence of Counted
    costs : Costs
    """
    shares = np.zeros((len(kernels), 1, len(SHARES)))
    seconds = np.zeros(len(kernels))
    for at, each in enumerate(kernels):
        cycles = each.cycles(costs)
        whole = sum(cycles.values())
        levels = [cycles[name] / whole for name in MEMORY_LEVELS]
        shares[at, 0] = [
            *(cycles[name] / whole for name in FIVE[:4]),
            sum(levels),
            *levels,
            cycles["core_bound"] / whole + sum(levels),
        ]
        seconds[at] = whole / _CLOCK_PER_S
    moved = np.array([each.bytes for each in kernels])
    return Profiles(
        names=tuple(each.name for each in kernels),
        shares=shares,
        flops_per_byte=np.array([each.flops for each in kernels]) / moved,
        bytes_per_s=(moved / seconds)[:, None],
        seconds=seconds[:, None],
        time_s=seconds,
    )
