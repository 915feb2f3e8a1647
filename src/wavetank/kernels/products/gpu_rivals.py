"""The systems of ``matmul-gpu``: our planned product, schemes without a choice, and torch's product.

Each has ``prepare(a, b)``, which takes tensors on the device and returns the call to time; that returns the product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from wavetank.kernels.products import gpu, gpu_profile
from wavetank.kernels.products.schemes import Scheme, scheme_of
from wavetank.machine.cuda import require_torch
from wavetank.settings import setting

Call = Callable[[], Any]


@dataclass(frozen=True, kw_only=True)
class FalconGemmGpu:
    """:func:`wavetank.kernels.products.gpu.matmul` as it decides itself where normwise errors are allowed."""

    weights: str = setting(
        "", says="Scheme for which the right operand is prepared; empty for none", choices=("", "strassen", "winograd")
    )
    levels: int = setting(1, says="Levels of the prepared scheme", low=1, high=2)

    def planned(self, m: int, k: int, n: int, dtype: str) -> gpu.GpuPlan | None:
        """Return the plan for these sides; None where it is made for a prepared operand."""
        return None if self.weights else gpu.plan(m, k, n, dtype=dtype, accuracy="normwise")

    def prepare(self, a: Any, b: Any) -> Call:
        """Return the call to time; the profile is measured before, unless one is kept."""
        kind, tf32 = str(a.dtype).removeprefix("torch."), gpu.rounds_to_tf32(a)
        if a.device.type == "cuda" and gpu_profile.kept(a.device, kind, tf32) is None:
            gpu_profile.keep(gpu_profile.measure(a.device, kind, tf32))
        right = gpu.prepare(b, scheme=self.weights, levels=self.levels) if self.weights else b
        return lambda: gpu.matmul(a, right, accuracy="normwise")


@dataclass(frozen=True, kw_only=True)
class GpuScheme:
    """A scheme that is used whatever the shape."""

    scheme: str = setting("strassen", says="Name of the built-in scheme", choices=("strassen", "winograd"))
    levels: int = setting(1, says="Levels of the scheme", low=1, high=2)
    method: str = setting(
        "combined",
        says="How products are computed; padded takes aligned rows and no scheme",
        choices=("combined", "fused", "padded"),
    )

    def __post_init__(self) -> None:
        scheme_of(self.scheme, self.levels)

    @property
    def powered(self) -> Scheme:
        """Return the scheme at its levels."""
        return scheme_of(self.scheme, self.levels)

    def planned(self, m: int, k: int, n: int, dtype: str) -> gpu.GpuPlan:
        """Return the plan for these sides."""
        return gpu.plan_of(m, k, n, self.method, self.powered, dtype=dtype)

    def prepare(self, a: Any, b: Any) -> Call:
        """Return the call to time."""
        fixed = self.planned(a.shape[0], a.shape[1], b.shape[1], str(a.dtype))
        return lambda: gpu.matmul(a, b, plan=fixed)


@dataclass(frozen=True, kw_only=True)
class TorchMatmulGpu:
    """``torch.matmul`` on the device: cuBLAS on a GPU of NVIDIA's."""

    def prepare(self, a: Any, b: Any) -> Call:
        """Return the call to time."""
        torch = require_torch("The system torch-matmul-gpu")
        return lambda: torch.matmul(a, b)
