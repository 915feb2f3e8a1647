"""Preble's E2, on decisions worked out by hand."""

import numpy as np
import pytest

from wavetank.serving.routing.interface import Arrival
from wavetank.serving.routing.preble import BINS, Preble

SAID = tuple(range(1, 11))


def asked(*blocks, time_s=0.0, prompt_tokens=1000.0, output=0.0, max_tokens=np.nan):
    return Arrival(time_s, float(prompt_tokens), output, max_tokens=max_tokens, blocks=np.array(blocks, np.int64))


@pytest.fixture
def serve(workers):
    def make(n, router=None, **view):
        router = router or Preble()
        state, parameters = router.initial_state(n), router.parameters()
        return lambda arrival, **more: int(router.choose(workers(n, **view, **more), arrival, state, parameters))

    return make


def test_prompts_without_a_match_go_where_the_least_work_was_sent(serve):
    send = serve(3)
    assert [send(asked(*range(10 * i, 10 * i + 10), prompt_tokens=p)) for i, p in enumerate((900, 400, 500, 300))] == [
        0, 1, 2, 1,
    ]  # fmt: skip


@pytest.mark.parametrize(("shared", "goes"), [(5, 1), (6, 0)])
def test_a_prefix_longer_than_the_rest_is_followed(serve, shared, goes):
    send = serve(2)
    assert send(asked(*SAID)) == 0
    # The first worker has 1,000 tokens of work: exploring sends the request to the second as long as it may.
    assert send(asked(*SAID[:shared], *range(100, 110 - shared))) == goes


def test_what_matches_lowers_the_cost_of_a_worker_that_is_explored(serve):
    send = serve(2)
    assert send(asked(*SAID, prompt_tokens=400)) == 0
    assert send(asked(*range(20, 30), prompt_tokens=500)) == 1
    # 400 + 600 against 500 + 1,000.
    assert send(asked(*SAID[:4], *range(40, 46))) == 0


def test_output_tokens_are_work_by_prediction_by_limit_or_by_default(serve):
    for more, work in (({"output": 3.0}, 600), ({"output": np.nan, "max_tokens": 2.0}, 400), ({"output": np.nan}, 9000),
                       ({"output": np.nan, "max_tokens": 9000.0}, 9000)):  # fmt: skip
        for other in (work - 1, work + 1):
            send = serve(2)
            assert send(asked(*SAID, prompt_tokens=100, **more)) == 0
            assert send(asked(*range(20, 30), prompt_tokens=100 + other, output=0.0)) == 1
            assert send(asked(*range(40, 50))) == (1 if other < work else 0)


def test_work_of_more_than_a_window_ago_is_no_load(serve):
    send = serve(2)
    assert send(asked(*SAID, prompt_tokens=9000)) == 0
    assert send(asked(*range(20, 30), time_s=179.0)) == 1
    assert send(asked(*range(30, 40), time_s=179.0)) == 1
    # Bins are dropped whole.
    assert send(asked(*range(40, 50), time_s=180.0 + 180.0 / BINS)) == 0
    # A pause longer than the window empties all of it.
    assert send(asked(*range(50, 60), time_s=5000.0)) == 0
    assert send(asked(*range(60, 70), time_s=5000.0)) == 1


def test_where_the_load_is_uneven_a_prefix_is_followed_to_the_idlest(serve):
    send = serve(2, Preble(settled_requests=2.0))
    sent = [send(asked(*SAID, time_s=float(i), output=100.0)) for i in range(12)]
    # Until four requests have come, two per worker, all follow; then the idler one has the prefix, too, and shares.
    assert sent[:4] == [0, 0, 0, 0]
    assert sent[4] == 1
    assert set(sent[5:]) == {0, 1}
    assert serve(2, Preble(settled_requests=1e9))(asked(*SAID)) == 0


def test_a_worker_forgets_what_its_cache_cannot_hold(serve):
    send = serve(2, kv_capacity_tokens=1500.0)
    assert send(asked(*SAID)) == 0
    assert send(asked(*range(20, 30))) == 1
    assert send(asked(*range(40, 50))) == 0
    # Of what was sent to it the second worker holds all.
    assert send(asked(*range(20, 30))) == 1


def test_workers_that_take_nothing_are_left_out(serve):
    send = serve(2)
    assert send(asked(*SAID)) == 0
    assert send(asked(*SAID), takes=[0, 1]) == 1
    assert send(asked(*SAID), takes=[0, 0]) == 0
