"""matmul: equal to the library within the stated bound, for any shape, layout and plan; and what it refuses."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.products import libraries, priors, profile
from wavetank.kernels.products import product as product_module
from wavetank.kernels.products.product import matmul, plan, plan_of, prepare
from wavetank.kernels.products.schemes import BUILT_IN, CLASSICAL, STRASSEN, WINOGRAD
from wavetank.machine import limits as machine
from wavetank.machine.threads import allowed_threads, libraries_limited

METHODS = ("fused", "combined")
LAYOUTS = {
    "rows": lambda x: np.ascontiguousarray(x),
    "columns": lambda x: np.asfortranarray(x),
    "wide rows": lambda x: np.pad(x, ((0, 0), (3, 5)))[:, 3 : 3 + x.shape[1]],
    "every other": lambda x: np.repeat(np.repeat(x, 2, 0), 2, 1)[::2, ::2],
    "backwards": lambda x: np.ascontiguousarray(x[::-1])[::-1],
}


def operands(m, k, n, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return tuple((rng.random(shape) - 0.5).astype(dtype) for shape in ((m, k), (k, n)))


def assert_within_bound(a, b, result, chosen):
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    scale = float(np.abs(a).max(initial=0)) * float(np.abs(b).max(initial=0))
    assert float(np.abs(result - exact).max(initial=0)) <= chosen.error_bound * scale


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    """Let no test find a profile of the user's, nor measure: a product never does."""
    monkeypatch.setattr(profile, "kept", lambda *_: None)
    monkeypatch.setattr(profile, "is_any_kept", lambda *_: False)
    monkeypatch.setattr(profile, "measure", lambda *_, **__: pytest.fail("a product measures"))


@pytest.fixture
def flat_profile(monkeypatch):
    """A made profile in which our own product is the faster one."""

    def made(dtype, threads):
        rate = {"own": 2e11, "block": 2e11, "numpy": 1e11, "torch": 1e11}
        rates = {way: np.full((2, 2, 2), value).tolist() for way, value in rate.items()}
        return profile.ProductProfile(
            dtype=dtype,
            threads=threads,
            grid=(16, 2048),
            rates=rates,
            term_s=1e-12,
            pass_s=1e-12,
            versions=libraries.versions(libraries.available()),
        )

    monkeypatch.setattr(profile, "kept", made)
    monkeypatch.setattr(profile, "is_any_kept", lambda *_: True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("scheme", ["classical", "strassen", "winograd"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 3, 7), (64, 64, 64), (131, 257, 73), (3, 400, 90), (500, 40, 3)])
def test_every_plan_equals_the_library_within_its_bound(dtype, method, scheme, shape):
    a, b = operands(*shape, dtype)
    for levels in (1, 2, 3):
        for threads in (1, 2):
            chosen = plan_of(*shape, method, BUILT_IN[scheme].power(levels), dtype=dtype, threads=threads)
            assert_within_bound(a, b, matmul(a, b, plan=chosen), chosen)


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_any_layout_is_right_and_left_as_it_was(left, right):
    a, b = operands(150, 210, 131)
    x, y = LAYOUTS[left](a), LAYOUTS[right](b)
    x.flags.writeable = y.flags.writeable = False
    for method in METHODS:
        chosen = plan_of(150, 210, 131, method, STRASSEN.power(2), threads=2)
        assert_within_bound(a, b, matmul(x, y, plan=chosen), chosen)
    assert np.array_equal(x, a)
    assert np.array_equal(y, b)


def test_blocks_longer_than_the_caches_are_right():
    a, b = operands(1000, 700, 1300)
    for levels in (0, 1):
        chosen = plan_of(1000, 700, 1300, "fused", STRASSEN.power(levels), threads=1)
        assert_within_bound(a, b, matmul(a, b, plan=chosen), chosen)


@settings(max_examples=40)
@given(
    st.integers(1, 200), st.integers(1, 200), st.integers(1, 200), st.integers(0, 3), st.sampled_from(METHODS),
    st.booleans(), st.booleans(), st.integers(1, 3),
)  # fmt: skip
def test_whole_numbers_are_multiplied_exactly(m, k, n, levels, method, turn_a, turn_b, threads):
    rng = np.random.default_rng(m * 7 + k * 5 + n)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    exact = a.astype(np.int64) @ b.astype(np.int64)
    x, y = (np.asfortranarray(z) if turn else z for z, turn in ((a, turn_a), (b, turn_b)))
    chosen = plan_of(m, k, n, method, WINOGRAD.power(levels), threads=threads)
    assert np.array_equal(matmul(x, y, plan=chosen), exact)


