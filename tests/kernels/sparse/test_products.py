"""SpMVPlan and spmv: equal to scipy on everything awkward, the same on any number of threads, and what they refuse."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError, UnknownNameError
from wavetank.kernels.sparse import products
from wavetank.kernels.sparse.products import Merbit, SpMVPlan, spmv
from wavetank.machine import limits as machine
from wavetank.machine.thread_pool import cuts
from wavetank.workloads import datasets, matrices

RNG = np.random.default_rng(5)
OPTIONS = (
    {}, {"order": "hottest-first", "read": "gather"}, {"order": "given", "read": "load", "columns": "whole"},
    {"rows": "leave-out", "read": "gather"}, {"values": "stored"},
)  # fmt: skip


@pytest.fixture(autouse=True)
def own_layout(monkeypatch):
    """Take the plan's own layout, whatever is fastest here, and as many threads as are asked for."""
    monkeypatch.setattr(products.engines, "chosen", lambda *of: ("own", None))
    monkeypatch.setattr(products, "allowed_threads", lambda most=None: most or 2)


@pytest.fixture
def small_shares(monkeypatch):
    """Let threads share matrices of a few hundred nonzeros."""
    monkeypatch.setattr(products, "NONZEROS_WORTH_A_THREAD", 64)


def assert_right(found, matrix, x):
    """Hold against scipy within the rounding of as many additions as a row has entries."""
    rows = sp.csr_array(matrix)
    bound = (np.diff(rows.indptr) + 8) * np.finfo(found.dtype).eps * (abs(rows) @ abs(x.astype(np.float64)))
    assert found.shape == (rows.shape[0],)
    assert (np.abs(found - rows.astype(np.float64) @ x.astype(np.float64)) <= bound).all()


def one(shape, rows, columns, values=None):
    values = RNG.standard_normal(len(rows)) if values is None else values
    return sp.csr_array((values, (rows, columns)), shape=shape)


AWKWARD = {
    "one by one": one((1, 1), [0], [0]),
    "nothing": sp.csr_array((7, 5)),
    "no rows": sp.csr_array((0, 5)),
    "no columns": sp.csr_array((5, 0)),
    "first rows empty": one((900, 9), np.full(700, 899), RNG.integers(0, 9, 700)),
    "last rows empty": one((900, 9), np.zeros(700, int), RNG.integers(0, 9, 700)),
    "long runs of empty rows": one((200_000, 50), np.repeat([3, 100_000, 199_998], 300), RNG.integers(0, 50, 900)),
    "one dense row": matrices.one_long_row(5000),
    "one dense column": one((3000, 3000), np.arange(3000), np.full(3000, 1234)),
    "wide": sp.random(9, 70_000, 0.02, format="csr", rng=RNG),
    "tall": sp.random(70_000, 9, 0.02, format="csr", rng=RNG),
    "explicit zeros": one((50, 50), RNG.integers(0, 50, 400), RNG.integers(0, 50, 400), np.zeros(400)),
    "all values equal": one((50, 50), np.arange(50), np.arange(50), np.full(50, 0.3)),
    "mostly empty": matrices.mostly_empty(20_000),
    "graph": matrices.rmat(11),
    "stencil": matrices.five_point_stencil(60),
}


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", AWKWARD)
def test_the_product_is_that_of_scipy(name, options, small_shares):
    matrix = AWKWARD[name]
    x = RNG.standard_normal(matrix.shape[1])
    assert_right(SpMVPlan(matrix, threads=2, **options) @ x, matrix, x)


@pytest.mark.parametrize("name", ["one dense row", "graph", "wide", "mostly empty"])
def test_single_precision_is_right_too(name, small_shares):
    matrix = AWKWARD[name].astype(np.float32)
    x = RNG.standard_normal(matrix.shape[1]).astype(np.float32)
    for options in OPTIONS:
        found = SpMVPlan(matrix, threads=2, **options) @ x
        assert found.dtype == np.float32
        assert_right(found, matrix, x)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 600), st.integers(0, 2**32 - 1))
def test_random_structures_are_right_with_duplicates_and_in_any_order(rows, width, nonzeros, seed):
    rng = np.random.default_rng(seed)
    starts = np.concatenate(([0], np.sort(rng.integers(0, nonzeros + 1, rows - 1)), [nonzeros]))
    columns, values = rng.integers(0, width, nonzeros), rng.standard_normal(nonzeros)
    x = rng.standard_normal(width)
    expected = np.zeros(rows)
    np.add.at(expected, np.repeat(np.arange(rows), np.diff(starts)), values * x[columns])
    found = SpMVPlan((starts, columns, values, (rows, width)), threads=1) @ x
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["one dense row", "graph", "stencil", "wide", "mostly empty"])
def test_the_result_is_the_same_for_any_number_of_threads(name, small_shares):
    matrix = AWKWARD[name]
    x = RNG.standard_normal(matrix.shape[1])
    for options in OPTIONS[:4]:
        alone = SpMVPlan(matrix, threads=1, **options) @ x
        for threads in (2, 3, 7):
            plan = SpMVPlan(matrix, threads=threads, **options)
            for _ in range(3):
                assert np.array_equal(plan @ x, alone)


