"""Which header lines are passed on, in both directions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from wavetank.serving.proxy.forwarding import forwarded, headers_of


def asked(*headers: tuple[bytes, bytes], path: str = "/v1/completions") -> Any:
    return SimpleNamespace(raw_path=path, raw_headers=headers, request_id=b"id-1", trace=None)


def test_a_request_keeps_its_own_lines_and_loses_those_of_its_connection() -> None:
    given = asked(
        (b"Host", b"evil"),
        (b"Content-Length", b"999"),
        (b"Transfer-Encoding", b"chunked"),
        (b"Connection", b"close, X-Secret"),
        (b"x-secret", b"1"),
        (b"X-Request-Id", b"theirs"),
        (b"AUTHORIZATION", b"Bearer mine"),
        (b"X-Kept", b"a, b"),
        (b"x-api-key", b"mine"),
        path="/v1/completions?a=b",
    )
    rest = b"Content-Length: 7\r\nX-Request-Id: id-1\r\nVia: 1.1 router-1\r\nX-Kept: a, b\r\n\r\n"
    start = b"POST /base/v1/completions?a=b HTTP/1.1\r\nHost: h:1\r\n"
    mine = b"AUTHORIZATION: Bearer mine\r\nx-api-key: mine\r\n"
    theirs = b"Authorization: Bearer theirs\r\n"
    for credentials, keyless, sent in (
        (b"", True, mine), (b"", False, b""), (theirs, True, theirs), (theirs, False, theirs),
    ):  # fmt: skip
        backend: Any = SimpleNamespace(prefix=b"/base", host_header=b"h:1", credentials=credentials)
        assert forwarded(given, 7, name=b"router-1", keyless=keyless).to(backend) == start + sent + rest


def test_an_answer_loses_the_lines_of_its_connection_and_always_has_a_type() -> None:
    exchange: Any = SimpleNamespace(
        headers=[
            (b"connection", b"close, x-hop"), (b"x-hop", b"1"), (b"server", b"uvicorn"), (b"content-length", b"3"),
            (b"set-cookie", b"a"), (b"set-cookie", b"\xc3\xa4"), (b"x-odd", b"\xff"),
        ]
    )  # fmt: skip
    found = headers_of(exchange)
    assert found.getall("set-cookie") == ["a", "ä"]
    assert found["x-odd"] == "ÿ"
    assert {name.lower() for name in found} == {"content-type", "set-cookie", "x-odd"}
    assert found["Content-Type"] == "application/octet-stream"
