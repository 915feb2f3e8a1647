"""How servers of others are started, and how the simulator sees them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from wavetank.errors import BadValueError
from wavetank.platforms.step_time import FittedStepTime
from wavetank.serving.engines.llamacpp_process import Options
from wavetank.serving.engines.servers import LlamaCpp, Server, TransformersServe
from wavetank.serving.engines.tiny_llama import TinyLlama


@pytest.mark.parametrize(
    ("server", "running_most", "batch", "capacity"),
    [
        (LlamaCpp(slots=8, slot_tokens=1000, batch_tokens=512), 8, 512, 8000),
        (TransformersServe(blocks=100, block_tokens=16, batch_tokens=64), 64, 64, 1600),
        (TransformersServe(continuous=False), 1, 256, 32_768),
    ],
)
def test_the_simulator_sees_their_limits(server: Server, running_most: int, batch: int, capacity: int) -> None:
    found = server.cluster(3, FittedStepTime(overhead_s=0.01), 0.25)
    assert (found.workers, found.max_running, found.max_batched_tokens) == (3, running_most, batch)
    assert (found.kv_capacity_tokens, found.refresh_s, found.group_size) == (capacity, 0.25, 1)


def test_what_starts_llamacpp_is_read_back_as_it_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TinyLlama, "gguf", lambda model: Path(f"/models/{model.layers}.gguf"))
    command = LlamaCpp(layers=3, slots=5, slot_tokens=700, threads=2, prefix_caching=False).command(81, Path("/x"))
    asked = msgspec.json.decode(command.words[-1], type=Options)
    assert (asked.model, asked.port, asked.slots, asked.slot_tokens) == ("/models/3.gguf", 81, 5, 700)
    assert (asked.threads, asked.prefix_caching) == (2, False)
    assert command.environment["OMP_NUM_THREADS"] == "2"


def test_what_starts_transformers_keeps_it_from_the_network_and_the_users_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(TinyLlama, "hub", lambda model: Path("/made"))
    command = TransformersServe(blocks=77, threads=3).command(82, Path("/own"))
    environment = command.environment
    assert (environment["HF_HUB_CACHE"], environment["HF_HOME"]) == ("/made/hub", "/own")
    assert environment["HF_HUB_OFFLINE"] == environment["HF_HUB_DISABLE_UPDATE_CHECK"] == "1"
    assert environment["OMP_NUM_THREADS"] == "3"
    words = list(command.words)
    assert words[words.index("--cb-num-blocks") + 1] == "77"
    assert words[words.index("--host") + 1] == "127.0.0.1"
    alone = TransformersServe(continuous=False).command(82, Path("/own"))
    assert not any(word.startswith(("--cb", "--continuous")) for word in alone.words)


@pytest.mark.parametrize("kind", [LlamaCpp, TransformersServe])
def test_limits_out_of_range_are_refused(kind: type) -> None:
    for wrong in ({"threads": 0}, {"layers": 0}, {"batch_tokens": 1}):
        with pytest.raises(BadValueError):
            kind(**wrong)