def test_parts_differ_by_a_segment_even_with_nearly_everything_in_one_row():
    plan = SpMVPlan(AWKWARD["one dense row"], threads=2)
    sizes = [end - begin for begin, end in cuts(plan.segments, plan._team.parts)]
    assert max(sizes) - min(sizes) <= 1


def test_products_from_several_threads_do_not_mix(small_shares):
    matrix = AWKWARD["graph"]
    plan = SpMVPlan(matrix, threads=2)
    vectors = [RNG.standard_normal(matrix.shape[1]) for _ in range(8)]
    alone = [plan @ x for x in vectors]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(plan.multiply, vectors * 5))
    assert all(np.array_equal(a, b) for a, b in zip(together, alone * 5, strict=True))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_reaches_the_rows_that_use_it_and_no_other(bad):
    matrix = one((600, 40), np.arange(600), RNG.integers(0, 40, 600))
    for column in (0, 17):
        x = np.ones(40)
        x[column] = bad
        for options in OPTIONS:
            found = SpMVPlan(matrix, **options) @ x
            assert np.array_equal(~np.isfinite(found), matrix.indices == column)


@pytest.mark.parametrize(
    ("name", "options", "form"),
    [
        ("stencil", {}, "16-bit columns, loads"),
        ("all values equal", {}, "16-bit columns, loads, equal values dropped"),
        ("mostly empty", {}, "16-bit columns, gathers, rows without nonzeros left out"),
        ("long runs of empty rows", {}, "16-bit columns, loads, rows without nonzeros left out"),
        ("wide", {"columns": "whole", "read": "load"}, "32-bit columns, loads"),
        ("graph", {"order": "hottest-first", "read": "load"}, "32-bit columns, loads, hottest columns first"),
        ("nothing", {}, "no nonzeros"),
    ],
)
def test_the_form_fits_the_matrix(name, options, form):
    assert SpMVPlan(AWKWARD[name], **options).form == form


def test_far_columns_take_16_bits_where_segments_span_few():
    matrix = matrices.banded(100_000, half_width=2)
    plan = SpMVPlan(matrix)
    assert plan.form.startswith("16-bit")
    x = RNG.standard_normal(100_000)
    assert_right(plan @ x, matrix, x)


def test_bytes_are_those_of_the_arrays():
    matrix = AWKWARD["stencil"]
    plan = SpMVPlan(matrix, values="stored")
    per_nonzero = plan.bytes_stored / plan.nonzeros
    assert 8 + 2 + 1 / 8 < per_nonzero < 12
    assert plan.bytes_moved == plan.bytes_stored + 8 * sum(matrix.shape)
    assert SpMVPlan(matrix).bytes_stored < plan.bytes_stored + 1
    assert plan.flops == 2 * matrix.nnz
    assert SpMVPlan(AWKWARD["nothing"]).bytes_moved == 8 * 12


def test_inputs_are_not_changed_and_may_be_read_only_or_strided():
    matrix = AWKWARD["graph"].copy()
    for part in (matrix.data, matrix.indices, matrix.indptr):
        part.flags.writeable = False
    x = np.arange(2.0 * matrix.shape[1])[::2]
    x.flags.writeable = False
    kept = x.copy()
    assert_right(SpMVPlan(matrix) @ x, matrix, x)
    assert np.array_equal(x, kept)


def test_the_result_can_be_written_into_an_array():
    matrix = AWKWARD["tall"]
    x, out = np.ones(9), np.full(70_000, np.nan)
    assert SpMVPlan(matrix).multiply(x, out=out) is out
    assert_right(out, matrix, x)


def test_pointers_of_64_bits_are_taken():
    matrix = AWKWARD["graph"]
    wide = (matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), matrix.data, matrix.shape)
    x = np.ones(matrix.shape[1])
    assert np.array_equal(SpMVPlan(wide) @ x, SpMVPlan(matrix) @ x)


def test_torch_vectors_give_torch_vectors():
    torch = pytest.importorskip("torch")
    matrix = AWKWARD["graph"]
    found = spmv(matrix, torch.ones(matrix.shape[1], dtype=torch.float64))
    assert isinstance(found, torch.Tensor)
    assert_right(found.numpy(), matrix, np.ones(matrix.shape[1]))


def test_one_product_takes_a_matrix_or_a_plan():
    matrix, x = AWKWARD["stencil"], np.ones(3600)
    assert np.array_equal(spmv(matrix, x), spmv(SpMVPlan(matrix), x))
    assert np.array_equal(Merbit(threads=1).prepare(matrix, x)(), spmv(matrix, x))


