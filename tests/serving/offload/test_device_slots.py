"""Slots on a GPU: the order of copies and events with a stand-in for one, and real weights where there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.serving.offload.device_slots import DeviceSlots
from wavetank.serving.offload.live import ChunkedWeights
from wavetank.serving.offload.weight_files import StoredTensor, write_blocks

torch = pytest.importorskip("torch")


class StandIn:
    """Torch whose GPU is the host, and which writes down what its streams are asked."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.cuda = self
        self.uint8, self.float32 = torch.uint8, torch.float32
        self.device, self.from_numpy = torch.device, torch.from_numpy

    def empty(self, room: int, *, dtype: Any, pin_memory: bool = False, device: Any = None) -> Any:
        return torch.empty(room, dtype=dtype)

    def Stream(self, *, device: Any) -> StandIn:
        return self

    Event = lambda self: self  # noqa: E731

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        self.said.append("copies")
        yield

    def wait_event(self, event: Any) -> None:
        self.said.append("waits")

    def synchronize(self) -> None:
        self.said.append("is done")

    def record(self, stream: Any) -> None:
        self.said.append("left")

    def current_stream(self, device: Any) -> StandIn:
        return self


def test_a_slot_is_written_again_after_what_was_queued_on_it_and_a_chunk_is_waited_for() -> None:
    gpu = StandIn()
    slots = DeviceSlots(gpu, "cpu", 2, 128)
    first, second = slots.host
    stored = StoredTensor("w", np.dtype(np.float32), (2, 3), 0, 24, -1)
    slots.begin(first)
    first[64:88] = np.arange(6, dtype=np.float32).view(np.uint8)
    slots.send(first, 64, 24)
    assert slots.tensor(first, 64, stored).tolist() == [[0, 1, 2], [3, 4, 5]]
    slots.leave(first)
    slots.begin(second)
    slots.begin(first)
    assert gpu.said == ["copies", "is done", "left", "waits"]
    kept = slots.resident(np.arange(6, dtype=np.float32).view(np.uint8), stored)
    assert kept.shape == (2, 3)
    with pytest.raises(BadValueError, match="byte order"):
        slots.tensor(first, 64, stored._replace(dtype=np.dtype(np.float32).newbyteorder()))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_weights_for_one_are_refused(tmp_path: Path) -> None:
    write_blocks(tmp_path, [{"w": np.ones(3, np.float32)}])
    with pytest.raises(WavetankError, match="GPU"):
        ChunkedWeights(tmp_path, device="cuda")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.parametrize("resident", [0.0, 0.5, 1.0])
def test_weights_on_a_gpu_are_those_that_were_written(tmp_path: Path, resident: float) -> None:
    drawn = np.random.default_rng(0)
    blocks = [{str(i): drawn.standard_normal((300, 500)).astype(np.float32) for i in range(3)} for _ in range(4)]
    write_blocks(tmp_path, blocks)
    with ChunkedWeights(tmp_path, resident=resident, chunk_bytes=100_000, device="cuda") as weights:
        for _ in range(5):
            for block in weights:
                for name, expected in blocks[block.number].items():
                    product = block[name] @ block[name].T
                    assert block[name].is_cuda
                    assert np.array_equal(block[name].cpu().numpy(), expected)
                    assert product.shape == (300, 300)
