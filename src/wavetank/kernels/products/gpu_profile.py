"""What products cost on a GPU: measured when the user asks for it, by device, type and version of torch, and kept.

The library's single and batched products and our own are timed on a small grid of shapes by the device's own events;
between grid points the rate is interpolated in the logarithms of the sides. One more figure says at what bandwidth the
passes around products run, another what a launch costs. Measuring takes some seconds.

Source: the closed-form model of H. Zhu et al., "FalconGEMM", arXiv 2605.06057, 2026.

Differs from the source:
1. The rate of a product comes from a measured grid instead of a roofline.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wavetank.kernels.products.profile import interpolated_s, largest_rates
from wavetank.kernels.products.schemes import STRASSEN
from wavetank.machine import profiles
from wavetank.machine.cuda import found_gpu, free_bytes, require_cuda

GRID = (256, 1024, 2048, 4096)
"""Sides on which products are timed."""
WAYS = ("library", "unaligned", "batched", "own")
"""The library's product; that of sides less by one, whose rows begin anywhere in memory; its batched product of seven
pairs; and ours that adds seven products to a result."""
# Of the memory that is free, what measuring may take.
_MEMORY_SHARE = 0.5


@dataclass(frozen=True, kw_only=True)
class GpuProfile:
    """What products cost on one GPU, for one type.

    Parameters
    ----------
    device : str
        Name of the GPU.
    torch : str
        Version of torch, and of CUDA in it.
    dtype : str
    tf32 : bool
        Whether float32 is rounded to TF32.
    grid : tuple of int
        Sides; rates are nested lists over rows, inner dimension and columns.
    rates : mapping
        Way (see :data:`WAYS`) to floating-point operations per second on the grid.
    pass_bytes_per_s : float
        Bytes read and written per second by the passes that form sums and spread products.
    launch_s : float
        Seconds that a pass takes when there is next to nothing to do.
    """

    device: str
    torch: str
    dtype: str
    tf32: bool
    grid: tuple[int, ...]
    rates: Mapping[str, Any] = field(repr=False)
    pass_bytes_per_s: float
    launch_s: float

    def product_s(self, way: str, m: int, k: int, n: int) -> float:
        """Return the seconds of one product of these sides by ``way``; below the grid a side costs as its least."""
        return interpolated_s(self.rates[way], self.grid, (m, k, n))

    # By identity: profiles hold lists, and the kept one is the same object until it is forgotten.
    __hash__ = object.__hash__


def median_s(call: Callable[[], object], repeats: int = 3, at_least_s: float = 0.01) -> float:
    """Return the median seconds of a call on the current GPU, by the GPU's own events.

    Parameters
    ----------
    call : callable
        Queues work on the current stream.
    repeats : int
        Timings of which the median counts.
    at_least_s : float
        A short call is queued several times for one timing, until it takes so long: what is multiplied for a moment
        alone runs at a higher clock than a program that goes on multiplying.
    """
    import torch

    def timed(times: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(times):
            call()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) * 1e-3 / times

    # What is called first compiles kernels and finds memory.
    call()
    times = max(1, min(50, math.ceil(at_least_s / max(timed(1), 1e-6))))
    return statistics.median(timed(times) for _ in range(repeats))


Timer = Callable[[Callable[[], object]], float]


def measure(device: Any, dtype: str, tf32: bool, grid: tuple[int, ...] = GRID, timer: Timer = median_s) -> GpuProfile:
    """Time products and passes on a GPU; some seconds.

    Parameters
    ----------
    device : torch.device
    dtype : str
        ``"float16"``, ``"bfloat16"``, ``"float32"`` or ``"float64"``.
    tf32 : bool
        As torch is set at present.
    grid : tuple of int, optional
        Sides, ascending, at least two; the largest are left out where memory is short.
    timer : callable, optional
        Call to seconds.
    """
    import torch

    from wavetank.kernels.products import gpu_passes

    kind = getattr(torch, dtype)
    free = free_bytes(device)
    products = STRASSEN.rank
    # Three batches, two of them first in float32, and partial sums of a result.
    while len(grid) > 2 and (products * (8 + 3 * kind.itemsize) + 16) * grid[-1] ** 2 > _MEMORY_SHARE * free:
        grid = grid[:-1]
    largest = grid[-1]
    # Even in [-0.5, 0.5): a GPU multiplies zeros at less power, and so faster.
    left, right = (torch.rand(products * largest**2, device=device, dtype=torch.float32) - 0.5 for _ in range(2))
    left, right = left.to(kind), right.to(kind)
    target = torch.empty(products * largest**2, device=device, dtype=kind)
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    tile = gpu_passes.tile_for(kind, tf32, shared_bytes(device))

    def batch(of: Any, high: int, wide: int, count: int = products) -> Any:
        return of[: count * high * wide].view(count, high, wide)

    rates = {way: np.zeros((len(grid),) * 3).tolist() for way in WAYS}
    for i, m in enumerate(grid):
        for j, k in enumerate(grid):
            for p, n in enumerate(grid):
                x, y, z = batch(left, m, k), batch(right, k, n), batch(target, m, n)
                whole = target[: 4 * m * n].view(2 * m, 2 * n)
                calls = {
                    "library": (m * k * n, lambda x=x, y=y, z=z: torch.mm(x[0], y[0], out=z[0])),
                    "unaligned": (
                        (m - 1) * (k - 1) * (n - 1),
                        lambda p=m - 1, q=k - 1, r=n - 1: torch.mm(
                            batch(left, p, q, 1)[0], batch(right, q, r, 1)[0], out=batch(target, p, r, 1)[0]
                        ),
                    ),
                    "batched": (products * m * k * n, lambda x=x, y=y, z=z: torch.bmm(x, y, out=z)),
                    "own": (
                        products * m * k * n,
                        lambda x=x, y=y, whole=whole: gpu_passes.multiply_and_spread(
                            x, y, whole, STRASSEN, flag, tile, tf32
                        ),
                    ),
                }
                for way, (terms, call) in calls.items():
                    rates[way][i][j][p] = 2.0 * terms / timer(call)
    side = largest // 2
    matrix, sums = left[: 4 * side**2].view(2 * side, 2 * side), batch(target, side, side)
    whole = right[: 4 * side**2].view(2 * side, 2 * side)
    took = timer(lambda: gpu_passes.form_sums(matrix, STRASSEN, "u", (side, side)))
    took += timer(lambda: gpu_passes.spread(sums, whole, STRASSEN, flag))
    moved = 2 * (4 + products) * side**2 * kind.itemsize
    least = matrix[:32, :32].contiguous()
    return GpuProfile(
        device=device_name(device), torch=torch_version(), dtype=dtype, tf32=tf32, grid=grid, rates=rates,
        pass_bytes_per_s=moved / took, launch_s=timer(lambda: gpu_passes.form_sums(least, STRASSEN, "u", (16, 16))),
    )  # fmt: skip


def device_name(device: Any) -> str:
    """Return the name of a GPU."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else "interpreter"


