"""The study spmv-gpu: its records, with Triton's interpreter in the place of a GPU, and what it refuses."""

import json
import os
import subprocess
import sys

import pytest

from wavetank.errors import WavetankError
from wavetank.kernels.sparse.study import IRREGULAR
from wavetank.kernels.sparse.study_gpu import GpuSparseProduct
from wavetank.ledger import catalog
from wavetank.run.comparison import compare, make_plan
from wavetank.study.timing import Case

torch = pytest.importorskip("torch")
GENERATED = ("rmat-18", "uniform-20", "stencil-1500")

PROGRAM = """
import json, sys
from wavetank.run.comparison import compare
found = compare(
    "spmv-gpu", device="cpu", shrink=16, rounds=2, seeds=1, nonzeros_a_call=1,
    matrices=tuple(sys.argv[2].split(",")), systems=("merbit-gpu", "torch-coo-gpu", "torch-csr-gpu"),
    out=sys.argv[1], on="here",
)
print(json.dumps({
    "failures": len(found.failures), "notes": found.notes,
    "records": [[r.system, r.seed, r.metric, r.at.get("matrix"), r.value] for r in found.records],
}))
"""


@pytest.mark.slow
def test_a_run_has_times_and_shares_of_every_system(tmp_path):
    pytest.importorskip("triton", reason="Triton is not installed")
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path), ",".join(GENERATED)], capture_output=True, text=True,
        check=False, env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["failures"] == 0
    assert found["notes"][0].startswith("Device: cpu; torch ")
    keys = {tuple(record[:4]) for record in found["records"]}
    systems = ("merbit-gpu", "torch-coo-gpu", "torch-csr-gpu")
    for metric in ("time_s", "share_of_triad"):
        wanted = {(s, n, metric, m) for s in systems for n in range(2) for m in GENERATED}
        assert {key for key in keys if key[2] == metric} == wanted
    assert {key for key in keys if key[2] == "build_s"} == {(s, 0, "build_s", m) for s in systems for m in GENERATED}
    assert all(record[4] > 0 for record in found["records"])


def test_gains_are_ratios_of_times_and_means_are_geometric():
    times = {
        "merbit-gpu": dict.fromkeys(IRREGULAR, 1.0),
        "cusparse-coo": {**dict.fromkeys(IRREGULAR, 2.0), "rmat-18": 64.0},
        "cusparse-csr": dict.fromkeys(IRREGULAR, 1.5),
    }
    study, case = GpuSparseProduct(), Case("rmat-18", None)
    rows = {(metric, *at.values()): value for metric, value, at in study.figures_of_round("merbit-gpu", times).rows}
    of_case = {name: by_case["rmat-18"] for name, by_case in times.items()}
    assert ("gain_over_coo", 64.0, {"matrix": "rmat-18"}) in study.figures_of_case(case, "merbit-gpu", of_case, {}).rows
    assert rows["gain_over_coo", "irregular"] == pytest.approx(4)
    assert rows["gain_over_csr", "irregular"] == pytest.approx(1.5)
    own = study.figures_of_case(case, "cusparse-coo", of_case, {}).rows
    assert not any(metric == "gain_over_coo" for metric, _, _ in own)
    part = {name: {"rmat-18": by["rmat-18"]} for name, by in times.items()}
    assert study.figures_of_round("merbit-gpu", part).rows == []


def test_a_matrix_is_multiplied_ten_to_a_thousand_times():
    study = GpuSparseProduct(shrink=10)
    case = study.case("banded-20", 0)
    assert study.repeats(case) == 1000
    assert GpuSparseProduct(shrink=10, nonzeros_a_call=1).repeats(case) == 10


def test_a_machine_without_a_gpu_is_told_what_to_run_instead(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(WavetankError, match="needs a CUDA device") as caught:
        compare("spmv-gpu", out=tmp_path)
    assert "wavetank compare spmv " in caught.value.hint
    with pytest.raises(WavetankError, match="needs a CUDA device"):
        make_plan("spmv-gpu", systems=("merbit-gpu", "cusparse-coo"))


def test_the_bar_of_the_gpu_is_a_claim_of_its_own():
    claims = catalog.system("merbit-gpu").claims
    assert [(claim.paper, claim.where["float_bits"]) for claim in claims] == [(1.25, 64), (1.27, 32)]
    assert all("GPU" in claim.note and claim.where["device"] == "cuda" for claim in claims)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
def test_all_systems_run_on_the_gpu(tmp_path):
    found = compare("spmv-gpu", shrink=8, rounds=2, matrices=GENERATED, out=tmp_path, on="here")
    assert found.failures == ()
    assert {record.system for record in found.records} == set(catalog.built_in().plain_run(GpuSparseProduct.name))
