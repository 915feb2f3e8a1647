"""The readable simulator of prefill and decode workers: its own known answers, so that both are not wrong alike."""

from __future__ import annotations

from tests.serving.simulator.split_reference import simulate_split_slowly
from tests.serving.simulator.test_split_core import Watch, pool, split, trace

from wavetank.serving.routing.baselines import RoundRobin


def found(rows, cluster):
    columns = simulate_split_slowly(trace(*rows), cluster, RoundRobin(), RoundRobin(), watch=Watch())
    return {name: (values // 10**6).tolist() for name, values in columns.items() if name.endswith("_ps")}


def test_one_request():
    columns = found([(0.0, 10, 3)], split(pool(), pool()))
    # 1 ms + 10 * 10 us; 2 ms + 10 * 10 us; two steps of 1.1 ms on 10 and 11 tokens.
    assert columns["first_ps"] == columns["began_ps"] == [1100]
    assert columns["landed_ps"] == [1100 + 2100]
    assert columns["finish_ps"] == [1100 + 2100 + 1110 + 1111]


def test_a_request_of_one_token_is_never_handed_over():
    columns = found([(0.0, 10, 1)], split(pool(), pool()))
    assert columns["finish_ps"] == columns["first_ps"] == [1100]
    assert columns["landed_ps"] == [-1]


def test_two_share_the_link_of_their_prefill_worker():
    columns = found([(0.0, 10, 2), (0.0, 20, 2)], split(pool(), pool(workers=2)))
    assert columns["first_ps"] == [1300, 1300]
    assert columns["landed_ps"] == [1300 + 2000 + 100, 1300 + 2000 + 100 + 200]
