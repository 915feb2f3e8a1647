"""Drifting requests."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.tiers.traffic import LONGEST_PROMPT, Drift, TieredRequests, drifting, lengths_of, mean_lengths

LENGTHS = lengths_of("generated")


def test_shares_swing_while_their_sum_stays():
    times = np.linspace(0, 60, 121)
    factors = Drift(period_s=60.0, amplitude=1.0).factors(times, 3)
    assert factors.sum(axis=0) == pytest.approx(np.full(121, 3.0))
    assert factors.min() == pytest.approx(0.0, abs=1e-6) and factors.max() == pytest.approx(2.0, abs=1e-6)


def test_arrivals_follow_the_swing_and_their_mean():
    requests = drifting((30.0, 30.0, 30.0), Drift(period_s=40.0, amplitude=1.0), 400.0, LENGTHS, 3)
    assert np.bincount(requests.tier) / 400 == pytest.approx(np.full(3, 30.0), rel=0.05)
    own = requests.arrival_s[requests.tier == 0] % 40
    rising, falling = ((own < 20).sum(), (own >= 20).sum())
    assert rising > 3 * falling
    assert requests.prompt_tokens.max() <= LONGEST_PROMPT


def test_bursts_multiply_one_tier_for_five_seconds():
    calm, wild = (
        drifting((20.0,), Drift(amplitude=0.0, burst=factor, bursts_per_minute=3.0), 300.0, LENGTHS[:1], 5)
        for factor in (1.0, 4.0)
    )
    most = [np.histogram(each.arrival_s, np.arange(0, 301, 5))[0].max() for each in (calm, wild)]
    assert most[1] > 2 * most[0]


def test_equal_seeds_give_equal_requests_and_others_do_not():
    one, same, other = (drifting((5.0, 5.0, 5.0), Drift(), 30.0, LENGTHS, seed) for seed in (0, 0, 1))
    assert np.array_equal(one.arrival_s, same.arrival_s) and np.array_equal(one.prompt_tokens, same.prompt_tokens)
    assert one.arrival_s.size != other.arrival_s.size or not np.array_equal(one.arrival_s, other.arrival_s)


def test_mean_lengths_are_those_of_the_kind():
    prompt, output = mean_lengths(LENGTHS[1])
    assert prompt == pytest.approx(2047.8, rel=0.05) and output == pytest.approx(27.9, rel=0.1)


def test_requests_out_of_order_or_without_tokens_are_refused():
    ones = np.ones(2, np.int64)
    with pytest.raises(BadValueError):
        TieredRequests(arrival_s=np.array([1.0, 0.0]), tier=ones, prompt_tokens=ones, output_tokens=ones)
    with pytest.raises(BadValueError):
        TieredRequests(arrival_s=np.array([0.0, 1.0]), tier=ones, prompt_tokens=ones, output_tokens=0 * ones)
    with pytest.raises(BadValueError):
        TieredRequests(arrival_s=np.array([]), tier=ones[:0], prompt_tokens=ones[:0], output_tokens=ones[:0])
