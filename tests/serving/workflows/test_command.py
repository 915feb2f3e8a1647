"""``wavetank launch workflow``: a file of a user's own on processes, and files that are none."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def workflow(tmp_path: Path) -> Path:
    tasks = [
        {"name": "split", "id": "split", "parents": [], "children": ["a", "b"], "inputFiles": [], "outputFiles": []},
        {"name": "work", "id": "a", "parents": ["split"], "children": [], "inputFiles": [], "outputFiles": []},
        {"name": "work", "id": "b", "parents": ["split"], "children": [], "inputFiles": [], "outputFiles": []},
    ]
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps(
            {"name": "mine", "schemaVersion": "1.5", "workflow": {"specification": {"tasks": tasks, "files": []}}}
        )
    )
    return path


def test_a_workflow_runs_and_stands_beside_its_simulation(call: Callable[..., Any], workflow: Path) -> None:
    two = ("--gpu", "H100-SXM", "--gpu", "H100-SXM")
    done = call("launch", "workflow", str(workflow), "--scheduler", "dynamic-heft", *two, "--speed", "100", "--json")
    assert (done.code, done.err) == (0, "")
    found = json.loads(done.out)
    assert (found["workflow"], found["stages"]) == ("mine", 3)
    assert found["makespan_s"] >= found["simulated_makespan_s"] > 0
    assert sorted(found["devices"]) == ["H100-SXM-0", "H100-SXM-1"]


def test_what_cannot_be_run_is_said(call: Callable[..., Any], workflow: Path, tmp_path: Path) -> None:
    wrong = call("launch", "workflow", str(workflow), "--scheduler", "fat")
    assert wrong.code == 3
    assert "nearest: fate" in wrong.err
    circle = json.loads(workflow.read_text())
    tasks = circle["workflow"]["specification"]["tasks"]
    tasks[0]["parents"], tasks[1]["children"] = ["a"], ["split"]
    (tmp_path / "circle.json").write_text(json.dumps(circle))
    around = call("launch", "workflow", str(tmp_path / "circle.json"))
    assert around.code == 3
    assert "circle" in around.err
    nothing = call("launch", "workflow", str(tmp_path / "none.json"))
    assert nothing.code == 3
    unknown = call("launch", "workflow", str(workflow), "--gpu", "L40")
    assert unknown.code == 3
    assert "L40S" in unknown.err
