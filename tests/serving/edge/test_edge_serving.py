"""EdgeServing's score against its definition, and the cases in which local rules fail."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serving.edge.conftest import profile_of

from wavetank.serving.edge.edge_serving import EdgeServing
from wavetank.serving.edge.interface import Queues, deepest
from wavetank.serving.edge.rivals import OneQueue

PROFILE = profile_of((0.004, 0.01, 0.02), (0.003, 0.02, 0.04), (0.01, 0.011, 0.012))


def by_definition(queues, profile, model):
    """Return the sum over all requests that a batch leaves, one exponential each."""
    batch = min(len(queues.arrived_s[model]), profile.max_batch)
    exit_ = deepest(profile, model, batch, queues.now_s - queues.arrived_s[model][0], queues.slo_s)
    after = queues.now_s + profile.seconds(model, exit_, batch)
    left = [at for m, each in enumerate(queues.arrived_s) for at in each[batch if m == model else 0 :]]
    return sum(min(math.exp(min((after - at) / queues.slo_s - 1, 99)), 10.0) for at in left)


QUEUE = st.lists(st.floats(0.0, 1.0), max_size=15).map(sorted)


@settings(max_examples=200, deadline=None)
@given(arrived_s=st.tuples(QUEUE, QUEUE, QUEUE).filter(any), slo_s=st.sampled_from([0.02, 0.05, 0.5]))
def test_the_model_with_the_least_score_is_served_where_every_request_is_summed_by_itself(arrived_s, slo_s):
    queues = Queues(1.0, slo_s, arrived_s)
    scores = {m: by_definition(queues, PROFILE, m) for m, each in enumerate(arrived_s) if each}
    chosen = EdgeServing().choose(queues, PROFILE, 0)
    assert scores[chosen.model] <= min(scores.values()) * (1 + 1e-9) + 1e-12
    assert chosen.batch == min(len(arrived_s[chosen.model]), 4)


def test_an_urgent_request_is_served_before_a_longer_queue():
    queues = Queues(1.0, 0.05, ([0.999] * 2, [0.955], []))
    assert EdgeServing().choose(queues, PROFILE, 0).model == 1
    assert OneQueue().choose(queues, PROFILE, 0).model == 0


def test_the_released_code_chooses_the_exit_of_the_largest_batch():
    profile = profile_of((0.01, 0.02))
    slow = profile.latency_s[0][0], (0.02, 0.02, 0.02, 0.06)
    profile = type(profile)(models=("m",), latency_s=(slow,), accuracy=((0.5, 0.6),))
    queues = Queues(1.0, 0.05, ([1.0],))
    assert EdgeServing().choose(queues, profile, 0).exit == 1
    assert EdgeServing(full_batch_exit=True).choose(queues, profile, 0).exit == 0


def test_a_request_that_waited_for_ages_leaves_the_scores_numbers():
    chosen = EdgeServing().choose(Queues(1e5, 0.001, ([0.0, 1e5], [1e5], [])), PROFILE, 0)
    assert chosen.model == 0 and chosen.exit == pytest.approx(0)
