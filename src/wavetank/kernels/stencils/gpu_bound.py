"""What a graphics processor can do with a stencil at most, by its roofline: memory, or the arithmetic of its layout.

A sweep reads and writes every cell once, unless several steps are fused into one wider stencil; ConvStencil fuses three
steps of radius 1 into one of radius 3 and multiplies on tensor cores, twice as many products as the fused square has.

Figures: ConvStencil's published program fuses three steps at radius 1 and none at radius 3; NVIDIA's data sheet of the
A100 (40 GB) gives 1,555 GB/s, 19.5 TFLOP/s float32 and 156 TFLOP/s TF32.
"""

from __future__ import annotations

from dataclasses import dataclass

from wavetank.kernels.stencils.pattern import Stencil
from wavetank.settings import setting

_CELL_BYTES = 8
"""A float32 read and one written."""


@dataclass(frozen=True, kw_only=True)
class GpuBound:
    """The roofline of a stencil in float32 on a graphics processor; nothing is faster there, and most is slower."""

    memory_bytes_per_s: float = setting(
        1.555e12, unit="bytes/s", says="Bandwidth of the off-chip memory", low=1.0, high=1e15
    )
    flops_per_s: float = setting(1.95e13, says="Peak rate in float32, multiply-adds counted as two", low=1.0, high=1e18)
    tensor_flops_per_s: float = setting(1.56e14, says="Peak rate of the tensor cores in TF32", low=1.0, high=1e18)
    layout: str = setting(
        "plain", says="Method: one sweep per pass, or ConvStencil's products", choices=("plain", "convstencil")
    )

    def fused_steps(self, pattern: Stencil) -> int:
        """Return how many steps one pass over memory takes."""
        return 3 if self.layout == "convstencil" and pattern.radius == 1 else 1

    def flops_per_update(self, pattern: Stencil) -> float:
        """Return the operations one update of a cell takes in this layout."""
        if self.layout == "plain":
            return float(2 * pattern.points)
        fused = self.fused_steps(pattern)
        side = 2 * fused * pattern.radius + 1
        # Two products with triangular weights, each over the whole square.
        return 4.0 * side * side / fused

    def flops_per_byte(self, pattern: Stencil) -> float:
        """Return the operations for each byte of off-chip memory."""
        return self.flops_per_update(pattern) * self.fused_steps(pattern) / _CELL_BYTES

    def peak_flops_per_s(self) -> float:
        """Return the peak of the units that the layout uses."""
        return self.tensor_flops_per_s if self.layout == "convstencil" else self.flops_per_s

    def bound_updates_per_s(self, pattern: Stencil) -> float:
        """Return the most cell updates a second: of memory or of arithmetic, whichever binds."""
        memory = self.memory_bytes_per_s / _CELL_BYTES * self.fused_steps(pattern)
        return min(memory, self.peak_flops_per_s() / self.flops_per_update(pattern))
