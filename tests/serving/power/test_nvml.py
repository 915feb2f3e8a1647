"""Reading a GPU: against a stand-in for the library, which also counts that nothing is ever set."""

import sys
import time
import types

import numpy as np
import pytest

from wavetank.errors import BadValueError, MissingExtraError
from wavetank.serving.power.harness import Harness
from wavetank.serving.power.nvml import NvmlGpu


class Library(types.ModuleType):
    """NVML of one GPU that draws 400 W at 1.5 GHz; every function that is not here is an error."""

    NVML_CLOCK_SM = 1

    class NVMLError(Exception):
        """As the library raises it."""

    def __init__(self, *, driver=True, gpus=1):
        super().__init__("pynvml")
        self.driver, self.gpus, self.open = driver, gpus, 0
        self.began = time.perf_counter()

    def nvmlInit(self):
        if not self.driver:
            raise self.NVMLError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return self.gpus

    def nvmlDeviceGetHandleByIndex(self, index):
        if index >= self.gpus:
            raise self.NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetEnforcedPowerLimit(self, handle):
        return 700_000

    def nvmlDeviceGetMaxClockInfo(self, handle, kind):
        return 1980

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return int(1e6 + 400e3 * (time.perf_counter() - self.began))

    def nvmlDeviceGetPowerUsage(self, handle):
        return 400_000

    def nvmlDeviceGetClockInfo(self, handle, kind):
        return 1500

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return 0


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def step():
    time.sleep(0.002)
    return 10.0


def test_a_loop_is_watched_and_its_trace_counts(library):
    with NvmlGpu() as gpu:
        assert (gpu.name, gpu.power_limit_w(), gpu.highest_clock_hz()) == ("NVIDIA H200", 700.0, 1980e6)
        trace = gpu.watch(step, 0.5, warm_up_s=0.0)
    assert library.open == 0
    assert len(trace.time_s) >= 3
    assert np.all(trace.power_w == 400.0) and np.all(trace.clock_hz == 1.5e9)
    assert trace.energy_j == pytest.approx(400.0 * (trace.ended_s - trace.began_s), rel=0.02)
    assert trace.tokens % 10.0 == 0.0 and trace.tokens > 0
    # A gap of the machine's own scheduler would be a fault too; what is asked here is that nothing else is one.
    assert Harness(largest_gap_s=10.0).fault(trace) == ""


def test_a_loop_that_fails_stops_the_watching(library):
    def broken():
        raise RuntimeError("out of memory")

    with NvmlGpu() as gpu, pytest.raises(RuntimeError, match="out of memory"):
        gpu.watch(broken, 1.0, warm_up_s=0.0)
    assert library.open == 0


def test_no_library_no_driver_no_gpu_and_no_time_are_said(monkeypatch, library):
    with pytest.raises(BadValueError, match="no such GPU"):
        NvmlGpu(index=1)
    assert library.open == 0
    with NvmlGpu() as gpu, pytest.raises(BadValueError, match="out of range"):
        gpu.watch(step, float("nan"))
    monkeypatch.setitem(sys.modules, "pynvml", Library(driver=False))
    with pytest.raises(MissingExtraError, match="Driver Not Loaded"):
        NvmlGpu()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingExtraError) as caught:
        NvmlGpu()
    assert "power" in caught.value.hint
