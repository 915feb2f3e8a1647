"""Rows of measured steps: what is read, what is left out, and what is refused."""

import dataclasses

import pytest

from wavetank.errors import BadFileError, BadValueError, DataUnavailableError
from wavetank.training.steps.gpu_rows import GpuRow, read_gpu_rows

ROW = GpuRow(
    name="x", model="Llama-3.1-8B", device="A100-SXM-80GB", batch=8, tokens=1024, ranks=8, node=4, tensor=2, stages=1,
    replicas=1, shards=4, experts=1, micro=2, node_bytes_per_s=300e9, network_bytes_per_s=25e9, step_s=1.5,
)  # fmt: skip
HEAD = (
    "workload_name,model_family,phase,batch_size,seq_len,hardware_model,total_count,count_per_node,bandwidth_scaleout,"
    "bandwidth_scaleup,tp,pp,pp_mb,dp_replicate,dp_shard,ep,cp,avg_step_time\n"
)
LINE = "x,llama_3.1-8b,training,8,1024,nvidia_a100,8,4,200,2400,2,1,,1,4,,1,1.5\n"


def read(tmp_path, text):
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return read_gpu_rows(path)


def test_a_line_is_read_with_its_units(tmp_path):
    assert read(tmp_path, HEAD + LINE) == (ROW,)


def test_other_phases_devices_models_and_context_parallelism_are_left_out(tmp_path):
    others = {"training": "inference", "nvidia_a100": "tpu_v6e", "llama_3.1-8b": "qwen3-4b", ",,1,1.5": ",,2,1.5"}
    lines = [LINE.replace(*each) for each in others.items()]
    assert all(each != LINE for each in lines)
    assert read(tmp_path, HEAD + "".join(lines)) == ()


def test_microbatches_of_a_pipeline_are_those_that_the_row_says(tmp_path):
    (row,) = read(tmp_path, HEAD + LINE.replace(",2,1,,1,4,", ",2,2,1,1,2,"))
    assert (row.stages, row.micro, row.microbatches) == (2, 1, 4)
    assert ROW.microbatches == 1


@pytest.mark.parametrize("wrong", [
    ("2400", "fast"), ("1.5", "0"), ("1.5", "nan"), ("1.5", "inf"), ("1024", ""), (",8,4,200", ",7,4,200"),
    ("training,8", "training,9"), (",4,,1,1.5", ",4,3,1,1.5"), (",2,1,,1,4,", ",2,0,,1,4,"), (",1.5", ""),
])  # fmt: skip
def test_damaged_lines_are_named(tmp_path, wrong):
    line = LINE.replace(*wrong)
    assert line != LINE
    with pytest.raises(BadFileError, match="no row") as caught:
        read(tmp_path, HEAD + LINE + line)
    assert "line 3" in caught.value.where


def test_files_without_columns_or_text_are_refused(tmp_path):
    with pytest.raises(BadFileError, match="Columns are missing: phase"):
        read(tmp_path, HEAD.replace("phase,", "") + LINE)
    with pytest.raises(BadFileError, match="Columns"):
        read(tmp_path, "")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00" * 9)
    with pytest.raises(BadFileError):
        read_gpu_rows(tmp_path / "bytes.csv")
    with pytest.raises(BadFileError, match="cannot be read"):
        read_gpu_rows(tmp_path / "none.csv")


def test_a_prediction_sees_neither_the_name_nor_the_time():
    assert dataclasses.replace(ROW, name="y", step_s=9.0).configuration == ROW.configuration
    assert dataclasses.replace(ROW, tokens=512).configuration != ROW.configuration
    with pytest.raises(BadValueError, match="does not divide"):
        dataclasses.replace(ROW, ranks=16)


def test_the_rows_of_the_data_set_are_of_three_models():
    try:
        rows = read_gpu_rows()
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    assert len(rows) == 22
    assert {row.model for row in rows} == {"Llama-3.1-8B", "DeepSeek-V2-Lite", "DeepSeek-V2"}
    # The data set's own known answer.
    times = {row.name: row.step_s for row in rows}
    assert times["deepseek-v3-16b-torchtitan-ep4-dp2-tp4-perlmutter"] == pytest.approx(12.49, abs=0.01)
