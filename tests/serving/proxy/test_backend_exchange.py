"""One exchange with a backend: where an answer ends, and whether its connection may be used again."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavetank.serving.proxy.backend_exchange import MAX_HEAD_BYTES, MAX_TRAILER_BYTES, BackendExchange

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 Fine\r\ntransfer-encoding: Chunked\r\n\r\n"
    b"5;name=value\r\nhello\r\n6\r\n world\r\n0\r\nX-Trailer: 1\r\n\r\n"
)
BLANKS = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\na\r\n\r\n\r\n\r\n\r\n\r\n\r\n1\r\n\n\r\n0\r\n\r\n"
EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
NOTHING = b"HTTP/1.1 204 No\r\n\r\n"
SAME = b"HTTP/1.1 304 Same\r\nContent-Length: 11\r\n\r\n"
CLOSES = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
BODY = {
    LENGTH: b"hello world", CHUNKED: b"hello world", BLANKS: b"\r\n\r\n\r\n\r\n\r\n\n", EMPTY: b"", NOTHING: b"",
    SAME: b"", CLOSES: b"{}",
}  # fmt: skip


def fed(*pieces: bytes, method: bytes = b"POST", max_bytes: int = 10_000_000) -> BackendExchange:
    exchange = BackendExchange(max_bytes, method)
    for piece in pieces:
        exchange.feed(piece)
    return exchange


def taken(exchange: BackendExchange) -> bytes:
    found = b""
    while piece := exchange.take():
        found += piece
    return found


@pytest.mark.parametrize("answer", BODY)
def test_only_an_answer_that_is_whole_and_was_read_to_its_end_leaves_its_connection_fit(answer: bytes) -> None:
    for cut in range(len(answer) + 1):
        for takes, more in itertools.product(range(3), (b"", answer[cut:])):
            exchange = fed(answer[:cut])
            found = b"".join(exchange.take() for _ in range(takes))
            if more:
                exchange.feed(more)
            whole = cut == len(answer) or more
            assert exchange.complete == bool(whole)
            # An end that nobody has seen is none, whatever was read before it.
            seen = takes > (1 if BODY[answer] else 0) and cut == len(answer)
            assert exchange.finished() == (seen and answer is not CLOSES)
            if whole:
                assert found + taken(exchange) == BODY[answer]
                assert exchange.finished() == (answer is not CLOSES)


@pytest.mark.parametrize("answer", BODY)
@pytest.mark.parametrize("surplus", [b"\r", b"\n", b"\r\n", b"\r\n\r\n", b"0", b"\0", LENGTH, b"0\r\n\r\n"])
def test_bytes_behind_the_end_spoil_the_connection_however_they_come(answer: bytes, surplus: bytes) -> None:
    data = answer + surplus
    for cut in range(1, len(data)):
        exchange = fed(data[:cut], data[cut:])
        assert exchange.complete
        assert taken(exchange) == BODY[answer]
        assert exchange.surplus
        assert not exchange.finished()


@given(
    answer=st.sampled_from(list(BODY)), cuts=st.sets(st.integers(1, len(CHUNKED)), max_size=20), surplus=st.booleans()
)
def test_an_answer_is_the_same_however_its_bytes_are_cut(answer: bytes, cuts: set[int], surplus: bool) -> None:
    data = answer + b"\r\n" * surplus
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    exchange = fed(*(data[a:b] for a, b in itertools.pairwise(edges)))
    assert (exchange.complete, taken(exchange)) == (True, BODY[answer])
    assert exchange.finished() == (answer is not CLOSES and not surplus)


@given(data=st.binary(max_size=400), chunked=st.booleans(), cut=st.integers(0, 400))
def test_garbage_fails_the_exchange_and_raises_nothing(data: bytes, chunked: bool, cut: int) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"")
    exchange = fed(head, data[:cut], data[cut:])
    exchange.end_of_connection(True)
    taken(exchange)
    assert exchange.over
    assert not exchange.finished()


def test_an_answer_to_head_has_no_body_whatever_it_says() -> None:
    for answer in (SAME, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"):
        exchange = fed(answer, method=b"HEAD")
        assert (exchange.complete, taken(exchange), exchange.finished()) == (True, b"", True)


def test_an_answer_that_ends_with_the_connection_is_whole_only_where_it_ends_in_order() -> None:
    for clean in (True, False):
        exchange = fed(b"HTTP/1.0 200 OK\r\n\r\nhello")
        assert not exchange.complete
        exchange.end_of_connection(clean)
        assert (exchange.complete, taken(exchange), exchange.finished()) == (clean, b"hello", False)


@pytest.mark.parametrize(
    ("received", "untouched"),
    [(b"", True), (b"H", False), (b"HTTP/1.1 100 Go\r\n\r\n", False), (LENGTH[:-1], False)],
)
def test_a_request_may_be_sent_again_only_where_not_one_byte_came(received: bytes, untouched: bool) -> None:
    exchange = fed(received)
    exchange.end_of_connection(False)
    assert exchange.error is not None
    assert (exchange.error.reason, exchange.error.untouched) == ("died", untouched)
    late = fed(received)
    late.fail("first_byte", "late")
    assert late.error is not None
    assert not late.error.untouched


@pytest.mark.parametrize(
    "answer",
    [
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\nx",
        "HTTP/1.1 200 OK\nContent-Length: 1\n\nx",
        "HTTP/1.1 200 OK\r\nX: a\rContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nX: a\0\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "HTTP/1.1 100 Go\r\n\r\n" * 20,
        "\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nX: " + "y" * MAX_HEAD_BYTES + "\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: " + "y" * MAX_HEAD_BYTES,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\nx\n0\n\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + "e" * MAX_TRAILER_BYTES,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + "y" * MAX_TRAILER_BYTES + "\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n" + "X: y\r\n" * MAX_TRAILER_BYTES,
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX : y\r\n\r\n",
    ],
)
def test_an_answer_with_two_readings_or_without_bound_is_refused(answer: str) -> None:
    for size in (1, 7, 1000, len(answer)):
        data = answer.encode()
        exchange = fed(*(data[at : at + size] for at in range(0, len(data), size)))
        assert exchange.error is not None
        assert exchange.error.reason == "protocol"
        assert not exchange.finished()


def test_a_longer_answer_than_allowed_is_refused() -> None:
    exchange = fed(b"HTTP/1.0 200 OK\r\n\r\n", *[b"x" * 100] * 20, max_bytes=1000)
    assert exchange.error is not None
    assert exchange.error.reason == "too_long"
    assert len(taken(exchange)) < 1000


def test_what_came_before_an_error_can_be_read() -> None:
    exchange = fed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", b"zz\r\n")
    assert exchange.error is not None
    assert taken(exchange) == b"hello"
