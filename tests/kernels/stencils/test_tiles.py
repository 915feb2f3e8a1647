"""Tiles of 32 x 32 in four faces, and bfloat16 by bit operations, held against ml_dtypes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavetank.errors import BadValueError
from wavetank.kernels.stencils import tiles

OFFSETS = np.array([(-1, 0), (0, -1), (0, 0), (0, 1), (1, 0), (-4, 3)])


def random_bits(count, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 32, count, np.uint64).astype(np.uint32)


def shifted(grid, down, right):
    padded = np.pad(grid, 4)
    return padded[4 + down : 4 + down + grid.shape[0], 4 + right : 4 + right + grid.shape[1]]


def test_rounding_is_that_of_ml_dtypes_for_any_bits():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.concatenate([random_bits(1 << 17), np.arange(1 << 16, dtype=np.uint32) << 16 | 0x8000]).view(np.float32)
    with np.errstate(all="ignore"):
        expected = values.astype(ml_dtypes.bfloat16)
    found = tiles.bfloat16_bits(values)
    nan = np.isnan(values)
    np.testing.assert_array_equal(found[~nan], expected.view(np.uint16)[~nan])
    assert np.isnan(tiles.from_bfloat16_bits(found[nan])).all()


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.0, 1.0),
        (1 + 2**-8, 1.0),  # a tie goes to the even neighbour
        (1 + 3 * 2**-8, 1 + 2**-6),
        (1 + 2**-8 + 2**-20, 1 + 2**-7),
        (-0.0, -0.0),
        (3.4e38, np.inf),
        (-np.inf, -np.inf),
        (1e-45, 0.0),
    ],
)
def test_known_roundings(value, rounded):
    found = tiles.to_bfloat16(np.array([value], np.float32))[0]
    assert found == rounded
    assert np.signbit(found) == np.signbit(rounded)


def test_what_bfloat16_holds_stays():
    every = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    values = tiles.from_bfloat16_bits(every)
    finite = ~np.isnan(values)
    np.testing.assert_array_equal(tiles.bfloat16_bits(values[finite]), every[finite])


@given(st.integers(1, 100), st.integers(1, 100), st.sampled_from([np.float32, np.float64, np.uint16]))
@settings(max_examples=50, deadline=None)
def test_tilising_and_untilising_is_the_identity(height, width, dtype):
    grid = np.arange(1, height * width + 1).reshape(height, width).astype(dtype)
    found = tiles.tilise(grid)
    assert found.shape == (-(-height // 32), -(-width // 32), 4, 16, 16)
    np.testing.assert_array_equal(tiles.untilise(found, grid.shape), grid)
    assert np.count_nonzero(found) == np.count_nonzero(grid)


def test_faces_come_upper_left_upper_right_lower_left_lower_right():
    grid = np.arange(32 * 32).reshape(32, 32)
    (tile,) = tiles.tilise(grid)[0]
    for face, place in zip(tile, [np.s_[:16, :16], np.s_[:16, 16:], np.s_[16:, :16], np.s_[16:, 16:]], strict=True):
        np.testing.assert_array_equal(face, grid[place])
    np.testing.assert_array_equal(tiles.squares_of(tile), grid)
    np.testing.assert_array_equal(tiles.faces_of(grid), tile)


@given(st.integers(1, 90), st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_packing_in_one_pass_is_shifting_rounding_and_tilising(height, width):
    grid = random_bits(height * width, height).view(np.float32).reshape(height, width)
    rows, columns = tiles.tiles_along(height), tiles.tiles_along(width)
    packed = np.full((len(OFFSETS), rows, columns, 4, 16, 16), 7, np.uint16)
    for top in range(rows):
        tiles.pack_shifted(grid.view(np.uint32), OFFSETS, top, top + 1, packed[:, top : top + 1])
    for found, (down, right) in zip(packed, OFFSETS, strict=True):
        expected = tiles.bfloat16_bits(np.ascontiguousarray(shifted(grid, down, right)))
        np.testing.assert_array_equal(tiles.untilise(found, grid.shape), expected)


@given(st.integers(1, 40), st.integers(1, 100))
@settings(max_examples=30, deadline=None)
def test_rows_of_neighbours_hold_them_in_order(height, width):
    grid = random_bits(height * width, width).view(np.float32).reshape(height, width)
    offsets = np.array([(dy, dx) for dy in range(-3, 4) for dx in range(-3, 4)])
    blocks = tiles.tiles_along(width)
    packed = np.zeros((height, blocks, 2, 4, 16, 16), np.uint16)
    tiles.pack_rows_of_neighbours(grid.view(np.uint32), offsets, 0, height, packed)
    by_cell = tiles.squares_of(packed).swapaxes(2, 3).reshape(height, blocks * 32, 64)
    for number, (down, right) in enumerate(offsets):
        expected = tiles.bfloat16_bits(np.ascontiguousarray(shifted(grid, down, right)))
        np.testing.assert_array_equal(by_cell[:, :width, number], expected)
    assert not by_cell[..., len(offsets) :].any()


@given(st.integers(3, 90), st.integers(3, 100), st.integers(0, 1))
@settings(max_examples=30, deadline=None)
def test_unpacking_leaves_the_rim(height, width, radius):
    values = tiles.to_bfloat16(np.random.default_rng(height).random((height, width)).astype(np.float32))
    packed = tiles.tilise(tiles.bfloat16_bits(values))
    found = np.full((height, width), -1.0, np.float32)
    for top in range(packed.shape[0]):
        tiles.unpack_tiles(packed[top : top + 1], radius, top, top + 1, found.view(np.uint32))
    expected = np.full((height, width), -1.0, np.float32)
    inside = np.s_[radius : height - radius, radius : width - radius]
    expected[inside] = values[inside]
    np.testing.assert_array_equal(found, expected)
    columns = np.zeros((height, packed.shape[1] * 32, 32), np.float32)
    columns[:, :width, 0] = values
    again = np.full((height, width), -1.0, np.float32)
    cells = tiles.bfloat16_bits(tiles.faces_of(columns.reshape(height, -1, 32, 32)))
    tiles.unpack_first_columns(cells, radius, 0, height, again.view(np.uint32))
    np.testing.assert_array_equal(again, expected)


def test_other_types_and_shapes_are_refused():
    with pytest.raises(BadValueError, match="rounded from float32"):
        tiles.to_bfloat16(np.zeros(3))
    with pytest.raises(BadValueError, match="two dimensions"):
        tiles.tilise(np.zeros(32))
    with pytest.raises(BadValueError, match="not the tiles of such a grid"):
        tiles.untilise(np.zeros((1, 1, 4, 16, 16)), (33, 32))
