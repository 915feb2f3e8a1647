"""Measures what this machine can do, so that a kernel's time can be stated as a share of a limit.

A kernel that moves bytes is judged against the bandwidth of a plain copy, one that multiplies against a large matrix
product of the BLAS at hand.  This module is the measuring border: it reads the clock and the operating system, which
kernels themselves never do.

Source: the triad is that of J. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers",
IEEE TCCA Newsletter, 1995 (STREAM).

Differs from the source:
1. Arrays hold 64 or 256 MB instead of four times the last-level cache, and the best of a few repetitions counts.
2. Bytes counted are those the program asks for; reading a line before it is overwritten is not counted.
3. Repetitions that differ show that the machine was busy: the figure is taken again, and how far they differed is kept
   with it.  What was measured while others worked is not kept for the next program.
"""

from __future__ import annotations

import functools
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.machine import profiles
from wavetank.machine.thread_pool import cuts
from wavetank.machine.threads import together, usable_cores
from wavetank.units import show

# Above this ratio of the middle to the least time of a figure's repetitions something else was using the machine, and
# the figure is measured again, at most this number of times in all.
QUIET_SPREAD = 1.3
_TRIES = 3
# Variables that make a BLAS choose other kernels, block sizes or threads than by itself.
_STEERING = (
    "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    "MKL_ENABLE_INSTRUCTIONS", "BLIS_ARCH_TYPE",
)  # fmt: skip
_KIND = "machine"


@dataclass(frozen=True, kw_only=True)
class MachineProfile:
    """The limits of one machine, as measured.

    Bandwidths count bytes read plus bytes written.
    """

    cpu: str
    """Model name."""
    cores: int
    """Cores this process may use."""
    memory_bytes: int
    """Physical memory."""
    copy_one_bytes_per_s: float
    """Plain copy by one thread."""
    copy_all_bytes_per_s: float
    """Plain copy by all threads."""
    triad_one_bytes_per_s: float
    """``a = b + s * c`` in float64 by one thread."""
    triad_all_bytes_per_s: float
    """The same by all threads."""
    fill_one_bytes_per_s: float
    """Writing one value, by one thread."""
    fill_all_bytes_per_s: float
    """The same by all threads."""
    peak_float32_per_s: float
    """Floating-point operations of a square float32 product, all threads of the BLAS."""
    peak_float64_per_s: float
    """The same in float64."""
    conditions: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the figures hold for: processor, cores, numpy, the name of its BLAS's kernels, variables that steer it."""
    spreads: Mapping[str, float] = field(default_factory=dict, repr=False)
    """Figure to the middle over the least time of its repetitions; 1 on a quiet machine."""
    others_cores: float = 0.0
    """Cores that other processes used meanwhile, on average; 0 where the system does not say."""

    @property
    def spread(self) -> float:
        """The largest of the spreads; 1 where none is kept."""
        return max(self.spreads.values(), default=1.0)

    @property
    def disturbed(self) -> bool:
        """Whether something else used the machine while it was measured, so that its limits may be higher."""
        return self.spread > QUIET_SPREAD or self.others_cores > profiles.QUIET_SHARE * self.cores

    def note(self) -> str:
        """Return one line for a report: the limits, and how steady they were when measured."""
        limits = (
            f"copy {show(self.copy_all_bytes_per_s, 'bytes')}/s, triad {show(self.triad_all_bytes_per_s, 'bytes')}/s, "
            f"products {show(self.peak_float32_per_s, 'FLOP/s')} (float32) and "
            f"{show(self.peak_float64_per_s, 'FLOP/s')} (float64)"
        )
        said = "measured while the machine was busy, so too low" if self.disturbed else "measured on this machine"
        return f"Limits {said}: {limits}; {self.steadiness()}."

    def steadiness(self) -> str:
        """Return how far repetitions differed and how much others worked, in words."""
        return f"repetitions differed by up to {self.spread:.2f}, others used {self.others_cores:.1f} cores"

    def copy_s(self, moved_bytes: float) -> float:
        """Return the seconds a plain copy by all threads takes to move ``moved_bytes`` (read plus written)."""
        return moved_bytes / self.copy_all_bytes_per_s