def test_a_plan_survives_pickling(small_shares):
    matrix = AWKWARD["graph"]
    x = np.ones(matrix.shape[1])
    plan = SpMVPlan(matrix, threads=2)
    before = plan @ x
    assert np.array_equal(pickle.loads(pickle.dumps(plan)) @ x, before)


@pytest.mark.parametrize(
    "x", [np.ones(7), np.ones((5, 1)), np.ones(5, complex), np.array(["a"] * 5), 1.0, [1, [2], 3, 4, 5], [1 << 80] * 5]
)
def test_a_vector_that_does_not_fit_is_refused(x):
    with pytest.raises(BadValueError, match="vector"):
        SpMVPlan(sp.csr_array(np.ones((3, 5)))) @ x


def test_a_vector_is_not_rounded_in_silence():
    plan = SpMVPlan(sp.csr_array(np.ones((3, 5), np.float32)))
    with pytest.raises(BadValueError, match="cannot hold") as caught:
        plan @ np.ones(5)
    assert caught.value.hint == "x.astype('float32') rounds it"


def test_tensors_are_held_to_the_same_types_as_arrays():
    torch = pytest.importorskip("torch")
    plan = SpMVPlan(sp.csr_array(np.ones((3, 5), np.float32)))
    for x in (
        torch.ones(5, dtype=torch.float64), torch.ones(5, dtype=torch.bfloat16), torch.ones(5).to_sparse(),
        torch.ones(5, dtype=torch.complex64),
    ):  # fmt: skip
        for product in (plan.multiply, plan.__matmul__):
            with pytest.raises(BadValueError, match=r"cannot hold|cannot be seen"):
                product(x)
    with torch.no_grad():
        assert (plan @ torch.nn.Parameter(torch.ones(5))).tolist() == [5, 5, 5]


def test_a_plan_has_its_threads():
    plan = SpMVPlan(sp.csr_array(np.ones((3, 5))))
    with pytest.raises(BadValueError, match="A plan has its threads"):
        spmv(plan, np.ones(5), threads=2)


def test_a_result_may_be_written_where_items_are_not_aligned():
    matrix = AWKWARD["stencil"]
    out = np.zeros(8 * 3600 + 1, np.uint8)[1:].view(np.float64)
    assert not out.flags.aligned
    x = RNG.standard_normal(3600)
    assert_right(SpMVPlan(matrix).multiply(x, out=out), matrix, x)


@pytest.mark.parametrize("out", [np.ones(4), np.ones(3, np.float32), np.ones(6)[::2], [0.0] * 3])
def test_an_out_that_does_not_fit_is_refused(out):
    with pytest.raises(BadValueError, match="does not fit into out"):
        SpMVPlan(sp.csr_array(np.ones((3, 5)))).multiply(np.ones(5), out=out)


def test_out_must_not_be_the_vector():
    x = np.ones(3)
    with pytest.raises(BadValueError, match="overlaps"):
        SpMVPlan(sp.csr_array(np.ones((3, 3)))).multiply(x, out=x)


@pytest.mark.parametrize("name", ["rows", "columns", "values", "order", "read"])
def test_an_unknown_choice_is_refused(name):
    with pytest.raises(UnknownNameError, match=f"choice of {name}"):
        SpMVPlan(AWKWARD["one by one"], **{name: "autoo"})


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_no_threads_are_refused(threads):
    with pytest.raises(BadValueError, match="at least one thread"):
        SpMVPlan(AWKWARD["one by one"], threads=threads)


def test_runs_of_empty_rows_that_are_too_long_to_keep_are_refused():
    with pytest.raises(BadValueError, match="too long to be kept"):
        SpMVPlan(AWKWARD["long runs of empty rows"], rows="keep")


def test_a_matrix_that_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 1 << 20)
    with pytest.raises(BadValueError, match="needs more memory"):
        SpMVPlan(matrices.banded(1 << 17))


@pytest.mark.parametrize(
    "name", ["bcsstk13.mtx.gz", "cryg2500.mtx.gz", "jagmesh7.mtx.gz", "olm1000.mtx.gz", "west0067.mtx.gz",
             "lp_afiro.mtx.gz", "karate.mtx.gz", "wiki-Vote.edges.txt.gz", "facebook_combined.edges.txt.gz"],
)  # fmt: skip
def test_real_matrices_are_right(name):
    if datasets.status("sparse-matrices").path is None:
        pytest.skip("the data set sparse-matrices is not on this machine")
    matrix = matrices.read_matrix(datasets.find("sparse-matrices", name))
    x = RNG.standard_normal(matrix.shape[1])
    for threads in (1, 2):
        assert_right(SpMVPlan(matrix, threads=threads) @ x, matrix, x)