@pytest.mark.parametrize("shape", [(64, 64, 64), (301, 200, 150)])
def test_the_plan_library_is_the_library_bit_for_bit(shape):
    a, b = operands(*shape)
    chosen = plan_of(*shape, "library", STRASSEN, threads=1)
    assert (chosen.scheme, chosen.workspace_bytes) == (CLASSICAL, 0)
    with libraries_limited(1):
        expected = a @ b
    assert np.array_equal(matmul(a, b, plan=chosen), expected)


def test_the_error_grows_with_the_depth_but_not_beyond_the_known_bound():
    n = 512
    a, b = operands(n, n, n)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    errors = [float(np.abs(matmul(a, b, scheme="strassen", levels=d) - exact).max()) for d in range(4)]
    assert errors[0] < errors[2] < errors[3]
    unit = float(np.finfo(np.float32).eps)
    assert all(error <= 12**depth * n * unit for depth, error in enumerate(errors))
    bounds = [plan_of(n, n, n, "fused", STRASSEN.power(d)).error_bound for d in range(4)]
    assert bounds == sorted(bounds)


def test_more_threads_and_prepared_sums_change_no_bit():
    a, b = operands(300, 260, 420)
    one = matmul(a, b, scheme="strassen", threads=1)
    assert np.array_equal(matmul(a, b, scheme="strassen", threads=2), one)
    assert prepare(b).scheme is CLASSICAL
    prepared = prepare(b, scheme="strassen")
    assert np.array_equal(matmul(a, prepared, threads=2), one)
    assert np.array_equal(matmul(a[:3], prepared), matmul(a[:3], b, scheme="strassen"))
    assert b.nbytes * 7 / 4 <= prepared.nbytes < b.nbytes * 7 / 4 * 1.5


@pytest.mark.parametrize("method", METHODS)
def test_nan_and_infinity_land_where_the_library_puts_them(method):
    a, b = operands(140, 150, 160)
    a[3, 5], a[70, 140], b[20, 9] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        result = matmul(a, b, plan=plan_of(140, 150, 160, method, STRASSEN.power(2), threads=1))
        expected = a @ b
    assert np.array_equal(np.isnan(result), np.isnan(expected))
    finite = np.isfinite(expected)
    assert np.array_equal(np.isfinite(result), finite)
    assert np.allclose(result[finite], expected[finite], atol=1e-4)


def test_sums_that_overflow_only_within_a_scheme_are_computed_without_it():
    a, b = operands(80, 80, 80)
    a = a * np.float32(3e38)
    assert np.isfinite(matmul(a, b * np.float32(1e-3), scheme="strassen", levels=3)).all()


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)])
def test_empty_matrices_give_empty_or_zero_results(shape):
    a, b = operands(*shape)
    assert np.array_equal(matmul(a, b), a @ b)
    assert np.array_equal(matmul(a, b, scheme="strassen"), a @ b)


def test_out_receives_the_result_whatever_its_strides():
    a, b = operands(90, 100, 110)
    expected = matmul(a, b, scheme="strassen", threads=1)
    for out in (
        np.empty((90, 110), np.float32),
        np.empty((90, 110), np.float32, order="F"),
        np.empty((90, 220), np.float32)[:, ::2],
    ):
        assert matmul(a, b, out=out, scheme="strassen", threads=1) is out
        assert np.array_equal(out, expected)


def test_tensors_give_a_tensor():
    torch = pytest.importorskip("torch")
    a, b = operands(200, 210, 220)
    x, y = torch.from_numpy(a), torch.from_numpy(b)
    result = matmul(x, y, scheme="strassen")
    assert isinstance(result, torch.Tensor)
    assert np.array_equal(result.numpy(), matmul(a, b, scheme="strassen"))
    assert torch.equal(matmul(x.T.contiguous().T, y, scheme="strassen"), result)
    library = plan_of(200, 210, 220, "library", CLASSICAL, library="torch", threads=1)
    assert np.allclose(matmul(x, y, plan=library).numpy(), a @ b, atol=1e-4)
    assert matmul(x, y).dtype == torch.float32


def test_a_plan_says_what_it_chose_and_what_that_costs(flat_profile):
    chosen = plan(2048, 2048, 2048, threads=1, accuracy="normwise")
    times = [each.predicted_s for each in chosen.candidates]
    assert times == sorted(times)
    assert chosen.choice == chosen.candidates[0]
    assert chosen.method == "fused"
    assert chosen.multiplications == chosen.scheme.rank == 343
    assert chosen.flops == 343 * 2 * 256**3
    assert "workspace" in str(chosen)
    assert "strassen^3" in str(chosen)
    assert "profile measured" in str(chosen)
    plain = plan(2048, 2048, 2048, threads=1)
    assert {each.scheme.rank for each in plain.candidates} == {1}
    assert plain.method == "fused"
    assert plan(64, 64, 64).method == "library"


