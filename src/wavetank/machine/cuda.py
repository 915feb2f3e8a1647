"""What kernels on a GPU share: torch or a clear error, the memory that is free, and the device's own clock.

A device that is no GPU is taken too, where Triton interprets its kernels: its memory is this machine's, and its clock
the processor's.

Source: PyTorch's documentation, "CUDA semantics".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

from wavetank.errors import BadValueError, MissingExtraError, missing_extra
from wavetank.machine.clocks import WallClock
from wavetank.units import show


def require_torch(needed_for: str) -> Any:
    """Return torch.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise missing_extra("torch", "torch", needed_for=needed_for) from None
    return torch


def require_cuda(needed_for: str, device: str = "cuda", hint: str | None = None) -> Any:
    """Return torch, if it can use the device.

    Parameters
    ----------
    needed_for : str
        What needs it, as the beginning of a sentence.
    device : str
        Whatever torch takes; only GPUs are looked for.
    hint : str, optional
        What to do without one.

    Raises
    ------
    MissingExtraError
        If torch is not installed, or sees no GPU and ``device`` is one.
    """
    torch = require_torch(needed_for)
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise MissingExtraError(f"{needed_for} needs a CUDA device, and torch sees none.", hint=hint)
    return torch


def found_gpu() -> bool:
    """Return whether torch is installed and sees a GPU."""
    try:
        torch = require_torch("")
    except MissingExtraError:
        return False
    return bool(torch.cuda.is_available())


def free_bytes(device: Any) -> float:
    """Return the memory of a GPU that torch can still give: what is free, and what it keeps unused; inf elsewhere."""
    torch = require_torch("A GPU's memory")
    device = torch.device(device)
    if device.type != "cuda":
        return math.inf
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + kept)


def require_free(device: Any, need: float, purpose: str, *, where: str | None = None, hint: str | None = None) -> None:
    """Refuse what does not fit into a GPU's memory, before anything is allocated.

    Parameters
    ----------
    device : torch.device or str
    need : float
        In bytes.
    purpose : str
        What needs it, as the beginning of a sentence.
    where, hint : str, optional
        Of the error.

    Raises
    ------
    BadValueError
    """
    free = free_bytes(device)
    if need > free:
        raise BadValueError(
            f"{purpose} needs more memory than the GPU has free.", given=show(float(need), "bytes"),
            allowed=f"at most {show(free, 'bytes')}", where=where, hint=hint,
        )  # fmt: skip


def described(device: str) -> str:
    """Return a device and the libraries that drive it, in one line for a report."""
    torch = require_torch("A device")
    on_gpu = torch.device(device).type == "cuda" and torch.cuda.is_available()
    name = torch.cuda.get_device_name(device) if on_gpu else device
    return f"Device: {name}; torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}."


def as_graph(device: str, call: Callable[[], object]) -> Callable[[], object]:
    """Return a call that queues, as one graph, what ``call`` queues; where there is no GPU, the call itself.

    To queue a short kernel from Python takes longer than the kernel; a graph is queued at once.

    Parameters
    ----------
    device : str
    call : callable
        Has been called before, so that libraries are loaded and kernels compiled, which no graph may hold.  It must not
        wait for the device.

    Returns
    -------
    callable
        Returns the object that ``call`` returned while it was recorded, whose memory each replay writes anew.
    """
    torch = require_torch("A graph of launches")
    if torch.device(device).type != "cuda":
        return call
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # Asking how much memory is free is allowed while a graph is recorded, but not in the strictest mode.
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        result = call()

    # A graph knows addresses alone: with the call goes the memory that it reads.
    def replay(_kept: object = call) -> object:
        graph.replay()
        return result

    return replay


class DeviceClock(WallClock):
    """Times what is queued on a device: a GPU by its own events, anything else by the processor's clock."""

    measures: ClassVar[str] = "time on the device, between two events,"

    def __init__(self, device: str) -> None:
        self._torch = require_torch("A device's clock")
        self.on_gpu = self._torch.device(device).type == "cuda"

    @classmethod
    def of(cls, study: Any) -> Self:
        """Return the clock of the device that a study's setting ``device`` names."""
        return cls(study.device)

    def seconds(self, call: Callable[[], object]) -> float:
        """Return the seconds of what one call queues."""
        if not self.on_gpu:
            return super().seconds(call)
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.wait()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3

    def wait(self) -> None:
        """Wait for everything that is queued."""
        if self.on_gpu:
            self._torch.cuda.synchronize()
