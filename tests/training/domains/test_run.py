"""What is measured of a process: bytes that others received, and memory at its peak."""

import sys

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.domains.ways import found

from wavetank.training.domains.rivals import OneProcess
from wavetank.training.domains.run import cut_sizes, described, made, reset_peak, resident_bytes
from wavetank.training.domains.shard_tensor import DomainParallel

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def test_a_system_is_made_again_from_its_description():
    assert made(described(DomainParallel())) == DomainParallel()
    assert cut_sizes(DomainParallel(), 8, 2, (4, 4)) == (4, 4)
    assert cut_sizes(OneProcess(), 8, 2, (4, 4)) == (8, 0)


@linux
def test_the_peak_of_memory_is_that_since_it_was_reset():
    reset_peak()
    before = resident_bytes("VmRSS")
    held = np.ones(4_000_000)
    del held
    grown = resident_bytes("VmHWM") - before
    assert 30e6 < grown < 60e6
    reset_peak()
    assert resident_bytes("VmHWM") < before + 20e6


@linux
def test_what_processes_count_is_what_the_kernel_says_others_received():
    _, parts = found(DomainParallel(), (8, 8))
    for each in parts:
        # The kernel counts the messages' heads, too.
        assert each["counted_bytes"] < each["acknowledged_bytes"] < 1.5 * each["counted_bytes"] + 20_000
        assert each["peak_bytes"] > 0
        assert len(each["time_s"]) == len(each["peak_by_rows"]) == 1
