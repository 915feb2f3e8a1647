"""Scraping: addresses, limits and a deadline, against exporters that behave badly."""

from __future__ import annotations

import socket
import time

import pytest
from tests.insight.cluster.exporters import WELL, closing, dripping, exporter

from wavetank.errors import BadTraceError, BadValueError
from wavetank.insight.cluster.scrape import ScrapeError, Target, scrape, target_of


def test_an_address_is_taken_with_a_name_or_without() -> None:
    assert target_of("n1=http://10.0.0.4:9400/metrics?a=b") == Target("n1", "http", "10.0.0.4", 9400, "/metrics?a=b")
    assert target_of("http://[::1]") == Target("::1:80", "http", "::1", 80, "/metrics")
    assert target_of("https://host/x?c=d") == Target("host:443", "https", "host", 443, "/x?c=d")


@pytest.mark.parametrize(
    "text",
    ["", "n1=", "file:///etc/passwd", "http://", "http://u:p@host/metrics", "http://host:99999/", "host:9100",
     "http://host/a b", "http://host/a\r\nX: y", "http://host/\x7f", "http://h\u00f6st/", "http://host/" + "a" * 3000],
)  # fmt: skip
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadValueError):
        target_of(text)


def test_samples_are_fetched() -> None:
    with exporter(lambda: WELL) as address:
        (sample,) = scrape(target_of(address), timeout_s=5.0)
    assert (sample.name, sample.value, sample.kind) == ("up", 1.0, "gauge")


def test_refusals_redirects_floods_and_cut_answers_are_errors() -> None:
    with exporter(lambda: WELL, status=500) as address, pytest.raises(ScrapeError, match="refuses"):
        scrape(target_of(address), timeout_s=5.0)
    elsewhere = {"Location": "http://127.0.0.1:1/metrics"}
    with exporter(lambda: WELL, status=302, headers=elsewhere) as address, pytest.raises(ScrapeError, match="refuses"):
        scrape(target_of(address), timeout_s=5.0)
    with exporter(lambda: "a 1\n" * 50_000) as address, pytest.raises(ScrapeError, match="too much"):
        scrape(target_of(address), timeout_s=5.0, most_bytes=100_000)
    with exporter(lambda: WELL, length=10) as address, pytest.raises(ScrapeError, match="cut off"):
        scrape(target_of(address), timeout_s=5.0)
    with exporter(lambda: "<html>no</html>") as address, pytest.raises(BadTraceError, match="line of an exporter"):
        scrape(target_of(address), timeout_s=5.0)


def test_an_answer_without_a_length_must_end_its_last_line() -> None:
    # The connection is closed in the middle of a number: 12 in place of 123456.
    with closing(b"HTTP/1.0 200 OK\r\n\r\nup 1\nrequests 12") as address, pytest.raises(ScrapeError, match="cut off"):
        scrape(target_of(address), timeout_s=5.0)
    with closing(b"HTTP/1.0 200 OK\r\n\r\nup 1\n") as address:
        assert [each.value for each in scrape(target_of(address), timeout_s=5.0)] == [1.0]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nup 1",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nup 1",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
def test_answers_that_are_none_are_errors(answer: bytes) -> None:
    with closing(answer) as address, pytest.raises(ScrapeError):
        scrape(target_of(address), timeout_s=5.0)


def test_an_answer_without_metrics_is_an_error() -> None:
    with exporter(lambda: "# nothing\n") as address, pytest.raises(ScrapeError, match="no metrics"):
        scrape(target_of(address), timeout_s=5.0)


def test_a_host_that_has_no_name_does_not_answer() -> None:
    with pytest.raises(ScrapeError, match="does not answer"):
        scrape(target_of("http://a..b/metrics"), timeout_s=5.0)


def test_a_body_without_end_is_left_at_the_deadline() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with dripping(0.01, head + b"5\r\nup 1\n\r\n" * 5000) as address:
        begin_s = time.monotonic()
        with pytest.raises(ScrapeError):
            scrape(target_of(address), timeout_s=0.3)
        assert time.monotonic() - begin_s < 5.0


def test_an_address_without_an_exporter_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ScrapeError, match="does not answer"):
        scrape(target_of(f"http://127.0.0.1:{port}"), timeout_s=5.0)


def test_one_who_drips_is_left_at_the_deadline() -> None:
    with dripping(0.02) as address:
        begin_s = time.monotonic()
        with pytest.raises(ScrapeError):
            scrape(target_of(address), timeout_s=0.3)
        assert time.monotonic() - begin_s < 5.0
