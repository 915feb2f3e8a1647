"""Known orders, Taillard's ta001, and Johnson and NEH against all orders there are."""

from itertools import permutations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.training.sections.flow_shop import johnson, longest_total_first, makespan, neh, taillard_times

KNOWN = np.array([[3, 6], [5, 2], [1, 2], [6, 6], [7, 5]])


def by_hand(times, order):
    ends = [0] * times.shape[1]
    for job in order:
        for m in range(len(ends)):
            ends[m] = max(ends[m], ends[m - 1] if m else 0) + int(times[job, m])
    return ends[-1]


def best_of_all(times):
    return min(by_hand(times, order) for order in permutations(range(len(times))))


def slow_neh(times):
    order = []
    for job in sorted(range(len(times)), key=lambda j: (-int(times[j].sum()), j)):
        order = min(([*order[:p], job, *order[p:]] for p in range(len(order) + 1)), key=lambda o: by_hand(times, o))
    return order


def test_the_known_instance_of_two_machines():
    assert johnson(KNOWN).tolist() == [2, 0, 3, 4, 1]
    assert makespan(KNOWN, johnson(KNOWN)) == 24
    assert makespan(KNOWN, np.arange(5)) == 27


def test_johnson_is_the_best_of_all_orders():
    for seed in range(30):
        times = np.random.default_rng(seed).integers(0, 12, (6, 2))
        assert makespan(times, johnson(times)) == best_of_all(times)


def test_neh_finds_1286_on_the_first_instance_of_taillard():
    times = taillard_times(873654221, 20, 5)
    assert times.shape == (20, 5)
    assert (times.min(), times.max()) == (1, 99)
    assert makespan(times, np.arange(20)) == 1448
    assert makespan(times, neh(times)) == by_hand(times, neh(times)) == 1286


def test_heads_and_tails_choose_the_places_that_whole_makespans_choose():
    for seed in range(30):
        times = np.random.default_rng(seed).integers(0, 9, (9, 1 + seed % 4))
        assert neh(times).tolist() == slow_neh(times)


def test_neh_is_within_one_percent_of_the_best_of_three_sections():
    ratios = []
    for seed in range(40):
        draws = np.random.default_rng(seed)
        image = draws.random(7) < 0.4
        encoder = np.where(image, draws.integers(300, 1200, 7), 0)
        times = np.stack([encoder, 3 * draws.integers(500, 1500, 7), 2 * encoder], 1)
        found = makespan(times, neh(times))
        assert found <= makespan(times, np.arange(7))
        ratios.append(found / best_of_all(times))
    assert 1.0 <= np.mean(ratios) < 1.01


def test_ties_go_to_the_earlier_job():
    assert longest_total_first(np.array([[1, 2], [3, 4], [5, 2]])).tolist() == [1, 2, 0]


@pytest.mark.parametrize("times", [np.ones((2, 2)), -np.ones((2, 2), int), np.ones(3, int), np.full((2, 2), 2**61)])
def test_damaged_times_are_refused(times):
    for call in (neh, johnson, lambda t: makespan(t, np.arange(2))):
        with pytest.raises(BadValueError):
            call(times)


def test_what_is_no_instance_or_order_is_refused():
    with pytest.raises(BadValueError, match="two machines"):
        johnson(np.ones((2, 3), int))
    with pytest.raises(BadValueError, match="each once"):
        makespan(KNOWN, np.array([0, 0]))
    for words in ((0, 3, 3), (2**31 - 1, 3, 3), (1, 0, 3), (1, 3, 0)):
        with pytest.raises(BadValueError, match="seed"):
            taillard_times(*words)
