"""The routers everybody knows."""

import numpy as np
import pytest

from wavetank.serving.routing.baselines import (
    CentralQueue,
    FewestKVTokens,
    FewestRequests,
    RandomWorker,
    RoundRobin,
    random_stream,
)


def test_round_robin_goes_through_the_workers_in_order_and_starts_again(workers, chosen):
    assert chosen(RoundRobin(), workers(3, running=[9, 0, 0]), 7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_random_worker_is_drawn_evenly_and_again_alike_with_the_same_seed(workers, chosen):
    view = workers(5)
    drawn = chosen(RandomWorker(seed=3), view, 5000)
    counts = np.bincount(drawn, minlength=5)
    # Four degrees of freedom: 99.99 % of fair draws stay below 23.5.
    assert ((counts - 1000) ** 2 / 1000).sum() < 23.5
    assert drawn == chosen(RandomWorker(seed=3), view, 5000)
    assert drawn != chosen(RandomWorker(seed=4), view, 5000)


def test_streams_of_different_purposes_differ():
    assert random_stream(0, "one")[0] != random_stream(0, "other")[0]
    assert random_stream(0, "one")[1] == 0


@pytest.mark.parametrize("field", ["running", "waiting", "sent_requests"])
def test_fewest_requests_counts_running_waiting_and_just_sent_ones(workers, chosen, field):
    assert chosen(FewestRequests(), workers(3, **{field: [2, 1, 3]})) == [1]


def test_fewest_requests_adds_what_it_counts(workers, chosen):
    view = workers(3, running=[3, 0, 0], waiting=[0, 2, 1], sent_requests=[0, 2, 1])
    assert chosen(FewestRequests(), view) == [2]


def test_fewest_requests_does_not_look_at_tokens(workers, chosen):
    assert chosen(FewestRequests(), workers(2, running=[1, 2], kv_tokens=[1e6, 1.0])) == [0]


@pytest.mark.parametrize("field", ["kv_tokens", "waiting_tokens", "sent_tokens"])
def test_fewest_kv_tokens_counts_held_waiting_and_just_sent_tokens(workers, chosen, field):
    assert chosen(FewestKVTokens(), workers(3, **{field: [200.0, 300.0, 100.0]})) == [2]


def test_fewest_kv_tokens_adds_what_it_counts(workers, chosen):
    view = workers(3, kv_tokens=[300.0, 0, 0], waiting_tokens=[0, 150.0, 150.0], sent_tokens=[0, 100.0, 160.0])
    assert chosen(FewestKVTokens(), view) == [1]


def test_fewest_kv_tokens_does_not_look_at_counts(workers, chosen):
    assert chosen(FewestKVTokens(), workers(2, running=[9, 1], kv_tokens=[10.0, 20.0])) == [0]


@pytest.mark.parametrize("router", [FewestRequests(), FewestKVTokens()])
def test_ties_rotate_so_that_idle_workers_share_the_arrivals(workers, chosen, router):
    assert chosen(router, workers(4), 9) == [0, 1, 2, 3, 0, 1, 2, 3, 0]


def test_a_tie_goes_to_the_first_worker_behind_the_last_choice(workers, chosen):
    # Worker 1 is never least; after a choice of 0 the round starts at 1 and finds 2.
    assert chosen(FewestRequests(), workers(4, running=[0, 1, 0, 1]), 4) == [0, 2, 0, 2]


def test_the_central_queue_gives_the_oldest_to_the_worker_with_the_fewest_kv_tokens_and_counts_them(
    workers, pool, placed
):
    view = workers(3, kv_tokens=[300.0, 100.0, 250.0], slots=2)
    assert placed(CentralQueue(), view, pool([200, 10, 10])) == [1, 2, 2]


def test_the_central_queue_holds_back_what_has_no_slot(workers, pool, placed):
    view = workers(2, slots=2, running=[1, 1], waiting=[1, 0], sent_requests=[0, 0])
    assert placed(CentralQueue(), view, pool([5, 5, 5])) == [1, -1, -1]


def test_in_the_central_queue_nobody_passes_the_one_who_waits_for_room(workers, pool, placed):
    view = workers(2, kv_tokens=[0.0, 900.0], kv_capacity_tokens=1000.0, slots=4)
    assert placed(CentralQueue(), view, pool([600, 500, 50])) == [0, -1, -1]
