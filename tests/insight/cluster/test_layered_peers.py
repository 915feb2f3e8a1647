"""Layers: several odd layers are worse than one wild metric, and what all do together is nothing."""

from __future__ import annotations

import numpy as np
import pytest
from tests.insight.cluster.small_cluster import LAYERS, METRICS, NODES, noise, peers

from wavetank.errors import BadValueError
from wavetank.insight.cluster.layered_peers import LayeredPeers, LayerSums, PlainLayers


def watched(detector: LayeredPeers | PlainLayers, values: np.ndarray) -> np.ndarray:
    watcher, view = detector.watcher(METRICS, LAYERS), peers()
    watcher.learn(view.view(noise("calm", 2400)))
    return watcher.score(view.view(values))


@pytest.mark.parametrize("detector", [LayeredPeers(cap=5.0), PlainLayers(cap=5.0)])
def test_two_layers_count_more_than_one_wild_metric(detector: LayeredPeers | PlainLayers) -> None:
    values = noise("next")
    values[0, 1, 100:] += 1000.0
    values[0, 2, 100:] += 15.0
    values[2, 2, 100:] += 15.0
    scores = watched(detector, values)
    assert scores[2, -1] > 1.5 * scores[1, -1] > 1.5 * np.delete(scores[:, -1], [1, 2]).max()
    if isinstance(detector, LayeredPeers):
        # The wild metric adds its cap; the node before its fault nothing or little.
        assert scores[1, -1] == pytest.approx(5.0, abs=1.0) and scores[2, :100].max() < 3.0


@pytest.mark.parametrize("detector", [LayeredPeers(), PlainLayers()])
def test_what_all_nodes_do_together_is_no_alarm(detector: LayeredPeers | PlainLayers) -> None:
    values = noise("next")
    common = values.copy()
    common[:3, :, 60:120] = common[:3, :, 60:120] + np.array([40.0, -20.0, 8.0], dtype=np.float32)[:, None, None]
    assert np.allclose(watched(detector, values), watched(detector, common), atol=1e-2)


def test_a_score_is_what_it_is_by_the_definition() -> None:
    detector = LayeredPeers(usual=0.9, cap=6.0, half_life=3.0)
    watcher, view = detector.watcher(METRICS, LAYERS), peers()
    calm, values = noise("calm"), noise("next")
    values[2, 5, 30:] += 12.0
    keep = 0.5 ** (1 / 3.0)

    def means(scores: np.ndarray) -> np.ndarray:
        last, found = np.zeros(scores.shape[:2]), []
        for sample in range(scores.shape[2]):
            last = keep * last + (1 - keep) * np.clip(scores[:, :, sample], -10, 10)
            found.append(last)
        return np.stack(found, axis=2)

    one, two = view.view(calm), view.view(values)
    watcher.learn(one)
    some = means(one.scores)[:, :, ::3]
    deviation = np.maximum(np.sqrt((some**2).mean(axis=(1, 2))), 0.1)[:, None, None]

    def largest(scores: np.ndarray) -> np.ndarray:
        return np.stack([np.maximum(np.maximum(scores[0], scores[1]), scores[3]), scores[2]])

    usual = np.quantile(largest(np.abs(some) / deviation).reshape(2, -1), 0.9, axis=1)
    expected = np.clip(largest(np.abs(means(two.scores)) / deviation) - usual[:, None, None], 0, 6.0)
    assert isinstance(watcher, LayerSums)
    parts = watcher.parts(two)
    assert parts.shape == (2, NODES, 240) and parts == pytest.approx(expected, abs=1e-3)


def test_plain_layers_decay_by_half_in_a_half_life() -> None:
    watcher, view = PlainLayers(half_life=10.0).watcher(METRICS, LAYERS), peers()
    values = noise("next")
    values[0, 4] += 500.0
    far = watcher.score(view.view(values))[4]
    # Ten of the odd layer, and the noise of the other.
    assert 10.0 < far[-1] < 14.0 and far[9] == pytest.approx(far[-1] / 2, rel=0.25)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(BadValueError):
        LayeredPeers(cap=float("nan"))
    with pytest.raises(BadValueError):
        PlainLayers(half_life=0.0)
