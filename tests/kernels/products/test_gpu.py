"""matmul on a GPU, run by Triton's interpreter: right for any shape, within its bound; its plans; what it refuses."""

import dataclasses
import math

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.kernels.products import gpu, gpu_profile, product
from wavetank.kernels.products.gpu_profile import WAYS, GpuProfile
from wavetank.kernels.products.schemes import BUILT_IN, CLASSICAL, STRASSEN, WINOGRAD

torch = pytest.importorskip("torch", reason="torch is not installed")

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24, "float64": 2.0**-53}


def made(rates=None, dtype="float32", bandwidth=3e12, launch_s=1e-5):
    """Return a profile of even rates: a GPU of 50 Tflop/s unless told otherwise."""
    given = dict.fromkeys(WAYS, 5e13) | (rates or {})
    return GpuProfile(
        device="made", torch="2", dtype=dtype, tf32=False, grid=(256, 4096),
        rates={way: np.full((2, 2, 2), rate).tolist() for way, rate in given.items()},
        pass_bytes_per_s=bandwidth, launch_s=launch_s,
    )  # fmt: skip


def operands(shape, kind, seed=0):
    m, k, n = shape
    rng = np.random.default_rng(seed)
    return tuple(torch.from_numpy(rng.random(side) - 0.5).to(getattr(torch, kind)) for side in ((m, k), (k, n)))


def error_and_bound(shape, kind, name, levels, method):
    """Run in the interpreter: the largest error relative to max|A| max|B|, its bound, and what is allocated."""
    a, b = operands(shape, kind)
    chosen = gpu.plan_of(*shape, method, BUILT_IN[name].power(levels), dtype=getattr(torch, kind))
    found = gpu.matmul(a, b, plan=chosen)
    exact = a.double().numpy().astype(np.longdouble) @ b.double().numpy().astype(np.longdouble)
    scale = float(a.double().abs().max() * b.double().abs().max())
    return float(np.abs(found.double().numpy() - exact).max()) / scale, chosen.error_bound, str(found.dtype)


def whole_numbers_differ(shape, name, levels, method, turns):
    """Run in the interpreter: whether whole numbers are multiplied exactly, and operands left as they were."""
    m, k, n = shape
    rng = np.random.default_rng(m * 7 + k * 5 + n)
    a, b = (torch.from_numpy(rng.integers(-3, 4, side).astype(np.float32)) for side in ((m, k), (k, n)))
    x, y = (z.T.contiguous().T if turn else z for z, turn in zip((a, b), turns, strict=True))
    room = torch.full((n, m), 9.0).T if turns[0] else torch.full((m, n + 3), 9.0)[:, :n]
    chosen = gpu.plan_of(m, k, n, method, BUILT_IN[name].power(levels))
    found = gpu.matmul(x, y, out=room, plan=chosen)
    return bool((found == a @ b).all()), found is room, torch.equal(x, a) and torch.equal(y, b)


def padded_leaves_no_trace():
    """Run in the interpreter: whether what memory held before, and what is not finite, stays out of other entries."""
    a, b = operands((45, 61, 70), "float32")
    # What is freed here is what the copies of the operands are made in.
    for shape in ((45, 64), (64, 80), (45, 80)):
        torch.full(shape, math.nan)
    a[3, 4], b[7, 8] = math.inf, math.nan
    found = gpu.matmul(a, b, plan=gpu.plan_of(45, 61, 70, "padded", CLASSICAL))
    return torch.allclose(found, a @ b, equal_nan=True, atol=1e-5)


def infinities(method):
    """Run in the interpreter: whether infinities and NaN land where torch puts them, and the rest is right."""
    a, b = operands((45, 61, 70), "float32")
    a[3, 4], b[7, 8] = math.inf, math.nan
    found, theirs = gpu.matmul(a, b, plan=gpu.plan_of(45, 61, 70, method, STRASSEN)), a @ b
    return torch.allclose(found, theirs, equal_nan=True, atol=1e-5)


def negated():
    """Run in the interpreter: operands and a result that torch only marks as negated."""
    a, b = operands((21, 30, 25), "float64")
    marked = [torch.complex(torch.zeros_like(each), -each).conj().imag for each in (a, b)]
    room = torch.complex(torch.zeros(21, 25).double(), torch.zeros(21, 25).double()).conj().imag
    gpu.matmul(*marked, out=room, scheme="strassen")
    return all(each.is_neg() for each in (*marked, room)), torch.allclose(room, a @ b)


