"""Measures what this machine can do, so that a kernel's time can be told as a share of a limit.

A kernel that moves bytes is judged against the bandwidth of a plain copy, one that multiplies against a large matrix
product of the BLAS at hand.  This module is the measuring border: it reads the clock and the operating system, which
kernels themselves never do.

Source: the triad is that of J. McCalpin, "Memory Bandwidth and Machine Balance in Current High Performance Computers",
IEEE TCCA Newsletter, 1995 (STREAM).

Differs from the source:
1. Arrays hold 64 or 256 MB instead of four times the last-level cache, and the best of a few repetitions counts.
2. Bytes counted are those the program asks for; reading a line before it is overwritten is not counted.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from wavetank.errors import BadValueError
from wavetank.kernels.crew import crew_of, cuts
from wavetank.units import show

PROFILE_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class MachineProfile:
    """The limits of one machine, as measured.

    Bandwidths count bytes read plus bytes written.
    """

    version: int = PROFILE_VERSION
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


def usable_cores() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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


@njit(cache=True, nogil=True, fastmath=True)
def _triad(a: NDArray[Any], b: NDArray[Any], c: NDArray[Any], scale: float) -> None:
    for i in range(a.size):
        a[i] = b[i] + scale * c[i]


def _best_s(call: Callable[[], object], repeats: int) -> float:
    call()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def _bandwidths(
    kernel: Callable[..., object], arrays: tuple[NDArray[Any], ...], threads: int, repeats: int
) -> tuple[float, float]:
    """Return bytes/s of ``kernel(*arrays)`` over all bytes of ``arrays``, by one thread and by ``threads``."""
    total = sum(array.nbytes for array in arrays)
    one = total / _best_s(lambda: kernel(*arrays), repeats)
    if threads == 1:
        return one, one
    parts = [tuple(array[start:stop] for array in arrays) for start, stop in cuts(arrays[0].size, threads)]
    with crew_of(threads) as crew:
        return one, total / _best_s(lambda: crew(kernel, parts), repeats)


def _product_flops(dtype: type[np.floating[Any]], size: int, repeats: int) -> float:
    a = np.full((size, size), 0.5, dtype)
    b = np.full((size, size), 2.0, dtype)
    out = np.empty_like(a)
    return 2.0 * size**3 / _best_s(lambda: np.matmul(a, b, out=out), repeats)


def measure(quick: bool = True) -> MachineProfile:
    """Measure this machine; about two seconds when ``quick``, ten otherwise.

    Parameters
    ----------
    quick : bool
        Arrays of 64 MB and few repetitions instead of 256 MB and many.
    """
    threads = usable_cores()
    length, repeats = (1 << 23, 4) if quick else (1 << 25, 10)
    a, b, c = (np.full(length, value) for value in (0.0, 1.0, 2.0))
    copy = _bandwidths(lambda x, y: np.copyto(x, y), (a, b), threads, repeats)
    triad = _bandwidths(lambda x, y, z: _triad(x, y, z, 3.0), (a, b, c), threads, repeats)
    fill = _bandwidths(lambda x: x.fill(1.0), (a,), threads, repeats)
    return MachineProfile(
        cpu=cpu_model(),
        cores=threads,
        memory_bytes=memory_bytes(),
        copy_one_bytes_per_s=copy[0],
        copy_all_bytes_per_s=copy[1],
        triad_one_bytes_per_s=triad[0],
        triad_all_bytes_per_s=triad[1],
        fill_one_bytes_per_s=fill[0],
        fill_all_bytes_per_s=fill[1],
        peak_float32_per_s=_product_flops(np.float32, 2048, repeats if quick else 2 * repeats),
        peak_float64_per_s=_product_flops(np.float64, 2048, repeats),
    )


def cache_folder() -> Path:
    """Return the user's cache folder for Wavetank; it need not exist."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "wavetank"


def cached(quick: bool = True, folder: Path | None = None) -> MachineProfile:
    """Return the profile measured earlier on this processor with as many cores, or measure and keep it.

    Parameters
    ----------
    quick : bool
        Passed to :func:`measure` when nothing is kept yet.
    folder : Path, optional
        Where profiles are kept; the user's cache folder by default.  A folder that cannot be written, and a file
        that is damaged or of another version, only cost a new measurement.
    """
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{cpu_model()}-{usable_cores()}".lower())
    path = (folder or cache_folder()) / f"machine-{name}.json"
    try:
        kept = json.loads(path.read_text())
        if kept["version"] == PROFILE_VERSION:
            return MachineProfile(**kept)
    except (OSError, ValueError, TypeError, KeyError):
        pass
    profile = measure(quick)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as part:
            json.dump(asdict(profile), part, indent=1)
        Path(part.name).replace(path)
    except OSError:
        pass
    return profile
