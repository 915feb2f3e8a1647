"""Backends that are down, slow, half dead or lie: the client gets an HTTP error or an answer that visibly breaks."""

import random
import time

from wavetank.live.processes import hold_port

# What goes through as it is: the backend's own answer, framed well, whatever it says.
PASSED_ON = {
    "status-500": 500,
    "status-503": 503,
    "a-bomb": 200,
    "no-utf-8": 200,
    "two-answers": 200,
    "a-stream-of-no-events": 200,
    "a-stream-without-done": 200,
    "a-stream-without-its-last-line": 200,
}
# An answer that had begun when it went wrong.
BROKEN_OFF = {
    "a-stream-cut-between-chunks",
    "a-stream-cut-inside-a-chunk",
    "a-stream-with-a-bad-chunk",
    "a-stream-that-just-closes",
    "a-stream-with-a-length",
    "a-stream-that-stalls",
    "a-stream-too-slow-to-end",
    "a-stream-without-end",
    "a-body-without-end",
}
TOO_SLOW = {"never-answers", "a-head-that-trickles"}


def test_a_fault_is_an_error_or_a_visible_break_and_touches_nobody_else(site, meanwhile, fault):
    # A plain answer may come as late as the whole request's limit: it is a stream that must begin.
    reply = site.fault(fault, stream=fault.startswith("a-stream") or fault in TOO_SLOW)
    if fault in PASSED_ON:
        assert (reply.status, reply.whole) == (PASSED_ON[fault], True)
    elif fault in BROKEN_OFF:
        assert reply.visibly_broken
        assert b"[DONE]" not in reply.body
    else:
        assert reply.status == (504 if fault in TOO_SLOW else 502)
        assert reply.whole
        assert reply.error["type"] == "server_error"
        # Not the limit of the whole request: a head that trickles does not stop the clock.
        assert (reply.error["code"] == "first_byte") == (fault in TOO_SLOW)
    assert b"smuggled" not in reply.body + reply.rest
    assert b"set-cookie" not in reply.head


def test_what_is_well_framed_arrives_byte_for_byte(site, wire):
    for fault in ("status-500", "no-utf-8"):
        assert site.fault(fault).body == wire.SENDS[fault].partition(b"\r\n\r\n")[2]
    assert site.fault("a-stream-of-no-events", stream=True).body == bytes(range(256))


def test_a_bomb_goes_through_unopened(site, wire):
    before = site.router.resident_bytes()
    reply = site.fault("a-bomb")
    assert b"\r\ncontent-encoding: gzip" in reply.head
    assert reply.body == wire.BOMB
    assert site.router.resident_bytes() - before < 25_000_000


def test_an_answer_with_more_bytes_than_its_length_poisons_no_later_one(site, wire):
    for fault in ("more-than-its-length", "two-answers"):
        ask = wire.request(wire.chat(f"{fault} please"))
        replies = wire.send(site.port, ask + wire.good("after"), answers=2)
        assert len(replies) == 2
        assert b"after:0:0;after:1:0;after:2:0;" in replies[1].body


def test_a_storm_of_errors_reaches_its_clients_and_nobody_else(site, meanwhile):
    replies = [site.fault("status-500") for _ in range(100)]
    assert {reply.status for reply in replies} == {500}
    assert {reply.error["message"] for reply in replies} == {"oh"}


def test_a_router_whose_backends_are_all_unreachable_says_so(wire):
    with hold_port() as nobody, wire.running_site("--backend", f"http://127.0.0.1:{nobody}") as site:
        # The third backend refuses every connection: it is never routed to.
        assert all(site.works() for _ in range(10))
        assert site.gauge("wavetank_router_backend_up") == 2


def test_nothing_is_left_of_faults_and_the_router_is_well(wire):
    with wire.running_site() as site:
        site.fault("status-500")
        assert site.quiet()
        files, resident = site.router.open_files(), site.router.resident_bytes()
        rng = random.Random(1)
        names = [name for name in (*wire.SENDS, *wire.DOES) if name not in TOO_SLOW]
        quick = [name for name in names if not name.startswith(("a-stream-that-stalls", "a-stream-too-slow"))]
        for number in range(150):
            site.fault(rng.choice(quick), stream=number % 2 == 0)
        assert site.works()
        assert site.quiet()
        # Idle connections are kept for two seconds to clients and one to backends.
        stop = time.monotonic() + 15
        while site.router.open_files() > files + 2 and time.monotonic() < stop:
            time.sleep(0.1)
        assert site.router.open_files() <= files + 2
        assert site.router.resident_bytes() - resident < 40_000_000
