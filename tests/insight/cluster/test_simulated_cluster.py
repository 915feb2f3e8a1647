"""The simulated cluster: its chunks, its faults where they were planted, its job, and its ranges."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from wavetank.errors import BadValueError, DataUnavailableError
from wavetank.insight.cluster import simulated_cluster as cluster
from wavetank.insight.cluster.simulated_cluster import (
    BY_NAME,
    CHUNK,
    CLASSES,
    DAY,
    GPUS,
    METRICS,
    NAMES,
    XID,
    Fault,
    SimulatedCluster,
    drawn_faults,
    indices,
    plants_of,
)
from wavetank.workloads import datasets

FAULT = Fault("nvlink", 2, 200, 260, 280, 5)


def test_there_are_about_a_hundred_metrics_of_five_layers() -> None:
    assert len(METRICS) == len(set(NAMES)) == 102
    assert cluster.LAYERS == ("gpu", "host", "network", "storage", "chassis")
    assert [METRICS[each].layer for each in (0, XID, 101)] == ["gpu", "gpu", "chassis"]


def test_a_chunk_depends_on_nothing_but_its_place() -> None:
    one, same = SimulatedCluster(1, 5, 1), SimulatedCluster(1, 5, 1)
    list(one.stream())
    assert np.array_equal(one.chunk(2).values, same.chunk(2).values, equal_nan=True)
    assert one.chunk(2).first == 2 * CHUNK and one.chunks == 4
    assert not np.array_equal(one.chunk(1).values, SimulatedCluster(2, 5, 1).chunk(1).values, equal_nan=True)


def test_a_fault_departs_on_its_node_in_its_span_alone() -> None:
    with_fault, without = (SimulatedCluster(1, 5, 1, (FAULT,)).chunk(0, strength).values for strength in (1.0, 0.0))
    differs = ~((with_fault == without) | (np.isnan(with_fault) & np.isnan(without)))
    nodes, samples = np.nonzero(differs.any(axis=0))
    assert set(nodes) == {2} and samples.min() == 200 and samples.max() == 279
    (interrupts,) = indices("node_intr")
    assert with_fault[interrupts, 2, 200:280] == pytest.approx(0.28 * without[interrupts, 2, 200:280], rel=1e-5)
    # The XID is logged at the crash, later than the first departure.
    assert not with_fault[XID, :, :260].any() and (with_fault[XID, 2, 260:280] == 74).all()


def test_half_a_fault_is_the_root_of_its_factor() -> None:
    half, none = (SimulatedCluster(1, 5, 1, (FAULT,)).chunk(0, strength).values for strength in (0.5, 0.0))
    (interrupts,) = indices("node_intr")
    assert half[interrupts, 2, 230] == pytest.approx(none[interrupts, 2, 230] * 0.28**0.5, rel=1e-5)


@pytest.mark.parametrize("kind", [each.name for each in CLASSES])
def test_every_class_has_effects_and_only_four_are_logged_as_xid(kind: str) -> None:
    plants = plants_of(Fault(kind, 0, 10, 20, 30, 1))
    assert len({each.series[0] for each in plants}) >= 3
    assert (any(each.series[0] == XID and each.size > 0 for each in plants)) == bool(BY_NAME[kind].xid)
    assert sum(each.xid > 0 for each in CLASSES) == 4


def test_the_job_of_all_nodes_breaks_down_at_a_crash_and_saves_every_hour() -> None:
    states = SimulatedCluster(3, 5, 1, (FAULT,)).states()
    assert (states[260:282] == cluster.IDLE).all() and (states[282:290] == cluster.LOAD).all()
    begins = np.flatnonzero((states[1:] == cluster.CHECKPOINT) & (states[:-1] != cluster.CHECKPOINT)) + 1
    assert begins[0] == 120 and 120 in np.diff(begins)
    # Common to all nodes: power falls on all of them.
    values = SimulatedCluster(3, 5, 1, (FAULT,), events=0).chunk(0).values
    power = values[indices("DCGM_FI_DEV_POWER_USAGE")[0]]
    assert (power[:, 264:280] < 0.5 * power[:, 130:140].mean(axis=1, keepdims=True)).all()


def test_without_harmless_events_nothing_is_missing_and_with_them_something_is() -> None:
    assert not np.isnan(SimulatedCluster(1, 5, 1, events=0).chunk(0).values).any()
    assert np.isnan(SimulatedCluster(1, 5, 1, events=50).chunk(0).values).any()


def test_drawn_faults_lie_inside_chunks_one_in_each() -> None:
    faults = drawn_faults(4, 63, 5, tuple(BY_NAME) * 2)
    chunks = [each.begin // CHUNK for each in faults]
    assert len(set(chunks)) == len(faults) == 20 and faults == tuple(sorted(faults, key=lambda each: each.begin))
    for each in faults:
        assert each.begin // CHUNK == (each.end + 60) // CHUNK and each.begin + 4 <= each.crash < each.end
        assert 0 <= each.node < 63 and 0 <= each.unit < GPUS
    assert faults != drawn_faults(5, 63, 5, tuple(BY_NAME) * 2)


def test_too_many_faults_and_unknown_ones_are_refused() -> None:
    with pytest.raises(BadValueError, match="quarter of a day"):
        drawn_faults(1, 5, 1, ("ecc",) * 5)
    with pytest.raises(BadValueError, match="class of faults"):
        drawn_faults(1, 5, 1, ("gremlin",))
    with pytest.raises(BadValueError, match="has this name"):
        indices("no_such_metric")


def test_temperatures_lie_within_those_of_a_real_cluster() -> None:
    try:
        path = datasets.find("gpu-cluster-ops") / "acme_kalos_cdf.csv"
    except DataUnavailableError as error:
        pytest.skip(str(error))
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    values = SimulatedCluster(1, 9, 1, events=0).chunk(0).values
    real = [float(row["gpu_temp_c"]) for row in rows]
    ours = values[list(indices("DCGM_FI_DEV_GPU_TEMP"))]
    assert min(real) < np.quantile(ours, 0.01) and np.quantile(ours, 0.95) < max(real)
    assert DAY == 2880
