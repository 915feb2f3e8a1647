"""Quantities of traces by name, each with how it is read."""

import pytest
from tests.insight.replay.test_checks import PLAN, program
from tests.insight.replay.test_diagnose import worker
from tests.insight.replay.test_reading import job

from wavetank.errors import BadTraceError, UnknownNameError
from wavetank.insight.replay.measures import QUANTITIES, ChakraSource, NoReplayError

FIGURES = {"alpha_s": 1e-6, "bytes_per_s": 1e9, "flops_per_s": 1e12}


@pytest.fixture
def source(tmp_path):
    return ChakraSource(job(tmp_path, [worker(20_000, 5_000, calls=3), worker(30_000, 5_000, calls=3)]), **FIGURES)


def test_figures_of_two_ranks_by_hand(source):
    assert source.quantity("makespan_s") == pytest.approx(3 * 35e-6)
    assert source.quantity("waiting_share", rank=0) == pytest.approx(10 / 35)
    assert source.quantity("waiting_share", rank=1) == 0.0
    assert (source.quantity("last_rank"), source.quantity("last_share")) == (1, 1.0)
    assert source.quantity("path_communication_share") == pytest.approx(5 / 35)
    assert source.quantity("path_computation_share") == pytest.approx(30 / 35)
    assert source.quantity("path_nodes") == 6
    assert source.quantity("nodes", rank=1) == 6
    assert (source.quantity("largest_node"), source.quantity("largest_node_share")) == (
        "gemm 0", pytest.approx(30 / 105)
    )  # fmt: skip
    assert source.quantity("unrecorded_share") == 0


def test_every_quantity_says_how_it_is_read(source):
    assert all(source.how(name) for name in QUANTITIES)


def test_what_there_is_not_is_refused(source, tmp_path):
    with pytest.raises(UnknownNameError):
        source.quantity("speed")
    for rank in (2, -1, True, "0"):
        with pytest.raises(BadTraceError):
            source.quantity("waiting_share", rank=rank)
    with pytest.raises(NoReplayError):
        source.quantity("problem", number=0)
    broken = ChakraSource(job(tmp_path / "broken", [program(PLAN), program(PLAN[1:])]), **FIGURES)
    with pytest.raises(NoReplayError, match="cannot be replayed"):
        broken.quantity("makespan_s")
    assert broken.quantity("culprits", number=0) == "0, 1"


def test_a_tie_names_no_last_rank(tmp_path):
    even = ChakraSource(job(tmp_path, [worker(9_000)] * 2), **FIGURES)
    with pytest.raises(NoReplayError):
        even.quantity("last_rank")
