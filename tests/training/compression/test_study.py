"""The study: figures of small runs, equal seeds, and settings that cannot be run."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.compression.ncclz import Ncclz
from wavetank.training.compression.rivals import Bfloat16, PlainRing, QuantisedHops
from wavetank.training.compression.study import CompressedCollectives, own_ratio
from wavetank.training.compression.workload import members

SMALL = {"ranks": 4, "ranks_per_node": 2, "sweep": (2,), "messages": (65536,), "links": (1e8, 1e10, 3e11)}
STUDY = CompressedCollectives(**SMALL)


def figures(system, study=STUDY, seed=0):
    return {(name, *at.values()): value for name, value, at in study.measure(system, seed).rows}


@pytest.fixture(scope="module")
def ours():
    return figures(Ncclz())


def test_integers_are_within_the_bound_in_every_order_and_faster_where_the_link_binds(ours):
    assert 0.3 < ours["error_over_bound",] <= 1.0
    assert ours["error_by_ranks", 2] <= 1.0
    assert ours["order_difference",] == 0.0
    assert ours["own_ratio",] > 3
    assert ours["speedup_by_link", 1e8] > 3
    assert 0.9 < ours["speedup_over_ratio",] < 1.1
    assert 0 <= ours["behind_best_mode",] < 0.05
    assert ours["behind_best_mode",] <= ours["behind_when_misjudged",] < 1.0
    assert ours["speedup_by_message", 65536] < ours["speedup_by_message", 256 << 20]


def test_the_plain_ring_is_as_fast_as_itself():
    plain = figures(PlainRing())
    assert plain["compression_ratio",] == plain["speedup_by_link", 1e8] == plain["speedup_over_ratio",] == 1.0
    assert plain["relative_error",] < 1e-6
    assert "behind_best_mode" not in {key[0] for key in plain}


def test_a_cast_halves_bytes_and_an_order_changes_what_is_quantised_at_hops():
    assert figures(Bfloat16())["compression_ratio",] == pytest.approx(2.0)
    assert figures(Bfloat16())["order_difference",] > 0


def test_coding_every_frame_loses_on_fast_links_and_crosses_where_the_formula_says(ours):
    entropy = figures(Ncclz(mode="rans"))
    assert entropy["speedup_by_link", 3e11] < 1.0
    assert entropy["crossing_error",] < 0.1
    # Raw frames do not help: numbers are quantised and restored all the same.
    assert entropy["speedup_by_link", 3e11] <= ours["speedup_by_link", 3e11] < 1.0


def test_gradients_have_no_bound_and_an_error_that_is_small():
    found = figures(Ncclz(), CompressedCollectives(**SMALL, workload="gradients"))
    assert "error_over_bound" not in {key[0] for key in found}
    assert 1e-4 < found["relative_error",] < 0.1
    assert found["compression_ratio",] > 3


def test_equal_seeds_give_equal_figures(ours):
    assert figures(Ncclz()) == ours != figures(Ncclz(), seed=1)


def test_a_rank_alone_has_the_ratio_of_its_numbers():
    given = members("u", 1, 0)
    task = STUDY.task(given, 1e9, 1.0, 0)
    assert own_ratio(PlainRing(), given, task) == 1.0
    assert own_ratio(Bfloat16(), given, task) == 2.0
    assert own_ratio(QuantisedHops(), given, task) > 3


def test_ranks_that_fill_no_nodes_are_refused_and_notes_name_the_assumption():
    with pytest.raises(BadValueError, match="whole nodes"):
        CompressedCollectives(ranks=6).check()
    with pytest.raises(BadValueError, match="sweep of links"):
        CompressedCollectives(links=()).check()
    STUDY.check()
    assert "assumed" in STUDY.notes()[1]
    assert STUDY.fabric(4, 1e9).ranks == 4
    assert np.isclose(STUDY.fabric(2, 1e9).levels[0].bytes_per_s, 1e9)
