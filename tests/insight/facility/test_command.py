"""``wavetank launch twin`` as a process: it serves, and ends cleanly when interrupted."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest


def test_it_serves_a_topic_and_ends_when_interrupted() -> None:
    command = [sys.executable, "-m", "wavetank", "launch", "twin", "--port", "0", "--servers", "2", "--late-s", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            says = process.stdout.readline()
            port = int(address.rpartition(":")[2].split("/")[0])
            message = {"topic": "dc/r/s0/load", "ts": time.time(), "value": 0.5, "unit": ""}
            with socket.create_connection(("127.0.0.1", port), timeout=10) as line:
                line.sendall(json.dumps(message).encode() + b"\n")
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/counts", timeout=10) as answer:
                    counts = json.load(answer)
            assert set(counts) <= {"taken"}
            with urllib.request.urlopen(address, timeout=10) as answer:
                assert json.load(answer) is None
        finally:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and err == "" and "Ctrl-C" in says


@pytest.mark.parametrize(
    ("words", "says"),
    [(("--for-s", "nan"), "--for-s"),
     (("--servers", "0"), "servers"), (("--late-s", "soon"), "late_s"), (("--forecast", "tarot"), "tarot")],
)  # fmt: skip
def test_wrong_words_are_refused(call: Callable[..., Any], words: tuple[str, ...], says: str) -> None:
    done = call("launch", "twin", "--for-s", "0.1", "--port", "0", *words)
    assert done.code == 3 and says in done.err


def test_a_port_that_is_taken_is_named(call: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = call("launch", "twin", "--port", str(taken.getsockname()[1]), "--for-s", "0.1")
    assert done.code == 3 and "port cannot be had" in done.err
