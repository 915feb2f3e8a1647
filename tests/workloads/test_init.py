"""wavetank.workloads as a package."""

import subprocess
import sys

import pytest

import wavetank.workloads as workloads


def test_every_public_name_loads():
    assert all(getattr(workloads, name) is not None for name in workloads.__all__)
    assert dir(workloads) == sorted(workloads.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="RequestTrac"):
        workloads.RequestTrac  # noqa: B018


def test_importing_it_loads_no_heavy_library():
    program = (
        "import sys, wavetank.workloads as w; w.RequestTrace; w.read_trace; w.generate_requests; "
        "sys.exit(' '.join({'duckdb', 'numba', 'scipy', 'urllib.request'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
