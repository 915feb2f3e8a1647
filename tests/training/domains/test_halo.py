"""Convolutions and pooling of uneven parts are those of the whole, and send no more than they have to."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.domains import cases

from wavetank.live.ranks import run_ranks


@pytest.mark.parametrize(("spatial", "processes"), [(1, 3), (2, 3), (3, 2)])
def test_convolutions_of_all_windows_strides_dilations_and_paddings_are_those_of_one_process(spatial, processes):
    arguments = {"spatial": spatial, "seed": 10 + spatial}
    for worst, count, gathered in run_ranks(cases.convolutions, processes, arguments=arguments, timeout_s=300.0):
        assert worst < 1e-12
        assert count == 70
        assert gathered == 0


@pytest.mark.parametrize(
    ("sizes", "k", "stride", "padding", "rows"),
    [
        # h rows to each neighbour: the middle process has two.
        ([5, 4, 7], 3, 1, 1, [1, 2, 1]),
        ([5, 4, 7], 7, 1, 3, [3, 6, 3]),
        # Patches that cut no part.
        ([6, 3, 9], 3, 3, 0, [0, 0, 0]),
        # Over a part of one row: the outer ones send to each other, too.
        ([6, 1, 9], 5, 1, 2, [3, 2, 3]),
    ],
)
def test_strips_are_two_half_windows_for_each_boundary(sizes, k, stride, padding, rows):
    arguments = {"sizes": sizes, "k": k, "stride": stride, "padding": padding}
    found = run_ranks(cases.halo_bytes, 3, arguments=arguments, timeout_s=300.0)
    row = 2 * 3 * 5 * 8
    assert [forward for forward, _ in found] == [each * row for each in rows]
    # Backward, as many bytes go the other way.
    assert sum(backward for _, backward in found) == sum(rows) * row
