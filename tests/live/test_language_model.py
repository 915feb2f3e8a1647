"""The port to language models: a server on loopback that answers well, badly, late or not at all."""

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from wavetank.errors import BadFileError, BadValueError
from wavetank.live.language_model import KEY, Endpoint, Function, NoAnswerError, Recorded, opened


@pytest.fixture
def served():
    """Return a function that serves one way of answering and returns the address and what was asked."""
    servers = []

    def serve(answer):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked.append((self.path, dict(self.headers), body))
                answer(self)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/v1", asked

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def says(raw, status=200, **headers):
    def answer(handler):
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(raw)))
        handler.end_headers()
        handler.wfile.write(raw)

    return answer


def completion(text):
    return json.dumps({"choices": [{"message": {"content": text}}]}).encode()


def test_a_question_is_answered(served, monkeypatch):
    monkeypatch.setenv(KEY, "secret")
    address, asked = served(says(completion("yes")))
    assert Endpoint(address, "tiny").ask("Well?") == "yes"
    path, headers, body = asked[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == "Bearer secret"
    assert body["model"] == "tiny" and body["messages"] == [{"role": "user", "content": "Well?"}]


def test_without_a_key_none_is_sent(served, monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    address, asked = served(says(completion("yes")))
    Endpoint(address, "tiny").ask("Well?")
    assert "Authorization" not in asked[0][1]


@pytest.mark.parametrize(
    "raw", [b"", b"no", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": {"content": null}}]}',
            b"\xff\xfe", b"[" * 100_000, b"x" * 1_000_001],
)  # fmt: skip
def test_what_is_no_completion_is_no_answer(served, raw):
    address, _ = served(says(raw))
    with pytest.raises(NoAnswerError):
        Endpoint(address, "tiny").ask("Well?")


def test_errors_and_redirects_are_no_answer(served):
    elsewhere, asked = served(says(completion("stolen")))
    for answer in (says(b"busy", 503), says(b"", 302, Location=elsewhere)):
        address, _ = served(answer)
        with pytest.raises(NoAnswerError):
            Endpoint(address, "tiny").ask("Well?")
    assert asked == []


def test_a_server_that_drips_is_left(served):
    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        for _ in range(100):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)

    address, _ = served(drip)
    began = time.monotonic()
    with pytest.raises(NoAnswerError):
        Endpoint(address, "tiny", timeout_s=0.5).ask("Well?")
    assert time.monotonic() - began < 2.5


def test_a_late_server_and_none_at_all_are_no_answer(served):
    address, _ = served(lambda handler: time.sleep(3))
    began = time.monotonic()
    with pytest.raises(NoAnswerError):
        Endpoint(address, "tiny", timeout_s=0.2).ask("Well?")
    assert time.monotonic() - began < 2.5
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(NoAnswerError):
        Endpoint(f"http://127.0.0.1:{port}/v1", "tiny", timeout_s=1.0).ask("Well?")


@pytest.mark.parametrize(
    "where", ["", "gpt-4", "file:///etc/passwd#x", "http://#x", "http://127.0.0.1:1/v1", "ftp://a/b#c"]
)
def test_addresses_that_are_none_are_refused(where):
    with pytest.raises(BadValueError):
        opened(where)


def test_recorded_answers_come_in_order_and_end(tmp_path):
    (tmp_path / "a").write_text('"one"\n\n"two"\n')
    model = opened(f"recorded:{tmp_path}/a")
    assert [model.ask("?"), model.ask("?")] == ["one", "two"]
    with pytest.raises(NoAnswerError):
        model.ask("?")


@pytest.mark.parametrize("text", ["one\n", "{}\n", '"one"\n3\n'])
def test_damaged_recordings_are_named(tmp_path, text):
    (tmp_path / "a").write_text(text)
    with pytest.raises(BadFileError, match="line"):
        Recorded(str(tmp_path / "a"))


def test_a_function_answers():
    assert Function(str.upper).ask("yes") == "YES"
