"""The worker's lines: one answer for each, with what was loaded, found, dropped and held."""

from __future__ import annotations

import dataclasses
import io
import json

from tests.serving.workflows.conftest import platform

from wavetank.serving.workflows.interface import Stage
from wavetank.serving.workflows.worker import serve


def test_every_line_is_answered_and_memory_follows_what_is_kept():
    devices = platform((1.0,), load_s=1.0, token_bytes=1.0)
    about = {
        "device": dataclasses.asdict(devices.devices[0]), "model_bytes": devices.model_bytes,
        "token_bytes": devices.token_bytes, "memory_scale": 1e-6, "speed": 1e6,
    }  # fmt: skip

    def task(model, prefix):
        stage = Stage(model=model, prompt_tokens=800, output_tokens=1, prefix=prefix, prefix_tokens=600)
        return {"stage": {**dataclasses.asdict(stage), "devices": []}, "transfer_s": 0.0, "share": 1.0, "merge_s": 0.0}

    lines = [about, task("a", "p"), task("a", "p"), task("b", "q")]
    answers = io.StringIO()
    serve(io.StringIO("".join(json.dumps(each) + "\n" for each in lines)), answers)
    ready, *found = map(json.loads, answers.getvalue().splitlines())
    assert ready == {"ready": True}
    assert [each["loaded"] for each in found] == [True, False, True]
    assert [each["reused_tokens"] for each in found] == [0, 600, 0]
    assert [each["evicted"] for each in found] == [[], [], ["a"]]
    assert [each["models"] for each in found] == [["a"], ["a"], ["b"]]
    assert found[2]["prefixes"] == [["b", "q", 600]]
    # A model of 1 GB, a millionth of it.
    assert [each["held_bytes"] for each in found] == [1000, 1000, 1000]
