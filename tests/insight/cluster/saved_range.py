"""A saved range of a few nodes, calm or with what a test plants."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from wavetank.sim.rng import stream

TIMES, STEP = 240, 30


def saved(tmp_path: Path, nodes: int = 6, change=None, times: int = TIMES) -> Path:
    """A range of three metrics; ``change(values)`` may damage them: temp, load, and a counter, each nodes x times."""
    draws = stream(3, "history")
    values = {
        "temp": 60 + draws.normal(size=(nodes, times)),
        "load": 20 + draws.normal(size=(nodes, times)),
        "intr_total": np.cumsum(1000 + 50 * draws.normal(size=(nodes, times)), axis=1),
    }
    if change is not None:
        change(values)
    result = [
        {"metric": {"__name__": name, "instance": f"n{node}:9100", "job": f"j{node}"},
         "values": [[1.7e9 + STEP * place, repr(float(value))] for place, value in enumerate(rows[node])
                    if not np.isnan(value)]}
        for name, rows in values.items() for node in range(nodes)
    ]  # fmt: skip
    path = tmp_path / "range.json"
    path.write_text(json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}))
    return path
