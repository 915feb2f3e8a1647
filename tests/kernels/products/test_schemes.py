"""Bilinear schemes: the equations they satisfy, their counts, and files that are not schemes."""

import json

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError, DataUnavailableError
from wavetank.kernels.products import schemes
from wavetank.kernels.products.fused import fused_product
from wavetank.kernels.products.schemes import (
    BUILT_IN,
    CLASSICAL,
    STRASSEN,
    WINOGRAD,
    Scheme,
    read_scheme,
    read_schemes,
)
from wavetank.workloads import datasets


def reference_product(scheme, a, b):
    """Multiply by the definition of a scheme, block by block; exact for integers.

    Parameters
    ----------
    scheme : Scheme
    a, b : arrays, shapes (rows, inner) and (inner, columns)
        Padded with zeros to whole blocks.
    """
    high, deep, wide = (-(-size // parts) for size, parts in zip(
        (a.shape[0], a.shape[1], b.shape[1]), (scheme.m, scheme.k, scheme.n), strict=True))  # fmt: skip
    left = np.zeros((high * scheme.m, deep * scheme.k), a.dtype)
    right = np.zeros((deep * scheme.k, wide * scheme.n), b.dtype)
    left[: a.shape[0], : a.shape[1]] = a
    right[: b.shape[0], : b.shape[1]] = b
    blocks_a = left.reshape(scheme.m, high, scheme.k, deep).transpose(0, 2, 1, 3).reshape(-1, high, deep)
    blocks_b = right.reshape(scheme.k, deep, scheme.n, wide).transpose(0, 2, 1, 3).reshape(-1, deep, wide)
    result = np.zeros((scheme.m * scheme.n, high, wide), np.result_type(a, b))
    for u, v, w in zip(scheme.u, scheme.v, scheme.w, strict=True):
        sum_a = sum(int(u[i]) * blocks_a[i] for i in np.flatnonzero(u))
        sum_b = sum(int(v[i]) * blocks_b[i] for i in np.flatnonzero(v))
        product = sum_a @ sum_b
        for i in np.flatnonzero(w):
            result[i] += int(w[i]) * product
    whole = result.reshape(scheme.m, scheme.n, high, wide).transpose(0, 2, 1, 3)
    return whole.reshape(scheme.m * high, scheme.n * wide)[: a.shape[0], : b.shape[1]]


def as_file(scheme, path, **changes):
    content = {
        "n": [scheme.m, scheme.k, scheme.n],
        "m": scheme.rank,
        "u": scheme.u.tolist(),
        "v": scheme.v.tolist(),
        "w": scheme.w.reshape(-1, scheme.m, scheme.n).transpose(0, 2, 1).reshape(scheme.rank, -1).tolist(),
    }
    path.write_text(json.dumps({**content, **changes}))
    return path


@pytest.mark.parametrize("scheme", BUILT_IN.values(), ids=BUILT_IN)
@pytest.mark.parametrize("levels", [0, 1, 2, 3])
def test_integers_are_multiplied_exactly(scheme, levels):
    rng = np.random.default_rng(levels)
    a, b = rng.integers(-99, 99, (13, 10)), rng.integers(-99, 99, (10, 17))
    assert np.array_equal(reference_product(scheme.power(levels), a, b), a @ b)


def test_strassen_needs_seven_products_and_eighteen_additions_and_winograd_fifteen():
    assert (STRASSEN.rank, STRASSEN.additions, STRASSEN.plain_additions) == (7, 18, 18)
    assert (WINOGRAD.rank, WINOGRAD.additions, WINOGRAD.plain_additions) == (7, 15, 24)
    assert STRASSEN.terms == (12, 12, 12)


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_levels_multiply_products_terms_and_gain(levels):
    powered = STRASSEN.power(levels)
    assert powered.rank == 7**levels
    assert powered.terms == (12**levels,) * 3
    assert powered.gain == pytest.approx((8 / 7) ** levels)
    assert powered.growth() == pytest.approx(STRASSEN.growth() ** levels)


def test_different_schemes_compose():
    rectangle = Scheme("1x1x2", 1, 1, 2, np.ones((2, 1)), np.eye(2), np.eye(2))
    both = STRASSEN.inside(rectangle)
    assert (both.m, both.k, both.n, both.rank) == (2, 2, 4, 14)
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (4, 6)), rng.integers(-9, 9, (6, 8))
    assert np.array_equal(reference_product(both, a, b), a @ b)


@pytest.mark.parametrize("scheme", [STRASSEN, WINOGRAD], ids=["strassen", "winograd"])
@pytest.mark.parametrize("table", ["u", "v", "w"])
def test_any_changed_coefficient_breaks_the_equations(table, scheme):
    for place in range(28):
        for change in (lambda c: -c, lambda c: c + 1, lambda c: 0 * c):
            tables = {name: getattr(scheme, name).copy() for name in ("u", "v", "w")}
            before = tables[table].flat[place]
            tables[table].flat[place] = change(before)
            if tables[table].flat[place] != before:
                with pytest.raises(BadValueError, match="Brent equations fail"):
                    Scheme("broken", 2, 2, 2, **tables)


def test_signs_that_cancel_in_a_product_are_no_other_scheme():
    # Changed together they multiply as before, so the equations hold, and the product does, too.
    tables = {name: getattr(STRASSEN, name).copy() for name in ("u", "v", "w")}
    tables["u"][3] *= -1
    tables["v"][3] *= -1
    turned = Scheme("turned", 2, 2, 2, **tables)
    assert turned.growth() == STRASSEN.growth()
    a = np.arange(16).reshape(4, 4)
    assert np.array_equal(reference_product(turned, a, a), a @ a)