def half_overflow():
    """Run in the interpreter: products of sums that overflow float16 where the product itself does not."""
    a, b = torch.full((40, 40), 40000.0).half(), torch.eye(40).half()
    return torch.equal(gpu.matmul(a, b, scheme="strassen"), a)


def empty_products():
    """Run in the interpreter: products with a side of 0."""
    return [gpu.matmul(torch.ones(m, k), torch.ones(k, n)).tolist() for m, k, n in ((0, 3, 2), (2, 0, 3), (2, 3, 0))]


def library_bits():
    """Run in the interpreter: whether the plan "library", and no plan at all, are torch's product bit for bit."""
    a, b = operands((64, 50, 33), "float32")
    plain = gpu.plan_of(64, 50, 33, "library", STRASSEN)
    return torch.equal(gpu.matmul(a, b, plan=plain), a @ b), torch.equal(gpu.matmul(a, b), a @ b)


def prepared_products(name, levels, turned):
    """Run in the interpreter: a prepared operand in three products, and whether the gradient is the right one."""
    b = operands((1, 61, 70), "float32")[1]
    ready = gpu.prepare(b.T.contiguous().T if turned else b, scheme=name, levels=levels)
    close = []
    for m in (5, 45, 64):
        a = operands((m, 61, 70), "float32", m)[0].requires_grad_()
        found = gpu.matmul(a, ready)
        found.sum().backward()
        right = torch.allclose(a.grad, b.sum(1).expand(m, 61), atol=1e-4)
        close.append(torch.allclose(found, a @ b, atol=1e-4) and right)
    rank = BUILT_IN[name].power(levels).rank
    return close, ready.shape, ready.nbytes / rank, ready.dtype == torch.float32


def refused(case):
    """Run in the interpreter: the text of the error that wrong input meets."""
    a, b = operands((8, 9, 7), "float32")
    room = torch.empty(100)
    calls = {
        "inner": lambda: gpu.matmul(a, a),
        "kinds": lambda: gpu.matmul(a, b.double()),
        "whole": lambda: gpu.matmul(a.long(), b.long()),
        "cubes": lambda: gpu.matmul(a[None], b),
        "array": lambda: gpu.matmul(a.numpy(), b),
        "sparse": lambda: gpu.matmul(a.to_sparse(), b),
        "shape": lambda: gpu.matmul(a, b, out=torch.empty(7, 8)),
        "out kind": lambda: gpu.matmul(a, b, out=torch.empty(8, 7, dtype=torch.float64)),
        "overlap": lambda: gpu.matmul(room[:16].view(4, 4), room[8:24].view(4, 4), out=room[20:36].view(4, 4)),
        "scheme": lambda: gpu.matmul(a, b, scheme="strasen"),
        "levels": lambda: gpu.matmul(a, b, scheme="strassen", levels=4),
        "type of scheme": lambda: gpu.matmul(a, b, scheme=3),
        "plan": lambda: gpu.matmul(a, b, plan=gpu.plan_of(8, 9, 8, "fused", STRASSEN)),
        "plan and scheme": lambda: gpu.matmul(a, b, scheme="strassen", plan=gpu.plan_of(8, 9, 7, "fused", STRASSEN)),
        "plan of a processor": lambda: gpu.matmul(a, b, plan=product.plan_of(8, 9, 7, "fused", STRASSEN)),
        "prepared": lambda: gpu.matmul(a, gpu.prepare(b), scheme="winograd"),
        "empty": lambda: gpu.prepare(torch.empty(0, 3)),
        "rank": lambda: gpu.prepare(b, scheme=STRASSEN.power(2).inside(STRASSEN.power(2))),
    }
    try:
        calls[case]()
    except BadValueError as error:
        return str(error)
    return ""


def over_memory():
    """Run in the interpreter: the error where neither workspace nor result has room."""
    from wavetank.machine import limits as machine

    kept, machine.available_bytes = machine.available_bytes, lambda: 1 << 24
    texts = []
    try:
        a, b = torch.ones(2000, 16), torch.ones(16, 2000)
        for call in (
            lambda: gpu.matmul(a, b, out=torch.empty(2000, 2000), scheme="strassen"),
            lambda: gpu.matmul(torch.ones(4000, 1), torch.ones(1, 4000)),
        ):
            try:
                call()
                texts.append("")
            except BadValueError as error:
                texts.append(str(error))
    finally:
        machine.available_bytes = kept
    return texts


