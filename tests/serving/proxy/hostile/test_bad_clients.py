"""Clients that vanish, dawdle, flood or smuggle: they get an error or are cut off, and nobody else notices."""

import contextlib
import json
import socket
import struct
import time

import pytest


def connect(site):
    return socket.create_connection(("127.0.0.1", site.port), timeout=15)


def vanish(link):
    """Close with a reset, as a client that crashes."""
    link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    link.close()


def rest_of(link):
    """Return all bytes until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := link.recv(65536):
            found += piece
    return found


def until_closed_s(link, trickle=b""):
    """Return how long the other side keeps a connection on which a byte comes now and then."""
    start = time.monotonic()
    link.settimeout(0.1)
    while time.monotonic() - start < 15:
        try:
            if trickle:
                link.sendall(trickle)
            if not link.recv(65536):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - start


@pytest.mark.parametrize("part", [0, 10, 60, -1], ids=["nothing", "half a line", "half a head", "half a body"])
@pytest.mark.parametrize("end", [vanish, socket.socket.close], ids=["reset", "close"])
def test_a_client_that_leaves_before_its_request_is_complete_leaves_nothing(site, meanwhile, wire, part, end):
    for _ in range(5):
        link = connect(site)
        link.sendall(wire.good("gone")[:part] if part else b"")
        end(link)
    assert site.quiet()
    assert site.works()


@pytest.mark.parametrize("end", [vanish, socket.socket.close], ids=["reset", "close"])
def test_a_client_that_leaves_in_a_stream_takes_its_request_at_the_backend_with_it(site, wire, end):
    assert site.quiet()
    before = site.gauge("wavetank_router_client_cancels_total")
    links = [connect(site) for _ in range(8)]
    for link in links:
        link.sendall(wire.good("leaves", stream=True, tokens=100_000, gap_s=0.002))
    for link in links:
        assert b"leaves:0:" in link.recv(65536) + link.recv(65536)
    assert site.gauge("wavetank_router_in_flight_requests") == len(links)
    for link in links:
        end(link)
    assert site.quiet()
    assert site.gauge("wavetank_router_backend_in_flight_requests") == 0
    assert site.gauge("wavetank_router_client_cancels_total") == before + len(links)


def test_a_client_that_leaves_while_its_backend_is_silent_does_not_keep_it(site, wire):
    assert site.quiet()
    cancels = site.gauge("wavetank_router_client_cancels_total")
    link = connect(site)
    link.sendall(wire.request(wire.chat("never-answers please")))
    while site.gauge("wavetank_router_backend_in_flight_requests") == 0:
        time.sleep(0.01)
    link.close()
    assert site.quiet()
    # It was given up for the client's sake, not for the backend's silence.
    assert site.gauge("wavetank_router_client_cancels_total") == cancels + 1
    assert site.gauge("wavetank_router_backend_in_flight_requests") == 0


def test_a_client_that_does_not_read_holds_its_backend_back_and_costs_no_memory(site, meanwhile, wire):
    before = site.router.resident_bytes()
    with connect(site) as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.sendall(wire.good("idle", stream=True, tokens=100_000))
        time.sleep(0.5)
        assert site.router.resident_bytes() - before < 20_000_000
    assert site.quiet()


@pytest.mark.parametrize(
    ("start", "trickle"),
    [
        (b"", b""),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n", b""),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n", b"X-A: b\r\n"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10000\r\n\r\n", b"a"),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    ],
    ids=["silence", "a head that stops", "a head that trickles", "a body that trickles", "chunks that trickle"],
)
def test_a_client_that_dawdles_is_cut_off(site, start, trickle):
    # A request must come within one second.
    with connect(site) as link:
        link.sendall(start)
        assert until_closed_s(link, trickle) < 6


def test_a_client_that_has_been_served_is_not_kept_for_ever(site, wire):
    with connect(site) as link:
        link.sendall(wire.good("kept"))
        assert b"kept:2:" in link.recv(65536)
        # Kept for two seconds.
        assert 1 < until_closed_s(link) < 8


def test_a_dawdler_on_a_connection_that_was_used_before_is_cut_off_too(site, wire):
    with connect(site) as link:
        link.sendall(wire.good("first"))
        assert b"first:2:" in link.recv(65536)
        link.sendall(b"POST /v1/chat/completions HTTP/1.1\r\n")
        assert until_closed_s(link, b"X-A: b\r\n") < 10


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"model":1,"messages":[]}',
        b'{"messages":[{"role":"user","content":"x"}]}',
        b"[" * 100_000,
        b'{"model":' + b'{"a":' * 50_000,
        b'{"model":"null-model","messages":"\\ud800"}',
    ],
    ids=["empty", "half", "list", "null", "text", "no utf-8", "types", "no model", "deep", "deeper", "surrogate"],
)
def test_a_body_that_makes_no_sense_is_refused_or_passed_to_who_refuses_it(site, meanwhile, wire, body):
    (reply,) = wire.send(site.port, wire.request(body))
    assert reply.status == 400
    assert reply.error["message"]
    # The connection is as good as before.
    replies = wire.send(site.port, wire.request(body) + wire.good("next"), answers=2)
    assert [each.status for each in replies] == [400, 200]


def test_a_model_that_no_backend_has_is_not_found(site, wire):
    (reply,) = wire.send(site.port, wire.request(wire.chat("x", model="no-such-model")))
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


def test_a_body_beyond_the_limit_is_refused_before_it_is_read(site, meanwhile, wire):
    before = site.router.resident_bytes()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n"
    (reply,) = wire.send(site.port, head)
    assert reply.status == 413
    (reply,) = wire.send(site.port, head + b"a" * 3_000_000)
    assert reply.status == 413
    chunks = b"".join(b"10000\r\n" + b"a" * 65536 + b"\r\n" for _ in range(40))
    (reply,) = wire.send(
        site.port, b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
    )
    assert reply.status == 413
    assert site.router.resident_bytes() - before < 20_000_000


def smuggled(wire):
    return wire.request(wire.chat("smuggled please"))


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: %d", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked", b"Content-Length: %d"],
        [b"Content-Length: 4", b"Content-Length: %d"],
        [b"Content-Length: 4, %d"],
        [b"Content-Length: +%d"],
        [b"Content-Length: -4"],
        [b"Content-Length : 4"],
        [b"Content-Length: 4\n", b"X: y"],
        [b"Transfer-Encoding: chunked, identity"],
        [b"Transfer-Encoding: xchunked"],
        [b"Transfer-Encoding : chunked"],
        [b" Transfer-Encoding: chunked"],
        [b"X: y\r\n Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: \x0bchunked"],
        [b"X-\0: y"],
    ],
)
def test_a_head_with_two_readings_smuggles_nothing(site, meanwhile, wire, lines):
    hidden = b"0\r\n\r\n" + smuggled(wire)
    head = b"\r\n".join(line % len(hidden) if b"%d" in line else line for line in lines)
    before = len(site.bad.seen)
    line = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
    replies = wire.send(site.port, line + head + b"\r\n\r\n" + hidden, 2)
    assert replies
    assert {reply.status for reply in replies} <= {0, 400, 411, 501}
    assert not any(b"smuggled" in seen for seen in site.bad.seen[before:])
    assert site.works()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET " + b"/" * 200_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 50_000 + b"\r\n",
        b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
        b"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\0" * 100_000,
    ],
    ids=["tls", "version", "short", "http 2", "long line", "long header", "many headers", "tunnel", "proxy", "star",
         "nulls"],
)  # fmt: skip
def test_what_is_no_request_for_this_server_is_refused(site, meanwhile, wire, data):
    with connect(site) as link:
        with contextlib.suppress(ConnectionError):
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
        answer = rest_of(link)
    assert not answer or int(answer[9:12]) in (400, 404, 405, 413, 414, 431, 501, 505)
    assert site.works()


def test_requests_sent_at_once_are_answered_in_order(site, meanwhile, wire):
    names = [f"p{number}" for number in range(12)]
    data = b"".join(wire.good(name, stream=number % 3 == 0) for number, name in enumerate(names))
    replies = wire.send(site.port, data, answers=len(names))
    assert [reply.status for reply in replies] == [200] * len(names)
    for name, reply in zip(names, replies, strict=True):
        assert reply.body.count(f"{name}:".encode()) == 3
        assert sum(reply.body.count(f"{other}:".encode()) for other in names if other != name) == 0


def test_headers_of_one_connection_do_not_travel_further(site, wire):
    ask = wire.request(
        wire.chat("no-utf-8 please"), b"Connection: close, X-Secret", b"X-Secret: 1", b"X-Kept: 2", b"TE: trailers",
        b"Proxy-Authorization: Basic x", b"Keep-Alive: 5", b"Upgrade: websocket",
    )  # fmt: skip
    before = len(site.bad.seen)
    (reply,) = wire.send(site.port, ask)
    assert reply.status == 200
    heads = [seen.lower() for seen in site.bad.seen[before:] if seen.startswith(b"POST ")]
    assert len(heads) == 1
    assert b"x-kept: 2" in heads[0]
    for name in (b"x-secret", b"\r\nte:", b"proxy-authorization", b"keep-alive", b"upgrade", b"transfer-encoding"):
        assert name not in heads[0]


def test_nothing_is_left_of_all_this(site):
    assert site.quiet()
    stop = time.monotonic() + 15
    while site.gauge("wavetank_router_connections") > 1 and time.monotonic() < stop:
        time.sleep(0.1)
    # The connection that asks is the only one.
    assert site.gauge("wavetank_router_connections") == 1
    assert json.loads(site.fault("status-500").body)
