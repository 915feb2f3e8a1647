"""The study matmul-gpu: its records, with Triton's interpreter in the place of a GPU, and what it refuses."""

import json
import math
import os
import subprocess
import sys

import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.products.study_gpu import SHAPES, MatmulGpuStudy
from wavetank.machine import limits as machine
from wavetank.run.comparison import compare
from wavetank.study.timing import Case

torch = pytest.importorskip("torch", reason="torch is not installed")

PROGRAM = """
import json, sys
from wavetank.run.comparison import compare
found = compare(
    "matmul-gpu", device="cpu", shapes=("odd",), scale=512, rounds=2, seeds=1, dtype=sys.argv[2], out=sys.argv[1],
    on="here",
    systems=("falcon-gemm-gpu", "falcon-gemm-weights", "always-strassen-gpu", "torch-matmul-gpu"),
)
print(json.dumps({
    "failures": [str(each) for each in found.failures], "notes": found.notes,
    "records": [[r.system, r.seed, r.metric, r.at.get("shape"), r.value] for r in found.records],
}))
"""


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float64", marks=pytest.mark.slow)])
def test_a_run_has_times_ratios_and_errors_of_every_system(tmp_path, dtype):
    pytest.importorskip("triton", reason="Triton is not installed")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), dtype], capture_output=True, text=True, check=False,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["failures"] == []
    assert found["notes"][0].startswith("Device: cpu; torch ")
    values = {tuple(record[:4]): record[4] for record in found["records"]}
    systems = ("falcon-gemm-gpu", "falcon-gemm-weights", "always-strassen-gpu", "torch-matmul-gpu")
    shapes = MatmulGpuStudy(shapes=("odd",), scale=512).case_names(0)
    for metric in ("time_s", "speedup", "share_of_peak", "effective_tflops"):
        wanted = {(system, number, metric, shape) for system in systems for number in range(2) for shape in shapes}
        assert {key for key in values if key[2] == metric} == wanted
    for system in systems:
        mean = math.prod(values[system, 1, "speedup", shape] for shape in shapes) ** (1 / len(shapes))
        assert values[system, 1, "speedup_mean", None] == pytest.approx(mean)
        assert all(
            values[system, 0, "rms_error", shape] < {"bfloat16": 0.1, "float64": 1e-14}[dtype] for shape in shapes
        )
    assert {key[0] for key in values if key[2] == "workspace_bytes"} == {"always-strassen-gpu"}
    assert all(value >= 1 for key, value in values.items() if key[2].startswith("choice_over_oracle"))


def test_ratios_are_of_the_same_round_and_prepared_weights_are_no_choice():
    times = {
        "falcon-gemm-gpu": {"2x2x2": 2.0, "4x4x4": 4.0},
        "falcon-gemm-weights": {"2x2x2": 0.5, "4x4x4": 0.5},
        "always-strassen-gpu": {"2x2x2": 1.0, "4x4x4": 5.0},
        "torch-matmul-gpu": {"2x2x2": 4.0, "4x4x4": 4.0},
    }
    study, ours = MatmulGpuStudy(), "falcon-gemm-gpu"
    found = study.figures_of_round(ours, times).rows
    for shape in times[ours]:
        of_case = {name: by_case[shape] for name, by_case in times.items()}
        found += study.figures_of_case(Case(shape, None), ours, of_case, {}).rows
    rows = {(metric, *at.values()): value for metric, value, at in found}
    assert (rows["speedup", "2x2x2"], rows["speedup", "4x4x4"]) == (2.0, 1.0)
    assert rows["speedup_mean",] == pytest.approx(math.sqrt(2))
    assert rows["speedup_least",] == 1.0
    assert (rows["choice_over_oracle", "2x2x2"], rows["choice_over_oracle", "4x4x4"]) == (2.0, 1.0)
    assert rows["effective_tflops", "4x4x4"] == pytest.approx(2e-12 * 64 / 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_wrong_product_takes_no_part(dtype):
    study = MatmulGpuStudy(device="cpu", dtype=dtype)
    case = study.case("16x24x32", 0)
    study.verify(case, "torch-matmul-gpu", case.data.a @ case.data.b)
    right = case.data.a.double() @ case.data.b.double()
    for wrong in (torch.zeros(16, 32), torch.full((16, 32), math.nan), right.roll(1, 0), right * 1.5):
        with pytest.raises(WavetankError, match="did not multiply"):
            study.verify(case, "torch-matmul-gpu", wrong.to(case.data.a.dtype))


def test_equal_seeds_give_equal_matrices():
    study = MatmulGpuStudy(device="cpu")
    first, same, other = (study.case("8x9x7", seed).data for seed in (1, 1, 2))
    assert torch.equal(first.a, same.a)
    assert not torch.equal(first.a, other.a)


def test_the_setting_of_tf32_holds_for_a_run_and_not_longer(monkeypatch):
    seen = []
    study = MatmulGpuStudy(device="cpu", dtype="float32", tf32=True, shapes=("thin",), scale=1024)
    monkeypatch.setattr(
        MatmulGpuStudy, "cases_of", lambda *of: seen.append(torch.get_float32_matmul_precision()) or []
    )  # fmt: skip
    kept = torch.get_float32_matmul_precision()
    study.run(study.trials(("torch-matmul-gpu",), (0,))[0], {})
    assert seen == ["high"]
    assert torch.get_float32_matmul_precision() == kept


def test_llm_shapes_have_sides_for_which_a_scheme_could_pay():
    assert all(min(shape) >= 3072 for shape in SHAPES["llm"])


def test_shapes_that_are_none_and_too_little_memory_are_refused(monkeypatch):
    with pytest.raises(BadValueError, match="MxKxN"):
        MatmulGpuStudy(device="cpu").case("12x7", 0)
    monkeypatch.setattr(machine, "available_bytes", lambda: 1 << 24)
    with pytest.raises(BadValueError, match="more memory"):
        MatmulGpuStudy(device="cpu", shapes=("squares",)).check()


def test_a_machine_without_a_gpu_is_told_what_to_run_instead(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(WavetankError, match="needs a CUDA device") as caught:
        compare("matmul-gpu", out=tmp_path)
    assert "wavetank compare matmul " in caught.value.hint
