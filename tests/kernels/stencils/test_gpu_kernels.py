"""The Triton kernel compiles for a GPU that is not here, for every kind of pattern."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

PROGRAM = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from wavetank.kernels.stencils.gpu_kernels import sweep_rectangle
from wavetank.kernels.stencils.pattern import Stencil

ROWS = 4
for name, kind in (("star-1", "fp32"), ("box-2", "fp64"), ("box-4", "fp32"), ("star-4", "fp32")):
    pattern = Stencil.named(name)
    radius = pattern.radius
    terms = sum(1 << ((dy + radius) * (2 * radius + 1) + dx + radius) for dy, dx in pattern.offsets)
    for boundary in range(3):
        source = ASTSource(
            fn=sweep_rectangle,
            signature={"old": "*" + kind, "new": "*" + kind, "weights": "*" + kind, "height": "i32", "width": "i32",
                       "RADIUS": "constexpr", "TERMS": "constexpr", "BOUNDARY": "constexpr", "ROWS": "constexpr",
                       "COLUMNS": "constexpr"},
            constexprs={"RADIUS": radius, "TERMS": terms, "BOUNDARY": boundary, "ROWS": ROWS, "COLUMNS": 128},
        )
        found = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
        # Of every term a fused sum for each of a thread's cells; of every row a load for each column that counts, and
        # a load for each weight.
        code = found.asm["ptx"]
        columns = len({dx for _, dx in pattern.offsets})
        print(name, boundary, code.count("fma.rn.f" + kind[2:]), ROWS * pattern.points,
              code.count("ld.global"), (ROWS + 2 * radius) * columns + pattern.points)
"""


def test_a_pattern_multiplies_only_the_cells_that_count_and_loads_each_row_once_a_column():
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert len(lines) == 12
    assert [line for line in lines if line[2] != line[3]] == []
    # Of rows above and below the rectangle, neighbours to the side may count for nothing.
    assert [line for line in lines if int(line[4]) > int(line[5])] == []
