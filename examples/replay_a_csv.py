"""Replay a request log of your own: a CSV with column names of your own, two routers, one accounting."""

import csv
import tempfile
from pathlib import Path

import numpy as np

from wavetank.serving import Cluster, simulate
from wavetank.serving.routing.baselines import FewestKVTokens, RoundRobin
from wavetank.workloads import read_trace

rng = np.random.default_rng(0)
with tempfile.TemporaryDirectory() as folder:
    log = Path(folder) / "requests.csv"
    with log.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["when", "in", "out"])
        for when in np.cumsum(rng.exponential(0.05, 1000)):
            rows.writerow([f"{when:.3f}", int(rng.lognormal(6.5, 1.0)) + 1, int(rng.exponential(150)) + 1])
    trace = read_trace(log, columns={"arrival_s": "when", "prompt_tokens": "in", "output_tokens": "out"})

print(f"{len(trace)} requests over {trace.span_s:.0f} s")
for router in (RoundRobin(), FewestKVTokens()):
    metrics = simulate(trace, Cluster(workers=4), router).metrics()
    ttft_ms, tpot_ms = metrics["ttft_p99_s"] * 1e3, metrics["tpot_p50_s"] * 1e3
    print(f"{type(router).__name__}: TTFT p99 {ttft_ms:.0f} ms, TPOT p50 {tpot_ms:.1f} ms")
