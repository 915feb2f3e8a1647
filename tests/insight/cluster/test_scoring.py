"""Alarms: held scores, thresholds from a calm week, faults found and false alarms, against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.insight.cluster.scoring import BLOCK, GRACE_S, Held, at_recall, event_of, judged, threshold
from wavetank.insight.cluster.simulated_cluster import Fault
from wavetank.sim.rng import stream

FAULT = Fault("ecc", 1, 60, 80, 100, 0)


def held_of(scores: np.ndarray, held: int = 1) -> np.ndarray:
    keeper = Held(held)
    keeper.take(scores.astype(np.float32))
    return keeper.all()


def test_a_score_counts_as_long_as_it_was_held() -> None:
    scores = np.zeros((1, 24))
    scores[0, 2:4] = 9.0
    scores[0, 11:14] = 5.0
    assert held_of(scores)[0].tolist() == [9.0, 5.0, 5.0, 0.0]
    assert held_of(scores, 3)[0].tolist() == [0.0, 0.0, 5.0, 0.0]


def test_holding_goes_on_over_chunks() -> None:
    scores = stream(1, "scores").random((3, 60)).astype(np.float32)
    keeper = Held(4)
    for begin, end in ((0, 12), (12, 18), (18, 60)):
        keeper.take(scores[:, begin:end])
    lowest = np.full((3, 60), -np.inf)
    for sample in range(3, 60):
        lowest[:, sample] = scores[:, sample - 3 : sample + 1].min(axis=1)
    assert np.array_equal(keeper.all(), lowest.reshape(3, 10, BLOCK).max(axis=2).astype(np.float32))


def test_a_threshold_allows_the_wished_alarms_and_no_lower_one_does() -> None:
    scores = held_of(stream(2, "scores").random((4, 2880 * 2)))
    tau = threshold(scores, 3.0)
    none: list[Fault] = []
    assert judged(scores, tau, none).false_alarms <= 6
    below = scores[scores < tau].max() if (scores < tau).any() else -np.inf
    assert judged(scores, np.nextafter(below, -np.inf), none).false_alarms > 6


def test_a_week_of_nothing_gives_a_threshold_that_nothing_exceeds() -> None:
    scores = np.zeros((63, 480), dtype=np.float32)
    assert threshold(scores, 0.5) == 0.0 and judged(scores, 0.0, []).false_alarms == 0


def test_only_alarms_of_the_node_in_its_time_find_a_fault() -> None:
    scores = np.zeros((3, 2880))
    scores[1, 84:90] = 1.0
    found = judged(held_of(scores), 0.5, [FAULT])
    assert (found.found, found.false_alarms, found.days) == (1, 0, 1.0)
    # The alarm is raised at the end of its block.
    assert found.delays_s == ((90 - 60) * 30,)
    other = scores[[1, 0, 2]]
    assert (judged(held_of(other), 0.5, [FAULT]).found, judged(held_of(other), 0.5, [FAULT]).false_alarms) == (0, 1)
    late = np.roll(scores, 100, axis=1)
    assert judged(held_of(late), 0.5, [FAULT]).found == 0


def test_alarms_within_half_an_hour_are_one() -> None:
    scores = np.zeros((1, 2880))
    for begin in (300, 340, 390, 500):
        scores[0, begin : begin + 6] = 1.0
    assert judged(held_of(scores), 0.5, []).false_alarms == 2


def test_windows_of_one_node_are_judged_in_the_time_of_the_stream() -> None:
    scores = np.zeros((1, 60))
    scores[0, 30:36] = 1.0
    assert judged(held_of(scores), 0.5, [FAULT], first=48, nodes=[1]).found == 1
    assert judged(held_of(scores), 0.5, [FAULT], first=48, nodes=[2]).found == 0


def test_a_fault_may_be_found_a_while_after_its_end() -> None:
    event = event_of(FAULT)
    assert (event.begin_s, event.end_s, event.subject) == (1800.0, 3000.0 + GRACE_S, 1)


def test_halves_of_blocks_and_nothing_held_are_refused() -> None:
    with pytest.raises(BadValueError, match="whole blocks"):
        held_of(np.zeros((1, BLOCK + 1)))
    with pytest.raises(BadValueError):
        Held(0)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75, 1.0])
def test_at_equal_recall_the_threshold_is_the_highest_that_finds_the_share(share: float) -> None:
    held = stream(5, "equal").random((3, 80)).astype(np.float32)
    places = ((0, 30), (1, 150), (2, 270), (0, 400))
    faults = [Fault("ecc", node, begin, begin + 3, begin + 6, 0) for node, begin in places]
    score = at_recall(held, share, faults, first=0)
    enough = [tau for tau in np.unique(held) if judged(held, float(tau), faults).recall >= share]
    best = judged(held, float(max(enough)), faults)
    assert score.recall >= share and (score.found, score.false_alarms) == (best.found, best.false_alarms)


def test_a_recall_that_no_threshold_reaches_is_not_claimed() -> None:
    calm = np.zeros((2, 80), dtype=np.float32)
    assert at_recall(calm, 0.5, [FAULT]).recall == 0.0
