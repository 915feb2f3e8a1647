"""Workloads: what arrives at a system, read from a real trace or generated from a seed.

A workload is an immutable struct of numpy arrays with units in the field names, so that a compiled simulator takes the
raw arrays and every system of a study sees the same requests::

    from wavetank.workloads import generate_requests, read_trace, read_trace_and_facts
    real = read_trace("azure-conv-2023").at_rate(20.0)
    made = generate_requests(n_requests=10_000, rate_per_s=20.0, arrivals="bursty", lengths="conv", seed=1)

``datasets`` finds, fetches and verifies the real data sets.  Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wavetank.lazy_names import lazy_names

if TYPE_CHECKING:
    from wavetank.workloads.generate import (
        Bursty,
        Diurnal,
        FixedLengths,
        LogNormalLengths,
        Poisson,
        QuantileLengths,
        SharedPrefix,
        fit_lengths,
        generate_requests,
    )
    from wavetank.workloads.load import TRACES, read_trace, read_trace_and_facts
    from wavetank.workloads.requests import RequestTrace
    from wavetank.workloads.trace_facts import TraceFacts

__getattr__, __dir__, __all__ = lazy_names(__name__)
