"""Servers of others start, answer, end, and say why when they do not."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wavetank.errors import WavetankError
from wavetank.live.processes import free_port, own_cores, python_code
from wavetank.serving.engines import running as module
from wavetank.serving.engines.running import running
from wavetank.serving.engines.servers import Command, LlamaCpp, Server, TransformersServe
from wavetank.serving.engines.tiny_llama import MODEL, TinyLlama, vocabulary

needs_llamacpp = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("xllamacpp", "gguf")),
    reason="llama.cpp's server needs xllamacpp and gguf (the extra engines)",
)
needs_transformers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("transformers", "fastapi", "uvicorn", "openai")),
    reason="transformers serve needs transformers[serving] (the extra engines)",
)

# A server of the standard library that answers as a model server does, after what is put in front.
FAKE = """
import http.server, json, os, sys, time
port, model = int(sys.argv[1]), sys.argv[2]
class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def do_GET(self):
        self.answer(200, {"data": [{"id": model}]})
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        first_request(self)
    def log_message(self, *words):
        pass
def first_request(handler):
    handler.answer(200, {"choices": []})
print("begins on", port, flush=True)
"""
SERVES = "http.server.ThreadingHTTPServer(('127.0.0.1', port), Handler).serve_forever()\n"


@dataclass(frozen=True)
class Fake:
    """A server that runs a text of Python."""

    code: str
    model: str = MODEL
    as_text = False
    reports_cached = False

    def command(self, port: int, folder: Path) -> Command:
        return Command(python_code(FAKE + self.code, str(port), self.model))

    cluster = LlamaCpp.cluster


@pytest.fixture(autouse=True)
def own_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "cache_folder", lambda: tmp_path)
    return tmp_path / "engines" / "logs"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_they_answer_within_the_block_and_are_gone_behind_it(own_logs: Path) -> None:
    with running(Fake(SERVES), 2) as found:
        pids = [each.process.pid for each in found]
        assert len({each.url for each in found}) == 2
        assert all(map(alive, pids))
    assert not any(map(alive, pids))
    assert not own_logs.exists()


def test_an_error_in_the_block_ends_them_and_keeps_what_they_printed(own_logs: Path) -> None:
    pids = []
    with pytest.raises(ZeroDivisionError), running(Fake(SERVES), 2) as found:
        pids += [each.process.pid for each in found]
        1 / 0  # noqa: B018
    assert not any(map(alive, pids))
    (kept,) = own_logs.iterdir()
    assert sorted(path.name for path in kept.iterdir()) == ["0.log", "1.log"]
    assert "begins on" in (kept / "0.log").read_text()


def test_only_the_last_failures_are_kept(own_logs: Path) -> None:
    for _ in range(module._LOGS_KEPT + 3):
        with pytest.raises(ZeroDivisionError), running(Fake(SERVES), 1):
            1 / 0  # noqa: B018
    assert len(list(own_logs.iterdir())) == module._LOGS_KEPT


@pytest.mark.parametrize(
    ("code", "model", "says", "prints"),
    [
        ("print('out of memory'); sys.exit(3)", MODEL, "ended with code 3", "out of memory"),
        ("print('x ' * 3000); print('the very reason'); sys.exit(3)", MODEL, "ended with code 3", "the very reason"),
        ("os.kill(os.getpid(), 9)", MODEL, "ended with code -9", "begins on"),
        (SERVES, "another/model", f"does not serve {MODEL}", "begins on"),
        ("def first_request(handler): handler.answer(503, {'error': 'the worker is dead'})\n" + SERVES, MODEL,
         "HTTP 503.*the worker is dead", "begins on"),
        ("def first_request(handler): print('falls over', flush=True); os._exit(4)\n" + SERVES, MODEL,
         "does not answer its first request", "falls over"),
        ("time.sleep(60)", MODEL, "does not answer after", "begins on"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_come_up_says_why(
    code: str, model: str, says: str, prints: str, monkeypatch: pytest.MonkeyPatch, own_logs: Path
) -> None:
    monkeypatch.setattr(module, "START_S", 1.0)
    with pytest.raises(WavetankError, match=says) as caught, running(Fake(code, model), 2):
        pytest.fail("it never served")
    # In what is shown of it, not only in what it holds.
    assert prints in str(caught.value)
    # And where all of it is.
    assert str(next(own_logs.iterdir())) in str(caught.value.hint)


def test_a_port_that_somebody_took_meanwhile_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.end_headers()

        def log_message(self, *words: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        ports = [other.server_port, free_port()]
        monkeypatch.setattr(module, "free_port", lambda: ports.pop(0))
        with running(Fake(SERVES), 1) as (found,):
            assert found.url.endswith(str(found.url.rsplit(":", 1)[1]))
            assert int(found.url.rsplit(":", 1)[1]) != other.server_port
        assert ports == []
        other.shutdown()


def test_cancelled_while_they_start_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    begin = module._begin

    def interrupted(*given: Any) -> Any:
        begun.append(begin(*given))
        if len(begun) == 2:
            raise KeyboardInterrupt
        return begun[-1]

    monkeypatch.setattr(module, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt), running(Fake(SERVES), 3):
        pytest.fail("it was interrupted")
    assert len(begun) == 2
    assert not any(alive(each.process.pid) for each in begun)


def completion(url: str, **body: Any) -> tuple[int, Any]:
    status, text = module._asked(
        int(url.rsplit(":", 1)[1]), "POST", "/v1/completions", {"model": MODEL, "temperature": 0, **body}, 60.0
    )
    return status, json.loads(text)


@needs_llamacpp
class TestLlamaCpp:
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls) -> Iterator[str]:
        server = LlamaCpp(layers=1, slots=4, slot_tokens=512)
        with running(server, 1, cores=own_cores()) as (found,):
            if own_cores():
                assert os.sched_getaffinity(found.process.pid) == own_cores()[0]
            yield found.url

    def test_prompts_are_as_long_as_asked_and_the_same_as_ids_and_as_text(self, url: str) -> None:
        words = "".join(f" {letter}bc" for letter in "abcdefgh")
        ids = [vocabulary().index(word.replace(" ", "\u0120")) for word in words.replace(" ", "| ").split("|")[1:]]
        status, by_text = completion(url, prompt=words, max_tokens=6)
        assert status == 200
        _, by_ids = completion(url, prompt=ids, max_tokens=6)
        assert by_text["usage"]["prompt_tokens"] == by_ids["usage"]["prompt_tokens"] == 8
        assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"]
        # Greedy answers never end by themselves.
        assert (by_text["usage"]["completion_tokens"], by_text["choices"][0]["finish_reason"]) == (6, "length")

    def test_a_prompt_that_begins_alike_is_not_computed_again(self, url: str) -> None:
        ids = list(range(2000, 2100))
        completion(url, prompt=ids, max_tokens=1)
        _, again = completion(url, prompt=[*ids, *range(5000, 5020)], max_tokens=1)
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 100

    def test_the_routers_view_reads_its_load(self, url: str) -> None:
        from wavetank.serving.proxy.engine_metrics import read_load

        status, page = module._asked(int(url.rsplit(":", 1)[1]), "GET", "/metrics", None, 10.0)
        assert status == 200
        load = read_load(page)
        assert load is not None
        assert (load.running, load.waiting) == (0, 0)

    def test_a_prompt_beyond_its_context_is_refused_with_the_reason(self, url: str) -> None:
        status, answer = completion(url, prompt=[3000] * 600, max_tokens=1)
        assert status == 400
        assert "exceed" in answer["error"]["message"]

    def test_a_model_that_is_damaged_ends_it_with_its_own_words(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "bad.gguf").write_bytes(b"GGUF" + b"\0" * 40)
        monkeypatch.setattr(TinyLlama, "gguf", lambda model: tmp_path / "bad.gguf")
        with pytest.raises(WavetankError, match="ended with code 1") as caught, running(LlamaCpp(), 1):
            pytest.fail("it cannot serve this")
        # Which of its two lines comes last is not always the same.
        assert any(words in str(caught.value) for words in ("model loading error", "Failed to init server"))


@needs_llamacpp
@needs_transformers
@pytest.mark.slow
def test_both_engines_say_the_same_of_the_same_weights() -> None:
    prompt = " the cat sat ono the mat and the dog"
    said = []
    kinds: list[Server] = [LlamaCpp(), TransformersServe()]
    for server in kinds:
        with running(server, 1) as (found,):
            status, answer = completion(found.url, prompt=prompt, max_tokens=12)
            assert status == 200
            said.append((answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]))
            if server.as_text:
                # It refuses what OpenAI does not know, and says what.
                status, refusal = completion(found.url, prompt=prompt, max_tokens=2, ignore_eos=True)
                assert status == 422
                assert "ignore_eos" in str(refusal)
    assert said[0] == said[1]
