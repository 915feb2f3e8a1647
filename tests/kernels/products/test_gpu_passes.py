"""The passes and the multiplying kernel, run by Triton's interpreter and held against exact sums and products."""

import math

import numpy as np
import pytest

from wavetank.errors import DataUnavailableError
from wavetank.kernels.products.schemes import BUILT_IN, CLASSICAL, STRASSEN, WINOGRAD, read_schemes
from wavetank.workloads import datasets

triton = pytest.importorskip("triton", reason="Triton is not installed")
torch = pytest.importorskip("torch", reason="torch is not installed")


def scheme_of(name):
    return BUILT_IN[name] if name in BUILT_IN else read_schemes()[name]


def catalogue():
    return sorted(file.path.removesuffix(".json") for file in datasets.entry("lcma-schemes").files)


def whole_numbers(shape, kind, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(-3, 4, shape)).to(kind)


def blocks_of(matrix, down, across, high, wide):
    padded = torch.zeros(down * high, across * wide, dtype=torch.float64)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix.double()
    return padded.reshape(down, high, across, wide).permute(0, 2, 1, 3).reshape(-1, high, wide)


def sums_differ(name, shape, kind, layout):
    """Run in the interpreter: how far sums are from those by definition, and how they lie in memory."""
    from wavetank.kernels.products import gpu_passes

    scheme, kind = scheme_of(name), getattr(torch, kind)
    matrix = whole_numbers(shape, kind)
    given = {
        "rows": matrix, "columns": matrix.T.contiguous().T, "every other": matrix.repeat_interleave(2, 1)[:, ::2]
    }[layout]  # fmt: skip
    kept = given.clone()
    high, wide = (-(-side // (parts * 16)) * 16 for side, parts in zip(shape, (scheme.m, scheme.k), strict=True))
    sums = gpu_passes.form_sums(given, scheme, "u", (high, wide))
    exact = torch.einsum("rb,bij->rij", torch.tensor(scheme.u).double(),
                         blocks_of(matrix, scheme.m, scheme.k, high, wide))  # fmt: skip
    return float((sums.double() - exact).abs().max()), sums.stride(), torch.equal(kept, given), tuple(sums.shape)


def spread_differs(name, shape, kind):
    """Run in the interpreter: how far a result is from the sum of its products, and what the flag says."""
    from wavetank.kernels.products import gpu_passes

    scheme, kind = scheme_of(name), getattr(torch, kind)
    high, wide = (-(-side // (parts * 16)) * 16 for side, parts in zip(shape, (scheme.m, scheme.n), strict=True))
    products = whole_numbers((scheme.rank, high, wide), kind, 1)
    room = torch.full((shape[0], shape[1] + 5), 99.0).to(kind)
    flag = torch.zeros(1, dtype=torch.int32)
    gpu_passes.spread(products, room[:, : shape[1]], scheme, flag)
    blocks = torch.einsum("rb,rij->bij", torch.tensor(scheme.w).double(), products.double())
    whole = blocks.reshape(scheme.m, scheme.n, high, wide).permute(0, 2, 1, 3).reshape(scheme.m * high, -1)
    difference = room[:, : shape[1]].double() - whole[: shape[0], : shape[1]]
    return float(difference.abs().max()), bool((room[:, shape[1] :] == 99).all()), int(flag)


def fused_differs(name, kind, tile, sides, shape):
    """Run in the interpreter: how far a fused product of sums is from the exact one."""
    from wavetank.kernels.products import gpu_passes

    scheme, kind = scheme_of(name), getattr(torch, kind)
    high, deep, wide = sides
    left = whole_numbers((scheme.rank, high, deep), kind, 1)
    right = whole_numbers((scheme.rank, wide, deep), kind, 2).transpose(1, 2)
    room = torch.full((shape[0], shape[1] + 3), 99.0).to(kind)
    flag = torch.zeros(1, dtype=torch.int32)
    gpu_passes.multiply_and_spread(
        left, right, room[:, : shape[1]], scheme, flag, gpu_passes.Tile(*tile), False
    )  # fmt: skip
    blocks = torch.einsum("rb,rij->bij", torch.tensor(scheme.w).double(), left.double() @ right.double())
    whole = blocks.reshape(scheme.m, scheme.n, high, wide).permute(0, 2, 1, 3).reshape(scheme.m * high, -1)
    exact = whole[: shape[0], : shape[1]].to(kind).double()
    untouched = bool((room[:, shape[1] :] == 99).all())
    return float((room[:, : shape[1]].double() - exact).abs().max()), untouched, int(flag)


def guarded_product(flagged):
    """Run in the interpreter: what the guarded product leaves in the result."""
    from wavetank.kernels.products import gpu_passes

    a, b = whole_numbers((21, 40), torch.float32), whole_numbers((40, 33), torch.float32, 1)
    result = torch.full((21, 33), 7.0)
    flag = torch.full((1,), flagged, dtype=torch.int32)
    gpu_passes.multiply_again(a, b, result, flag, gpu_passes.Tile(16, 16, 16, 4, 1, 0), False)
    return torch.equal(result, a @ b), bool((result == 7).all())


def flag_of(place, value):
    """Run in the interpreter: the flag after spreading products of which one entry is not finite."""
    from wavetank.kernels.products import gpu_passes

    products = torch.ones(7, 16, 16)
    products[:, place[0], place[1]] = value
    flag = torch.zeros(1, dtype=torch.int32)
    gpu_passes.spread(products, torch.empty(20, 20), STRASSEN, flag)
    return int(flag)


@pytest.mark.parametrize("name", ["strassen", "winograd"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["rows", "columns", "every other"])
def test_sums_are_exact_for_whole_numbers_and_any_layout(interpreter, name, kind, layout):
    difference, strides, untouched, shape = interpreter(sums_differ, name, (45, 171), kind, layout)
    assert difference == 0
    assert untouched
    # Sums have neighbours along the same direction as the operand, so that the library reads them at full speed.
    assert strides[1 if layout == "columns" else 2] == 1
    assert shape == (7, 32, 96)


@pytest.mark.parametrize("name", catalogue())
def test_every_scheme_of_the_catalogue_is_summed_and_spread_exactly(interpreter, name):
    try:
        datasets.find("lcma-schemes")
    except DataUnavailableError as error:
        pytest.skip(f"data set lcma-schemes: {error}")
    assert interpreter(sums_differ, name, (37, 51), "float32", "rows")[0] == 0
    assert interpreter(spread_differs, name, (37, 51), "float32") == (0, True, 0)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_products_are_spread_exactly_and_nothing_beside_the_result_is_written(interpreter, kind):
    assert interpreter(spread_differs, "strassen", (45, 171), kind) == (0, True, 0)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("halvings", [0, 2])
@pytest.mark.parametrize("name", ["classical", "strassen", "winograd"])
def test_the_multiplying_kernel_adds_every_product_where_it_belongs(interpreter, name, kind, halvings):
    scheme = BUILT_IN[name]
    shape = (scheme.m * 48 - 5, scheme.n * 48 - 13)
    tile = (16, 32, 16, 4, 1, halvings)
    assert interpreter(fused_differs, name, kind, tile, (48, 40, 48), shape) == (0, True, 0)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_noted_where_it_lies_in_the_result_and_only_there(interpreter, value):
    assert interpreter(flag_of, (3, 3), value) == 1
    assert interpreter(flag_of, (10, 10), value) == 1
    assert interpreter(flag_of, (10, 10), 3.0) == 0


def test_the_guarded_product_computes_only_where_the_flag_is_set(interpreter):
    assert interpreter(guarded_product, 1) == (True, False)
    assert interpreter(guarded_product, 0) == (False, True)


def test_contributions_say_who_is_first_and_who_is_last():
    from wavetank.kernels.products.gpu_passes import contributions_of

    found = contributions_of(np.array([[1, 0, 2], [-1, 0, 0], [0, 1, 1]]))
    assert found.starts.tolist() == [0, 2, 3, 5]
    assert found.places.tolist() == [0, 2, 0, 1, 2]
    assert found.scales.tolist() == [1, 2, -1, 1, 1]
    # 1: first, 2: last, 3: both.
    assert found.states.tolist() == [1, 1, 2, 3, 2]


@pytest.mark.parametrize("scheme", [CLASSICAL, STRASSEN, WINOGRAD, WINOGRAD.power(2)])
def test_each_block_has_one_first_and_one_last_contribution_and_only_terms_that_are_not_zero(scheme):
    from wavetank.kernels.products.gpu_passes import contributions_of

    found = contributions_of(scheme.w)
    assert len(found.places) == scheme.terms[2]
    for bit in (1, 2):
        assert sorted(found.places[(found.states & bit) > 0]) == list(range(scheme.m * scheme.n))


def test_tiles_are_powers_of_two_that_fit_the_gpu_they_are_for():
    from wavetank.kernels.products.gpu_passes import pass_rows, tile_for

    for kind in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for tf32 in (False, True):
            for shared in (48 * 1024, 99 * 1024, 163 * 1024, 227 * 1024):
                tile = tile_for(kind, tf32, shared)
                assert all(side >= 16 and side & (side - 1) == 0 for side in tile[:3])
                held = (tile.rows + tile.columns) * tile.depth * kind.itemsize * tile.stages
                assert shared < 99 * 1024 or held <= shared
        assert [pass_rows(blocks, kind.itemsize) for blocks in (4, 16, 36, 81)] == (
            [8, 4, 2, 1] if kind.itemsize < 8 else [4, 2, 1, 1]
        )