def torch_version() -> str:
    """Return the version of torch, and of CUDA in it."""
    import torch

    return f"{torch.__version__} cuda {torch.version.cuda or 'none'}"


def shared_bytes(device: Any) -> int:
    """Return the shared memory that a block on the GPU can have."""
    import torch

    if device.type != "cuda":
        return 0
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


_KEPT: dict[tuple[str, ...], GpuProfile | None] = {}
_KIND = "gpu-products"


def _conditions(device: Any, dtype: str, tf32: bool) -> dict[str, str]:
    return {"device": device_name(device), "torch": torch_version(), "dtype": dtype, "tf32": str(tf32)}


def kept(device: Any, dtype: str, tf32: bool, folder: Path | None = None) -> GpuProfile | None:
    """Return the profile measured earlier on such a GPU under the same torch; None where there is none.

    Nothing is measured, and a file that is no good counts as none.  What was found is used until the process ends or
    :func:`forget` is called.

    Parameters
    ----------
    device : torch.device
    dtype, tf32
        As of :func:`measure`.
    folder : Path, optional
        Of the store; see :mod:`wavetank.machine.profiles`.
    """
    conditions = _conditions(device, dtype, tf32)
    key = (str(folder), *conditions.values())
    if key not in _KEPT:
        _KEPT[key] = GpuProductCosts().read(_KIND, conditions, folder)
    return _KEPT[key]


def forget() -> None:
    """Look at the store again when the next profile is wanted."""
    _KEPT.clear()


def keep(profile: GpuProfile, folder: Path | None = None) -> Path | None:
    """Keep a profile for later processes, and use it in this one.

    Parameters
    ----------
    profile : GpuProfile
        Rates in operations/s on its grid, passes in bytes/s, a launch in seconds.
    folder : Path, optional
        Of the store; see :mod:`wavetank.machine.profiles`.

    Returns
    -------
    Path or None
        None, after a warning, where no file can be written.
    """
    conditions = {
        "device": profile.device, "torch": profile.torch, "dtype": profile.dtype, "tf32": str(profile.tf32)
    }  # fmt: skip
    path = profiles.keep(profiles.Profile(_KIND, GpuProductCosts.version, conditions, asdict(profile)), folder)
    _KEPT[str(folder), *conditions.values()] = profile
    return path


class GpuProductCosts(profiles.ProfileKind[GpuProfile]):
    """The profiles of this module."""

    version = 3

    def parsed(self, found: profiles.Profile) -> GpuProfile | None:
        """Return the costs in a profile."""
        profile = GpuProfile(**{**found.content, "grid": tuple(found.content["grid"])})
        shape = (len(profile.grid),) * 3
        rates = [np.asarray(profile.rates[way], dtype=float) for way in WAYS]
        sound = len(profile.grid) > 1 and all(table.shape == shape and bool((table > 0).all()) for table in rates)
        return profile if sound and profile.pass_bytes_per_s > 0 and profile.launch_s >= 0 else None

    def words(self, figures: GpuProfile) -> str:
        """Return the speed of each way on the largest product."""
        return f"{figures.device}: {largest_rates(figures.rates)}"

    def steps(
        self, threads: tuple[int, ...], dtypes: tuple[str, ...], named: bool, report: Callable[[str], object]
    ) -> Iterator[profiles.Step]:
        """Yield a measurement for each type that tensor cores or torch multiply, where there is a GPU."""

        def step(dtype: str) -> tuple[Path | None, str]:
            from wavetank.kernels.products import gpu

            hint = "wavetank profile --only products measures the processor"
            torch = require_cuda("A profile of a GPU", "cuda", hint)
            device = torch.device("cuda", torch.cuda.current_device())
            found = measure(device, dtype, gpu.rounds_to_tf32(torch.empty(0, dtype=getattr(torch, dtype))))
            return keep(found), self.words(found)

        if named or found_gpu():
            for dtype in ("float16", "bfloat16", "float32", "float64"):
                yield profiles.Step(f"products on the GPU, {dtype}", functools.partial(step, dtype))
