"""``wavetank launch engine``: prints its address, serves, and ends in order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("aiohttp")

Call = Callable[..., Any]


def start(*words: str) -> subprocess.Popen[str]:
    words = (sys.executable, "-m", "wavetank", "launch", "engine", *words)
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_on_one_line_answers_and_ends_on_a_signal(number: signal.Signals) -> None:
    with start("--step-time", "overhead_s=1ms", "--model", "m", "--name", "e", "--drain-s", "5") as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:")
            body = json.dumps({"prompt": "hello", "max_tokens": 3}).encode()
            with urllib.request.urlopen(f"{url}/v1/completions", body, timeout=20) as response:
                answer = json.load(response)
            os.kill(process.pid, number)
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert (answer["choices"][0]["text"], answer["system_fingerprint"], answer["model"]) == (" t0 t1 t2", "e", "m")
    assert (process.returncode, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "Llama-3.1-9B"], "nearest: Llama-3.1-8B"),
        (["--device", "H1000"], "nearest: H100"),
        (["--step-time", "overhead=1"], "nearest: overhead_s"),
        (["--step-time", "overhead_s"], "A coefficient is a pair."),
        (["--step-time", "per_request_s=1us"], "lacks its overhead"),
        (["--step-time", "overhead_s=fast"], "This is not a number."),
        (["--step-time", "overhead_s=-1"], "overhead_s is out of range"),
        (["--time-scale", "0"], "time_scale"),
        (["--max-running", "0"], "max_running"),
        (["--kv-watermark", "2"], "kv_watermark"),
        (["--port", "70000"], "--port"),
        (["--lengths", "cov"], "nearest: conv"),
        (["--host", "256.1.1.1"], "cannot listen there"),
        (["--no-such-option"], "There is no option named"),
    ],
)
def test_wrong_options_are_reported_and_end_with_the_usage_code(call: Call, words: list[str], says: str) -> None:
    ended = call("launch", "engine", *words)
    assert (ended.code, ended.out) == (3, "")
    assert says in ended.err


def test_help_tells_units_and_defaults(call: Call) -> None:
    ended = call("launch", "engine", "--help")
    assert ended.code == 0
    assert "A100" not in ended.err
    assert "H100-SXM" in ended.out
    assert "--time-scale" in ended.out
