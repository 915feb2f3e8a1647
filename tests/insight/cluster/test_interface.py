"""Every detector of the catalog has what the interface asks for."""

from __future__ import annotations

import pytest
from tests.insight.cluster.small_cluster import LAYERS, METRICS, NODES, noise, peers

from wavetank.insight.cluster.rivals import OneMetric
from wavetank.ledger import catalog

DETECTORS = [
    entry.name for entry in catalog.built_in() if "cluster-alarms" in entry.studies and entry.name != "fixed-thresholds"
]


@pytest.mark.parametrize("name", DETECTORS)
def test_it_learns_and_scores_every_node_at_every_sample(name: str) -> None:
    entry = catalog.built_in().systems[name]
    if "pyod" in entry.needs:
        pytest.importorskip("pyod")
    built = entry.build()
    if isinstance(built, OneMetric):
        built = OneMetric(metric="a")
    watcher, view = built.watcher(METRICS, LAYERS), peers()
    watcher.learn(view.view(noise("calm", 1200)))
    values = noise("next")
    values[:, 5, 60:] += 50.0
    scores = watcher.score(view.view(values))
    assert built.held >= 1 and scores.shape == (NODES, 240)
    assert scores[5, -1] == scores[:, -1].max() > scores[:, 50].max()
