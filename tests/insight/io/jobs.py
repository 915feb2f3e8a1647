"""Programs and logs for tests of the I/O diagnosis."""

from pathlib import Path

import numpy as np
import pytest

from wavetank.errors import DataUnavailableError
from wavetank.insight.io.planted import Phase, Servers, counted
from wavetank.sim.rng import stream
from wavetank.workloads import datasets
from wavetank.workloads.darshan import DarshanLog

MIB = 1 << 20


def real(name: str) -> Path:
    """Return a real log by a part of its name; skip where the data set is not here."""
    try:
        found = sorted(datasets.find("darshan-logs").rglob(f"*{name}*.darshan"))
    except DataUnavailableError as error:
        pytest.skip(error.problem)
    return found[0]


def phase(**change: object) -> Phase:
    """Return a healthy phase with some things changed: 8 ranks write 8 MiB requests to a shared file."""
    base = {
        "name": "out", "writes": True, "ranks": 8, "shared": True, "size_bytes": 8 * MIB, "requests": 8,
        "interface": "posix", "stripes": 16,
    }  # fmt: skip
    return Phase(**{**base, **change})  # type: ignore[arg-type]


def log_of(*phases: Phase, processes: int = 8) -> DarshanLog:
    return counted(phases, processes, Servers(), stream(1, "test"))


def draws(seed: int = 0) -> np.random.Generator:
    return stream(seed, "tests")
