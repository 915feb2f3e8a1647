"""The study of real processes: bytes and sums of every system, times on every link."""

import sys

import pytest

from wavetank.errors import BadValueError
from wavetank.training.compression.ncclz import Ncclz
from wavetank.training.compression.rivals import PlainRing
from wavetank.training.compression.study_throttled import ThrottledAllReduce

pytest.importorskip("torch", reason="needs the library torch")

STUDY = ThrottledAllReduce(links=(2e7, 0.0), repeats=1)


def figures(system, study=STUDY):
    return {(name, *at.values()): value for name, value, at in study.measure(system, 0).rows}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="connections are throttled on Linux only")
def test_few_bytes_are_there_sooner_on_a_slow_link_and_within_the_bound():
    plain, ours = figures(PlainRing()), figures(Ncclz())
    assert plain["compression_ratio",] == 1.0
    assert ours["compression_ratio",] > 3
    assert ours["time_s",] == ours["time_by_link_s", 2e7]
    assert ours["time_s",] < 0.7 * plain["time_s",]
    assert plain["time_by_link_s", 0.0] < plain["time_s",]
    assert plain["ranks_differ",] == ours["ranks_differ",] == 0.0
    assert ours["error_over_bound",] <= 1.0
    assert plain["relative_error",] < 1e-6 < ours["relative_error",]


def test_gradients_have_no_bound():
    found = figures(Ncclz(), ThrottledAllReduce(links=(1e9,), repeats=1, workload="gradients"))
    assert "error_over_bound" not in {key[0] for key in found}
    assert 1e-4 < found["relative_error",] < 0.1


def test_a_sweep_without_a_limit_is_refused_and_notes_name_the_cores():
    with pytest.raises(BadValueError, match="limited"):
        ThrottledAllReduce(links=(0.0,)).check()
    STUDY.check()
    assert "share the cores" in STUDY.notes()[0]
