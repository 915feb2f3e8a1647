"""Joining the least predicted work, on decisions worked out by hand."""

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.routing.interface import Arrival
from wavetank.serving.routing.predicted_work import PredictedWork
from wavetank.workloads import RequestTrace


def asked(expected, time_s=0.0, prompt_tokens=100.0, **more):
    return Arrival(time_s, prompt_tokens, expected, **more)


@pytest.fixture
def serve(workers):
    def make(n, router=None):
        router = router or PredictedWork()
        state, parameters = router.initial_state(n), router.parameters()
        return lambda arrival, **view: int(router.choose(workers(n, **view), arrival, state, parameters))

    return make


def test_one_long_answer_outweighs_several_short_ones(serve):
    send = serve(2)
    assert send(asked(1000.0)) == 0
    assert send(asked(100.0), running=[1, 0]) == 1
    assert send(asked(100.0), running=[1, 1]) == 1
    assert send(asked(2000.0), running=[1, 2]) == 1
    assert send(asked(10.0), running=[1, 3]) == 0


def test_what_was_produced_since_is_no_work(serve):
    send = serve(2)
    assert send(asked(1000.0)) == 0
    assert send(asked(600.0), running=[1, 0]) == 1
    # After 15 s at 30 ms per token 500 and 100 are left.
    assert send(asked(300.0, time_s=15.0), running=[1, 1]) == 1
    # After 30 s the first is late: a tenth of it counts; the second has 60 and none.
    assert send(asked(1.0, time_s=30.0), running=[1, 2]) == 1


def test_entries_nearest_to_their_end_are_struck_out_where_a_worker_has_fewer_requests(serve):
    send = serve(2)
    for expected, goes in ((500.0, 0), (400.0, 1), (50.0, 1)):
        assert send(asked(expected), running=[1, 1]) == goes
    # The second has one request left: the one of 400.
    assert send(asked(10.0), running=[1, 1]) == 1
    assert send(asked(1.0), running=[0, 0]) == 0


def test_requests_that_others_sent_count_as_long_as_most(serve):
    router = PredictedWork().fitted_to(
        RequestTrace(arrival_s=np.arange(8.0), prompt_tokens=np.full(8, 10), output_tokens=np.full(8, 100))
    )
    send = serve(2, router)
    assert send(asked(150.0), running=[0, 0]) == 0
    assert send(asked(1.0), running=[1, 2]) == 0
    assert send(asked(1.0), running=[2, 1]) == 1


@pytest.mark.parametrize("field", ["waiting_tokens", "sent_tokens"])
def test_prompts_that_wait_are_work(serve, field):
    send = serve(2)
    assert send(asked(100.0)) == 0
    # A prompt token costs a tenth of an output token.
    assert send(asked(1.0), running=[1, 0], **{field: [0.0, 1100.0]}) == 0
    send = serve(2)
    assert send(asked(100.0)) == 0
    assert send(asked(1.0), running=[1, 0], **{field: [0.0, 900.0]}) == 1


def test_it_evens_out_answers_and_not_what_a_first_token_waits_for_unless_prompts_weigh_far_above_their_work(serve):
    """Of the first 500 tokens are left, at the second 4,000 prompt tokens stand in line, which are as much as 400."""
    for router, expected in ((PredictedWork(), 1), (PredictedWork(tokens_per_prompt_token=10.0), 0)):
        send = serve(2, router)
        assert send(asked(500.0)) == 0
        assert send(asked(100.0), running=[1, 0], waiting_tokens=[0.0, 4000.0]) == expected


def test_a_slower_worker_takes_longer_over_the_same_work(serve):
    send = serve(2)
    assert send(asked(100.0)) == 0
    assert send(asked(150.0), running=[1, 0]) == 1
    assert send(asked(1.0), running=[1, 1], speed=[0.5, 1.0]) == 1


def test_lengths_are_learned_by_classes_of_prompts_and_end_at_the_limit(serve):
    prompts = np.arange(1, 161)
    outputs = np.where(prompts <= 80, 10, 1000)
    past = RequestTrace(arrival_s=np.arange(160.0), prompt_tokens=prompts, output_tokens=outputs)
    router = PredictedWork().fitted_to(past)
    assert router.means == (10.0,) * 4 + (1000.0,) * 4
    send = serve(2, router)
    assert send(asked(np.nan, prompt_tokens=150.0)) == 0
    assert send(asked(np.nan, prompt_tokens=20.0), running=[1, 0]) == 1
    assert send(asked(np.nan, prompt_tokens=20.0), running=[1, 1]) == 1
    send = serve(2, router)
    assert send(asked(np.nan, prompt_tokens=150.0, max_tokens=5.0)) == 0
    assert send(asked(np.nan, prompt_tokens=20.0), running=[1, 0]) == 1
    assert send(asked(np.nan, prompt_tokens=20.0), running=[1, 1]) == 0


def test_a_past_of_equal_prompts_has_one_mean(serve):
    past = RequestTrace(arrival_s=[0.0, 1.0], prompt_tokens=[5, 5], output_tokens=[10, 30])
    assert PredictedWork().fitted_to(past).means == (20.0,) * 8


def test_equals_take_turns_and_workers_that_take_nothing_are_left_out(serve):
    send = serve(3)
    assert [send(asked(10.0)) for _ in range(4)] == [0, 1, 2, 0]
    assert [send(asked(10.0), takes=[0, 0, 1]) for _ in range(2)] == [2, 2]
    assert send(asked(10.0), takes=0) == 0


def test_what_cannot_be_written_down_is_sent_all_the_same(serve):
    send = serve(2, PredictedWork(entries=1))
    assert [send(asked(10.0), running=[9, 9]) for _ in range(6)] == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(("edges", "means"), [((1.0,), ()), ((), (1.0,) * 8), ((1.0,) * 8, (1.0,) * 8)])
def test_lengths_and_means_that_do_not_fit_together_are_refused(edges, means):
    with pytest.raises(BadValueError, match="do not fit together"):
        PredictedWork(edges=edges, means=means)
    assert PredictedWork(edges=(1.0,) * 7, means=(2.0,) * 8).parameters().size == 17
