"""The study matmul: its records, its verification, and what it refuses."""

import numpy as np
import pytest

from wavetank.comparison import compare
from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels import machine
from wavetank.kernels.studies.matmul import SHAPES, MatmulStudy

SYSTEMS = ("falcon-gemm", "always-strassen", "numpy-matmul", "numpy-own-kernels", "separate-winograd")


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return compare("matmul", shapes=("squares",), scale=64, rounds=2, systems=SYSTEMS, out=folder, on="here")


def test_every_system_has_its_figures_for_every_shape_and_round(result):
    assert result.failures == ()
    names = MatmulStudy(scale=64, shapes=("squares",)).case_names(0)
    for metric in ("time_s", "speedup", "speedup_best", "effective_gflops", "over_separate"):
        found = {(r.system, r.seed, r.at["shape"]) for r in result.records if r.metric == metric}
        assert found == {(system, number, name) for system in SYSTEMS for number in (0, 1) for name in names}
    assert {r.system for r in result.records if r.metric == "workspace_bytes"} == {"falcon-gemm", "always-strassen"}
    assert all(r.value < 1e-5 for r in result.records if r.metric == "rms_error")


def test_ratios_agree_with_the_times_of_their_round(result):
    times = {(r.system, r.seed, r.at["shape"]): r.value for r in result.records if r.metric == "time_s"}
    for record in result.records:
        if record.metric == "speedup":
            base = times["numpy-matmul", record.seed, record.at["shape"]]
            assert record.value == pytest.approx(base / times[record.system, record.seed, record.at["shape"]])
        if record.metric == "choice_over_oracle":
            assert record.value >= 1.0


def test_a_wrong_product_is_no_contender():
    study = MatmulStudy(scale=64)
    case = study.case("16x24x32", 0)
    study.verify(case, "numpy-matmul", case.data.a @ case.data.b)
    for wrong in (np.zeros((16, 32)), np.full((16, 32), np.nan)):
        with pytest.raises(WavetankError, match="did not multiply"):
            study.verify(case, "numpy-matmul", wrong)


def test_equal_seeds_give_equal_matrices():
    study = MatmulStudy()
    first, same, other = (study.case("8x9x7", seed).data for seed in (1, 1, 2))
    assert np.array_equal(first.a, same.a)
    assert not np.array_equal(first.a, other.a)


def test_llm_shapes_have_all_sides_of_at_least_4096():
    assert all(min(shape) >= 4096 for shape in SHAPES["llm"])


def test_shapes_that_are_none_and_too_little_memory_are_refused(monkeypatch):
    with pytest.raises(BadValueError, match="MxKxN"):
        MatmulStudy().case("12x7", 0)
    monkeypatch.setattr(machine, "available_bytes", lambda: 1 << 24)
    with pytest.raises(BadValueError, match="more memory"):
        MatmulStudy(shapes=("square-8192",)).check()
