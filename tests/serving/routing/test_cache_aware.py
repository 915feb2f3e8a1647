"""SGLang's rule, on decisions worked out by hand from its source."""

import numpy as np
import pytest

from wavetank.serving.routing.cache_aware import CacheAware
from wavetank.serving.routing.interface import Arrival

SAID = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
"""The blocks of a prompt of ten."""


def asked(*blocks, time_s=0.0, prompt_tokens=1000.0):
    return Arrival(time_s, prompt_tokens, np.nan, blocks=np.array(blocks, np.int64))


class Serving:
    """A router in front of workers whose view is given anew for every arrival."""

    def __init__(self, workers, n, router):
        self.workers, self.n, self.router = workers, n, router
        self.state, self.parameters = router.initial_state(n), router.parameters()

    def __call__(self, arrival, **view):
        return int(self.router.choose(self.workers(self.n, **view), arrival, self.state, self.parameters))


@pytest.fixture
def serve(workers):
    return lambda n, router=None: Serving(workers, n, router or CacheAware())


def test_a_prompt_that_was_sent_before_goes_where_it_was_sent(serve):
    send = serve(3)
    assert send(asked(*SAID), running=[1, 1, 0]) == 2
    assert send(asked(*SAID), running=[0, 0, 60]) == 2


@pytest.mark.parametrize(("shared", "goes"), [(3, 0), (4, 2)])
def test_a_match_must_be_more_than_the_threshold_and_else_the_shortest_queue_decides(serve, shared, goes):
    send = serve(3)
    assert send(asked(*SAID), running=[1, 1, 0]) == 2
    # 30 of 100 are not more than 0.3.
    assert send(asked(*SAID[:shared], *range(100, 110 - shared)), running=[1, 2, 3]) == goes


def test_the_longest_match_decides_and_among_equals_the_first(serve):
    send = serve(3)
    assert send(asked(*SAID[:6]), running=[1, 1, 0]) == 2
    assert send(asked(*SAID), running=[100, 0, 100]) == 1
    assert send(asked(*SAID), running=[0, 9, 9]) == 1
    # The third worker is sent all of it, too, while the load is uneven.
    assert send(asked(*SAID), running=[100, 100, 0]) == 2
    assert send(asked(*SAID), running=[0, 9, 8]) == 1


@pytest.mark.parametrize(
    ("longest", "shortest", "balances"), [(65, 0, True), (64, 0, False), (200, 133, True), (201, 136, False)]
)
def test_the_load_is_uneven_by_difference_and_by_ratio_at_once(serve, longest, shortest, balances):
    send = serve(3)
    assert send(asked(*SAID), running=[0, 1, 1]) == 0
    assert send(asked(*SAID), waiting=[longest, longest, shortest]) == (2 if balances else 0)


@pytest.mark.parametrize("field", ["running", "waiting", "sent_requests"])
def test_all_requests_in_flight_are_load(serve, field):
    send = serve(2)
    assert send(asked(*SAID), running=[0, 1]) == 0
    assert send(asked(*SAID), **{field: [100, 0]}) == 1


def test_what_goes_to_the_shortest_queue_is_written_down_as_well(serve):
    send = serve(2)
    assert send(asked(*SAID), running=[100, 0]) == 1
    assert send(asked(*SAID), running=[0, 50]) == 1


def test_where_nothing_is_in_flight_all_new_prompts_go_to_the_first_worker(serve):
    send = serve(4)
    assert [send(asked(*range(10 * i, 10 * i + 10))) for i in range(20)] == [0] * 20


def test_a_tree_that_is_too_large_loses_its_oldest_ends_at_the_next_look(serve):
    send = serve(2, CacheAware(max_tree_tokens=1500.0, eviction_interval_s=60.0, cache_threshold=0.5))
    assert send(asked(*SAID), running=[1, 0]) == 1
    assert send(asked(*range(21, 31)), running=[1, 0]) == 1
    # Both are there until the interval is over: 2,000 tokens.
    assert send(asked(*SAID, time_s=59.0), running=[0, 1]) == 1
    # Then 1,500 stay: of the prompt that was used first the first half is not more than the threshold.
    assert send(asked(*range(21, 31), time_s=60.0), running=[0, 1]) == 0
    assert send(asked(*SAID, time_s=60.0), running=[0, 1]) == 1


def test_without_an_interval_nothing_is_forgotten(serve):
    send = serve(2, CacheAware(max_tree_tokens=0.0, eviction_interval_s=0.0))
    assert send(asked(*SAID), running=[1, 0]) == 1
    assert send(asked(*SAID, time_s=1e5), running=[0, 1]) == 1


def test_a_worker_that_takes_nothing_is_neither_matched_nor_counted(serve):
    send = serve(3)
    assert send(asked(*SAID), running=[1, 1, 0]) == 2
    assert send(asked(*SAID), running=[5, 4, 1000], takes=[1, 1, 0]) == 1
    # Now the second worker has it, too.
    assert send(asked(*SAID), running=[0, 60, 0], takes=[1, 1, 0]) == 1
    assert send(asked(*SAID), takes=0) == 0


def test_a_prompt_without_blocks_goes_to_the_shortest_queue(serve):
    send = serve(2)
    assert [send(asked(), running=load) for load in ([1, 0], [0, 1])] == [1, 0]
