"""Backends killed and restarted at random under load: nothing is lost without an error, doubled or crossed."""

import asyncio
import contextlib
import sys

import pytest

pytest.importorskip("aiohttp")

from wavetank.errors import WavetankError
from wavetank.live.processes import ChildProcess
from wavetank.serving.proxy import chaos
from wavetank.serving.proxy.chaos import Chaos, endure
from wavetank.serving.proxy.load import BROKEN, CROSSED, DOUBLED, FAILED, HUNG, LEFT, LOST, RIGHT, Load
from wavetank.serving.proxy.proxies import WavetankRouter, launched


def router(tmp_path):
    """Start the router before the given backends."""

    def start(ports, cores):
        return launched(WavetankRouter(), ports, tmp_path, cores=cores)

    return start


def offered(requests, seed=0):
    return Load(
        clients=64, requests=requests, tokens=(1, 32), streamed_share=0.5, delay_s=0.005, gap_s=0.001,
        timeout_s=120.0, leaving_share=0.3, slow_share=0.002, seed=seed,
    )  # fmt: skip


def check(found, requests):
    load = found.load
    assert len(load.outcome) == requests
    assert [load.count(outcome) for outcome in (LOST, DOUBLED, CROSSED, HUNG)] == [0, 0, 0, 0], load.notes
    assert load.right + load.count(FAILED) + load.count(BROKEN) + load.count(LEFT) == requests
    # An error has a status that says so; an answer that broke off had begun well.
    assert (load.status[load.outcome == FAILED] >= 500).all()
    assert (load.status[load.outcome == BROKEN] == 200).all()
    assert load.streamed[load.outcome == BROKEN].all()
    assert (load.status[load.outcome == RIGHT] == 200).all()


def test_while_backends_are_killed_every_request_is_right_or_visibly_failed(tmp_path):
    found = endure(router(tmp_path), Chaos(up_s=1.5, down_s=0.2, seed=1), offered(4000), quiet_s=6.0, patience_s=120.0)
    check(found, 4000)
    assert found.kills > 0
    assert found.load.right > 500
    # Idle connections to backends are closed after four seconds, later on a busy machine; probes keep one for each.
    assert found.open_files_after <= found.open_files_before + 4
    assert found.resident_bytes_after - found.resident_bytes_before < 100_000_000


@pytest.mark.slow
def test_in_a_hundred_thousand_requests_none_is_lost_doubled_or_crossed(tmp_path):
    failing = Chaos(up_s=1.0, down_s=0.3, seed=2)
    found = endure(router(tmp_path), failing, offered(100_000, seed=2), quiet_s=6.0, patience_s=120.0)
    check(found, 100_000)
    assert found.kills > 50
    assert found.open_files_after <= found.open_files_before + 4


def test_without_kills_every_request_is_right(tmp_path):
    found = endure(router(tmp_path), Chaos(backends=2, up_s=3600.0, seed=1), offered(500), quiet_s=0.0)
    assert found.load.right + found.load.count(LEFT) == 500, found.load.notes
    assert found.load.count(LEFT) > 100
    assert found.kills == 0


def test_a_proxy_that_dies_under_load_is_reported_and_its_backends_are_ended(tmp_path):
    @contextlib.contextmanager
    def mortal(ports, cores):
        with launched(WavetankRouter(), ports, tmp_path, cores=cores) as (port, process):
            process.kill()
            yield port, process

    with pytest.raises(WavetankError, match="does not take connections"):
        endure(mortal, Chaos(backends=1), offered(10))


def test_a_proxy_that_does_not_start_is_reported(tmp_path):
    @contextlib.contextmanager
    def stillborn(ports, cores):
        with ChildProcess([sys.executable, "-c", "raise SystemExit(5)"], name="proxy") as process:
            process.wait_ready(1)
            yield 1, process

    with pytest.raises(WavetankError, match="proxy ended with code 5"):
        endure(stillborn, Chaos(backends=1), offered(10))


def test_a_backends_life_begins_when_it_takes_requests(monkeypatch):
    killed = []

    class Slow:
        """A process that has written its line when it was looked at thrice."""

        running = True

        def __init__(self, words, *, name, cores):
            self.looks = 0

        def output(self):
            self.looks += 1
            return "[1]\n" if self.looks >= 3 else ""

        def kill(self):
            killed.append(self.looks)

        def stop(self):
            pass

    monkeypatch.setattr(chaos, "ChildProcess", Slow)

    async def main():
        backends = chaos._Backends([1], frozenset())
        backends.revive(0)
        life = asyncio.create_task(chaos._live_and_die(0, backends, Chaos(backends=1, up_s=0.001, down_s=0.001)))
        async with asyncio.timeout(10.0):
            while len(killed) < 3:
                await asyncio.sleep(0.01)
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)

    asyncio.run(main())
    assert killed == [3, 3, 3]