@pytest.mark.parametrize("scheme", [STRASSEN, WINOGRAD], ids=["strassen", "winograd"])
def test_levels_are_those_that_were_asked_for(scheme):
    for levels in range(4):
        powered = scheme.power(levels)
        assert (powered.m, powered.k, powered.n) == (2**levels,) * 3
        assert powered.rank == 7**levels
        assert powered.u.shape == powered.v.shape == powered.w.shape == (7**levels, 4**levels)
        assert powered.levels == max(levels, 1)
        assert schemes.scheme_of(scheme.name, levels).rank == 7**levels
        if levels:
            wanted = scheme
            for _ in range(levels - 1):
                wanted = wanted.inside(scheme)
            for name in ("u", "v", "w"):
                assert np.array_equal(getattr(powered, name), getattr(wanted, name))
    assert schemes.scheme_of(scheme.name).rank == 7


def test_growth_is_that_of_the_worst_block():
    for scheme, worst in ((STRASSEN, 12), (WINOGRAD, 18)):
        blocks = [0] * 4
        for u, v, w in zip(scheme.u.tolist(), scheme.v.tolist(), scheme.w.tolist(), strict=True):
            for block in range(4):
                blocks[block] += abs(w[block]) * sum(map(abs, u)) * sum(map(abs, v))
        assert scheme.growth() == max(blocks) == worst
        assert sum(blocks) / 4 < worst


def test_wrong_shapes_and_levels_are_named():
    with pytest.raises(BadValueError, match="wrong shape"):
        Scheme("flat", 2, 2, 2, STRASSEN.u[:, :3], STRASSEN.v, STRASSEN.w)
    for levels in (-1, 4):
        with pytest.raises(BadValueError, match="this many times"):
            STRASSEN.power(levels)


def test_coefficients_cannot_be_changed_afterwards():
    with pytest.raises(ValueError, match="read-only"):
        STRASSEN.u[0, 0] = 5


def test_a_file_is_read_with_its_result_transposed(tmp_path):
    read = read_scheme(as_file(STRASSEN, tmp_path / "mine.json"))
    assert read.name == "mine"
    assert np.array_equal(read.w, STRASSEN.w)
    assert list(read_schemes(tmp_path)) == ["mine"]


REFUSED = {
    "rank": ({"m": 9}, "8"),
    "sizes": ({"n": [2, 2]}, "three whole numbers"),
    "no sizes": ({"n": None}, "key n"),
    "huge": ({"n": [2, 2, 1000]}, "1 to 64"),
    "lines": ({"u": [[1, 0, 0, 1]]}, "7 lines"),
    "no table": ({"v": None}, "key v"),
    "width": ({"v": [[1, 0]] * 7}, "line 1 of the table"),
    "fraction": ({"w": [[0.5, 0, 0, 0]] * 7}, "whole numbers"),
    "words": ({"w": [["1", 0, 0, 0]] * 7}, "whole numbers"),
    "large": ({"u": [[2**40, 0, 0, 0]] * 7}, "whole numbers"),
    "modulo 2": ({"z2": True}, "modulo 2"),
    "wrong": ({"u": [[1, 0, 0, 1]] * 7}, "Brent"),
    "reduced index": ({"u_fresh": [[{"index": 9, "value": 1}]]}, "index from 0 to 3"),
    "reduced table": ({"u_fresh": 3}, "7 sums"),
    "reduced term": ({"u_fresh": [], "u": [3] * 7}, "sum 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_damaged_file_is_refused_with_its_place(case, tmp_path):
    changes, says = REFUSED[case]
    path = as_file(STRASSEN, tmp_path / "bad.json", **changes)
    with pytest.raises(BadFileError) as caught:
        read_scheme(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1, 2", "[]", "7", "[" * 100_000, '{"n": [2,2,2],\n "m": oops}'])
def test_what_is_no_scheme_at_all_is_refused(text, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(BadFileError) as caught:
        read_scheme(path)
    assert "bad.json" in str(caught.value)


def test_a_missing_file_or_folder_is_refused(tmp_path):
    with pytest.raises(BadFileError, match="cannot be read"):
        read_scheme(tmp_path / "none.json")
    with pytest.raises(BadFileError, match="no such folder"):
        read_schemes(tmp_path / "none")


def test_every_scheme_of_the_data_set_multiplies_integers_exactly():
    try:
        schemes = read_schemes()
    except DataUnavailableError as error:
        pytest.skip(f"data set lcma-schemes: {error}")
    rng = np.random.default_rng(0)
    a, b = rng.integers(-99, 99, (11, 13)), rng.integers(-99, 99, (13, 12))
    for scheme in schemes.values():
        assert np.array_equal(reference_product(scheme, a, b), a @ b), scheme.name
    listed = {file.path.removesuffix(".json") for file in datasets.entry("lcma-schemes").files}
    assert listed <= set(schemes)
    assert schemes["2x2x2_m7_cr15_cn24_ZT_reduced"].additions == 15
    assert schemes["3x3x3_m23_cr58_cn119_ZT_reduced"].additions == 58
    assert schemes["4x4x4_m49_ZT"].rank == 49


def test_the_classical_scheme_is_one_product():
    assert (CLASSICAL.rank, CLASSICAL.gain, CLASSICAL.growth()) == (1, 1.0, 1.0)


def test_a_product_repeated_adds_up_and_is_no_scheme():
    several = schemes.repeated(5)
    assert several.rank == 5
    a = np.arange(4.0).reshape(2, 2)
    out = np.empty((2, 2))
    fused_product(a, a, out, several, 1)
    assert np.array_equal(out, 5 * (a @ a))
    with pytest.raises(BadValueError, match="Brent"):
        Scheme("repeated", 1, 1, 1, several.u, several.v, several.w)