@pytest.mark.parametrize("shape", [(300, 500, 700), (1000, 900, 100), (40, 2000, 2500)])
@pytest.mark.parametrize("method", METHODS)
def test_no_more_memory_is_used_than_stated(shape, method, monkeypatch):
    a, b = operands(*shape)
    for threads in (1, 2):
        chosen = plan_of(*shape, method, STRASSEN, threads=threads)
        out = np.empty((shape[0], shape[2]), np.float32)
        taken = []
        empty = np.empty

        def counted(size, dtype=float, taken=taken, empty=empty, **more):
            made = empty(size, dtype, **more)
            # numpy's own small scratch inside other calls is not ours.
            taken.append(made.nbytes if made.nbytes > 1024 else 0)
            return made

        monkeypatch.setattr(np, "empty", counted)
        matmul(a, b, plan=chosen, out=out)
        monkeypatch.undo()
        assert 0 < sum(taken) <= chosen.workspace_bytes


def test_too_little_memory_is_said_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr(machine, "available_bytes", lambda: 1 << 20)
    a = np.zeros((1, 1), np.float32)
    tall, wide = np.broadcast_to(a, (30_000, 1)), np.broadcast_to(a, (1, 30_000))
    with pytest.raises(BadValueError, match="more memory"):
        matmul(tall, wide)


