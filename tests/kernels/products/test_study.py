"""The study matmul: its records, its verification, and what it refuses."""

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.kernels.products.product import matmul
from wavetank.kernels.products.study import SHAPES, MatmulStudy, _entry_error, _norm_error
from wavetank.machine import limits as machine
from wavetank.run.comparison import compare

SYSTEMS = (
    "planned-matmul", "falcon-gemm", "falcon-gemm-scaled", "always-strassen", "numpy-matmul", "numpy-own-kernels",
    "scipy-matmul", "separate-winograd",
)  # fmt: skip


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return compare("matmul", shapes=("squares",), scale=64, rounds=2, seeds=1, systems=SYSTEMS, out=folder, on="here")


def test_every_system_has_its_figures_for_every_shape_and_round(result):
    assert result.failures == ()
    names = MatmulStudy(scale=64, shapes=("squares",)).case_names(0)
    for metric in ("time_s", "speedup", "speedup_best", "effective_gflops", "over_separate"):
        found = {(r.system, r.seed, r.at["shape"]) for r in result.records if r.metric == metric}
        assert found == {(system, number, name) for system in SYSTEMS for number in (0, 1) for name in names}
    assert {r.system for r in result.records if r.metric == "workspace_bytes"} == {
        "planned-matmul", "falcon-gemm", "falcon-gemm-scaled", "always-strassen",
    }  # fmt: skip
    for metric in ("rms_error", "norm_error", "entry_error"):
        errors = [r.value for r in result.records if r.metric == metric]
        assert len(errors) == len(SYSTEMS) * len(names)
        assert all(0 < error < 1e-5 for error in errors)


def test_ratios_agree_with_the_times_of_their_round(result):
    times = {(r.system, r.seed, r.at["shape"]): r.value for r in result.records if r.metric == "time_s"}
    for record in result.records:
        if record.metric == "speedup":
            base = times["numpy-matmul", record.seed, record.at["shape"]]
            assert record.value == pytest.approx(base / times[record.system, record.seed, record.at["shape"]])
        if record.metric == "choice_over_oracle":
            assert record.value >= 1.0


def test_a_wrong_product_takes_no_part():
    study = MatmulStudy(scale=64)
    case = study.case("16x24x32", 0)
    a, b = case.data.a, case.data.b
    study.verify(case, "numpy-matmul", a @ b)
    one_wrong = a @ b
    one_wrong[case.data.rows[1], 3] += 1e-3
    for wrong in (np.zeros((16, 32)), np.full((16, 32), np.nan), one_wrong):
        for system in ("numpy-matmul", "planned-matmul"):
            with pytest.raises(WavetankError, match=r"of \|A\|\|B\|"):
                study.verify(case, system, wrong)
    with pytest.raises(WavetankError, match=r"of max\|A\| max\|B\|"):
        study.verify(case, "always-strassen", np.zeros((16, 32)) + 9)


@pytest.mark.parametrize("entries", ["small-rows", "far-columns"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_by_entries_show_what_a_scheme_loses_and_a_plain_product_does_not(entries, dtype):
    study = MatmulStudy(entries=entries, dtype=dtype)
    case = study.case("256x256x256", 0)
    a, b = case.data.a, case.data.b
    eps = float(np.finfo(dtype).eps)
    plain, scheme, scaled = a @ b, matmul(a, b, scheme="strassen"), matmul(a, b, scheme="strassen", accuracy="scaled")
    # The reference is no product of the same type: even numpy's errs.
    assert 0 < _entry_error(case.data, plain) < 16 * eps
    assert _entry_error(case.data, scheme) > 1e4 * eps
    assert _entry_error(case.data, scaled) < 300 * eps
    assert _norm_error(case.data, scheme) < 256 * 256 * 12 * eps
    study.verify(case, "planned-matmul", matmul(a, b))
    study.verify(case, "always-strassen", scheme)
    with pytest.raises(WavetankError, match="did not multiply"):
        study.verify(case, "planned-matmul", scheme)


def test_graded_matrices_balance_and_even_ones_do_not_change():
    graded = MatmulStudy(entries="graded").case("20x30x40", 0).data
    assert graded.a[:, 0].min() > 1e4 * graded.a[:, -1].max()
    assert graded.b[-1].min() > 1e4 * graded.b[0].max()
    even = MatmulStudy().case("20x30x40", 0).data
    assert -0.5 <= even.a.min() < 0 < even.a.max() < 0.5


def test_the_notes_name_libraries_variables_and_where_choices_come_from(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    notes = " ".join(MatmulStudy().notes())
    assert "OPENBLAS_CORETYPE=Haswell" in notes
    assert "Libraries on this machine: numpy, scipy" in notes
    assert "what ships for" in notes or "the kept profile" in notes


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
