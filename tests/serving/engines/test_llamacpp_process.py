"""llama.cpp's server is started by one JSON text, which is checked, and ends at SIGTERM."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import msgspec
import pytest

from wavetank.live.processes import ChildProcess, free_port, python_module
from wavetank.serving.engines.llamacpp_process import Options, main
from wavetank.serving.engines.tiny_llama import TinyLlama

SMALL = TinyLlama(layers=1, heads=1, head_dim=8, feed_forward=8)
NAME = "wavetank.serving.engines.llamacpp_process"

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("xllamacpp", "gguf")),
    reason="llama.cpp's server needs xllamacpp and gguf (the extra engines)",
)


def options(**changed: object) -> str:
    given = {"model": "m.gguf", "name": "m", "port": 1, "slots": 2, "slot_tokens": 64, "batch_tokens": 64,
             "threads": 1, "prefix_caching": True}  # fmt: skip
    return msgspec.json.encode({**given, **changed}).decode()


@pytest.mark.parametrize("text", ["", "{}", options(port="80"), options(more=1), options(slots=1.5)])
def test_what_is_no_description_is_refused_before_anything_starts(text: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        main(text)


def test_a_model_that_is_not_there_ends_it_without_a_traceback() -> None:
    words = [sys.executable, "-m", NAME, options(model="/nowhere/m.gguf", port=free_port())]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "llama.cpp's server did not start" in done.stderr
    assert "/nowhere/m.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_it_ends_at_sigterm_by_itself() -> None:
    asked = msgspec.json.decode(options(model=str(SMALL.gguf()), port=free_port()), type=Options)
    with ChildProcess(python_module(NAME, msgspec.json.encode(asked).decode()), name="server") as process:
        process.wait_ready(asked.port, "/health")
        process._process.terminate()
        assert process.wait(20.0) == 0
