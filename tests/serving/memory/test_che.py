"""Che's approximation against known hit ratios and known best boundaries."""

from collections import OrderedDict

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.memory.che import best_share, hit_ratio, mean_service_s, zipf, zipf_hit_ratio
from wavetank.serving.memory.costs import Node
from wavetank.serving.memory.traffic import KNOWN


@pytest.mark.parametrize(("capacity", "known"), [(100, 0.392), (400, 0.633), (1000, 0.831)])
def test_known_hit_ratios(capacity, known):
    assert hit_ratio(zipf(2000, 0.9), capacity) == pytest.approx(known, abs=5e-4)
    assert zipf_hit_ratio(2000, 0.9, capacity) == pytest.approx(known, abs=5e-4)


def test_of_equal_items_the_share_that_fits_is_hit():
    assert hit_ratio(np.full(1000, 1e-3), 250) == pytest.approx(0.25, abs=1e-9)
    assert (hit_ratio(zipf(10, 1.0), 0), hit_ratio(zipf(10, 1.0), 10)) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("rows", "users", "history", "share", "ms", "lost"),
    [
        (0.9, 0.9, 8192, 0.68, 4.17, 0.003), (0.9, 0.9, 15_000, 0.60, 13.3, 0.0), (1.2, 0.9, 8192, 0.10, 2.56, 0.23),
        (0.9, 0.2, 8192, 0.98, 5.45, 0.23), (0.9, 1.3, 8192, 0.48, 1.55, 0.02), (0.7, 1.1, 3000, 0.90, 0.618, 0.19),
    ],
)  # fmt: skip
def test_known_best_boundaries_and_what_the_reference_loses(rows, users, history, share, ms, lost):
    found, least = best_share(Node(), rows, users, history)
    assert found == share
    assert least * 1e3 == pytest.approx(ms, rel=0.005)
    assert mean_service_s(Node(), 0.62, rows, users, history) / least - 1 == pytest.approx(lost, abs=0.006)


def runs_of_ranks(items, exponent, exact):
    """Return popularities and counts of runs of ranks, by the integral over each run: no code of the package."""
    bounds = np.unique(np.concatenate((np.arange(1, exact), np.geomspace(exact, items + 1, 4000).astype(np.int64))))
    edges = bounds - 0.5
    mass = (edges[1:] ** (1 - exponent) - edges[:-1] ** (1 - exponent)) / (1 - exponent)
    counts = np.diff(bounds).astype(np.float64)
    mass[counts == 1] = bounds[:-1][counts == 1].astype(np.float64) ** -exponent
    return mass / counts / mass.sum(), counts


def test_long_histories_have_their_best_boundary_at_three_fifths():
    """0.58 and 0.60 are a hundredth of a per cent apart; times by an independent integral say which is less."""
    node, history = Node(), 15_000.0
    items, people = runs_of_ranks(node.rows, 0.9, 50_000), runs_of_ranks(node.users, 0.9, node.users)

    def hits(kinds, capacity):
        popularity, counts = kinds
        low, high = 0.0, 1e12
        for _ in range(90):
            middle = (low + high) / 2
            low, high = (middle, high) if counts @ -np.expm1(-popularity * middle) < capacity else (low, middle)
        return float(counts @ (popularity * -np.expm1(-popularity * low)))

    def seconds(share):
        rows = hits(items, share * node.memory_bytes / node.row_bytes)
        users = hits(people, (1 - share) * node.memory_bytes / (history * node.kv_bytes_per_token))
        row_s = node.rows_per_token * (1 - rows) * node.row_bytes / node.copy_bytes_per_s
        hit = 256 * row_s + node.compute_s(256, history)
        miss = (history + 256) * row_s + node.compute_s(history + 256, history / 2)
        return users * hit + (1 - users) * miss

    times = {share: seconds(share) for share in (0.56, 0.58, 0.60, 0.62)}
    assert min(times, key=lambda share: times[share]) == 0.60
    assert 5e-5 < times[0.58] / times[0.60] - 1 < 1.5e-4 < 5e-4 < times[0.56] / times[0.60] - 1
    for share, expected in times.items():
        assert mean_service_s(node, share, 0.9, 0.9, history) == pytest.approx(expected, rel=5e-6)


