"""What is measured of a process: bytes that others received, and memory at its peak."""

import mmap
import sys

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the library torch")

from tests.training.domains.ways import found

from wavetank.training.domains import run
from wavetank.training.domains.interface import Layout
from wavetank.training.domains.rivals import OneProcess
from wavetank.training.domains.run import described, layout_of, made, memory_step, reset_peak, resident_bytes
from wavetank.training.domains.shard_tensor import DomainParallel

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")


def test_a_system_is_made_again_from_its_description():
    assert made(described(DomainParallel())) == DomainParallel()
    assert layout_of(DomainParallel(), 8, 2, (4, 4)) == Layout(2, (4, 4))
    assert layout_of(OneProcess(), 8, 2, (4, 4)) == Layout(2, (8, 0))


@linux
def test_the_peak_of_memory_is_that_since_it_was_reset():
    reset_peak()
    before = resident_bytes("VmRSS")
    # Straight from the system: an allocator may have memory left that other tests gave back.
    with mmap.mmap(-1, 48_000_000) as held:
        np.frombuffer(held, np.uint8)[::4096] = 1
    grown = resident_bytes("VmHWM") - before
    assert 46e6 < grown < 76e6
    reset_peak()
    assert resident_bytes("VmHWM") < before + 20e6


@linux
def test_what_processes_count_is_what_the_kernel_says_others_received():
    _, parts = found(DomainParallel(), (8, 8))
    for each in parts:
        # The kernel counts the messages' heads, too.
        assert each["counted_bytes"] < each["acknowledged_bytes"] < 1.5 * each["counted_bytes"] + 20_000
        assert each["peak_bytes"] > 0
        assert len(each["time_s"]) == 1
        # Of a sample as small as this one, single pages of memory decide how many rows fit.
        assert each["most_rows"] in range(0, 65, memory_step(8, 4))


class _One:
    """A domain that says of every figure that it is the largest."""

    place, size = 0, 1

    def all_reduce(self, tensor, *, largest):
        assert largest
        return tensor


def test_the_largest_sample_that_fits_is_found_by_halving(monkeypatch):
    tried = []

    def planted(way, domain, model, sample, target, layout):
        assert (sample.shape[2], target.shape[2]) == (layout.length, layout.length // 4)
        tried.append(layout.length)
        return 10 * layout.length

    monkeypatch.setattr(run, "_peak_bytes", planted)
    sample, target = np.zeros((1, 2, 48, 8)), np.zeros((1, 2, 12, 2))
    for limit, rows in ((1000, 96), (1080, 108), (50, 0), (120, 12), (10_000, 192)):
        tried.clear()
        assert run._most_rows(DomainParallel(), _One(), None, sample, target, 12, 192, limit) == rows
        # Of 16 numbers of rows five at most are tried.
        assert len(tried) <= 5
    assert [memory_step(rows, 4) for rows in (48, 8, 20)] == [12, 4, 4]
