"""The process for the peer: its tables become our names, what it cannot say is left out, time and memory count."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wavetank.insight.metrics import hta_process
from wavetank.insight.metrics.hta_process import answer, shares

FAKE = {
    "hta/__init__.py": "",
    "hta/configs/__init__.py": "",
    "hta/configs/parser_config.py": (
        "class ParserConfig:\n    chosen = None\n    def __init__(self, args): self.args = args\n"
        "    @classmethod\n    def get_minimum_args(cls): return ['least']\n"
        "    @classmethod\n    def set_default_cfg(cls, chosen): cls.chosen = chosen\n"
    ),
    "hta/trace_analysis.py": (
        "import os\nfrom hta.configs.parser_config import ParserConfig\n"
        "class Table:\n    def __init__(self, row): self.row = row\n    def to_dict(self, how): return [self.row]\n"
        "class TraceAnalysis:\n"
        "    def __init__(self, trace_files, trace_dir, include_last_profiler_step):\n"
        "        assert include_last_profiler_step and ParserConfig.chosen.args == ['least']\n"
        "        assert os.environ['HTA_DISABLE_NS_ROUNDING'] == '1'\n"
        "        if 'bad' in trace_files[0]: raise IndexError('out of bounds')\n"
        "    def get_comm_comp_overlap(self, visualize): return Table({'comp_comm_overlap_pctg': 25.0})\n"
        "    def get_temporal_breakdown(self, visualize):\n"
        "        print('talks')\n"
        "        return Table({'kernel_time(us)': 10, 'idle_time(us)': 1, 'compute_time(us)': 5})\n"
    ),
}


def test_tables_become_shares_and_no_numbers_are_left_out():
    times = {"kernel_time(us)": 200, "idle_time(us)": 50, "compute_time(us)": 100}
    assert shares({"comp_comm_overlap_pctg": 12.5}, times) == {
        "compute_comm_overlap": 0.125, "idle_fraction": 0.25, "compute_fraction": 0.5,
    }  # fmt: skip
    assert "compute_comm_overlap" not in shares({"comp_comm_overlap_pctg": math.nan}, times)
    assert shares({"comp_comm_overlap_pctg": 50.0}, {**times, "kernel_time(us)": 0}) == {"compute_comm_overlap": 0.5}


def test_time_and_memory_are_those_of_the_measurement():
    kept = []

    def measure(file):
        kept.append(bytearray(64 << 20))
        return {"idle_fraction": float(file)}

    found = answer(measure, "3", 2)
    assert found["shares"] == {"idle_fraction": 3.0}
    assert len(found["cpu_s"]) == 2
    assert min(found["cpu_s"]) >= 0
    assert found["peak_bytes"] > 64 << 20


def test_the_process_asks_the_library_in_its_best_way(tmp_path):
    for name, text in FAKE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    done = subprocess.run(
        [sys.executable, str(Path(hta_process.__file__))], capture_output=True, text=True, timeout=60, check=True,
        input='{"files": ["good", "bad"], "warm": "good", "repeats": 2}',
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    said = __import__("json").loads(done.stdout.splitlines()[-1])
    assert said[0]["shares"] == {"compute_comm_overlap": 0.25, "idle_fraction": 0.1, "compute_fraction": 0.5}
    assert len(said[0]["cpu_s"]) == 2
    assert said[1]["shares"] == {}


def test_it_imports_nothing_of_wavetank():
    text = Path(hta_process.__file__).read_text()
    assert "from wavetank" not in text
    assert "import wavetank" not in text
    with pytest.raises(ModuleNotFoundError):
        __import__("hta")
