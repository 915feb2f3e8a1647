"""Reading power, clocks and throttle reasons of a real GPU through NVML, while a loop runs on it.  Nothing is ever set.

The library is the optional package ``nvidia-ml-py`` (extra ``power``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

import numpy as np

from wavetank.errors import BadValueError, MissingExtraError, missing_extra
from wavetank.serving.power.harness import Trace

SAMPLE_S = 0.06
_WARM_UP_S = 1.0


class NvmlGpu:
    """A GPU of this machine, read through NVML; a context manager.

    Parameters
    ----------
    index : int
        As NVML counts.

    Raises
    ------
    MissingExtraError
        If the library or the driver is not installed.
    BadValueError
        If there is no such GPU.
    """

    def __init__(self, index: int = 0) -> None:
        try:
            import pynvml
        except ImportError:
            raise missing_extra("nvidia-ml-py", "power", needed_for="Reading a GPU's power") from None
        self._nvml: Any = pynvml
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise MissingExtraError(f"The driver of NVIDIA GPUs cannot be asked: {error}.") from error
        try:
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            self.name = str(pynvml.nvmlDeviceGetName(self._handle))
        except pynvml.NVMLError as error:
            count = int(pynvml.nvmlDeviceGetCount())
            pynvml.nvmlShutdown()
            raise BadValueError(
                "There is no such GPU.", given=index, allowed=f"0 to {count - 1}" if count else "none is there"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._nvml.nvmlShutdown()

    def power_limit_w(self) -> float:
        """Return the power limit that is in force, W."""
        return float(self._nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle)) / 1e3

    def highest_clock_hz(self) -> float:
        """Return the highest clock of the multiprocessors, Hz."""
        return float(self._nvml.nvmlDeviceGetMaxClockInfo(self._handle, self._nvml.NVML_CLOCK_SM)) * 1e6

    def energy_j(self) -> float:
        """Return the energy since the driver was loaded, J."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3

    def sample(self) -> tuple[float, float, float, int]:
        """Return time (s), power (W), clock of the multiprocessors (Hz) and throttle reasons."""
        nvml, handle = self._nvml, self._handle
        return (
            time.perf_counter(),
            nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
            int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)),
        )

    def watch(self, step: Callable[[], float], seconds: float, warm_up_s: float = _WARM_UP_S) -> Trace:
        """Run a loop and return its trace.

        Parameters
        ----------
        step : callable
            Does a piece of work, waits until the device has done it, and returns its tokens (or bytes, or operations).
        seconds : float
            Length of the run, s.
        warm_up_s : float, default 1
            The loop runs this long before.

        Raises
        ------
        BadValueError
            If the length is not positive.
        """
        if not 0 < seconds < float("inf"):
            raise BadValueError("The length of a run is out of range.", given=seconds, allowed="s, above 0")
        until = time.perf_counter() + warm_up_s
        while time.perf_counter() < until:
            step()
        samples: list[tuple[float, float, float, int]] = []
        ended = threading.Event()

        def watching() -> None:
            while not ended.is_set():
                samples.append(self.sample())
                ended.wait(SAMPLE_S)

        watcher = threading.Thread(target=watching, daemon=True)
        began_s, began_j = time.perf_counter(), self.energy_j()
        watcher.start()
        done = 0.0
        try:
            while time.perf_counter() < began_s + seconds:
                done += step()
        finally:
            ended.set()
            watcher.join()
        ended_s, ended_j = time.perf_counter(), self.energy_j()
        columns = np.array(samples, dtype=np.float64).reshape(-1, 4)
        return Trace(
            time_s=np.minimum(columns[:, 0], ended_s), power_w=columns[:, 1], clock_hz=columns[:, 2],
            reasons=columns[:, 3].astype(np.int64), began_s=began_s, ended_s=ended_s, began_j=began_j, ended_j=ended_j,
            tokens=done,
        )  # fmt: skip
