"""Figures of layout studies: what is timed, what is averaged, what has no mean."""

import math

import numpy as np
import pytest

from wavetank.kernels.layouts import Layout
from wavetank.kernels.layouts.conversion import Counts
from wavetank.kernels.layouts.figures import Judged, metrics_of, planning_s, put_figures, scrambled
from wavetank.study.study import Measurements


def put(*rows):
    found = Measurements()
    put_figures(found, "some", rows)
    assert all(at == {"kind": "some"} for _, _, at in found.rows)
    return {metric: value for metric, value, _ in found.rows}


def counts(wavefronts, memory_bytes=0):
    return Counts(wavefronts=wavefronts, memory_bytes=memory_bytes)


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
def test_a_scrambled_tensor_has_the_shape_and_as_many_values_as_its_type_can_hold(element_bytes):
    layout = Layout({"register": [(1, 0), (0, 1)], "lane": [(0, 2), (2, 0)]}, {"dim0": 4, "dim1": 4})
    tensor = scrambled(layout, element_bytes)
    assert tensor.shape == (4, 4) and tensor.itemsize == element_bytes
    assert np.unique(tensor).size == 16


def test_the_least_time_of_five_counts(monkeypatch):
    clock = iter([0.0, 5.0, 10.0, 12.0, 20.0, 29.0, 30.0, 33.0, 40.0, 48.0])
    monkeypatch.setattr("wavetank.kernels.layouts.figures.time.perf_counter", lambda: next(clock))
    calls = []
    assert planning_s(lambda: calls.append(1)) == 2.0
    assert len(calls) == 5


def test_means_are_geometric_and_none_counts_as_one():
    found = put(Judged(True, counts(0), 1.0, 7), Judged(False, counts(16, 64), 3.0, 32))
    assert found["correct_share"] == 0.5
    assert found["wavefronts"] == pytest.approx(4.0)
    assert (found["plan_s"], found["slowest_plan_s"], found["memory_bytes"]) == (2.0, 3.0, 32.0)
    assert found["gain_mean"] == found["gain_max"] == pytest.approx(2.0)


def test_where_one_is_refused_there_is_no_mean_of_the_kind():
    found = put(Judged(True, counts(4), 1.0, 8), Judged(False, None, math.nan, 8))
    assert found == {"correct_share": 0.5, "plan_s": 1.0, "slowest_plan_s": 1.0}


def test_where_all_are_refused_only_the_share_is_told():
    assert put(Judged(False, None, math.nan, 8)) == {"correct_share": 0.0}


def test_without_wavefronts_there_is_no_gain():
    assert "gain_max" not in put(Judged(True, counts(0), 1.0, 8))


def test_metrics_say_what_they_are_means_of():
    assert {metric.of for metric in metrics_of("gather", "gathers", "done") if "gathers" not in metric.of} == {
        "mean shared memory of a gather"
    }