@pytest.mark.parametrize(
    ("rows", "history", "share", "least", "most"),
    [(0.9, 8192, 0.68, 0.54, 0.82), (0.9, 15_000, 0.60, 0.44, 0.74), (1.2, 8192, 0.10, 0.06, 0.20)],
)
def test_optima_are_flat_over_the_known_bands(rows, history, share, least, most):
    """Within 2 % of the least time; a distance to the best share says little."""
    shares = np.round(np.arange(0.02, 0.99, 0.02), 2)
    lost = np.array([mean_service_s(Node(), float(each), rows, 0.9, history) for each in shares])
    lost = lost / lost.min() - 1
    assert shares[lost <= 0.02][[0, -1]] == pytest.approx([least, most], abs=0.0201)
    assert lost[shares == share] < 0.001


def test_groups_hold_the_popularity_of_their_members():
    assert zipf(1000, 0.9, 7) == pytest.approx(np.add.reduceat(zipf(1000, 0.9), np.arange(0, 1000, 7)), rel=2e-4)
    with pytest.raises(BadValueError):
        zipf(10, -1.0)


NAN = float("nan")


@pytest.mark.parametrize(
    "call",
    [
        lambda: hit_ratio(np.zeros(4), 2), lambda: hit_ratio(np.array([-1.0, 2.0]), 1),
        lambda: hit_ratio(np.array([NAN, 1.0]), 1), lambda: hit_ratio(zipf(10, 1.0), NAN),
        lambda: hit_ratio(np.full(4, 0.5), 2), lambda: zipf_hit_ratio(0, 1.0, 3), lambda: zipf_hit_ratio(100, -1.0, 3),
        lambda: zipf_hit_ratio(100, 1.0, NAN), lambda: mean_service_s(Node(), 2.0, 0.9, 0.9, 8192.0),
        lambda: mean_service_s(Node(), NAN, 0.9, 0.9, 8192.0), lambda: mean_service_s(Node(), 0.5, 0.9, 0.9, 0.0),
        lambda: mean_service_s(Node(), 0.5, 0.9, 0.9, -5.0), lambda: best_share(Node(), 0.9, 0.9, 8192.0, 0.0),
        lambda: best_share(Node(), 0.9, 0.9, 8192.0, 1.0), lambda: best_share(Node(), 0.9, 0.9, 8192.0, NAN),
    ],
)  # fmt: skip
def test_what_is_no_popularity_share_or_history_is_refused(call):
    with pytest.raises(BadValueError):
        call()


@pytest.mark.parametrize(("capacity", "known"), [(100, 0.392), (400, 0.633), (1000, 0.831)])
def test_a_plain_cache_hits_as_often_as_the_approximation_says(capacity, known):
    """An ordered dictionary over 400,000 drawn requests, the first 100,000 of which warm it up."""
    drawn = np.random.default_rng(capacity).choice(2000, 400_000, p=zipf(2000, 0.9)).tolist()
    cache, hits = OrderedDict(), 0
    for number, item in enumerate(drawn):
        if item in cache:
            cache.move_to_end(item)
            hits += number >= 100_000
            continue
        cache[item] = None
        if len(cache) > capacity:
            cache.popitem(last=False)
    # A standard deviation of three hundred thousand draws is below a thousandth.
    assert hits / 300_000 == pytest.approx(known, abs=0.004)
    assert hits / 300_000 == pytest.approx(hit_ratio(zipf(2000, 0.9), capacity), abs=0.004)


@pytest.mark.parametrize("settings", KNOWN.values(), ids=list(KNOWN))
def test_with_a_fast_link_few_rows_and_much_memory_one_boundary_is_near_the_best_in_every_regime(settings):
    node = Node(copy_bytes_per_s=16e9, rows_per_token=4, memory_bytes=40e9)
    assert mean_service_s(node, 0.06, *settings) / best_share(node, *settings)[1] - 1 < 0.03
    slower = mean_service_s(Node(), 0.06, *settings) / best_share(Node(), *settings)[1] - 1
    assert slower > 0.1 or settings is KNOWN["hot-rows"]
