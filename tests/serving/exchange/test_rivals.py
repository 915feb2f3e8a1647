"""Exchanges with buffers: right sums in any order, and the copies that they are known for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.exchange.cases import rank_steps, small

from wavetank.serving.exchange.interface import CapacityError
from wavetank.serving.exchange.reference import batch_of, dense
from wavetank.serving.exchange.rivals import AllToAll, LowLatencyLayout, RelayBuffers
from wavetank.serving.exchange.table import contiguous
from wavetank.serving.exchange.together import Together
from wavetank.serving.exchange.workload import LOADS, routed_tokens, slopes

RIVALS = (RelayBuffers(), AllToAll(), LowLatencyLayout())


@settings(max_examples=25, deadline=None)
@given(
    ranks=st.integers(1, 4), experts=st.integers(1, 9), tokens=st.integers(1, 6), load=st.sampled_from(LOADS),
    wire=st.sampled_from(["plain", "int8"]), ahead=st.integers(0, 1), grain=st.integers(0, 3), seed=st.integers(0, 999),
)  # fmt: skip
def test_any_routing_in_any_order_of_ranks_gives_the_same_sums(
    ranks: int, experts: int, tokens: int, load: str, wire: str, ahead: int, grain: int, seed: int
) -> None:
    task = small(ranks, experts, tokens=tokens, choices=min(experts, 3), wire=wire)
    steps, rng = rank_steps(load, task, experts, 4, seed), np.random.default_rng(seed)
    for exchange in RIVALS:
        together = Together(exchange, task, contiguous(experts, ranks), slopes, grain=grain)
        sums = together.run(steps, order=lambda ready, _: int(rng.choice(ready)), ahead=ahead)
        for rank in range(ranks):
            for step, routed in enumerate(steps[rank]):
                assert np.array_equal(sums[rank][step], dense(routed, slopes, task))


@pytest.mark.parametrize(
    ("exchange", "writes", "reads"),
    [(RelayBuffers(), 3.0, 3.0), (AllToAll(), 2.0, 2.0), (LowLatencyLayout(), 2.0 + 1 / 3, 2.0)],
)
def test_copies_and_bytes_between_ranks_are_those_of_the_design(exchange: Any, writes: float, reads: float) -> None:
    task, table = small(3, 8, tokens=6), contiguous(8, 3)
    steps = [[each] for each in routed_tokens("uniform", task, 8, 4)]
    together = Together(exchange, task, table, slopes)
    together.run(steps)
    rows = 3 * 6 * 3
    there, back = ([port.traffic[each] for port in together.ports] for each in ("dispatch", "combine"))
    assert sum(each.written_bytes for each in there) == pytest.approx(writes * rows * task.row_bytes)
    assert sum(each.read_bytes for each in there) == sum(each.written_bytes for each in there)
    assert sum(each.read_bytes for each in back) == reads * rows * task.output_bytes
    assert sum(each.written_bytes for each in back) == (reads - 1) * rows * task.output_bytes
    far = sum(int((batch_of(steps[rank][0], table, rank).slots // 3 != rank).sum()) for rank in range(3))
    assert sum(each.far_bytes for each in there) == far * task.row_bytes
    assert sum(each.far_bytes for each in back) == far * task.output_bytes


@pytest.mark.parametrize("exchange", RIVALS)
def test_windows_without_room_are_refused(exchange: Any) -> None:
    task = small(2, 4, tokens=4, choices=1, window_rows=7, source_rows=4)
    with pytest.raises(CapacityError, match="allowed: 7 rows"):
        Together(exchange, task, contiguous(4, 2), slopes).run([[each] for each in routed_tokens("one", task, 4, 1)])
    if isinstance(exchange, LowLatencyLayout):
        with pytest.raises(CapacityError, match="allowed: 3 rows"):
            narrow = small(2, 4, tokens=4, choices=1, source_rows=3)
            Together(exchange, narrow, contiguous(4, 2), slopes).run(
                [[each] for each in routed_tokens("one", narrow, 4, 1)]
            )
