"""``wavetank launch model-server``: one line when it answers, gone at Ctrl-C."""

from __future__ import annotations

import http.server
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from wavetank.live.processes import ChildProcess

Call = Callable[..., Any]
needs_llamacpp = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("xllamacpp", "gguf")),
    reason="llama.cpp's server needs xllamacpp and gguf (the extra engines)",
)


@needs_llamacpp
def test_it_says_where_it_answers_and_ends_with_its_server() -> None:
    words = [sys.executable, "-m", "wavetank", "launch", "model-server", "--layers", "1"]
    with ChildProcess(words, name="model-server") as process:
        port = int(process.first_line().strip().rsplit(":", 1)[1])
        process.wait_ready(port)
        (server,) = [pid for pid in process.family() if pid != process.pid]
        process._process.terminate()
        assert process.wait(20.0) == 0
        with pytest.raises(ProcessLookupError):
            os.kill(server, 0)
        assert len(process.output().splitlines()) == 1


def test_a_core_that_is_not_there_is_refused(call: Call) -> None:
    ended = call("launch", "model-server", "--core", "100000")
    assert ended.code == 3
    assert "may not use that core" in ended.err


def test_a_port_that_is_taken_is_named(call: Call) -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        ended = call("launch", "model-server", "--port", str(other.server_port))
        other.shutdown()
    assert ended.code == 3
    assert "Somebody listens on this port" in ended.err
    assert str(other.server_port) in ended.err
