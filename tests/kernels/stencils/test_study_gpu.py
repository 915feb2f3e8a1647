"""The study stencil-gpu: its records, with Triton's interpreter in the place of a GPU, and what it refuses."""

import json
import os
import subprocess
import sys

import pytest

from wavetank.errors import WavetankError
from wavetank.kernels.stencils.study_gpu import GpuStencilStudy
from wavetank.run.comparison import compare

torch = pytest.importorskip("torch")

PROGRAM = """
import json, sys
from wavetank.run.comparison import compare
found = compare("stencil-gpu", device="cpu", side=64, steps=2, rounds=2, seeds=1,
                stencils=("star-1", "box-2"), weights="random", out=sys.argv[1], on="here",
                systems=("stencil-triton", "grid-copy-gpu", "torch-slices-gpu", "torch-conv2d-gpu"))
print(json.dumps({
    "failures": len(found.failures), "notes": found.notes,
    "records": [[r.system, r.seed, r.metric, r.at.get("stencil"), r.value] for r in found.records],
}))
"""


@pytest.mark.slow
def test_a_run_has_times_and_shares_of_every_system(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["failures"] == 0
    assert found["notes"][0].startswith("Device: cpu; torch ")
    keys = {tuple(record[:4]) for record in found["records"]}
    cases, rounds = ("star-1", "box-2"), range(2)
    sweeps = {"stencil-triton", "torch-slices-gpu", "torch-conv2d-gpu"}
    for metric, systems in (("time_s", sweeps | {"grid-copy-gpu"}), ("share_of_bound", sweeps)):
        wanted = {(system, number, metric, case) for system in systems for number in rounds for case in cases}
        assert {key for key in keys if key[2] == metric} == wanted
    assert all(record[4] > 0 for record in found["records"])


def test_shares_are_ratios_within_a_round(monkeypatch):
    study = GpuStencilStudy(side=64, steps=4, stencils=("star-1",))
    times = {"stencil-triton": 2.0, "grid-copy-gpu": 1.0, "torch-slices-gpu": 8.0, "torch-conv2d-gpu": 6.0}
    monkeypatch.setattr(GpuStencilStudy, "_peak_flops_per_s", lambda self: 1e9)
    found = {name: study.figures_of_case(study.case("star-1", 0), name, times, {}) for name in times}
    own = {metric: value for metric, value, _ in found["stencil-triton"].rows}
    assert "share_of_roofline" not in own
    assert own["share_of_bound"] == 2.0
    assert own["time_ratio"] == 0.25
    assert own["ahead_of_best_peer"] == 3.0
    assert own["updates_per_s"] == 4 * 64 * 64 / 2.0
    assert own["share_of_peak"] == pytest.approx(own["updates_per_s"] * 9 / 1e9)
    assert "share_of_bound" not in {metric for metric, _, _ in found["grid-copy-gpu"].rows}


def test_a_wrong_sweep_takes_no_part():
    study = GpuStencilStudy(side=64, stencils=("star-1",))
    case = study.case("star-1", 0)
    with pytest.raises(WavetankError, match="did not sweep star-1 right"):
        study.verify(case, "stencil-triton", torch.from_numpy(case.data.grid.copy()))


def test_a_machine_without_a_gpu_is_told_what_to_run_instead(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(WavetankError, match="needs a CUDA device") as caught:
        compare("stencil-gpu", out=tmp_path)
    assert "wavetank compare stencil " in caught.value.hint