def cpu_model() -> str:
    """Return the processor's model name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_info(field: str) -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None


def memory_bytes() -> int:
    """Return the physical memory in bytes, 0 where the system does not say."""
    return _memory_info("MemTotal") or 0


def available_bytes() -> int | None:
    """Return the memory that can be had without swapping, in bytes; None where the system does not say."""
    return _memory_info("MemAvailable")


def require_memory(need_bytes: int, purpose: str, hint: str = "take a smaller case, or free memory first") -> None:
    """Refuse work that does not fit, before anything is allocated.

    Parameters
    ----------
    need_bytes : int
        Bytes the caller is about to allocate.
    purpose : str
        What for, as the subject of the message: ``"Sorting 1,000,000 keys"``.
    hint : str
        What the caller's user may do about it.

    Raises
    ------
    BadValueError
        If the system says that less is available.
    """
    if need_bytes < 1 << 24:
        return
    available = available_bytes()
    if available is not None and need_bytes > available:
        raise BadValueError(
            f"{purpose} needs more memory than is available.",
            given=show(float(need_bytes), "bytes"),
            allowed=f"at most {show(float(available), 'bytes')}",
            hint=hint,
        )


@functools.cache
def _triad() -> Callable[..., None]:
    # Callers that only need cores or memory need no compiler.
    from wavetank.machine.triad import triad

    return triad


def others_s() -> float | None:
    """Return the processor seconds that other processes have used since the system started; None if it does not say."""
    try:
        facts = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        user, nice, system, _, _, irq, softirq, steal = (float(field) for field in facts[1:9])
    except (OSError, ValueError):
        return None
    own = os.times()
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def others_cores() -> Callable[[], float]:
    """Begin to observe other processes.

    Returns
    -------
    callable
        Returns the cores that they have used on average since; 0 where the system does not say.
    """
    start, before = time.perf_counter(), others_s()

    def used() -> float:
        now = others_s()
        return 0.0 if before is None or now is None else max(now - before, 0.0) / (time.perf_counter() - start)

    return used


def _least_s(call: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Return the least time of a few calls, and their middle time over it; again while they differ too much."""
    call()
    best, spread = float("inf"), float("inf")
    for _ in range(_TRIES):
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        best, spread = min(best, *times), min(spread, statistics.median(times) / min(times))
        if spread <= QUIET_SPREAD:
            break
    return best, spread


