"""The systems on a GPU multiply right, and hold to what they are told."""

import pickle

import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.products.gpu_rivals import FalconGemmGpu, GpuScheme, TorchMatmulGpu

torch = pytest.importorskip("torch", reason="torch is not installed")

SYSTEMS = (
    FalconGemmGpu(), FalconGemmGpu(weights="winograd", levels=2), GpuScheme(), GpuScheme(method="fused"),
    GpuScheme(scheme="winograd", levels=2), TorchMatmulGpu(),
)  # fmt: skip


def differs(system):
    """Run in the interpreter: how far a system's two products are from torch's."""
    a, b = torch.arange(35.0).view(5, 7) - 17, torch.arange(42.0).view(7, 6) - 21
    call = system.prepare(a, b)
    return [float((call() - a @ b).abs().max()) for _ in range(2)]


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_whole_numbers_are_multiplied_exactly_every_time(interpreter, system):
    assert interpreter(differs, system) == [0, 0]


@pytest.mark.parametrize("system", SYSTEMS, ids=str)
def test_systems_are_values(system):
    assert pickle.loads(pickle.dumps(system)) == system


def test_a_fixed_scheme_plans_what_it_was_told():
    planned = GpuScheme(scheme="winograd", levels=2, method="fused").planned(64, 64, 64, "bfloat16")
    assert (planned.method, planned.multiplications, planned.dtype) == ("fused", 49, "bfloat16")
    assert FalconGemmGpu(weights="strassen").planned(64, 64, 64, "bfloat16") is None


def test_schemes_that_do_not_exist_are_refused():
    with pytest.raises(BadValueError, match="no such built-in"):
        GpuScheme(scheme="laderman")
