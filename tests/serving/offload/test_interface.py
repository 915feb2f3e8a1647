"""Cases: what a block weighs and takes, what can be hidden, and figures that there are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.serving.offload.conftest import small_case

from wavetank.errors import BadValueError
from wavetank.serving.offload.interface import COMPUTE, Case, Phase
from wavetank.sim.links import LinkRate


def test_a_block_is_the_sum_of_its_phases() -> None:
    case = small_case(compute=(30, 20, 5), collective=10, weights=40)
    assert (case.weight_bytes, case.compute_ps, case.collective_ps) == (40, 55, 30)
    assert case.hidden_ps == 55
    assert small_case(contended=False).hidden_ps == 70
    assert case.exposed_ps(60, 7) == 5
    assert case.exposed_ps(55, 7) == 0


@given(st.integers(1, 90), st.integers(0, 5), st.integers(1, 40), st.integers(0, 120), st.integers(1, 3))
def test_the_most_hidden_bytes_are_the_most(weights: int, alpha: int, chunk: int, compute: int, rate: int) -> None:
    link = LinkRate(bytes_per_s=rate * 10**12, alpha_ps=alpha)
    case = Case(layers=2, phases=(Phase(COMPUTE, compute, weights),), link=link)
    chunk = min(chunk, weights)
    found = case.most_hidden_bytes(chunk)
    brute = max(n for n in range(weights + 1) if case.link.chunked_ps(n, chunk) <= compute)
    assert found == brute


def test_a_share_is_taken_as_it_is_written_and_rounded_up() -> None:
    case = small_case(weights=200)
    assert [case.share_bytes(each) for each in (0.0, 0.1, 0.3, 0.301, 1.0)] == [0, 20, 60, 61, 200]
    for share in (-0.1, 1.1, float("nan")):
        with pytest.raises(BadValueError, match="share of the weights"):
            case.share_bytes(share)


def test_models_without_blocks_and_phases_with_less_than_nothing_are_refused() -> None:
    link = LinkRate(bytes_per_s=1)
    fine = (Phase(COMPUTE, 1, 1),)
    for layers, phases, beside in ((0, fine, 0), (1, (), 0), (1, fine, -1)):
        with pytest.raises(BadValueError, match="A model has blocks"):
            Case(layers=layers, phases=phases, link=link, beside_bytes=beside)
    for phase in (Phase("copy", 1), Phase(COMPUTE, -1), Phase(COMPUTE, 1, -1)):
        with pytest.raises(BadValueError, match="no phase"):
            Case(layers=1, phases=(phase,), link=link)