F, BOTH = np.ones((4, 4), np.float32), np.ones((4, 8), np.float32)
REFUSED = {
    "integers": (lambda: matmul(F.astype(int), F), "float32 and float64"),
    "half precision": (lambda: matmul(F.astype(np.float16), F), "float16 is not multiplied on the processor"),
    "half on the right": (lambda: matmul(F, F.astype(np.float16)), "where: b"),
    "complex": (lambda: matmul(F.astype(complex), F), "float32"),
    "byte order": (lambda: matmul(F.astype(">f4"), F), "byte order"),
    "two types": (lambda: matmul(F, F.astype(np.float64)), "same type"),
    "inner sides": (lambda: matmul(F, F[:3]), "4 rows"),
    "number": (lambda: matmul(np.float32(3), F), "not a matrix"),
    "batches": (lambda: matmul(np.ones((2, 4, 4), np.float32), np.ones((3, 4, 4), np.float32)), "must broadcast"),
    "vector of another length": (lambda: matmul(F[0, :3], F), "inner sides"),
    "accuracy": (lambda: matmul(F, F, accuracy="norm"), "nearest: normwise"),
    "accuracy of a plan": (lambda: plan(4, 4, 4, accuracy="libary"), "nearest: library"),
    "scheme at the library's accuracy": (lambda: matmul(F, F, scheme="strassen", accuracy="library"), "scaled"),
    "plan of a scheme at it": (lambda: plan_of(4, 4, 4, "fused", STRASSEN, accuracy="library"), "normwise"),
    "prepared and scaled": (lambda: matmul(F, prepare(F, scheme="strassen"), accuracy="scaled"), "cannot be scaled"),
    "prepared batch": (lambda: prepare(F[None]), "Only a matrix"),
    "plan and accuracy": (lambda: matmul(F, F, accuracy="library", plan=plan_of(4, 4, 4, "fused", STRASSEN)), "plan("),
    "list": (lambda: matmul([[1.0]], F), "same type"),
    "ragged list": (lambda: matmul([[1.0], [1.0, 2.0]], F), "cannot be seen as an array"),
    "list for the result": (lambda: matmul(F, F, out=[[0.0]]), "written into an array"),
    "threads": (lambda: matmul(F, F, threads=0), "1 to 1024"),
    "scheme": (lambda: matmul(F, F, scheme="strasen"), "nearest: strassen"),
    "kind of scheme": (lambda: matmul(F, F, scheme=3), "int"),
    "levels": (lambda: matmul(F, F, scheme="strassen", levels=4), "0 to 3"),
    "plan": (lambda: matmul(F, F, plan=plan_of(4, 4, 5, "fused", STRASSEN)), "another product"),
    "method": (lambda: plan_of(4, 4, 4, "fuse", STRASSEN), "nearest: fused"),
    "library": (lambda: plan_of(4, 4, 4, "library", STRASSEN, library="numpi"), "nearest: numpy"),
    "side": (lambda: plan(4, -1, 4), "where: k"),
    "out shape": (lambda: matmul(F, F, out=np.ones((4, 5), np.float32)), "(4, 4)"),
    "out type": (lambda: matmul(F, F, out=np.ones((4, 4))), "float32"),
    "out is an input": (lambda: matmul(F, F, out=F), "overlaps"),
    "out is part of an input": (lambda: matmul(BOTH[:, :4], F, out=BOTH[:, 2:6]), "overlaps"),
    "out is the source of a prepared matrix": (lambda: (lambda p: matmul(F, p, out=p.source))(prepare(F + 0)),
                                               "overlaps"),
    "out overlaps itself": (lambda: matmul(F, F, out=np.lib.stride_tricks.as_strided(
        np.zeros(16, np.float32), (4, 4), (4, 4))), "share memory"),
    "out of a vector": (lambda: matmul(F[0], F, out=np.ones((1, 4), np.float32)), "(4,)"),
    "prepared and scheme": (lambda: matmul(F, prepare(F), scheme="strassen"), "own scheme"),
    "prepared nothing": (lambda: prepare(F[:0]), "empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_multiplied_is_refused(case):
    call, says = REFUSED[case]
    with pytest.raises(BadValueError) as caught:
        call()
    assert says in str(caught.value)


def test_a_read_only_result_is_refused():
    out = np.empty((4, 4), np.float32)
    out.flags.writeable = False
    with pytest.raises(BadValueError, match="read-only"):
        matmul(F, F, out=out)


# --- what a default product is ------------------------------------------------------------------------------------


def componentwise(a, b, result):
    """Return the worst error relative to |A||B|, entry by entry."""
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble)
    return float((np.abs(result - exact) / (np.abs(a.astype(float)) @ np.abs(b.astype(float)))).max())


def uneven(n, dtype=np.float32, seed=0):
    """Positive matrices with half the rows of A scaled by 1e-7 and the columns of B in units 1e6 apart."""
    rng = np.random.default_rng(seed)
    a, b = (rng.random((n, n)) + 0.1 for _ in range(2))
    # By halves, so that a scheme adds small rows to large ones.
    a[: n // 2] *= 1e-7
    b[:, n // 2 :] *= 1e6
    return a.astype(dtype), b.astype(dtype)


def test_by_default_rows_and_columns_of_any_scale_keep_the_accuracy_of_a_plain_product(flat_profile):
    # The profile says that three levels of a scheme would be fastest.
    a, b = uneven(640)
    result = matmul(a, b)
    assert componentwise(a, b, result) <= 640 * 2.0**-24
    assert (result > 0).all()
    assert np.array_equal(matmul(a, np.eye(640, dtype=np.float32)), a)
    assert componentwise(*uneven(512, np.float64), matmul(*uneven(512, np.float64))) <= 512 * 2.0**-53


def test_a_scheme_alone_loses_small_rows(flat_profile):
    a, b = uneven(640)
    assert plan(640, 640, 640, accuracy="normwise").scheme.rank > 1
    assert componentwise(a, b, matmul(a, b, accuracy="normwise")) > 0.1


@pytest.mark.parametrize("accuracy", ["scaled", "normwise"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_lands_where_the_library_puts_it_scaled_or_not(accuracy, value):
    a, b = operands(140, 150, 160)
    a[3, 5], b[20, 9] = value, value
    with np.errstate(invalid="ignore"):
        expected = a @ b
        result = matmul(a, b, scheme="strassen", accuracy=accuracy)
    assert np.array_equal(np.isnan(result), np.isnan(expected))
    assert np.array_equal(np.isposinf(result), np.isposinf(expected))


def test_a_result_beyond_the_type_is_infinite_as_the_librarys():
    a, b = (np.full((64, 64), 1e30, np.float32) for _ in range(2))
    assert np.isposinf(matmul(a, b, scheme="strassen", accuracy="scaled")).all()


def test_scaled_products_take_no_more_memory_than_stated(monkeypatch):
    a, b = operands(300, 500, 400)
    chosen = plan_of(300, 500, 400, "fused", STRASSEN, threads=2, accuracy="scaled")
    out = np.empty((300, 400), np.float32)
    matmul(a, b, plan=chosen, out=out)
    tracemalloc.start()
    matmul(a, b, plan=chosen, out=out)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    unscaled = plan_of(300, 500, 400, "fused", STRASSEN, threads=2)
    assert a.nbytes + b.nbytes < peak <= chosen.workspace_bytes + 200_000
    assert chosen.workspace_bytes >= unscaled.workspace_bytes + a.nbytes + b.nbytes


# --- no measuring, and who is asked -------------------------------------------------------------------------------


def test_no_size_of_product_measures_or_asks_a_profile_where_none_is_kept(monkeypatch):
    for side in (8, 400, 700):
        a = np.ones((side, side), np.float32)
        assert matmul(a, a)[0, 0] == side
        assert matmul(a, a, accuracy="normwise")[0, 0] == side


def test_without_a_profile_the_shipped_rules_decide(monkeypatch):
    made = priors.Priors("made", "Made", "nothing", ("torch", "numpy"), 4, {"float32": ((1, 500), (2, 900))})
    monkeypatch.setattr(priors, "here", lambda: made)
    product_module._decided.cache_clear()
    names = {"numpy", "torch"} & set(libraries.available())
    assert plan(600, 600, 600, threads=1).choice.library == ("torch" if "torch" in names else "numpy")
    assert plan(600, 600, 600, threads=1).scheme.rank == 1
    for side, rank in ((499, 1), (500, 7), (899, 7), (900, 49)):
        for accuracy in ("normwise", "scaled"):
            assert plan(side, 1000, 1000, threads=1, accuracy=accuracy).scheme.rank == rank
    assert plan(900, 900, 900, dtype=np.float64, threads=1, accuracy="normwise").scheme.rank == 1
    product_module._decided.cache_clear()


def test_a_profile_that_never_saw_the_callers_library_is_not_asked(flat_profile, monkeypatch):
    seen = profile.kept("float32", 1)
    assert plan(700, 700, 700, threads=1).basis == "the profile measured on this machine"
    older = dataclasses.replace(seen, versions={"numpy": "0.1"})
    monkeypatch.setattr(profile, "kept", lambda *_: older)
    assert plan(700, 700, 700, threads=1).basis != "the profile measured on this machine"


def test_threads_are_never_more_than_allowed():
    with libraries_limited(1):
        pass
    assert plan(700, 700, 700, threads=1000).threads == allowed_threads(1000)
    assert plan_of(4, 4, 4, "fused", STRASSEN, threads=1).threads == 1


# --- shapes -------------------------------------------------------------------------------------------------------

SHAPES = [
    ((5,), (5,)), ((5,), (5, 6)), ((4, 5), (5,)), ((3, 4, 5), (5, 6)), ((3, 4, 5), (3, 5, 6)), ((4, 5), (3, 5, 6)),
    ((2, 1, 4, 5), (3, 5, 6)), ((3, 4, 5), (5,)), ((5,), (3, 5, 6)), ((0, 4, 5), (5, 6)), ((3, 4, 0), (3, 0, 6)),
    ((1, 4, 5), (7, 5, 6)), ((3, 40, 50), (50, 60)),
]  # fmt: skip


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("scheme", [None, "strassen"])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_vectors_and_leading_dimensions_are_those_of_numpy(left, right, scheme, as_tensor):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in (left, right))
    expected = np.matmul(a, b)
    x, y = a, b
    if as_tensor:
        torch = pytest.importorskip("torch")
        x, y = torch.from_numpy(a), torch.from_numpy(b)
    result = matmul(x, y, scheme=scheme)
    assert tuple(result.shape) == np.shape(expected)
    assert np.array_equal(np.asarray(result), expected)
    if expected.ndim:
        for out in (np.full(expected.shape, 9, np.float32), np.full((*expected.shape, 2), 9, np.float32)[..., 0]):
            assert matmul(a, b, scheme=scheme, out=out) is out
            assert np.array_equal(out, expected)


def test_a_batch_of_any_strides_and_a_plan_per_matrix():
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (3, 40, 40)).astype(np.float32) for _ in range(2))
    x = np.ascontiguousarray(a.transpose(2, 0, 1)).transpose(1, 2, 0)
    assert np.array_equal(matmul(x[:, ::2], b[0]), np.matmul(a[:, ::2], b[0]))
    assert np.array_equal(matmul(a, b, plan=plan_of(40, 40, 40, "combined", WINOGRAD, threads=1)), np.matmul(a, b))
    assert np.array_equal(matmul(a, prepare(b[0], scheme="strassen")), np.matmul(a, b[0]))
    assert matmul(a[0, 0], b[0, 0]) == float(a[0, 0] @ b[0, 0])


@pytest.mark.parametrize(("left", "right"), [((2, 3, 0), (0, 4)), ((2, 3, 0), (0,)), ((2, 3, 4), (4, 0))])
def test_an_empty_batch_gives_numpys_zeros(left, right):
    a, b = np.ones(left), np.ones(right)
    expected = a @ b
    for out in (None, np.full(expected.shape, np.nan)):
        found = matmul(a, b, out=out)
        assert found.shape == expected.shape
        assert np.array_equal(found, expected)
