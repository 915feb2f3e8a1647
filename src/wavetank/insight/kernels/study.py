"""Study ``kernel-matching``: whether a kernel's match says what the kernel itself would have said."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.diagnosis.scoreboard import interval
from wavetank.errors import BadValueError
from wavetank.insight.kernels.expected_pairs import EXPECTED, NEAR_DUPLICATES
from wavetank.insight.kernels.interface import Comparison, Matcher, Profiles, profiles_of
from wavetank.insight.kernels.kernel_similarity import KernelSimilarity
from wavetank.insight.kernels.matches import coverage, matches
from wavetank.insight.kernels.own_kernels import AS_FIXED, COSTS, missing_programs, own_profiles
from wavetank.insight.kernels.rivals import CosineOfLeaves, OverlapOfLeaves, RooflineDistance, StandardScores
from wavetank.settings import setting
from wavetank.sim.rng import stream
from wavetank.study.study import Chart, Measurements, Metric, Study
from wavetank.workloads import datasets
from wavetank.workloads.topdown import KernelTable, read_kernels

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]

DATASET, PROFILES, DEVICE = "rajaperf-topdown", "cpu_topdown_gcc.csv.gz", "gpu_v100_cuda.csv.gz"
NOISE = (0.0, 0.01, 0.03, 0.1)
# What every score's speed-ups are held against, kernel by kernel.
RIVALS: Mapping[str, Matcher] = {
    "cosine-of-leaves": CosineOfLeaves(),
    "overlap-of-leaves": OverlapOfLeaves(),
    "standard-scores": StandardScores(),
    "roofline-distance": RooflineDistance(),
    "similarity-without-categories": KernelSimilarity(border=0.0),
}
_THRESHOLD = 0.9
_DRAWS = 2
_SIZE = 8388608.0


@dataclass(frozen=True, kw_only=True)
class KernelMatching(Study):
    """Every score ranks the kernels of a suite for each kernel, from shares and rates on one machine.  The match is the
    best of the others; it is right when its time moves as the kernel's own does on another machine: Spearman's
    correlation over kernels of (time there / time here) of match and kernel.  No kernel is its own candidate.
    Retrieval is asked too, and decides little: nearly every score finds a kernel among its own runs.

    A seed draws the runs that are averaged, and which run is held against the mean of the others.
    """

    name = "kernel-matching"
    baseline = "cosine-of-leaves"
    primary = "speedup_correlation"
    secondary = ("speedup_factor", "twins_first", "own_pairs_first")
    metrics = (
        Metric("speedup_correlation", "", "higher", "counted",
               words="correlation of the match's speed-up with the kernel's",
               of="Spearman over kernels between log(time elsewhere / time here) of kernel and match"),
        Metric("speedup_correlation_low", "", "higher", "counted", table=False,
               of="lower end of its 95 % interval, by bootstrap over kernels"),
        Metric("speedup_correlation_high", "", "higher", "counted", table=False, of="upper end likewise"),
        Metric("gain_low", "", "higher", "counted", table=False,
               of="speedup_correlation minus that of a rival: lower end of 95 %, by bootstrap over the same kernels"),
        Metric("gain_high", "", "higher", "counted", table=False, of="upper end likewise"),
        Metric("single_twin_correlation", "", "higher", "counted", table=False,
               of="speedup_correlation with one kernel of each group of near-duplicates alone"),
        Metric("pair_correlation", "", "higher", "counted",
               of="Spearman over all pairs between similarity and -|difference of log(time elsewhere / time here)|"),
        Metric("speedup_factor", "", "lower", "counted", words="error of the match's speed-up",
               of="median over kernels of the factor between speed-up of kernel and match, 1 or more"),
        Metric("twins_first", "", "higher", "counted", words="near-duplicates ranked first",
               of="share of kernels of the three groups of near-duplicates whose best match is of their group"),
        Metric("repeats_top1", "", "higher", "counted", of="share of kernels whose one run is nearest to the mean of "
               "their others"),
        Metric("repeats_top5", "", "higher", "counted", table=False, of="among the five nearest"),
        Metric("noise_top1", "", "higher", "counted", table=False,
               of="repeats_top1 with shares and rates times 1 + N(0, noise)"),
        Metric("true_in_set", "", "higher", "counted", table=False,
               of="share of draws of half of the runs whose ambiguous set among the other half holds the kernel"),
        Metric("set_size", "", "lower", "counted", table=False, of="mean number of candidates in these sets"),
        Metric("own_pairs_first", "", "higher", "modelled", words="expected pairs ranked first",
               of="share of counted kernels of a transport code whose best suite kernel is one expected beforehand"),
        Metric("own_pairs_swept", "", "higher", "modelled", table=False,
               of="own_pairs_first with the costs of caches and memory halved and doubled"),
        Metric("own_rank", "", "lower", "modelled", table=False, of="rank of the best expected suite kernel"),
        Metric("own_reciprocal_rank", "", "higher", "modelled", table=False, of="mean of 1 / own_rank"),
        Metric("coverage", "", "higher", "modelled", table=False,
               of=f"share of the counted code's cycles in kernels whose best match is {_THRESHOLD} or more"),
        Metric("compiler_top1", "", "higher", "counted", table=False,
               of="share of kernels of another compiler that are nearest to the kernel of the same name"),
        Metric("compiler_correlation", "", "higher", "counted", table=False,
               of="speedup_correlation for times with the other compiler"),
    )  # fmt: skip
    charts = (
        Chart("bars", "Does the match's speed-up follow the kernel's?", y="speedup_correlation",
              says="Longer is better; zero is chance."),
        Chart("bars", "Factor between the speed-up of match and kernel", y="speedup_factor",
              says="Shorter is better; 1 is right."),
        Chart("sweep", "Runs found again under noise", y="noise_top1", by="noise",
              says="How soon a score loses a kernel among its own runs."),
    )  # fmt: skip

    table: str = setting("", says="Top-down table of your own; empty: gcc's profiles of rajaperf-topdown")
    elsewhere: str = setting("", says="Table of times of the same kernels on another machine; empty: its V100")
    other_compiler: str = setting("", says="Top-down table of another compiler's build; empty: that case is left out")
    opt: str = setting("O3", says="Rows of this optimisation alone; empty: those of any", choices=())
    tuning: str = setting("block_256", says="Rows of this tuning of the other machine alone; empty: those of any")
    rounds: int = setting(500, unit="rounds", says="Of bootstraps over kernels", low=10, high=100_000)
    run_rounds: int = setting(40, unit="rounds", says="Of bootstraps over runs", low=5, high=10_000)

    def check(self) -> None:
        """Read the tables once, so that what is missing shows before any trial."""
        if bool(self.table) != bool(self.elsewhere):
            raise BadValueError(
                "Times elsewhere are of the kernels of the table: one's own table needs the other one.",
                given=f"table={self.table!r}, elsewhere={self.elsewhere!r}", allowed="both or neither",
            )  # fmt: skip
        both, _ = self._moved()
        if len(both) < 3:
            raise BadValueError(
                "A correlation needs three kernels that both tables have.", given=f"{len(both)} kernels",
                hint="compare the names in the column kernel",
            )  # fmt: skip

    def notes(self) -> tuple[str, ...]:
        """Return what qualifies the figures: which kernels, and what was left out."""
        both, _ = self._moved()
        said = [
            f"{len(self.profiles().names)} kernels here, {len(both)} of them with times elsewhere; similarity sees "
            "nothing of the other machine.",
            "Near-duplicates make every score look better: single_twin_correlation keeps one of each group.",
        ]
        if missing := missing_programs():
            said.append(f"Kernels of our own were not counted: there is no {' and no '.join(missing)}.")
        else:
            said.append(
                "Kernels of our own are counted by cachegrind; costs of events make cycles of the counts, and are "
                "halved and doubled beside."
            )
        if not self.other_compiler:
            said.append("No profiles of another compiler were given (other_compiler): that case is left out.")
        return tuple(said)

    def data(self) -> Mapping[str, str]:
        """Return the checksums of the files."""
        given = [name for name in (self.table, self.elsewhere, self.other_compiler) if name]
        sums = {name: hashlib.sha256(Path(name).expanduser().read_bytes()).hexdigest() for name in given}
        if not self.table:
            sums |= {f"{DATASET}/{file.path}": file.sha256 for file in datasets.entry(DATASET).files}
        return sums

    def profiles(self) -> Profiles:
        """Return the kernels that are compared."""
        return _profiles(self._path(), self.opt)

    def _path(self) -> Path:
        return Path(self.table).expanduser() if self.table else datasets.find(DATASET, PROFILES)

    def _moved(self) -> tuple[Indices, Floats]:
        """Return which kernels have times elsewhere, and the logarithms of those over the times here."""
        path = Path(self.elsewhere).expanduser() if self.elsewhere else datasets.find(DATASET, DEVICE)
        size = _SIZE if not self.elsewhere else math.nan
        return _changes(self.profiles(), _times(path, self.tuning if not self.elsewhere else "", size))

    def measure(self, system: Matcher, seed: int) -> Measurements:
        """Return the figures of one score with the runs of one seed."""
        found = Measurements()
        every = self.profiles()
        draw = stream(seed, "runs")
        drawn = every.of_runs(draw.integers(0, every.runs, (len(every.names), every.runs)))
        both, moved = self._moved()
        compare = system.fitted(drawn, seed)
        self._put_speedups(found, system, compare, drawn, both, moved, seed)
        if hasattr(system, "knowing"):
            return found
        _put_twins(found, compare(drawn.mean(), drawn.mean()), drawn.names)
        if every.runs > 1:
            _put_repeats(found, system, every, seed)
        if every.runs > 3:
            self._put_sets(found, system, every, seed)
        _put_own(found, system, seed)
        if self.other_compiler:
            self._put_compiler(found, compare, drawn)
        return found

    def _put_speedups(
        self, found: Measurements, system: Any, compare: Comparison, drawn: Profiles, both: Indices, moved: Floats,
        seed: int,
    ) -> None:  # fmt: skip
        known = drawn.of_kernels(both).mean()
        if hasattr(system, "knowing"):
            compare = system.knowing(moved)
        similarity = _without_own(compare(known, known))
        matched = moved[_best(similarity)]
        found.put("speedup_correlation", spearman(moved, matched))
        low, high = interval(
            moved.size, lambda some: spearman(moved[some], matched[some]), seed=seed, rounds=self.rounds
        )
        found.put("speedup_correlation_low", low)
        found.put("speedup_correlation_high", high)
        for name, rival in RIVALS.items():
            other = moved[_best(_without_own(rival.fitted(drawn, seed)(known, known)))]
            low, high = interval(moved.size, partial(_difference, moved, matched, other), seed=seed, rounds=self.rounds)
            found.put("gain_low", low, rival=name)
            found.put("gain_high", high, rival=name)
        found.put("speedup_factor", math.exp(float(np.median(np.abs(moved - matched)))))
        upper = np.triu_indices(moved.size, 1)
        apart = np.abs(moved[:, None] - moved[None])
        found.put("pair_correlation", spearman(similarity[upper], -apart[upper]))
        single = _single_twins(known.names)
        some = _without_own(similarity[np.ix_(single, single)])
        found.put("single_twin_correlation", spearman(moved[single], moved[single][_best(some)]))

    def _put_sets(self, found: Measurements, system: Matcher, every: Profiles, seed: int) -> None:
        """Put how often an ambiguous set holds the true kernel: runs of one half against those of the other."""
        draw = stream(seed, "sets")
        held, sizes = [], []
        for turn in range(_DRAWS):
            order = draw.permutation(every.runs)
            half = every.runs // 2
            queries, candidates = every.of_runs(order[:half]), every.of_runs(order[half:])
            result = matches(
                system.fitted(candidates, seed), queries, candidates, rounds=self.run_rounds, seed=seed * _DRAWS + turn
            )
            for at in range(len(every.names)):
                answer = result.answer(at)
                held.append(at in answer)
                sizes.append(answer.size)
        found.put("true_in_set", float(np.mean(held)))
        found.put("set_size", float(np.mean(sizes)))

    def _put_compiler(self, found: Measurements, compare: Comparison, drawn: Profiles) -> None:
        other = _profiles(Path(self.other_compiler).expanduser(), self.opt)
        ours = {name: at for at, name in enumerate(drawn.names)}
        shared = [at for at, name in enumerate(other.names) if name in ours]
        if not shared:
            raise BadValueError("The table of the other compiler has none of the kernels.", given=self.other_compiler)
        queries = other.of_kernels(shared).mean()
        best = _best(compare(queries, drawn.mean()))
        own = np.array([ours[name] for name in queries.names])
        found.put("compiler_top1", float(np.mean(best == own)))
        same, change = _changes(drawn.mean(), dict(zip(queries.names, queries.seconds[:, 0].tolist(), strict=True)))
        if len(same) > 2:
            some = drawn.of_kernels(same).mean()
            found.put("compiler_correlation", spearman(change, change[_best(_without_own(compare(some, some)))]))


def repeats(compare: Comparison, queries: Profiles, candidates: Profiles, most: int) -> float:
    """Return the share of queries among whose nearest candidates is the one of their own row.

    Parameters
    ----------
    compare : callable
    queries, candidates : Profiles
        The same kernels in the same order.
    most : int
        How many of the nearest count; equal ones in their order.
    """
    order = np.argsort(-compare(queries, candidates), axis=1, kind="stable")[:, :most]
    return float(np.mean((order == np.arange(len(queries.names))[:, None]).any(1)))


def noisy(profiles: Profiles, noise: float, seed: int) -> Profiles:
    """Return profiles whose every share and rate is multiplied by 1 + N(0, noise), never below zero.

    Parameters
    ----------
    profiles : Profiles
    noise : float
    seed : int
    """
    draw = stream(seed, "noise")
    factors = np.maximum(1.0 + noise * draw.standard_normal(profiles.shares.shape), 0.0)
    rates = np.maximum(1.0 + noise * draw.standard_normal(profiles.bytes_per_s.shape), 1e-3)
    return Profiles(
        names=profiles.names, shares=profiles.shares * factors, flops_per_byte=profiles.flops_per_byte,
        bytes_per_s=profiles.bytes_per_s * rates, seconds=profiles.seconds, time_s=profiles.time_s,
    )  # fmt: skip


def spearman(a: Floats, b: Floats) -> float:
    """Return the rank correlation, equal values with their mean rank; 0 where either does not vary.

    Parameters
    ----------
    a, b : array, shape (cases,)
    """
    from scipy.stats import rankdata

    left, right = rankdata(a) - (a.size + 1) / 2, rankdata(b) - (b.size + 1) / 2
    size = math.sqrt(float((left**2).sum() * (right**2).sum()))
    return float((left * right).sum()) / size if size > 0 else 0.0


def _difference(moved: Floats, one: Floats, other: Floats, some: Indices) -> float:
    return spearman(moved[some], one[some]) - spearman(moved[some], other[some])


def _best(similarity: Floats) -> Indices:
    """Return the most alike candidate of each query, the first of equal ones; what cannot be compared comes last."""
    return np.asarray(np.where(np.isnan(similarity), -np.inf, similarity).argmax(1), np.int64)


def _without_own(similarity: Floats) -> Floats:
    found = np.array(similarity, np.float64)
    np.fill_diagonal(found, np.nan)
    return found


def _single_twins(names: tuple[str, ...]) -> Indices:
    """Return all kernels but the later ones of each group of near-duplicates."""
    later = {name for group in NEAR_DUPLICATES for name in sorted(group)[1:]}
    return np.array([at for at, name in enumerate(names) if name not in later], np.int64)


def _put_twins(found: Measurements, similarity: Floats, names: tuple[str, ...]) -> None:
    best = _best(_without_own(similarity))
    right = [
        names[best[at]] in group
        for group in NEAR_DUPLICATES
        for at, name in enumerate(names)
        if name in group and len(group & set(names)) > 1
    ]
    if right:
        found.put("twins_first", float(np.mean(right)))


def _put_repeats(found: Measurements, system: Matcher, every: Profiles, seed: int) -> None:
    run = seed % every.runs
    others = every.of_runs(np.delete(np.arange(every.runs), run))
    one, mean = every.of_runs(np.array([run])), others.mean()
    compare = system.fitted(others, seed)
    found.put("repeats_top1", repeats(compare, one, mean, 1))
    found.put("repeats_top5", repeats(compare, one, mean, 5))
    for noise in NOISE:
        found.put("noise_top1", repeats(compare, noisy(one, noise, seed), mean, 1), noise=noise)


def _put_own(found: Measurements, system: Matcher, seed: int) -> None:
    if missing_programs():
        return
    for case in COSTS:
        code, suite = own_profiles(case)
        compare = system.fitted(suite, seed)
        similarity = compare(code, suite)
        ranks = []
        for at, name in enumerate(code.names):
            order = np.argsort(-similarity[at], kind="stable")
            ranks.append([suite.names[each] in EXPECTED[name].any_of for each in order].index(True) + 1)
        first = float(np.mean(np.array(ranks) == 1))
        if case != AS_FIXED:
            found.put("own_pairs_swept", first, costs=case)
            continue
        found.put("own_pairs_first", first)
        found.put("own_reciprocal_rank", float(np.mean(1.0 / np.array(ranks))))
        for name, rank in zip(code.names, ranks, strict=True):
            found.put("own_rank", rank, kernel=name)
        found.put("coverage", coverage(matches(compare, code, suite, rounds=1, seed=seed), code.time_s, _THRESHOLD))


@lru_cache(maxsize=8)
def _table(path: Path, changed_ns: int, times: bool) -> KernelTable:
    return read_kernels(path, () if times else ("retiring", "frontend_bound", "bad_speculation", "core_bound",
                                                "memory_bound"))  # fmt: skip


def _read(path: Path, *, times: bool) -> KernelTable:
    return _table(path, path.stat().st_mtime_ns if path.exists() else 0, times)


def _profiles(path: Path, opt: str) -> Profiles:
    """Return the profiles of the setting with most rows, the last of equal ones."""
    table = _read(path, times=False)
    counts: dict[tuple[str, ...], int] = {}
    for each in table.settings:
        if not opt or not each[1] or each[1] == opt:
            counts[each] = counts.get(each, 0) + 1
    if not counts:
        raise BadValueError(
            "No row has this optimisation.", given=opt, allowed=sorted({row[1] for row in table.settings}), where="opt"
        )  # fmt: skip
    return profiles_of(table, max(sorted(counts), key=lambda each: (counts[each], each)))


def _times(path: Path, tuning: str, size: float) -> dict[str, float]:
    """Return seconds of one repetition by kernel: the mean of its rows of a tuning and a problem size."""
    table = _read(path, times=True)
    seconds = table.seconds_per_rep()
    if np.isnan(seconds).all():
        raise BadValueError("The table has no times.", allowed="a column time_ns or time.duration", where=str(path))
    rows: dict[str, list[float]] = {}
    for at, kernel in enumerate(table.kernels):
        _, _, _, tuned, sized = table.settings[at]
        if tuning in ("", tuned) and (math.isnan(size) or float(sized or "nan") == size) and seconds[at] > 0:
            rows.setdefault(kernel, []).append(float(seconds[at]))
    return {kernel: sum(each) / len(each) for kernel, each in rows.items()}


def _changes(here: Profiles, there: Mapping[str, float]) -> tuple[Indices, Floats]:
    own = here.mean().seconds[:, 0]
    both = [at for at, name in enumerate(here.names) if name in there and own[at] > 0]
    return np.array(both, np.int64), np.log(np.array([there[here.names[at]] for at in both]) / own[both])
