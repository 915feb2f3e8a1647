"""Two random workers, the one with fewer KV tokens."""

import numpy as np
import pytest

from wavetank.serving.routing.baselines import RandomWorker
from wavetank.serving.routing.interface import Arrival
from wavetank.serving.routing.power_of_two import PowerOfTwo


def longest_queue(router, view):
    """Throw as many requests of one token as there are workers; return the most that one worker got."""
    n = view.running.size
    state, parameters = router.initial_state(n), router.parameters()
    for _ in range(n):
        view.sent_tokens[router.choose(view, Arrival(0.0, 1.0, np.nan), state, parameters)] += 1.0
    return view.sent_tokens.max()


def test_the_longest_queue_grows_like_log_log_n_instead_of_log_n_over_log_log_n(workers):
    sizes = (64, 8192)
    two = [np.mean([longest_queue(PowerOfTwo(seed=s), workers(n)) for s in range(4)]) for n in sizes]
    one = [np.mean([longest_queue(RandomWorker(seed=s), workers(n)) for s in range(4)]) for n in sizes]
    # Azar, Broder, Karlin, Upfal: log2(log2(n)) + O(1) is 2.6 and 3.7; ln(n) / ln(ln(n)) to leading order 2.9 and 4.1.
    assert two[1] - two[0] <= 1.5
    assert two[1] <= np.log2(np.log2(sizes[1])) + 1
    assert one[1] - one[0] >= 2
    assert one[1] >= two[1] + 2


@pytest.mark.parametrize("field", ["kv_tokens", "waiting_tokens", "sent_tokens"])
def test_of_two_workers_the_lighter_one_is_left_out_only_when_both_draws_miss_it(workers, chosen, field):
    drawn = chosen(PowerOfTwo(seed=1), workers(2, **{field: [100.0, 200.0]}), 4000)
    # With replacement: (1/2) ** 2; three standard deviations are 0.02.
    assert np.mean(drawn) == pytest.approx(0.25, abs=0.025)


def test_the_heaviest_worker_gets_only_what_draws_it_twice(workers, chosen):
    drawn = chosen(PowerOfTwo(seed=2), workers(10, kv_tokens=[1e6] + [1.0] * 9), 5000)
    assert np.mean(np.array(drawn) == 0) == pytest.approx(0.01, abs=0.006)


def test_all_workers_are_drawn(workers, chosen):
    assert set(chosen(PowerOfTwo(), workers(7), 300)) == set(range(7))


def test_equal_seeds_draw_alike(workers, chosen):
    view = workers(100)
    assert chosen(PowerOfTwo(seed=5), view, 50) == chosen(PowerOfTwo(seed=5), view, 50)
    assert chosen(PowerOfTwo(seed=5), view, 50) != chosen(PowerOfTwo(seed=6), view, 50)


def test_one_worker_takes_everything(workers, chosen):
    assert chosen(PowerOfTwo(), workers(1), 5) == [0] * 5
