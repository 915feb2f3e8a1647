from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import wavetank


def test_two_runs_are_shown_beside_each_other(call: Callable[..., Any], tmp_path: Path) -> None:
    first, second = (
        str(
            wavetank.compare(
                "toy-noise", systems=["toy-plain", "toy-shifted"], seeds=3, out=tmp_path, on="here", **more
            ).folder
        )
        for more in ({}, {"offset_s": 0.2})
    )
    shown = call("diff", first, second)
    assert shown.code == 0
    assert "before toy-shifted has 0.5 times the value of toy-plain" in " ".join(shown.out.split())
    assert "offset_s: 0.1 to 0.2" in shown.out
    assert json.loads(call("diff", first, second, "--json").out)["settings"] == [["offset_s", "0.1", "0.2"]]


def test_what_is_no_run_is_refused(call: Callable[..., Any], tmp_path: Path) -> None:
    shown = call("diff", str(tmp_path), str(tmp_path))
    assert shown.code == 3
    assert "There is no run in this folder." in shown.err
