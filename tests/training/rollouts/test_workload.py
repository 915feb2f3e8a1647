"""Requests on their instances, bursts, batches and spot instances."""

import numpy as np
import pytest
from tests.training.rollouts.small import PS, rates

from wavetank.errors import BadValueError
from wavetank.training.rollouts.core import FAR
from wavetank.training.rollouts.interface import Arrangement
from wavetank.training.rollouts.simulate import Load, simulate
from wavetank.training.rollouts.workload import assigned, bursts, drawn_batches, drawn_spot, kept_spot, saturation_per_s
from wavetank.workloads.generate import generate_requests

TRACE = generate_requests(n_requests=2000, rate_per_s=4.0, arrivals="poisson", lengths="conv", seed=1)


def test_every_request_is_on_one_instance_in_order_and_none_has_much_more_than_others():
    found = assigned(TRACE, 4, 0.02)
    assert found.first[0] == 0 and found.first[-1] == 2000
    assert sorted(found.arrival_ps.tolist()) == np.rint(TRACE.arrival_s * PS).astype(int).tolist()
    assert found.prompt_tokens.sum() == TRACE.prompt_tokens.sum()
    for begin, end in zip(found.first[:-1], found.first[1:], strict=True):
        assert (np.diff(found.arrival_ps[begin:end]) >= 0).all()
        assert 400 < end - begin < 600


def test_a_request_goes_where_fewest_tokens_are_on_their_way():
    few = TRACE.chosen(np.arange(3), np.array([0.0, 1.0, 1e6]))
    found = assigned(few, 2, 1.0)
    assert found.first.tolist() == [0, 2, 3]
    assert found.prompt_tokens.tolist() == few.prompt_tokens[[0, 2, 1]].tolist()


def test_more_than_the_saturation_rate_is_not_served_in_time():
    rate = saturation_per_s(TRACE, rates(shared_pool_bytes=200_000 * 131_072))
    waited = {}
    for factor in (0.7, 1.5):
        users = TRACE.at_rate(factor * rate)
        load = Load(np.array([0, 2000]), np.rint(users.arrival_s * PS).astype(np.int64), users.prompt_tokens.copy(),
                    users.output_tokens.copy())  # fmt: skip
        run = simulate(Arrangement(), rates(shared_pool_bytes=200_000 * 131_072), load)
        waited[factor] = np.median((run.first_ps - load.arrival_ps)[-200:]) / PS
    assert waited[0.7] < 0.5
    assert waited[1.5] > 5.0


def test_bursts_keep_mean_rate_and_order_and_are_denser():
    found = bursts(TRACE, 5.0, seed=3, every_s=100.0, last_s=10.0)
    assert len(found) == len(TRACE)
    assert found.rate_per_s == pytest.approx(TRACE.rate_per_s)

    def densest(trace):
        counts = np.bincount((trace.arrival_s // 5).astype(int))
        return counts.max() / counts.mean()

    assert densest(found) > 1.5 * densest(TRACE)
    assert bursts(TRACE, 1.0, seed=3) is TRACE
    assert found.arrival_s[[0, -1]].tolist() == TRACE.arrival_s[[0, -1]].tolist()
    with pytest.raises(BadValueError, match="at least"):
        bursts(TRACE, 0.5, seed=3)


def test_a_burst_lasts_as_long_and_has_as_many_times_the_rate_as_asked():
    even = TRACE.chosen(np.arange(2000), np.arange(2000) * 0.25)
    found = bursts(even, 5.0, seed=3, every_s=1e9, last_s=20.0)
    gaps = np.diff(found.arrival_s)
    inside = gaps < 0.5 * np.median(gaps)
    assert np.median(gaps) / np.median(gaps[inside]) == pytest.approx(5.0)
    assert gaps[inside].sum() == pytest.approx(20.0, abs=2 * np.median(gaps))


def test_bursts_of_a_trace_of_months_need_no_memory_of_their_square():
    many = TRACE.chosen(np.arange(2000), np.linspace(0.0, 1e8, 2000))
    assert len(bursts(many, 4.2, seed=0)) == 2000


def test_batches_differ_as_asked_and_have_the_mean_size():
    even = drawn_batches(5, 100, 1.0, 200, 0)
    assert np.diff(even.ends, prepend=0).tolist() == [100] * 5
    uneven = drawn_batches(400, 100, 4.0, 10, 0)
    sizes = np.diff(uneven.ends, prepend=0)
    assert sizes.min() >= 40 and sizes.max() <= 160
    assert sizes.mean() == pytest.approx(100, rel=0.05)
    assert len(uneven.trajectories) == uneven.ends[-1]


def test_spot_instances_start_within_their_time_and_come_again():
    found = drawn_spot(3, (60.0, 300.0), 500.0, 5000.0, 1)
    up, down = found.up_ps / PS, found.down_ps / PS
    assert up.shape == down.shape and (found.up_ps[:, -1] == FAR).all()
    for row in range(3):
        there = found.up_ps[row] < FAR
        assert (down[row][there] > up[row][there]).all()
        starts = up[row][there] - np.concatenate(([0.0], down[row][there][:-1]))
        assert ((starts >= 60) & (starts <= 300)).all()
        assert down[row][there][-1] >= 5000
    assert (drawn_spot(3, (60.0, 300.0), 500.0, 5000.0, 1).up_ps == found.up_ps).all()
    assert drawn_spot(0, (60.0, 300.0), 500.0, 5000.0, 1).up_ps.shape[0] == 0


def test_kept_instances_are_there_from_the_beginning_and_never_gone():
    found = kept_spot(2)
    assert found.up_ps.tolist() == [[0, FAR], [0, FAR]]
    assert (found.down_ps == FAR).all() and found.down_ps.shape == (2, 2)
