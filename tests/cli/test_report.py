from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import wavetank


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return wavetank.compare("toy-noise", systems=["toy-plain", "toy-shifted"], seeds=3, out=tmp_path, on="here").folder


def test_a_run_is_printed_again(call: Callable[..., Any], run: Path) -> None:
    shown = call("report", str(run))
    assert shown.code == 0
    assert "toy-shifted has 0.5 times the value of toy-plain" in " ".join(shown.out.split())
    assert "toy-noise: 2 systems, 3 seeds" in shown.out


def test_forms(call: Callable[..., Any], run: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(call("report", str(run), "--format", "csv").out)))
    assert {row["system"] for row in rows} == {"toy-plain", "toy-shifted"}
    assert json.loads(call("report", str(run), "--format", "json").out)["answer"]["best"] == "toy-shifted"
    assert "| system |" in call("report", str(run), "--format", "md").out
    (run / "report.html").unlink()
    assert call("report", str(run), "--format", "html").out.strip() == str(run / "report.html")
    assert (run / "report.html").is_file()


def test_the_page_is_opened(call: Callable[..., Any], run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or False)
    shown = call("report", str(run), "--open")
    assert opened == [(run / "report.html").resolve().as_uri()]
    assert "No browser could be opened." in shown.err


def test_a_run_without_records_says_how_to_go_on(call: Callable[..., Any], run: Path) -> None:
    (run / "records.parquet").unlink()
    (run / "records.jsonl").write_text("")
    shown = call("report", str(run))
    assert shown.code == 3
    assert "--resume" in shown.err


def test_a_folder_without_a_run_comes_with_the_next_step(call: Callable[..., Any], tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "gone"):
        shown = call("report", str(folder))
        assert shown.code == 3
        assert "There is no run in this folder." in shown.err and "wavetank serve" in shown.err
