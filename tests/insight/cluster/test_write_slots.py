"""Slots: the closed form against each request, the knee, and loads that there cannot be."""

from __future__ import annotations

import heapq
import math

import pytest

from wavetank.errors import BadValueError
from wavetank.insight.cluster.write_slots import Load, SlotLimit, burst, knee_nodes, predicted_share

LOAD = Load(4e9, 4.0, 1e6, 0.005, 0.003)


def by_hand(load: Load, slots: int, nodes: int) -> tuple[float, float]:
    """Waiting and latency with a heap of busy slots."""
    busy = [0.0] * slots
    waited = latency = 0.0
    for request in range(load.requests):
        came = request * load.over_s / load.requests
        begun = max(came, heapq.heappop(busy))
        heapq.heappush(busy, begun + load.service_s(nodes))
        waited += begun - came
        latency += begun - came + load.service_s(nodes)
    return waited / latency, latency / load.requests


@pytest.mark.parametrize(("slots", "nodes"), [(128, 60), (128, 4), (512, 60), (7, 30)])
def test_each_request_waits_for_the_slot_that_is_free_first(slots: int, nodes: int) -> None:
    found = burst(LOAD, slots, nodes)
    share, latency_s = by_hand(LOAD, slots, nodes)
    assert found.queue_share == pytest.approx(share, abs=1e-9) and found.latency_s == pytest.approx(latency_s)
    assert found.queue_share == pytest.approx(1 - found.service_s / found.latency_s, abs=1e-9)


@pytest.mark.parametrize("nodes", [1, 2, 4, 30, 60, 120, 500])
@pytest.mark.parametrize("slots", [32, 128, 512])
def test_the_closed_form_is_what_requests_find(slots: int, nodes: int) -> None:
    assert predicted_share(LOAD, slots, nodes) == pytest.approx(burst(LOAD, slots, nodes).queue_share, abs=0.02)


def test_few_nodes_do_not_wait_and_sixty_do_and_more_slots_move_the_knee() -> None:
    few, many = burst(LOAD, 128, 4), burst(LOAD, 128, 60)
    assert few.queue_share < 0.01 and many.queue_share > 0.5
    assert burst(LOAD, 512, 60).queue_share < 0.01
    # 128 slots x 1 MB a GB/s: 128 ms, less 5 ms of a node alone, 3 ms each.
    assert knee_nodes(LOAD, 128) == pytest.approx(1 + 123 / 3) and knee_nodes(LOAD, 512) == pytest.approx(1 + 507 / 3)
    for slots in (128, 512):
        knee = knee_nodes(LOAD, slots)
        assert burst(LOAD, slots, int(knee) - 2).queue_share < 0.01 < burst(LOAD, slots, int(knee) + 8).queue_share


def test_a_burst_at_once_waits_by_rounds() -> None:
    at_once = Load(64e6, 0.0, 1e6, 0.01, 0.0)
    found = burst(at_once, 4, 1)
    # 64 requests in 16 rounds.
    assert found.queue_share == pytest.approx(7.5 / 8.5) and found.lasts_s == pytest.approx(0.16)
    assert predicted_share(at_once, 4, 1) == pytest.approx(7.5 / 8.5)
    assert knee_nodes(Load(64e6, 1.0, 1e6, 0.01, 0.0), 4) == math.inf
    assert knee_nodes(at_once, 4) == 0.0


@pytest.mark.parametrize(
    "wrong", [{"burst_bytes": 0.0}, {"over_s": -1.0}, {"request_bytes": math.nan}, {"alone_s": 0.0},
              {"per_node_s": math.inf}, {"request_bytes": 1e-3}],
)  # fmt: skip
def test_what_is_no_burst_is_refused(wrong) -> None:
    with pytest.raises(BadValueError):
        burst(LOAD._replace(**wrong), 128, 4)
    with pytest.raises(BadValueError):
        SlotLimit(slots=0)
