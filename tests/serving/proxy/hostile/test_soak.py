"""Everything that goes wrong, at once and for a while: good requests stay right and nothing grows."""

import contextlib
import random
import socket
import threading
import time

import pytest

SLOW = {"never-answers", "a-head-that-trickles", "a-stream-that-stalls", "a-stream-too-slow-to-end"}


def misbehave(site, wire, seed, stop):
    """Ask for faults and be a bad client, in an order drawn from the seed, until the test stops it."""
    rng = random.Random(seed)
    faults = [name for name in (*wire.SENDS, *wire.DOES) if name not in SLOW]
    while not stop.is_set():
        kind = rng.random()
        if kind < 0.5:
            site.fault(rng.choice(faults), stream=rng.random() < 0.5)
        elif kind < 0.55:
            site.fault(rng.choice(sorted(SLOW)))
        elif kind < 0.7:
            wire.send(site.port, wire.request(rng.randbytes(rng.randrange(2000))))
        else:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", site.port), timeout=15) as link:
                ask = wire.good(f"soak{seed}", stream=True, tokens=10_000, gap_s=0.001)
                link.sendall(ask[: rng.choice((20, 80, len(ask)))])
                if rng.random() < 0.7:
                    link.recv(4096) if rng.random() < 0.5 else time.sleep(rng.random() * 0.05)


def soak(wire, seconds):
    """Run all at once; returns good answers, and files and memory before and after."""
    with wire.running_site() as site:
        warm = wire.Meanwhile(site.port, wire.load(1.0, 1)).result()
        assert warm.right == len(warm.outcome), warm.notes
        # What grows once (pools, caches, code) has grown after a while of the same.
        _storm(site, wire, min(0.3 * seconds, 60.0))
        files, resident = _at_rest(site)
        result = _storm(site, wire, seconds)
        after = _at_rest(site, files)
        return result, (files, resident), after


def _storm(site, wire, seconds):
    stop = threading.Event()
    rogues = [threading.Thread(target=misbehave, args=(site, wire, seed, stop)) for seed in range(6)]
    for rogue in rogues:
        rogue.start()
    try:
        result = wire.Meanwhile(site.port, wire.load(seconds, 2)).result()
    finally:
        stop.set()
        for rogue in rogues:
            rogue.join()
    assert result.right == len(result.outcome), result.notes
    return result


def _at_rest(site, files=None):
    """Return open files and memory once idle connections have been closed, on both sides."""
    assert site.quiet()
    stop = time.monotonic() + 15
    while time.monotonic() < stop:
        time.sleep(0.2)
        # The page's own connection is one.
        if site.gauge("wavetank_router_connections") <= 1 and (files is None or site.router.open_files() <= files + 2):
            break
    assert site.gauge("wavetank_router_backend_in_flight_requests") == 0
    return site.router.open_files(), site.router.resident_bytes()


def check(wire, seconds):
    result, (files, resident), (files_after, resident_after) = soak(wire, seconds)
    assert result.right > 100
    assert files_after <= files + 2
    assert resident_after - resident < 30_000_000


def test_a_short_soak_leaves_nothing_behind(wire):
    check(wire, 4.0)


@pytest.mark.slow
def test_a_long_soak_leaves_nothing_behind(wire):
    check(wire, 240.0)
