"""``wavetank launch experts``: a rank is killed while a client streams, and the text goes on as one process says it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from wavetank.live.processes import ChildProcess, python_module
from wavetank.serving.rank_failures.small_model import Shape, SmallModel, alone, word

pytest.importorskip("aiohttp", reason="needs the library aiohttp")


def test_the_command_is_described(call: Callable[..., Any]) -> None:
    found = call("launch", "experts", "--help")
    assert found.code == 0 and "--ranks" in found.out and "kill -9" in found.out
    assert call("launch", "experts", "--ranks", "0").code == 3


@pytest.mark.slow
def test_a_stream_goes_on_when_a_rank_is_killed_and_the_end_leaves_nothing() -> None:
    prompt, count = "What now?", 1500
    expected = "".join(map(word, alone(SmallModel(Shape()), list(prompt.encode()), count)))
    with ChildProcess(python_module("wavetank", "launch", "experts", "--ranks", "4"), name="experts") as child:
        child.until(lambda: "http://" in child.output(), 60.0, "does not begin")
        address = re.findall(r"http://\S+", child.output())[0]
        pids = [int(each) for each in re.findall(r"pid (\d+)", child.output())]
        assert len(pids) == 4
        body = json.dumps({"prompt": prompt, "max_tokens": count, "stream": True}).encode()
        request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
        said, killed = "", 0
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                said += json.loads(line[6:])["choices"][0]["text"]
                if killed < 3 and len(said) > 1000 * (killed + 1):
                    os.kill(pids[killed], signal.SIGKILL)
                    killed += 1
        assert (said, killed) == (expected, 3)
        whole = json.dumps({"messages": [{"role": "user", "content": prompt}], "max_tokens": 20}).encode()
        request = urllib.request.Request(f"{address}/v1/chat/completions", whole, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert expected.startswith(json.load(answer)["choices"][0]["message"]["content"])
        family = child.family()
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(30.0) == 0
        stop = time.monotonic() + 5
        while time.monotonic() < stop and any(Path(f"/proc/{pid}").exists() for pid in family):
            time.sleep(0.05)
        assert not any(Path(f"/proc/{pid}").exists() for pid in family)
