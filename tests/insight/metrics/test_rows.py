"""Public rows: figures recomputed by hand from a few made-up rows, and those of the data set."""

import csv

import pytest

from wavetank.errors import BadFileError, DataUnavailableError
from wavetank.insight.metrics.rows import LESS, MORE, rank_correlation, row_figures, training_rows, work

NAMES = (
    "workload_name", "phase", "framework", "avg_step_time", "compute_comm_overlap", "mfu", "model_family",
    "batch_size", "seq_len", "hardware_model", "total_count",
)  # fmt: skip


def row(name, step, overlap, **more):
    return {
        "workload_name": name, "phase": "training", "framework": "torchtitan", "avg_step_time": str(step),
        "compute_comm_overlap": str(overlap), "mfu": str(1 / float(step)), "model_family": "deepseek_v3_16b",
        "batch_size": "8", "seq_len": "1024", "hardware_model": "a100", "total_count": "8", **more,
    }  # fmt: skip


def test_overlap_and_speed_are_ranked_at_equal_work():
    rows = [row(MORE, 12.0, 5.0), row(LESS, 4.0, 2.0), row("c", 8.0, 3.0), row("other", 1.0, 9.0, batch_size="64")]
    found = row_figures(rows)
    assert found["overlap_ranks_speed"] == pytest.approx(-1)
    assert found["overlap_ranks_mfu"] == pytest.approx(rank_correlation([5, 2, 3, 9], [1 / 12, 1 / 4, 1 / 8, 1]))
    assert found["more_overlap_slower"] == pytest.approx(3)


def test_frameworks_are_compared_at_equal_work_and_versions_are_one_framework():
    llama = {"model_family": "llama"}
    rows = [
        row("a", 6.0, 1.0, **llama), row("b", 3.0, 1.0, framework="megatron-lm", **llama),
        row("c", 5.0, 1.0, framework="torchtitan-0.1.0", **llama),
        row("d", 0.1, 1.0, framework="megatron-lm", model_family="llama", seq_len="1"),
    ]  # fmt: skip
    assert row_figures(rows) == {"framework_gap": pytest.approx(5 / 3)}
    assert work(rows[0]) == work(rows[2]) != work(rows[3])


def test_inference_is_no_training_and_empty_figures_do_not_count(tmp_path):
    rows = [row("a", 1.0, 2.0, phase="inference"), row("b", 1.0, 2.0), row("c", "nan", 2.0)]
    with (tmp_path / "rows.csv").open("w", newline="") as text:
        writer = csv.DictWriter(text, NAMES)
        writer.writeheader()
        writer.writerows(rows)
    assert [each["workload_name"] for each in training_rows(tmp_path / "rows.csv")] == ["b"]


def test_damaged_rows_are_named(tmp_path):
    path = tmp_path / "rows.csv"
    with pytest.raises(BadFileError, match="cannot be read"):
        training_rows(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(BadFileError, match="workload_name"):
        training_rows(path)
    path.write_text("")
    with pytest.raises(BadFileError, match="missing"):
        training_rows(path)


def test_no_order_is_no_correlation():
    assert str(rank_correlation([1, 1, 1], [1, 2, 3])) == "nan"


def test_the_public_rows_say_what_the_source_says():
    try:
        found = row_figures()
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    assert found["more_overlap_slower"] == pytest.approx(12.4859 / 4.42554)
    assert found["overlap_ranks_speed"] < 0
    assert found["overlap_ranks_mfu"] < 0