@pytest.mark.parametrize("kind", list(UNIT))
@pytest.mark.parametrize("method", ["combined", "fused", "library", "padded"])
@pytest.mark.parametrize(("name", "levels"), [("strassen", 1), ("winograd", 2)])
def test_every_way_stays_within_its_bound(interpreter, kind, method, name, levels):
    # The interpreter takes seconds for two levels: one shape of them.
    shapes = [(45, 61, 70)] if levels == 2 else [(45, 61, 70), (1, 1, 1), (130, 40, 33)]
    for shape in shapes:
        error, bound, dtype = interpreter(error_and_bound, shape, kind, name, levels, method)
        assert error <= bound
        assert dtype == f"torch.{kind}"


@pytest.mark.parametrize("kind", list(UNIT))
def test_the_bound_is_no_more_than_the_classical_one_times_the_growth_of_the_scheme(kind):
    for scheme in (STRASSEN, WINOGRAD, STRASSEN.power(2)):
        plain = gpu.error_bound(4096, 4096, 4096, kind, "library", CLASSICAL, False)
        bounds = [gpu.error_bound(4096, 4096, 4096, kind, method, scheme, False) for method in ("combined", "fused")]
        assert plain >= 4096 * UNIT[kind]
        # Keeping products in memory rounds them once more.
        assert plain < bounds[1] <= bounds[0] < 8 * scheme.growth() * plain


def test_rounding_to_tf32_widens_the_bound_of_float32():
    as_is, rounded = (gpu.error_bound(512, 512, 512, "float32", "combined", STRASSEN, tf32) for tf32 in (False, True))
    assert rounded > 2 * 512 * 2.0**-10 > as_is


@pytest.mark.parametrize("method", ["combined", "fused"])
@pytest.mark.parametrize("turns", [(False, False), (True, False), (True, True)])
def test_whole_numbers_are_multiplied_exactly_in_any_layout(interpreter, method, turns):
    for shape, name, levels in (((45, 61, 70), "strassen", 1), ((33, 17, 2), "winograd", 1)):
        assert interpreter(whole_numbers_differ, shape, name, levels, method, turns) == (True, True, True)
    if method == "combined":
        assert interpreter(whole_numbers_differ, (131, 70, 65), "winograd", 2, method, turns) == (True, True, True)


def test_rows_that_are_filled_up_change_no_entry(interpreter):
    assert interpreter(padded_leaves_no_trace)



@pytest.mark.parametrize("method", ["combined", "fused"])
def test_infinities_and_nan_land_where_the_library_puts_them(interpreter, method):
    assert interpreter(infinities, method)


def test_tensors_that_are_only_marked_as_negated_count_as_what_they_are(interpreter):
    assert interpreter(negated) == (True, True)


def test_sums_that_overflow_half_precision_do_not_spoil_a_product_that_does_not(interpreter):
    assert interpreter(half_overflow)


def test_products_with_an_empty_side_are_empty_or_zero(interpreter):
    assert interpreter(empty_products) == [[], [[0.0] * 3] * 2, [[], []]]


def test_the_plan_library_is_the_library_bit_for_bit(interpreter):
    assert interpreter(library_bits) == (True, True)


