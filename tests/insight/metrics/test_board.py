"""The leaderboard: real runs leave trace, card and script; what was kept is read again; damage is named."""

import json
import sys

import pytest

from wavetank.errors import BadFileError
from wavetank.insight.metrics import board
from wavetank.insight.metrics.board import board_text, card_of_run, keep_runs, name_of, read_board
from wavetank.insight.metrics.cards import card_of
from wavetank.live.processes import python_module
from wavetank.live.short_runs import Cut, Ran, cuts

FAST, SLOW = Cut(1, 4, 8, 2, 0), Cut(4, 1, 8, 2, 0)


def row(folder, name, seconds, events=()):
    (folder / name / "trace").mkdir(parents=True)
    (folder / name / "card.json").write_text(card_of_run(FAST).written())
    (folder / name / "steps.csv").write_text("step_s\n" + "".join(f"{each}\n" for each in seconds))
    content = {"distributedInfo": {"rank": 0}, "traceEvents": list(events)}
    (folder / name / "trace" / "rank0.json").write_text(json.dumps(content))
    return folder / name


OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 60}


def test_names_and_cards_say_the_plan():
    assert len({name_of(cut) for cut in cuts()}) == len(cuts())
    card = card_of_run(Cut(2, 2, 4, 4, 1))
    assert card_of(json.loads(card.written())) == card
    assert card.field("executor.model_plan_parallelization.tp") == 2
    assert card.field("executor.model_plan_parallelization.pp_mb") == 4
    assert card.field("workload.hardware.xpu_spec.total_count") == 4


def test_rows_are_sorted_by_the_median_step_and_metrics_come_from_the_trace(tmp_path):
    row(tmp_path, "b", [3.0, 1.0, 1.0], [OPERATOR])
    row(tmp_path, "a", [2.0, 2.0, 0.1], [OPERATOR, {**OPERATOR, "name": "aten::add", "ts": 90, "dur": 30}])
    (tmp_path / "notes").mkdir()
    rows = read_board(tmp_path)
    assert [(each.name, each.step_s) for each in rows] == [("b", 1.0), ("a", 2.0)]
    assert rows[1].figures["compute_fraction"].value == pytest.approx(0.75)
    lines = board_text(rows).splitlines()
    assert lines[2].startswith("| b | 1000.00 | 1.000 |")
    assert "| - |" in lines[2]


@pytest.mark.parametrize("text", ["step_s\n", "step_s\nfast\n", "step_s\n-1\n", "step_s\nnan\n", ""])
def test_damaged_times_are_named(tmp_path, text):
    (row(tmp_path, "a", [1.0], [OPERATOR]) / "steps.csv").write_text(text)
    with pytest.raises(BadFileError, match="step"):
        read_board(tmp_path)


def watched(cuts, *, steps, timeout_s, watch):
    """Write what the processes of short runs write, with names as torch has them."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0, "dur": 90},
        {**OPERATOR, "ts": 5},
        {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "ts": 70, "dur": 20},
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "ts": 100, "dur": 90},
    ]
    for folder in watch:
        folder.mkdir(parents=True)
        for rank in range(4):
            content = {"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": events}
            (folder / f"rank{rank}.json").write_text(json.dumps(content))
    return [Ran([0.5 + at] * steps, 1) for at, _ in enumerate(cuts)]


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_runs_leave_trace_card_and_script_that_repeat_them(tmp_path, monkeypatch, real):
    if real:
        pytest.importorskip("torch", reason="needs the library torch")
    else:
        monkeypatch.setattr(board, "run_cuts", watched)
    ran = keep_runs(tmp_path, [FAST, SLOW], steps=1)
    rows = {each.name: each for each in read_board(tmp_path)}
    assert rows[name_of(FAST)].step_s == ran[0].seconds[0]
    for cut in (FAST, SLOW):
        found = rows[name_of(cut)].figures
        assert 0 < found["compute_fraction"].value < 1
        assert found["communication_fraction"].value > 0
        assert found["avg_step_time"].value > 0
        assert len(list((tmp_path / name_of(cut) / "trace").iterdir())) == 4
    script = (tmp_path / name_of(FAST) / "run.py").read_text()
    compile(script, "run.py", "exec")
    assert f"Cut{tuple(FAST)}" in script
    assert python_module("x")[0] == sys.executable
