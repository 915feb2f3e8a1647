"""Quantities of a saved range, against sums by hand, and those that there are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.insight.cluster.saved_range import STEP, TIMES, saved

from wavetank.errors import BadValueError
from wavetank.insight.cluster.node_history import NodeHistory, TooLittleError


def test_quantities_that_there_are_not_are_refused(tmp_path: Path) -> None:
    history = NodeHistory(saved(tmp_path))
    with pytest.raises(BadValueError, match="no such quantity"):
        history.quantity("mood")
    with pytest.raises(BadValueError, match="no such node"):
        history.quantity("silent_share", node="n99")
    with pytest.raises(TooLittleError, match="is odd"):
        history.quantity("oddest_metric", node="n1", far=5.0, lasts_s=90.0)


def test_series_are_sorted_by_node_and_metric_and_counters_count_by_growth(tmp_path: Path) -> None:
    history = NodeHistory(saved(tmp_path))
    assert history.nodes == tuple(f"n{node}" for node in range(6)) and history.metrics == ("intr_total", "load", "temp")
    times, values = history.grid
    assert values.shape == (3, 6, TIMES) and np.diff(times).tolist() == [STEP * 10**9] * (TIMES - 1)
    raw = {(each.name, each.label("instance")): each.value for each in history.series}
    assert values[0, 2, 1:] == pytest.approx(np.diff(raw["intr_total", "n2:9100"]))
    assert np.isnan(values[0, :, 0]).all() and values[1, 3].tolist() == raw["load", "n3:9100"].tolist()
