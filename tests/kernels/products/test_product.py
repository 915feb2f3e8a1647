"""matmul: equal to the library within the stated bound, for any shape, layout and plan; and what it refuses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels import machine
from wavetank.kernels.products import product as product_module
from wavetank.kernels.products import profile
from wavetank.kernels.products.product import matmul, plan, plan_of, prepare
from wavetank.kernels.products.schemes import BUILT_IN, CLASSICAL, STRASSEN, WINOGRAD

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
def flat_profile(monkeypatch):
    """Let no test measure the machine: a made profile in which our own product is the faster one."""

    def made(dtype, threads):
        rate = {"own": 2e11, "block": 2e11, "numpy": 1e11, "torch": 1e11}
        rates = {way: np.full((2, 2, 2), value).tolist() for way, value in rate.items()}
        return profile.ProductProfile(
            dtype=dtype, threads=threads, grid=(16, 2048), rates=rates, term_s=1e-12, pass_s=1e-12
        )

    monkeypatch.setattr(profile, "cached", made)
    product_module._planned.cache_clear()
    yield
    product_module._planned.cache_clear()


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
    from wavetank.kernels.products.libraries import held_to

    with held_to("numpy", 1):
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
    assert torch.equal(matmul(x.T.contiguous().T, y.requires_grad_(), scheme="strassen"), result)
    library = plan_of(200, 210, 220, "library", CLASSICAL, library="torch", threads=1)
    assert np.allclose(matmul(x, y, plan=library).numpy(), a @ b, atol=1e-4)
    assert matmul(x, y).dtype == torch.float32


def test_a_plan_says_what_it_chose_and_what_that_costs():
    chosen = plan(2048, 2048, 2048, threads=1)
    times = [each.predicted_s for each in chosen.candidates]
    assert times == sorted(times)
    assert chosen.choice == chosen.candidates[0]
    assert chosen.method == "fused"
    assert chosen.multiplications == chosen.scheme.rank == 343
    assert chosen.flops == 343 * 2 * 256**3
    assert "workspace" in str(chosen)
    assert "strassen^3" in str(chosen)
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


F = np.ones((4, 4), np.float32)
REFUSED = {
    "integers": (lambda: matmul(F.astype(int), F), "float32 and float64"),
    "half precision": (lambda: matmul(F.astype(np.float16), F), "float32, float64"),
    "complex": (lambda: matmul(F.astype(complex), F), "float32"),
    "byte order": (lambda: matmul(F.astype(">f4"), F), "byte order"),
    "two types": (lambda: matmul(F, F.astype(np.float64)), "same type"),
    "inner sides": (lambda: matmul(F, F[:3]), "4 rows"),
    "vector": (lambda: matmul(F[0], F), "two dimensions"),
    "stack": (lambda: matmul(F[None], F), "two dimensions"),
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
