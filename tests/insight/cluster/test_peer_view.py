"""The view: common changes move nothing, lasting differences are usual, silence is seen and forgiven."""

from __future__ import annotations

import numpy as np
import pytest
from tests.insight.cluster.small_cluster import METRICS, NODES, noise, peers

from wavetank.errors import BadValueError
from wavetank.insight.cluster.peer_view import FARTHEST, PeerView


def test_a_shift_of_all_nodes_changes_no_score() -> None:
    values = noise("next")
    shifted = values.copy()
    shifted[1, :, 100:] += 64.0
    before, after = peers().view(values).scores, peers().view(shifted).scores
    # Singles in float32: 164 has fewer digits behind the point than 100.
    assert np.allclose(before, after, atol=1e-3)


def test_a_node_that_departs_is_far_from_its_peers_and_the_others_are_not() -> None:
    values = noise("next")
    values[0, 4, 50:] += 30.0
    scores = peers().view(values).scores
    assert (scores[0, 4, 50:] > 8).all() and (np.abs(scores[0, 4, :50]) < 8).all()
    others = np.delete(np.abs(scores[0]), 4, axis=0)
    assert np.median(others) < 1.0


def test_what_always_was_different_is_usual() -> None:
    learned, values = noise("learned"), noise("next")
    learned[0, 2] += 50.0
    values[0, 2] += 50.0
    scores = PeerView(learned).view(values).scores
    assert abs(np.median(scores[0, 2])) < 1.5
    assert np.median(peers().view(values).scores[0, 2]) > 10


def test_a_silent_node_is_further_away_with_every_sample_also_over_chunks() -> None:
    view = peers()
    first, second = noise("one", 12), noise("two", 12)
    first[:, 3, 10:] = np.nan
    second[:, 3, :4] = np.nan
    assert view.view(first).scores[0, 3, 10:].tolist() == [1.0, 2.0]
    scores = view.view(second).scores
    assert scores[0, 3, :4].tolist() == [3.0, 4.0, 5.0, 6.0] and abs(scores[0, 3, 4]) < 6


def test_when_all_are_silent_nobody_is() -> None:
    values = noise("next", 12)
    values[:, :, 6:] = np.nan
    assert not peers().view(values).scores[:, :, 6:].any()


def test_a_counter_that_was_always_zero_counts_in_its_unit() -> None:
    values = noise("next", 12)
    values[3, 1, 5] = 79.0
    assert peers().view(values).scores[3, 1, 5] == pytest.approx(79.0)
    values[3, 1, 5] = 1e9
    assert peers().view(values).scores[3, 1, 5] == FARTHEST


def test_too_few_live_peers_say_nothing() -> None:
    values = noise("next", 6)
    values[0, 3:] = np.nan
    assert not peers().view(values).scores[0, :3].any()


@pytest.mark.parametrize("learned", [np.zeros((2, 3)), np.zeros((2, 3, 0)), np.full((1, 4, 5), np.inf)])
def test_what_teaches_nothing_is_refused(learned: np.ndarray) -> None:
    with pytest.raises(BadValueError, match="learned"):
        PeerView(learned)


def test_other_nodes_than_those_learned_are_refused() -> None:
    with pytest.raises(BadValueError, match="metrics and nodes"):
        peers().view(np.zeros((len(METRICS), NODES + 1, 6), dtype=np.float32))


def test_a_metric_that_nobody_reported_is_no_failure() -> None:
    learned = noise("learned")
    learned[1] = np.nan
    values = noise("next", 12)
    values[1] = np.nan
    assert not PeerView(learned).view(values).scores[1].any()
