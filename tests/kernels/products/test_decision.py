"""The decision: what is considered, what it is predicted to cost, and when the library stays."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

from wavetank.kernels.products import decision
from wavetank.kernels.products.decision import Candidate, ProductPlan
from wavetank.kernels.products.profile import ProductProfile
from wavetank.kernels.products.schemes import CLASSICAL, STRASSEN, WINOGRAD


def made(own=1e11, numpy=1e11, block=0.0, term_s=0.0, pass_s=0.0):
    kinds = {"own": own, "block": block or own, "numpy": numpy}
    rates = {name: np.full((2, 2, 2), rate).tolist() for name, rate in kinds.items()}
    return ProductProfile(dtype="float32", threads=1, grid=(16, 2048), rates=rates, term_s=term_s, pass_s=pass_s)


def test_without_cost_of_sums_the_deepest_scheme_wins_and_with_much_the_plain_product():
    free = decision.candidates_of(4096, 4096, 4096, made(), ("numpy",))
    assert decision.choose(free, "numpy").scheme.rank == 343
    dear = decision.candidates_of(4096, 4096, 4096, made(term_s=1e-6, pass_s=1e-6), ("numpy",))
    assert decision.choose(dear, "numpy").method == "library"


def test_the_prediction_is_products_and_sums():
    profile = made(own=2e11, term_s=1e-9)
    plain = 2 * 1024**3 / 2e11
    fused = decision.predict(Candidate("fused", "", STRASSEN, math.nan), 2048, 2048, 2048, profile)
    assert fused == pytest.approx(7 * plain + (5 + 5 + 10) * 1024**2 * 1e-9)
    inside = made(own=2e11, block=4e11, term_s=1e-9)
    fused = decision.predict(Candidate("fused", "", STRASSEN, math.nan), 2048, 2048, 2048, inside)
    assert fused == pytest.approx(7 * plain / 2 + (5 + 5 + 10) * 1024**2 * 1e-9)
    alone = decision.predict(Candidate("fused", "", CLASSICAL, math.nan), 1024, 1024, 1024, inside)
    assert alone == pytest.approx(plain)
    library = decision.predict(Candidate("library", "numpy", CLASSICAL, math.nan), 2048, 2048, 2048, profile)
    assert library == pytest.approx(2 * 2048**3 / 1e11)


def chosen(spread=0.0, **times):
    """Return the method chosen among candidates that take these times; "two" and "three" are other libraries."""
    kinds = dict.fromkeys(("one", "two", "three"), ("library", CLASSICAL)) | {
        "own": ("fused", CLASSICAL), "scheme": ("fused", STRASSEN), "deep": ("fused", STRASSEN.power(2)),
    }  # fmt: skip
    found = [Candidate(kinds[name][0], name, kinds[name][1], seconds) for name, seconds in times.items()]
    return decision.choose(tuple(sorted(found, key=lambda each: each.predicted_s)), "one", spread).library


@pytest.mark.parametrize(
    ("times", "wins"),
    [
        ({"one": 1.0, "two": 0.981}, "one"), ({"one": 1.0, "two": 0.98}, "two"),
        ({"one": 1.0, "own": 0.971}, "one"), ({"one": 1.0, "own": 0.97}, "own"),
        ({"one": 1.0, "scheme": 0.951}, "one"), ({"one": 1.0, "scheme": 0.95}, "scheme"),
        # Of plain products the fastest that is clearly ahead.
        ({"one": 1.0, "own": 0.975, "two": 0.976}, "two"), ({"one": 1.0, "two": 0.9, "three": 0.89}, "three"),
        # A scheme must lead every plain product, not only the caller's.
        ({"one": 1.0, "own": 0.9, "scheme": 0.86}, "own"), ({"one": 1.0, "own": 0.9, "scheme": 0.855}, "scheme"),
        ({"one": 1.0, "two": 0.985, "scheme": 0.94}, "one"), ({"one": 1.0, "scheme": 0.8, "deep": 0.79}, "deep"),
    ],
)  # fmt: skip
def test_a_library_is_left_for_two_three_or_five_percent_and_not_for_less(times, wins):
    assert chosen(**times) == wins


def test_a_lead_below_the_spread_of_the_measurements_is_none():
    for name in ("two", "own", "scheme"):
        assert chosen(spread=0.1, one=1.0, **{name: 0.91}) == "one"
        assert chosen(spread=0.1, one=1.0, **{name: 0.89}) == name


def test_at_the_librarys_accuracy_no_scheme_is_a_candidate():
    found = decision.candidates_of(4096, 4096, 4096, made(), ("numpy",), ())
    assert {each.scheme.rank for each in found} == {1}


def test_levels_end_where_blocks_would_be_small():
    for side, ranks in (
        (254, {1}),
        (255, {1, 7}),
        (508, {1, 7}),
        (512, {1, 7, 49}),
        (1016, {1, 7, 49}),
        (1024, {1, 7, 49, 343}),
    ):
        found = decision.candidates_of(side, 4096, 4096, made(), ("numpy",))
        assert {each.scheme.rank for each in found} == ranks


def test_scaling_costs_passes_over_operands_and_result():
    profile = made(own=2e11, pass_s=1e-9)
    candidate = Candidate("fused", "", STRASSEN, math.nan)
    plain = decision.predict(candidate, 2048, 1024, 512, profile)
    scaled = decision.predict(candidate, 2048, 1024, 512, profile, scaled=True)
    assert scaled - plain == pytest.approx(1e-9 * (5 * 1024 * (2048 + 512) + 2 * 2048 * 512))
    classical = Candidate("fused", "", CLASSICAL, math.nan)
    assert decision.predict(classical, 9, 9, 9, profile, scaled=True) == decision.predict(classical, 9, 9, 9, profile)


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (4096, 100, 4096), (200, 200, 200)])
def test_thin_products_have_no_schemes(shape):
    assert {each.scheme.rank for each in decision.candidates_of(*shape, made(), ("numpy",))} == {1}


def test_a_bound_of_the_plain_product_is_that_of_any_order_of_summing():
    plan = ProductPlan(8, 1000, 8, "float32", 1, Candidate("library", "numpy", CLASSICAL, math.nan))
    assert plan.error_bound == 1000 * 1000 * 2.0**-24


def bound_by_definition(k, scheme):
    """Return the bound of every block of the result, in fractions."""
    unit, deep = Fraction(1, 2**24), -(-k // scheme.k)
    blocks = [Fraction(0)] * (scheme.m * scheme.n)
    for u, v, w in zip(scheme.u.tolist(), scheme.v.tolist(), scheme.w.tolist(), strict=True):
        for block, weight in enumerate(w):
            terms = sum(1 for line in scheme.w.tolist() if line[block])
            lengths = (sum(map(bool, u)), sum(map(bool, v)), deep, terms)
            grown = math.prod(1 + unit * length for length in lengths) - 1
            blocks[block] += abs(weight) * sum(map(abs, u)) * sum(map(abs, v)) * deep * grown
    return blocks


@pytest.mark.parametrize("scheme", [STRASSEN, WINOGRAD, STRASSEN.power(2), WINOGRAD.power(2)], ids=lambda s: s.name)
def test_the_bound_is_that_of_the_worst_block_and_not_of_the_mean(scheme):
    blocks = bound_by_definition(1000, scheme)
    bound = decision.error_bound(1000, "float32", scheme)
    assert bound == pytest.approx(float(max(blocks)), rel=1e-12)
    assert bound > 1.1 * float(sum(blocks) / len(blocks))
    plan = ProductPlan(8, 1000, 8, "float32", 1, Candidate("fused", "", scheme, math.nan))
    assert plan.error_bound == bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scheme", [CLASSICAL, STRASSEN, WINOGRAD.power(3)], ids=lambda s: s.name)
def test_the_bound_is_positive_and_grows_however_long_the_inner_side_is(scheme, dtype):
    lengths = [1, 2, 1000, 2**23, 2**24 - 1, 2**24, 2**24 + 1, 2**25, 2**26 + 7, 2**30, 2**40]
    bounds = [decision.error_bound(length, dtype, scheme) for length in lengths]
    assert all(0 < bound < math.inf for bound in bounds)
    assert bounds == sorted(set(bounds)) or (scheme.k > 1 and bounds == sorted(bounds))
    assert decision.error_bound(2**24 + 1, "float32", scheme) > decision.error_bound(2**23, "float32", scheme)


def test_a_bound_grows_with_every_level_and_a_plan_says_which_it_is():
    bounds = [decision.error_bound(4096, "float32", STRASSEN.power(levels)) for levels in range(4)]
    assert bounds == sorted(set(bounds))
    plan = ProductPlan(8, 8, 8, "float32", 1, Candidate("fused", "", STRASSEN, math.nan), accuracy="scaled")
    assert "a row's scale times a column's" in str(plan)
    assert "max|A| max|B|" in str(dataclasses.replace(plan, accuracy="normwise"))
