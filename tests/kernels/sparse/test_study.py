"""The study spmv: its matrices, its records, and what it refuses."""

import numpy as np
import pytest

from wavetank.errors import WavetankError
from wavetank.kernels.sparse.study import IRREGULAR, REGULAR, SparseProduct, matrix_of
from wavetank.run.comparison import compare
from wavetank.study.timing import Case
from wavetank.workloads import datasets

SYSTEMS = ("merbit", "scipy-csr", "scipy-coo", "merge-csr")
GENERATED = tuple(name for name in (*IRREGULAR, *REGULAR) if name not in ("ego-facebook", "wiki-vote"))


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return compare(
        "spmv", shrink=10, rounds=2, seeds=1, nonzeros_a_call=1, matrices=GENERATED, systems=SYSTEMS,
        out=tmp_path_factory.mktemp("runs"), on="here",
    )  # fmt: skip


def test_every_system_has_its_figures_for_every_matrix_and_round(result):
    assert result.failures == ()
    found = {(r.system, r.seed, r.metric, r.at.get("matrix")) for r in result.records}
    for metric in ("time_s", "time_ratio", "share_of_copy", "share_of_triad"):
        wanted = {(s, n, metric, name) for s in SYSTEMS for n in range(2) for name in GENERATED}
        assert {key for key in found if key[2] == metric} == wanted


def test_laying_out_is_timed_for_those_who_do(result):
    found = {(r.system, r.metric) for r in result.records if r.metric in ("build_s", "break_even_products")}
    assert found == {(s, m) for s in ("merbit", "merge-csr") for m in ("build_s", "break_even_products")}
    assert all(r.value > 0 for r in result.records if r.metric in ("build_s", "break_even_products"))


def test_gains_are_ratios_of_times_and_means_are_geometric():
    times = {
        "merbit": dict.fromkeys((*IRREGULAR, *REGULAR), 1.0),
        "scipy-csr": {**dict.fromkeys(IRREGULAR, 2.0), "rmat-18": 64.0, "stencil-1500": 3.0, "banded-20": 0.9},
        "torch-csr": {**dict.fromkeys(IRREGULAR, 4.0), "stencil-1500": 2.0, "banded-20": 5.0},
    }
    study = SparseProduct()
    rows = {(metric, *at.values()): value for metric, value, at in study.figures_of_round("merbit", times).rows}
    of_case = {name: by_case["rmat-18"] for name, by_case in times.items()}
    found = study.figures_of_case(Case("rmat-18", None), "merbit", of_case, {}).rows
    assert ("gain_over_scipy", 64.0, {"matrix": "rmat-18"}) in found
    assert ("gain_over_best", 4.0, {"matrix": "rmat-18"}) in found
    assert "gain_over_coo" not in {metric for metric, _, _ in found}
    assert rows["gain_over_scipy", "irregular"] == pytest.approx(4)
    assert rows["gain_over_torch", "irregular"] == pytest.approx(4)
    assert rows["least_gain_over_better", "regular"] == 0.9
    assert rows["gain_over_best", "all"] == 0.9
    alone = {name: by_case for name, by_case in times.items() if name != "torch-csr"}
    assert "least_gain_over_better" not in {row[0] for row in study.figures_of_round("merbit", alone).rows}


def test_small_matrices_are_multiplied_again():
    study = SparseProduct(shrink=10, nonzeros_a_call=100_000)
    case = study.case("banded-20", 0)
    assert study.repeats(case) == 100_000 // case.data.matrix.nnz > 1
    once = SparseProduct(shrink=10, nonzeros_a_call=1).case("banded-20", 0)
    assert case.bytes_moved == study.repeats(case) * once.bytes_moved


def test_a_wrong_product_is_refused():
    study = SparseProduct(shrink=10)
    case = study.case("rmat-18", 0)
    study.verify(case, "right", case.data.expected.copy())
    wrong = case.data.expected.copy()
    wrong[np.argmax(case.data.tolerance)] *= 1.001
    with pytest.raises(WavetankError, match="wrong did not multiply rmat-18 right"):
        study.verify(case, "wrong", wrong)


@pytest.mark.parametrize("name", GENERATED)
def test_matrices_depend_on_the_seed_and_have_no_equal_values(name):
    one, same, other = (matrix_of(name, 10, seed) for seed in (1, 1, 2))
    assert (one != same).nnz == 0
    assert not np.array_equal(one.data[:50], other.data[:50])
    assert np.unique(one.data).size > one.nnz * 0.99
    # scipy and torch would read half as much again, and what is counted as moved would be wrong.
    assert one.indices.dtype == one.indptr.dtype == np.int32


def test_real_graphs_have_their_known_sizes():
    if datasets.status("sparse-matrices").path is None:
        pytest.skip("the data set sparse-matrices is not on this machine")
    graph = matrix_of("ego-facebook", 0, 0)
    assert (graph.shape, graph.nnz) == ((4039, 4039), 2 * 88_234)
    assert graph.indices.dtype == np.int32
    assert np.diff(graph.indptr).max() == 1045
    assert list(SparseProduct(matrices=("ego-facebook",)).data()) == ["sparse-matrices/facebook_combined.edges.txt.gz"]


def test_a_matrix_of_ones_own_is_multiplied(tmp_path):
    path = tmp_path / "own.mtx"
    path.write_text("%%MatrixMarket matrix coordinate real general\n2 3 2\n1 3 5.0\n2 1 1.5\n")
    found = compare(
        "spmv", matrices=("file",), file=str(path), rounds=1, nonzeros_a_call=1, systems=("merbit", "scipy-csr"),
        out=tmp_path / "runs", on="here",
    )  # fmt: skip
    assert found.failures == ()


@pytest.mark.parametrize("settings", [{"file": "x.mtx"}, {"matrices": ("file",)}])
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(WavetankError, match="belong together"):
        SparseProduct(**settings).check()


def test_real_graphs_that_are_not_here_are_left_out_and_told_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    study = SparseProduct()
    assert study.case_names(0) == ("rmat-18", "rmat-20", "uniform-20", "stencil-1500", "banded-20")
    assert study.data() == {}
    assert "ego-facebook and wiki-vote" in study.notes()[0]
    assert SparseProduct(matrices=("wiki-vote",)).case_names(0) == ("wiki-vote",)