def _bandwidths(
    kernel: Callable[..., object], arrays: tuple[NDArray[Any], ...], threads: int, repeats: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return bytes/s of ``kernel(*arrays)`` over all bytes of ``arrays`` and its spread, by one thread and by all."""
    total = sum(array.nbytes for array in arrays)
    best, spread = _least_s(lambda: kernel(*arrays), repeats)
    one = total / best, spread
    if threads == 1:
        return one, one
    parts = [tuple(array[start:stop] for array in arrays) for start, stop in cuts(arrays[0].size, threads)]
    best, spread = _least_s(lambda: together(kernel, parts, threads), repeats)
    return one, (total / best, spread)


def _product_flops(dtype: type[np.floating[Any]], size: int, repeats: int) -> tuple[float, float]:
    a = np.full((size, size), 0.5, dtype)
    b = np.full((size, size), 2.0, dtype)
    out = np.empty_like(a)
    best, spread = _least_s(lambda: np.matmul(a, b, out=out), repeats)
    return 2.0 * size**3 / best, spread


def measure(quick: bool = True) -> MachineProfile:
    """Measure this machine; about two seconds when ``quick``, ten otherwise, up to three times that when it is busy.

    Parameters
    ----------
    quick : bool
        Arrays of 64 MB and few repetitions instead of 256 MB and many.
    """
    threads = usable_cores()
    length, repeats = (1 << 23, 4) if quick else (1 << 25, 10)
    others = others_cores()
    a, b, c = (np.full(length, value) for value in (0.0, 1.0, 2.0))
    copy = _bandwidths(lambda x, y: np.copyto(x, y), (a, b), threads, repeats)
    triad = _bandwidths(lambda x, y, z: _triad()(x, y, z, 3.0), (a, b, c), threads, repeats)
    fill = _bandwidths(lambda x: x.fill(1.0), (a,), threads, repeats)
    found: dict[str, Any] = {
        "copy_one_bytes_per_s": copy[0],
        "copy_all_bytes_per_s": copy[1],
        "triad_one_bytes_per_s": triad[0],
        "triad_all_bytes_per_s": triad[1],
        "fill_one_bytes_per_s": fill[0],
        "fill_all_bytes_per_s": fill[1],
        "peak_float32_per_s": _product_flops(np.float32, 2048, repeats if quick else 2 * repeats),
        "peak_float64_per_s": _product_flops(np.float64, 2048, repeats),
    }
    return MachineProfile(
        cpu=cpu_model(),
        cores=threads,
        memory_bytes=memory_bytes(),
        conditions=conditions_of(),
        others_cores=others(),
        spreads={name: spread for name, (_, spread) in found.items()},
        **{name: rate for name, (rate, _) in found.items()},
    )


def _conditions() -> dict[str, str]:
    """Return what decides how fast numpy's products are: its version, its BLAS, and variables that steer that."""
    from threadpoolctl import threadpool_info

    found = {"numpy": np.__version__}
    # Other packages bring a BLAS of their own, which may be loaded or not.
    own = [each for each in threadpool_info() if each["user_api"] == "blas" and "numpy" in str(each["filepath"])]
    found["blas"] = ", ".join(sorted(f"{each['internal_api']} {each.get('architecture', '')}" for each in own))
    return found | {name: os.environ[name] for name in _STEERING if name in os.environ}


# Profiles that no file holds: measured while the machine was busy, or where no file can be written.
_UNKEPT: dict[Path, MachineProfile] = {}


def conditions_of() -> dict[str, str]:
    """Return what a profile holds for: processor, cores, numpy's BLAS, and variables that steer it."""
    return {"cpu": cpu_model(), "cores": str(usable_cores())} | _conditions()


def kept(folder: Path | None = None) -> MachineProfile | None:
    """Return the profile measured earlier on this processor, cores and BLAS; None where there is none.

    A file that is damaged or of another version counts as none, with a warning.

    Parameters
    ----------
    folder : Path, optional
        Of the store; see :mod:`wavetank.machine.profiles`.
    """
    found = profiles.read(_KIND, MachineLimits.version, conditions_of(), folder)
    profile = None if found is None else MachineLimits().figures(found)
    if found is not None and profile is None:
        _warn(f"{found.path} holds what no measurement gives: the machine is measured again.")
    return profile


def keep(profile: MachineProfile, folder: Path | None = None) -> Path | None:
    """Keep a profile for later processes.

    Parameters
    ----------
    profile : MachineProfile
        Rates in bytes/s and operations/s.
    folder : Path, optional
        Of the store; see :mod:`wavetank.machine.profiles`.

    Returns
    -------
    Path or None
        None where no file can be written.

    Raises
    ------
    BadValueError
        If the machine was busy while it was measured.
    """
    if profile.disturbed:
        raise BadValueError(
            f"The machine was busy while its limits were measured: {profile.steadiness()}.",
            hint="stop what else runs and measure again; what was kept before stays",
        )
    content = asdict(profile)
    conditions = content.pop("conditions")
    return profiles.keep(profiles.Profile(_KIND, MachineLimits.version, conditions, content), folder)


def cached(quick: bool = True, folder: Path | None = None) -> MachineProfile:
    """Return the profile measured earlier on this processor, cores and BLAS, or measure and keep it.

    A file that is damaged or of another version costs a new measurement, and so does a folder that cannot be written;
    a profile that was measured while the machine was busy serves this process alone.  Each gives a warning.  One
    process at a time measures; others wait for what it finds.

    Parameters
    ----------
    quick : bool
        Passed to :func:`measure` when nothing is kept yet.
    folder : Path, optional
        Where profiles are kept; the user's cache folder by default.
    """
    path = profiles.path_of(_KIND, conditions_of(), folder)
    if path in _UNKEPT:
        return _UNKEPT[path]
    found = kept(folder)
    if found is not None:
        return found
    with profiles.locked(_KIND, folder):
        # Another process may have measured while this one waited.
        found = kept(folder) or measure(quick)
        if found.disturbed:
            _warn(
                f"The machine was busy while its limits were measured: {found.steadiness()}. They serve this process "
                "alone; shares of a limit may come out too high."
            )
            _UNKEPT[path] = found
        elif keep(found, folder) is None:
            _UNKEPT[path] = found
    return found


class MachineLimits(profiles.ProfileKind[MachineProfile]):
    """The profiles of this module."""

    version = 3

    def parsed(self, found: profiles.Profile) -> MachineProfile | None:
        """Return the limits in a profile."""
        profile = MachineProfile(**found.content, conditions=dict(found.conditions))
        figures = [getattr(profile, each.name) for each in fields(profile) if each.name.endswith("_per_s")]
        sound = all(0.0 < figure < float("inf") for figure in [*figures, *profile.spreads.values()])
        return profile if sound and not profile.disturbed else None

    def words(self, figures: MachineProfile) -> str:
        """Return the limits in a line."""
        return figures.note()

    def steps(self, *_: object) -> Iterator[profiles.Step]:
        """Yield the one measurement there is."""

        def limits() -> tuple[Path | None, str]:
            found = measure(quick=False)
            return keep(found), found.note()

        yield profiles.Step("limits of this machine", limits)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