@pytest.mark.parametrize(("name", "levels"), [("strassen", 1), ("winograd", 2)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_prepared_operand_serves_many_products(interpreter, name, levels, turned):
    close, shape, sum_bytes, same = interpreter(prepared_products, name, levels, turned)
    assert close == [True] * 3
    assert (shape, same) == ((61, 70), True)
    blocks = 2**levels
    deep, wide = (-(-side // (blocks * 16)) * 16 for side in (61, 70))
    assert sum_bytes == 4 * deep * wide


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("inner", "inner sides"), ("kinds", "same type"), ("whole", "floating-point"), ("cubes", "two dimensions"),
        ("array", "torch tensor"), ("sparse", "not dense"), ("shape", "does not fit"), ("out kind", "does not fit"),
        ("overlap", "overlaps"), ("scheme", "nearest: strassen"), ("levels", "applied this many times"),
        ("type of scheme", "a name or a Scheme"), ("plan", "another product"), ("plan and scheme", "another product"),
        ("plan of a processor", "not for a GPU"),
        ("prepared", "brings its own"), ("empty", "cannot be prepared"), ("rank", "too many products"),
    ],
)  # fmt: skip
def test_wrong_input_is_refused_by_name(interpreter, case, says):
    assert says in interpreter(refused, case)


def test_too_little_memory_is_said_before_anything_is_allocated(interpreter):
    workspace, result = interpreter(over_memory)
    assert "The workspace of a product of 2000 x 16 x 2000 needs more memory" in workspace
    assert "A result of 4000 x 4000 needs more memory" in result


def test_a_tensor_in_main_memory_is_refused_where_kernels_are_not_interpreted():
    with pytest.raises(BadValueError, match="not on a GPU"):
        gpu.matmul(torch.ones(3, 3), torch.ones(3, 3))


def test_the_plan_follows_the_profile():
    sides = (8192, 8192, 8192)
    # 50 Tflop/s: 22 ms, of which passes take one. 700 Tflop/s: 1.6 ms, and the passes eat what a scheme saves.
    slow = gpu.choose(gpu.candidates_of(*sides, made()))
    assert (slow.method, slow.scheme.rank) in (("fused", 49), ("combined", 49))
    fast = gpu.choose(gpu.candidates_of(*sides, made(dict.fromkeys(WAYS, 7e14), "bfloat16", 2e12)))
    assert fast.method == "library"
    # Where our kernel is far from the library, only the library's batched product is left.
    assert gpu.choose(gpu.candidates_of(*sides, made({"own": 2e13}))).method == "combined"
    # Where passes are slow, adding one level's products on the way is better than keeping them.
    by_label = {each.label: each.predicted_s for each in gpu.candidates_of(*sides, made(bandwidth=1.2e12))}
    assert by_label["fused strassen"] < by_label["combined strassen on torch"]


def test_prepared_sums_make_a_scheme_pay_earlier():
    profile = made(dict.fromkeys(WAYS, 3.5e14), "bfloat16")
    sides = (8192, 8192, 8192)
    assert gpu.choose(gpu.candidates_of(*sides, profile, (WINOGRAD,))).method == "library"
    assert gpu.choose(gpu.candidates_of(*sides, profile, (WINOGRAD,), prepared=True)).scheme is WINOGRAD


def test_rows_that_begin_anywhere_are_copied_into_aligned_ones_where_the_library_is_slow_on_them(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    rates = {"library": 7e14, "unaligned": 1.5e14, "batched": 7e14, "own": 4e14}
    profile = made(rates, "bfloat16", 2e12)
    monkeypatch.setattr(gpu_profile, "kept", lambda *of: profile)
    monkeypatch.setattr(gpu, "free_bytes", lambda device: 8e10)

    def planned(*sides):
        return gpu._planned(torch, *sides, "bfloat16", torch.device("cpu"), (), False)

    # Only the length of rows counts: columns of a and of b.
    assert planned(4095, 4096, 4096).method == "library"
    for sides in ((4096, 4095, 4096), (4096, 4096, 4095), (4095, 4097, 4099)):
        found = planned(*sides)
        assert (found.method, found.scheme.rank) == ("padded", 1)
        m, k, n = sides
        deep, wide = -(-k // 16) * 16, -(-n // 16) * 16
        copies = m * deep * (deep > k) + deep * wide + m * wide * (wide > n)
        assert found.workspace_bytes == 2 * copies
        assert found.choice.predicted_s == pytest.approx(2 * m * deep * wide / 7e14 + 4 * copies / 2e12 + 4e-5)
    # Copies of a thin product cost more than they save, and where nothing is gained nothing is copied.
    assert planned(100, 4097, 4099).method == "library"
    monkeypatch.setattr(gpu_profile, "kept", lambda *of: made(rates | {"unaligned": 7e14}, "bfloat16", 2e12))
    assert planned(4095, 4097, 4099).method == "library"


def test_aligned_rows_are_not_looked_up_at_the_accuracy_of_a_library(monkeypatch):
    monkeypatch.setattr(gpu_profile, "kept", lambda *of: pytest.fail("a profile was asked for"))
    assert gpu._planned(torch, 4096, 4096, 4096, "bfloat16", torch.device("cpu"), (), False).method == "library"


@pytest.mark.parametrize("sides", [(1, 4096, 4096), (4096, 900, 4096), (1000, 1000, 1000), (0, 5, 5)])
def test_small_and_thin_products_are_the_librarys_without_asking_a_profile(monkeypatch, sides):
    monkeypatch.setattr(gpu_profile, "kept", lambda *of: pytest.fail("a profile was asked for"))
    planned = gpu._planned(torch, *sides, "float32", torch.device("cpu"), None, False)
    assert planned.method == "library"
    assert gpu.candidates_of(*sides, made())[0].method == "library"


def test_no_plan_is_predicted_to_be_slower_than_the_library():
    rng = np.random.default_rng(0)
    for _ in range(50):
        sides = tuple(int(side) for side in 2 ** rng.uniform(5, 14, 3))
        rates = {way: float(10 ** rng.uniform(13, 15)) for way in WAYS}
        found = gpu.candidates_of(*sides, made(rates, "bfloat16"))
        library = next(each for each in found if each.method == "library")
        best = gpu.choose(found)
        lead = 0.97 if best.method == "padded" else 0.95
        assert best is library or best.predicted_s <= lead * library.predicted_s


def test_what_does_not_fit_into_the_gpu_is_not_planned(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(gpu_profile, "kept", lambda *of: made())
    for free, method in ((8e10, ("combined", "fused")), (1e8, ("library",))):
        monkeypatch.setattr(gpu, "free_bytes", lambda device, free=free: free)
        planned = gpu._planned(torch, 8192, 8192, 8192, "float32", torch.device("cpu"), None, False)
        assert planned.method in method
        assert planned.workspace_bytes <= free
        assert len(planned.candidates) == 9


def test_a_plan_without_a_kept_profile_is_the_librarys_and_nothing_is_measured(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(gpu_profile, "kept", lambda *of: None)
    monkeypatch.setattr(gpu_profile, "measure", lambda *of: pytest.fail("measured"))
    planned = gpu._planned(torch, 8192, 8192, 8192, "float32", torch.device("cpu"), None, False)
    assert planned.method == "library"


def test_schemes_and_accuracies_that_do_not_fit_are_refused():
    a, b = operands((64, 64, 64), "float32")
    asked = gpu._Asked(None, None, "library", "strassen", 1, None)
    with pytest.raises(BadValueError, match="not have the accuracy of a library"):
        gpu._chosen(torch, 64, 64, 64, a, asked, None)
    with pytest.raises(BadValueError, match="not scaled"):
        gpu._chosen(torch, 64, 64, 64, a, asked._replace(accuracy="scaled", scheme=None), None)
    default = gpu._chosen(torch, 64, 64, 64, a, asked._replace(accuracy=None, scheme=None), None)
    assert default.method == "library"
    assert b.shape == (64, 64)


def test_the_bound_of_a_long_inner_side_is_positive_and_grows():
    bounds = [gpu.error_bound(8, k, 8, "float32", "library", CLASSICAL, False) for k in (2**20, 2**23, 2**24, 2**26)]
    assert all(0 < bound < math.inf for bound in bounds)
    assert bounds == sorted(bounds)
    # A sum of 2^24 terms may lose every digit: capped, the bound would say otherwise.
    assert bounds[2] > 2**24


def test_the_workspace_is_sums_and_products_of_aligned_blocks():
    # Blocks of 32 x 32, 32 x 48: seven sums of each operand, seven products, and the table of twelve contributions.
    table = 16 * (12 + 7 + 2)
    assert gpu.plan_of(60, 61, 90, "combined", STRASSEN).workspace_bytes == 7 * 4 * (1024 + 2 * 1536) + table
    assert gpu.plan_of(60, 61, 90, "fused", STRASSEN).workspace_bytes == 7 * 4 * (1024 + 1536) + table
    halves = gpu.plan_of(60, 61, 90, "fused", STRASSEN, dtype="bfloat16").workspace_bytes
    assert halves == 7 * 2 * (1024 + 1536) + 4 * 4 * 1536 + table
    ready = dataclasses.replace(gpu.plan_of(60, 61, 90, "combined", STRASSEN), prepared=True)
    assert ready.workspace_bytes == 7 * 4 * (1024 + 1536) + table
    assert gpu.plan_of(60, 61, 90, "library", STRASSEN).workspace_bytes == 0


def test_a_plan_tells_its_products_and_itself():
    planned = gpu.plan_of(4096, 4096, 4096, "combined", WINOGRAD.power(2), dtype=torch.bfloat16)
    assert (planned.multiplications, planned.flops) == (49, 2.0 * 1024**3 * 49)
    assert "bfloat16, GPU: combined winograd^2 on torch" in str(planned)
    assert all(len(line) <= 100 for line in str(planned).splitlines())


def test_the_choice_of_tf32_is_torchs():
    kept = torch.get_float32_matmul_precision()
    try:
        for precision, tf32 in (("highest", False), ("high", True)):
            torch.set_float32_matmul_precision(precision)
            assert gpu.plan_of(8, 8, 8, "combined", STRASSEN).tf32 is tf32
            assert gpu.plan_of(8, 8, 8, "combined", STRASSEN, dtype="bfloat16").tf32 is False
    finally:
        torch.set_float32_matmul_precision(kept)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: gpu.plan(4, 4, -1), "whole number"),
        (lambda: gpu.plan(4, 4, 4, dtype="int32"), "floating-point"),
        (lambda: gpu.plan(4, 4, 4, device="gpu"), "no such device"),
        (lambda: gpu.plan(4, 4, 4, device="cpu"), "no GPU"),
        (lambda: gpu.plan_of(4, 4, 4, "fuse", STRASSEN), "nearest: fused"),
        (lambda: gpu.plan_of(4, 4, 4, "fused", STRASSEN.power(2).inside(STRASSEN.power(2))), "too many products"),
    ],
)
def test_plans_that_make_no_sense_are_refused(call, says):
    with pytest.raises(BadValueError, match=says):
        call()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize("kind", list(UNIT))
@pytest.mark.parametrize("method", ["combined", "fused", "padded"])
@pytest.mark.parametrize("shape", [(512, 512, 512), (1023, 1537, 2049), (100, 3000, 77)])
def test_on_a_gpu_every_way_stays_within_its_bound(kind, method, shape):
    a, b = (each.cuda() for each in operands(shape, kind))
    for scheme in (STRASSEN, WINOGRAD.power(2)):
        for x, y in ((a, b), (a.T.contiguous().T, b.T.contiguous().T)):
            chosen = gpu.plan_of(*shape, method, scheme, dtype=kind)
            found = gpu.matmul(x, y, plan=chosen)
            scale = float(a.double().abs().max() * b.double().abs().max())
            assert float((found.double() - a.double() @ b.double()).abs().max()) <= chosen.error_bound * scale
    a[3, 4] = math.inf
    found = gpu.matmul(a, b, plan=gpu.plan_of(*shape, method, STRASSEN, dtype=kind))
    assert torch.equal(found.isfinite(), (a @ b).isfinite())


class OnGpu:
    """What says of itself that it is on a GPU."""

    is_cuda = True


def test_tensors_on_a_gpu_are_multiplied_and_prepared_there(monkeypatch):
    asked = []
    monkeypatch.setattr(gpu, "matmul", lambda *of, **options: asked.append((of, options)))
    monkeypatch.setattr(gpu, "prepare", lambda *of, **options: asked.append((of, options)))
    a, b = OnGpu(), OnGpu()
    product.matmul(a, b, scheme="winograd", levels=2)
    product.prepare(b, scheme="winograd")
    assert asked == [
        ((a, b), {"out": None, "accuracy": None, "scheme": "winograd", "levels": 2, "plan": None}),
        ((b,), {"scheme": "winograd", "levels": 1}),
    ]
    with pytest.raises(BadValueError, match="takes no threads"):
        product.matmul(a, b, threads=2)


def test_the_plan_of_a_gpu_is_refused_by_the_processor():
    with pytest.raises(BadValueError, match="not for the processor"):
        product.matmul(np.ones((3, 3)), np.ones((3, 3)), plan=gpu.plan_of(3, 3, 3, "fused", STRASSEN))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
def test_on_a_gpu_the_planned_product_is_right():
    a, b = (each.cuda() for each in operands((4096, 4096, 4096), "float32"))
    assert torch.equal(gpu.matmul(a, b), a @ b)
    planned = gpu.plan(4096, 4096, 4096, accuracy="normwise")
    found = gpu.matmul(a, b, accuracy="normwise")
    assert torch.allclose(found, a @ b, atol=float(planned.error_bound))
