"""Sweeps on a GPU: run by Triton's interpreter, torch's systems on the processor, and what is refused."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.stencils.gpu import GridCopyGpu, TorchConv2dGpu, TorchSlices, sweep_on_gpu
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import reference_sweep

torch = pytest.importorskip("torch")

# Triton decides when it is loaded whether to compile or to interpret: a process of its own does the latter.
PROGRAM = """
import json
import numpy as np, torch
from wavetank.kernels.stencils.gpu import GpuSweep, sweep_on_gpu
from wavetank.kernels.stencils.pattern import Stencil
from wavetank.kernels.stencils.reference import reference_sweep

rng = np.random.default_rng(0)
odd = Stencil(((-3, 1), (0, 0), (2, -1)), (0.25, 0.5, -0.5))
errors = {}
for name in ("identity", "star-4", "box-2", "odd"):
    pattern = odd if name == "odd" else Stencil.named(name)
    for shape in ((9, 9), (11, 140)):
        # The interpreter is slow: both types for two patterns, every number of steps for one.
        for dtype in (np.float32, np.float64) if name in ("box-2", "odd") else (np.float32,):
            grid = rng.random(shape).astype(dtype)
            for boundary in ("dirichlet", "periodic", "reflect"):
                for steps in (0, 1, 2) if name == "odd" else (2,):
                    kept = torch.from_numpy(grid.copy())
                    found = sweep_on_gpu(kept, pattern, steps, boundary=boundary)
                    expected = reference_sweep(grid, pattern, steps, boundary=boundary)
                    assert found.dtype == kept.dtype and np.array_equal(kept.numpy(), grid)
                    assert found.data_ptr() != kept.data_ptr()
                    error = np.abs(found.numpy() - expected).max() / np.finfo(dtype).eps
                    errors[f"{name} {shape} {dtype.__name__} {boundary} {steps}"] = float(error)
grid = torch.from_numpy(rng.random((20, 30)))
turned = sweep_on_gpu(grid.T, odd, 2).numpy()
errors["not contiguous"] = float(np.abs(turned - reference_sweep(grid.numpy().T, odd, 2)).max() / 2.3e-16)
grid[9, 9] = np.nan
spread = sweep_on_gpu(grid, Stencil.star(1)).numpy()
prepared = GpuSweep().prepare(grid, Stencil.star(1), 3)
print(json.dumps({
    "errors": errors, "nan": int(np.isnan(spread).sum()),
    "prepared": bool(np.array_equal(prepared().numpy(), sweep_on_gpu(grid, Stencil.star(1), 3).numpy(), True)),
}))
"""


def test_triton_sweeps_as_the_reference_does():
    pytest.importorskip("triton", reason="Triton is not installed")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert {name: error for name, error in found["errors"].items() if not error <= 8} == {}
    assert found["nan"] == 5
    assert found["prepared"]


@pytest.mark.parametrize("system", [TorchSlices(), TorchConv2dGpu()])
@pytest.mark.parametrize("name", ["identity", "star-1", "box-3"])
def test_torch_sweeps_as_the_reference_does(system, name):
    grid, pattern = np.random.default_rng(1).random((30, 41)), Stencil.named(name)
    call = system.prepare(torch.from_numpy(grid), pattern, 3)
    for _ in range(2):
        assert np.abs(call().numpy() - reference_sweep(grid, pattern, 3)).max() < 1e-14


def test_the_copy_is_the_grid():
    grid = torch.arange(12.0).reshape(3, 4)
    copied = GridCopyGpu().prepare(grid, Stencil.star(1), 5)()
    assert torch.equal(copied, grid)
    assert copied.data_ptr() != grid.data_ptr()


@pytest.mark.parametrize(
    ("grid", "steps", "boundary", "tells"),
    [
        (torch.zeros((9, 9)), -1, "dirichlet", "counted from 0"),
        (torch.zeros((9, 9)), True, "dirichlet", "counted from 0"),
        (torch.zeros(9), 1, "dirichlet", "two dimensions"),
        (torch.zeros((9, 9), dtype=torch.float16), 1, "dirichlet", "floating-point"),
        (torch.zeros((2, 9)), 1, "dirichlet", "beyond the grid"),
        (torch.zeros((9, 9)), 1, "reflekt", "no such boundary"),
    ],
)
def test_what_cannot_be_swept_is_refused(grid, steps, boundary, tells):
    with pytest.raises(BadValueError, match=tells):
        sweep_on_gpu(grid, Stencil.star(1), steps, boundary=boundary)


def test_a_grid_in_main_memory_is_sent_to_the_processors_sweep():
    pytest.importorskip("triton", reason="Triton is not installed")
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Triton interprets here")
    with pytest.raises(BadValueError, match="runs on a CUDA device"):
        sweep_on_gpu(torch.zeros((9, 9)), Stencil.star(1))
