"""The decision: what is considered, what it is predicted to cost, and when the library stays."""

import dataclasses
import math

import numpy as np
import pytest

from wavetank.kernels.products import decision
from wavetank.kernels.products.decision import Candidate, ProductPlan
from wavetank.kernels.products.profile import ProductProfile
from wavetank.kernels.products.schemes import CLASSICAL, STRASSEN


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


def test_a_library_is_left_only_for_a_clear_gain():
    for own, method in ((1.02e11, "library"), (1.05e11, "fused")):
        found = decision.candidates_of(500, 100, 500, made(own=own), ("numpy",))
        assert decision.choose(found, "numpy").method == method


def test_a_lead_below_the_spread_of_the_measurements_is_none():
    found = decision.candidates_of(500, 100, 500, made(own=1.2e11), ("numpy",))
    assert decision.choose(found, "numpy", spread=0.1).method == "fused"
    assert decision.choose(found, "numpy", spread=0.2).method == "library"


def test_another_library_needs_a_clear_gain_too():
    for rate, library in ((1.02e11, "numpy"), (1.1e11, "torch")):
        profile = made(own=1e10)
        profile = dataclasses.replace(profile, rates={**profile.rates, "torch": np.full((2, 2, 2), rate).tolist()})
        found = decision.candidates_of(500, 100, 500, profile, ("numpy", "torch"))
        assert decision.choose(found, "numpy").library == library


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (4096, 100, 4096), (200, 200, 200)])
def test_thin_products_have_no_schemes(shape):
    assert {each.scheme.rank for each in decision.candidates_of(*shape, made(), ("numpy",))} == {1}


def test_a_bound_of_the_plain_product_is_the_textbook_one():
    plan = ProductPlan(8, 1000, 8, "float32", 1, Candidate("library", "numpy", CLASSICAL, math.nan))
    unit = 2.0**-24
    assert plan.error_bound == pytest.approx(1000 * 1003 * unit / (1 - 1003 * unit))
