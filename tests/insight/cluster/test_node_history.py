"""Quantities of a saved range, against sums by hand, and those that there are not."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.insight.cluster.saved_range import STEP, TIMES, saved

from wavetank.errors import BadTraceError, BadValueError
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


def ranged(folder: Path, rows: list[tuple[dict[str, str], list[float]]]) -> NodeHistory:
    result = [
        {"metric": labels, "values": [[1.7e9 + STEP * at, str(value)] for at, value in enumerate(values)]}
        for labels, values in rows
    ]
    path = folder / "own.json"
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    return NodeHistory(path)


def test_two_exporters_of_a_node_are_two_metrics(tmp_path: Path) -> None:
    # The second exporter of n1 is down: what is left must not be held against the other nodes' second ones.
    rows = [
        ({"__name__": "process_open_fds", "instance": f"n{node}:{port}", "job": job}, [value] * 30)
        for node in range(6) for port, job, value in ((9100, "node", 10.0), (9400, "gpu", 500.0))
        if (node, port) != (1, 9400)
    ]  # fmt: skip
    history = ranged(tmp_path, rows)
    assert history.metrics == ("process_open_fds{job=gpu,port=9400}", "process_open_fds{job=node,port=9100}")
    _, values = history.grid
    assert (values[1] == 10).all() and np.isnan(values[0, 1]).all() and (np.delete(values[0], 1, axis=0) == 500).all()


def test_a_metric_of_each_node_alone_fills_no_memory(tmp_path: Path) -> None:
    rows = [({"__name__": f"m{node}", "node": f"n{node}"}, [1.0] * 40) for node in range(1500)]
    with pytest.raises(BadTraceError, match="too many together"):
        _ = ranged(tmp_path, rows).grid
