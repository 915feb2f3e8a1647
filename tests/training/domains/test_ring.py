"""Nearest neighbours around a ring, ties included, against a search in plain Python."""

import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.domains import cases

from wavetank.live.ranks import run_ranks


@pytest.mark.parametrize("seed", [0, 1])
def test_neighbours_are_those_of_a_search_and_equally_far_ones_go_by_number(seed):
    for same, worst in run_ranks(cases.neighbours, 3, arguments={"seed": seed}, timeout_s=300.0):
        assert same
        assert worst < 1e-12
