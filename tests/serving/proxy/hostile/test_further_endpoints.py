"""Faults of backends and tricks of clients at the endpoints beside completions: no other outcome than there."""

import json

import pytest

PATHS = [b"/v1/messages", b"/v1/responses", b"/v1/embeddings", b"/rerank"]


@pytest.mark.parametrize("path", PATHS, ids=bytes.decode)
def test_every_fault_ends_as_it_ends_with_a_chat(site, wire, path):
    for fault in wire.SENDS:
        ask = wire.chat(f"{fault} please", stream=fault.startswith("a-stream"))
        (chat,) = wire.send(site.port, wire.request(ask))
        (reply,) = wire.send(site.port, wire.request(ask, path=path))
        assert (fault, reply.status, reply.whole) == (fault, chat.status, chat.whole)
        assert reply.visibly_broken == chat.visibly_broken, fault
        assert b"smuggled" not in reply.body + reply.rest, fault
    assert site.works()


@pytest.mark.parametrize("path", PATHS, ids=bytes.decode)
@pytest.mark.parametrize(
    "lines",
    [
        (b"Transfer-Encoding: chunked",),
        (b"Content-Length: 3",),
        (b"Transfer-Encoding: xchunked",),
        (b"Content-Type: application/json",),
        (b"Content-Encoding: gzip",),
        (b"Expect: 200-ok",),
    ],
    ids=lambda lines: lines[0].decode(),
)
def test_a_request_that_can_be_read_in_two_ways_is_refused_and_nothing_of_it_is_another_one(site, wire, path, lines):
    inner = wire.request(wire.chat("status-500 please"))
    before = len(site.bad.seen)
    first, *rest = wire.send(site.port, wire.request(inner, *lines, path=path), answers=2)
    assert 400 <= first.status < 500
    # Nothing more, or another refusal; 0 stands for the end of the connection.
    assert all(reply.status == 0 or 400 <= reply.status < 500 for reply in rest)
    assert not any(b"status-500" in each for each in site.bad.seen[before:])
    assert site.works()


def test_a_form_with_requests_in_it_is_a_form(site, wire):
    inner = wire.request(wire.chat("status-500 please"))
    parts = [b'name="model"\r\n\r\nnull-model', b'name="file"; filename="a.wav"\r\n\r\n' + inner]
    body = b"".join(b"--b\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts) + b"--b--\r\n"
    head = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    before = len(site.bad.seen)
    asked = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    replies = wire.send(site.port, asked + wire.good("after"), answers=2)
    # The good backend knows no forms.
    assert [reply.status for reply in replies] == [400, 200]
    assert b"after:0:0" in replies[1].body
    assert not any(b"status-500" in each for each in site.bad.seen[before:])
    assert json.loads(replies[0].body)["error"]
