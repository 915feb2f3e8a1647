"""A process that asks HolisticTraceAnalysis for shares of traces; it runs in the environment of others.

Its settings are those with which it agrees with the definitions here: times are not rounded to microseconds, the last
marked step counts, and only the columns that these figures need are read, which is its fastest way.

Nothing of Wavetank is imported: it is not there.
"""

import json
import logging
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Read the question on standard input and print the answer."""
    question = json.load(sys.stdin)
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"
    os.environ["HTA_DISABLE_CG_DEPTH"] = "1"
    logging.disable(logging.CRITICAL)
    from hta.configs.parser_config import ParserConfig
    from hta.trace_analysis import TraceAnalysis

    ParserConfig.set_default_cfg(ParserConfig(ParserConfig.get_minimum_args()))

    def measure(file: str) -> dict[str, float]:
        try:
            job = TraceAnalysis(trace_files={0: file}, trace_dir="/", include_last_profiler_step=True)
            overlap = job.get_comm_comp_overlap(visualize=False)
            times = job.get_temporal_breakdown(visualize=False)
        except Exception:
            # What it cannot read ends it in one of many ways.
            return {}
        return shares(overlap.to_dict("records")[0], times.to_dict("records")[0])

    if question["warm"]:
        measure(question["warm"])
    said = [answer(measure, file, question["repeats"]) for file in question["files"]]
    # Its own messages may stand on the line before.
    sys.stdout.write("\n" + json.dumps(said) + "\n")


def shares(overlap: dict[str, Any], times: dict[str, Any]) -> dict[str, float]:
    """Return the shares by our names; what is not a number is left out.

    Parameters
    ----------
    overlap, times : dict
        Rows of its tables of overlap and of the temporal breakdown.
    """
    span = float(times["kernel_time(us)"])
    found = {"compute_comm_overlap": float(overlap["comp_comm_overlap_pctg"]) / 100}
    if span > 0:
        found["idle_fraction"] = float(times["idle_time(us)"]) / span
        found["compute_fraction"] = float(times["compute_time(us)"]) / span
    return {name: value for name, value in found.items() if math.isfinite(value)}


def answer(measure: Any, file: str, repeats: int) -> dict[str, Any]:
    """Return shares, processor seconds and growth of the process for one file.

    Parameters
    ----------
    measure : callable
        Of a file.
    file : str
    repeats : int
    """
    found, took = {}, []
    _forget_peak()
    before = _memory_bytes("VmRSS")
    for _ in range(repeats):
        began = time.process_time()
        found = measure(file)
        took.append(time.process_time() - began)
    return {"shares": found, "cpu_s": took, "peak_bytes": max(0, _memory_bytes("VmHWM") - before)}


def _forget_peak() -> None:
    try:
        # Linux: the largest memory so far, that of importing perhaps, is forgotten.
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def _memory_bytes(what: str) -> int:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(what + ":"))
    except (OSError, StopIteration):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main()
