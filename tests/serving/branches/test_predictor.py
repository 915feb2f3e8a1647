"""The fitted lines: known coefficients, and refits that follow a machine that changes."""

import csv
import gzip

import numpy as np
import pytest
from tests.serving.branches.conftest import FITTED, line, line_step

from wavetank.errors import BadValueError, DataUnavailableError
from wavetank.platforms.table_step_time import TableStepTime
from wavetank.serving.branches.predictor import MIXED, grid_of, mean_error, profiled, refit
from wavetank.workloads import datasets


def test_a_line_is_found_again_from_its_profile():
    found = profiled(line_step(), grid_of(90_000))
    assert found[:3] == pytest.approx(FITTED, rel=1e-6)
    assert found[MIXED : MIXED + 4] == pytest.approx([*FITTED, 2e-4], rel=1e-6)
    assert mean_error(found, line_step(), grid_of(90_000)) < 1e-6


def test_the_profile_has_five_hundred_steps_where_memory_is_ample_and_only_what_fits_where_it_is_not():
    ample = grid_of(10**9)
    assert len(ample) == 500
    assert {n for n, _ in ample} >= {1, 512} and {c for _, c in ample} >= {128, 8192}
    assert all(n * context <= 90_000 for n, context in grid_of(90_000))
    with pytest.raises(BadValueError, match="too small"):
        profiled(line_step(), grid_of(200))


@pytest.mark.parametrize(
    ("tensor_parallel", "expected", "most"),
    [(1, (46.0, 0.0812, 1.718e-4), 0.01), (2, (24.5, 0.0436, 8.68e-5), 0.014)],
)
def test_measured_layers_of_a_32_billion_model_give_the_known_line(tensor_parallel, expected, most):
    try:
        folder = datasets.find("vllm-layer-profiles")
    except DataUnavailableError:
        pytest.skip("data set vllm-layer-profiles is absent")
    step = TableStepTime.from_vllm_profiles(
        "RTXPRO6000", "Qwen3-32B", tensor_parallel, overhead_s=0.0,
        **({"link": _free()} if tensor_parallel > 1 else {}),
    )  # fmt: skip
    file = next((folder / "RTXPRO6000" / "Qwen3-32B" / f"tp{tensor_parallel}").glob("attention.csv*"))
    with gzip.open(file, "rt") as text:
        rows = [[int(row[key]) for key in ("prefill_chunk", "n_decode", "kv_decode")] for row in csv.DictReader(text)]
    grid = sorted({(n, kv) for chunk, n, kv in rows if chunk == 0 and 0 < n <= 256 and 128 <= kv <= 8192})
    assert len(grid) == 117
    found = profiled(step, grid)
    # The known line counts each profiled operation of a layer once; the table has both norms of a layer.
    assert found[:3] * 1e3 == pytest.approx(expected, rel=0.012)
    assert mean_error(found, step, grid) < most


def _free():
    from wavetank.platforms.links import Link

    return Link(bytes_per_s=1e18, latency_s=0.0)


def test_refits_learn_that_the_machine_became_slower_and_change_nothing_where_it_did_not():
    draws = np.random.default_rng(0)
    steps = np.zeros((200, 4))
    steps[:, 0] = draws.integers(30, 60, 200)
    steps[:, 1] = steps[:, 0] * draws.integers(1000, 2000, 200)
    steps[:, 3] = FITTED[0] + FITTED[1] * steps[:, 0] + FITTED[2] * steps[:, 1]
    same = line()
    refit(same, 0, steps, 200)
    assert same == pytest.approx(line(), rel=1e-9)
    steps[:, 3] *= 1.3 * np.exp(draws.normal(0, 0.02, 200))
    slower = line()
    before = np.abs(steps[:, :2] @ slower[1:3] + slower[0] - steps[:, 3]).mean()
    refit(slower, 0, steps, 200)
    after = np.abs(steps[:, :2] @ slower[1:3] + slower[0] - steps[:, 3]).mean()
    assert after < 0.15 * before
    assert (slower[MIXED:] == line()[MIXED:]).all()


def test_a_handful_of_steps_changes_nothing():
    steps = np.ones((5, 4))
    kept = line()
    refit(kept, 0, steps, 5)
    assert (kept == line()).all()
