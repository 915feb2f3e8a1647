"""The model server without a model, spoken to byte by byte."""

import json
import socket
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.live.processes import ChildProcess, hold_port
from wavetank.serving.proxy.null_backend import asked, event, prompt, token, whole_answer


@pytest.fixture(scope="module")
def port():
    words = [sys.executable, "-m", "wavetank.serving.proxy.null_backend", "--listeners", "2"]
    with ChildProcess(words, name="null backend") as process:
        ports = json.loads(process.first_line())["ports"]
        assert len(set(ports)) == 2
        yield ports[0]


def talk(port, data, until=b"", count=1):
    """Send bytes and return what comes back: until ``until`` was seen ``count`` times, or the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as link:
        link.sendall(data)
        found = b""
        while not until or found.count(until) < count:
            piece = link.recv(65536)
            if not piece:
                break
            found += piece
        return found


def ask(name, *, tokens=3, stream=False, delay_s=0.0, gap_s=0.0):
    body = json.dumps(
        {
            "model": "null-model",
            "messages": [{"role": "user", "content": prompt(name, delay_s, gap_s, 200)}],
            "max_tokens": tokens,
            "stream": stream,
        }
    ).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def test_a_plain_answer_is_an_openai_object_with_its_tokens(port):
    answer = talk(port, ask("a1"), b"}}")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: %d" % len(body) in head
    found = json.loads(body)
    assert found["object"] == "chat.completion"
    assert found["choices"][0]["message"]["content"] == "a1:0:0;a1:1:0;a1:2:0;"
    assert found["usage"] == {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def test_a_stream_is_one_chunk_a_token_and_an_end(port):
    answer = talk(port, ask("s", tokens=2, stream=True, gap_s=0.001), b"0\r\n\r\n")
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    events = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        events.append(rest[: int(size, 16)])
        assert rest[int(size, 16) : int(size, 16) + 2] == b"\r\n"
        rest = rest[int(size, 16) + 2 :]
    assert events[-2:] == [b"data: [DONE]\n\n", b""]
    deltas = [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events[:-2]]
    texts = [delta["delta"]["content"].rstrip(";").split(":") for delta in deltas]
    assert [(name, number) for name, number, _ in texts] == [("s", "0"), ("s", "1")]
    assert int(texts[0][2]) < int(texts[1][2])
    assert [delta["finish_reason"] for delta in deltas] == [None, "stop"]


def test_a_connection_serves_requests_one_after_the_other_in_order(port):
    answer = talk(port, ask("one", delay_s=0.05) + ask("two") + ask("three"), b"}}", count=3)
    assert answer.index(b"one:2:0;") < answer.index(b"two:2:0;") < answer.index(b"three:2:0;")


def test_a_body_may_come_in_chunks(port):
    whole = ask("c1")
    body = whole.partition(b"\r\n\r\n")[2]
    chunked = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (9, body[:9], len(body) - 9, body[9:])
    head = b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b"c1:2:0;" in talk(port, head + chunked, b"}}")


@pytest.mark.parametrize(
    ("request_line", "status", "holds"),
    [
        (b"GET /v1/models", b"200", b"null-model"),
        (b"GET /health", b"200", b"{}"),
        (b"GET /nothing", b"404", b"error"),
    ],
)
def test_other_pages(port, request_line, status, holds):
    answer = talk(port, request_line + b" HTTP/1.1\r\n\r\n", b"}")
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert holds in answer


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"messages":[]}', b'{"messages":[{"content":"only-a-name"}]}'])
def test_what_is_no_request_is_refused(port, body):
    data = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    assert talk(port, data, b"}").startswith(b"HTTP/1.1 400")
    with pytest.raises(ValueError, match="no request"):
        asked(body)


def test_it_serves_the_port_that_is_held_for_it():
    with hold_port() as port:
        words = [sys.executable, "-m", "wavetank.serving.proxy.null_backend", "--port", str(port)]
        for _ in range(2):
            with ChildProcess(words, name="null backend") as process:
                assert json.loads(process.first_line()) == {"ports": [port]}
                assert b"p1:0:0;" in talk(port, ask("p1"), b"}}")
                process.kill()


@given(
    name=st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True),
    delay_ms=st.integers(0, 100_000),
    gap_ms=st.integers(0, 1000),
    tokens=st.integers(1, 1000),
    stream=st.booleans(),
    length=st.integers(0, 500),
    more=st.integers(0, 1_000_000),
)
def test_a_request_is_read_as_it_was_made(name, delay_ms, gap_ms, tokens, stream, length, more):
    text = prompt(name, delay_ms / 1000, gap_ms / 1000, length, more)
    assert len(text) >= length
    body = json.dumps({"messages": [{"content": text}], "max_tokens": tokens, "stream": stream}).encode()
    assert asked(body) == (name, delay_ms / 1000, gap_ms / 1000, tokens, stream, more)


def test_tokens_say_whose_they_are_which_and_when():
    assert token("r1", 2, 77) == "r1:2:77;"
    assert whole_answer("r1", 2).count(b"r1:") == 2
    assert b"[DONE]" not in event("r1", 0, 2, 0)
    assert event("r1", 1, 2, 0).endswith(b"0\r\n\r\n")
