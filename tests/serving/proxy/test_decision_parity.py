"""Both lives decide alike, decision by decision; and what does not is caught by the study's own claims."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

pytest.importorskip("aiohttp")

import numpy as np

from wavetank.ledger import catalog, claims
from wavetank.ledger.verdicts import REACHED, SHORT, of_goal
from wavetank.serving.proxy import fleet as fleet_module
from wavetank.serving.proxy import study_parity as router_parity
from wavetank.serving.proxy.decision_parity import _kept, decision_parity
from wavetank.serving.proxy.dispatcher import Dispatcher
from wavetank.serving.proxy.replay import Outcome, Replay
from wavetank.serving.proxy.study_parity import RouterParity
from wavetank.serving.routing.baselines import RandomWorker, RoundRobin
from wavetank.serving.simulator.simulate import simulate
from wavetank.study.effects import effect
from wavetank.study.study import Trial

SMALL = RouterParity(requests=250, phases=3)
PREFIXES = RouterParity(requests=250, phases=3, shared_prefix=0.6, prefix_caching=True)


def built(name: str, study: RouterParity = SMALL) -> Any:
    system = catalog.system(name).build()
    return system.fitted_to(study.routing.split(0)[0]) if getattr(system, "learns_lengths", False) else system


class IgnoresItsView(Dispatcher[Any]):
    """Never takes over what backends report."""

    def refreshed(self, target: Any) -> None:
        return


class LooksAtAnEarlierView(Dispatcher[Any]):
    """Takes over a report when the next one comes."""

    def __init__(self, *given: Any, **named: Any) -> None:
        self.held: dict[Any, tuple[Any, ...]] = {}
        super().__init__(*given, **named)

    def refreshed(self, target: Any) -> None:
        names = ("kv_tokens", "running", "waiting", "waiting_tokens")
        account = target.account
        now = tuple(getattr(account, name) for name in names)
        for name, value in zip(names, self.held.get(target, (0.0, 0, 0, 0.0)), strict=True):
            setattr(account, name, value)
        self.held[target] = now
        super().refreshed(target)


class OffByOne(Dispatcher[Any]):
    """Sends every request to the worker beside the one that was chosen."""

    def _send(self, request: Any, worker: int, now: float) -> Any:
        return super()._send(request, (worker + 1) % len(self.targets), now)


class ForgetsWhatItSent(Dispatcher[Any]):
    """Shows nothing of what was sent since the refresh."""

    def _send(self, request: Any, worker: int, now: float) -> Any:
        target = super()._send(request, worker, now)
        self.view.workers.sent_requests[:] = 0
        self.view.workers.sent_tokens[:] = 0.0
        return target


class TurnsThePoolRound(Dispatcher[Any]):
    """Shows the pool with the newest request first."""

    def _place(self) -> None:
        self._pool = dict(sorted(self._pool.items(), key=lambda item: -item[0].arrived_s))
        super()._place()


class BeginsAnew(Dispatcher[Any]):
    """Forgets the router's state before every decision."""

    def _choose(self, request: Any) -> Any:
        self._state = self.router.initial_state(len(self.targets))
        return super()._choose(request)


class TestBothLives:
    @pytest.mark.parametrize("arrivals", ["poisson", "bursty"])
    @pytest.mark.parametrize("name", catalog.built_in().plain_run(RouterParity.name))
    def test_every_request_goes_where_the_simulation_sent_it(self, name: str, arrivals: str) -> None:
        for study in (SMALL, PREFIXES):
            trace = study.arriving(arrivals, 0)
            found = decision_parity(trace, study.cluster, built(name, study))
            assert (found.sent_elsewhere, found.views_differ) == (0, 0)
            assert found.requests == len(trace)
            # The scenario is one in which routers can differ: requests wait at more than a quarter of decisions.
            assert found.contended > 0.25 * found.decisions

    @pytest.mark.parametrize(
        ("adapter", "names"),
        [
            (IgnoresItsView, ("vllm-default", "fewest-kv-tokens", "balance-route")),
            (LooksAtAnEarlierView, ("vllm-default", "power-of-two", "balance-route")),
            (OffByOne, catalog.built_in().plain_run(RouterParity.name)),
            (ForgetsWhatItSent, ("vllm-default", "fewest-requests", "balance-route-0")),
            # BalanceRoute picks by size, so that the order of the pool hardly matters to it.
            (TurnsThePoolRound, ("central-queue",)),
            (BeginsAnew, ("round-robin", "power-of-two")),
        ],
    )
    def test_an_adapter_that_is_wrong_sends_requests_elsewhere(self, adapter: Any, names: tuple[str, ...]) -> None:
        for name in names:
            found = decision_parity(SMALL.arriving("bursty", 0), SMALL.cluster, built(name), adapter)
            assert found.sent_elsewhere > 0.05 * found.requests, name
            assert found.views_differ > 0, name

    def test_a_router_that_ignores_its_view_is_its_own_equal(self) -> None:
        # Turns need no view: only an adapter that sends elsewhere is wrong for them.
        trace = SMALL.arriving("bursty", 0)
        assert decision_parity(trace, SMALL.cluster, RoundRobin(), IgnoresItsView).sent_elsewhere == 0


class _Fleet:
    url, engine_urls, model = "http://fake", ("http://e",), "m"

    def __init__(self, policy: Any) -> None:
        self._policy = policy

    def policy(self) -> Any:
        return self._policy

    def fallbacks(self) -> int:
        return 0

    def cpu_s(self) -> float:
        return 0.0

    def lateness(self) -> tuple[int, float, float]:
        return 100, 1e-4, 2e-4


class Outcomes(NamedTuple):
    """Verdicts of a system's claims over all seeds, and the verdicts that the first seed's figures alone would get."""

    verdicts: dict[str, str]
    first: dict[str, str]


def verdicts(
    monkeypatch: pytest.MonkeyPatch, name: str, *, launched: Any = None, adapter: Any = Dispatcher, seeds: int = 3
) -> Outcomes:
    """Run the study with another router or adapter in its live run, and judge the system's claims."""
    study = RouterParity(requests=1000, arrivals="poisson", phases=8)
    router = built(name, study)

    @contextlib.contextmanager
    def fleet(cluster: Any, policy: Any, **__: Any) -> Iterator[_Fleet]:
        # Says that it runs what was asked for: what figures alone show is looked at here.
        yield _Fleet(policy)

    def replayed(trace: Any, options: Any) -> Replay:
        # Another phase of the refresh than the simulated ones, as in a real run.
        run = simulate(router_parity.delayed(trace, 0.0431), study.cluster, launched or router)
        columns = (run.arrival_s, run.first_token_s, run.finish_s, run.prompt_tokens, run.output_tokens, run.worker)
        return Replay(
            tuple(
                Outcome(number=i, arrival_s=a, sent_s=a, first_token_s=f, finish_s=e, prompt_tokens=int(p),
                        output_tokens=int(o), worker=f"worker-{w}")
                for i, (a, f, e, p, o, w) in enumerate(zip(*columns, strict=True))
            ),
            False,
            True,
        )  # fmt: skip

    monkeypatch.setattr(fleet_module, "fleet", fleet)
    monkeypatch.setattr(router_parity, "_replayed", replayed)
    monkeypatch.setattr(router_parity, "added_latency_s", lambda live: 0.001)
    monkeypatch.setattr(RouterParity, "adapter", adapter)
    records = [
        record
        for seed in range(seeds)
        for record in study.run(Trial(systems=(name,), seed=seed), {name: catalog.system(name).build()})
    ]
    settings = {"trace": "generated", **{key: getattr(study, key) for key in ("arrivals", "load", "requests")}}
    settings |= {"refresh_s": study.refresh_s, "max_running": study.max_running}
    run = claims.RunFigures(study="router-parity", settings=settings, systems=(name,), given=tuple(records))
    found = claims.findings_of_run(run)
    assert len(found) == 4
    assert {finding.found.count for finding in found} == {seeds}
    first = {}
    for finding in found:
        claim = finding.claim
        figure = run.values(name, claim.metric, claim.at)[0]
        first[claim.metric] = of_goal(effect([figure], exact=True), claim.at_least, claim.at_most, better="")
    return Outcomes({finding.claim.metric: finding.verdict for finding in found}, first)


class TestClaims:
    def test_they_are_reached_where_both_lives_are_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = verdicts(monkeypatch, "vllm-default", seeds=6)
        assert set(found.verdicts.values()) == set(found.first.values()) == {REACHED}, found

    def test_none_fails_where_both_lives_of_a_router_that_waits_are_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # How many figures of a run lie beside the simulated ones differs from seed to seed.
        found = verdicts(monkeypatch, "balance-route")
        assert set(found.first.values()) == {REACHED}, found
        assert found.verdicts["sent_elsewhere_share"] == found.verdicts["views_differ_share"] == REACHED
        assert SHORT not in found.verdicts.values()

    def test_a_launched_router_that_chooses_at_random_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = verdicts(monkeypatch, "vllm-default", launched=RandomWorker(), seeds=6)
        assert found.verdicts["ttft_mean_ratio"] == found.verdicts["unexplained"] == SHORT
        assert found.first["ttft_mean_ratio"] == found.first["unexplained"] == SHORT

    def test_a_launched_router_that_takes_turns_reaches_none_of_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = verdicts(monkeypatch, "vllm-default", launched=RoundRobin())
        assert found.first["ttft_mean_ratio"] == found.first["unexplained"] == SHORT
        assert REACHED not in (found.verdicts["ttft_mean_ratio"], found.verdicts["unexplained"])

    @pytest.mark.parametrize("adapter", [IgnoresItsView, LooksAtAnEarlierView, OffByOne, ForgetsWhatItSent])
    @pytest.mark.parametrize("name", ["vllm-default", "balance-route"])
    def test_an_adapter_that_is_wrong_fails(self, monkeypatch: pytest.MonkeyPatch, name: str, adapter: Any) -> None:
        found = verdicts(monkeypatch, name, adapter=adapter)
        assert found.verdicts["sent_elsewhere_share"] == found.verdicts["views_differ_share"] == SHORT


def test_the_pool_is_filled_in_bursts() -> None:
    run = simulate(SMALL.arriving("bursty", 0), SMALL.cluster, built("central-queue"))
    assert float(np.median(run.ttft_s)) > 2 * SMALL.refresh_s


def test_of_a_large_state_a_checksum_is_kept_that_any_change_alters():
    small, large = np.arange(10.0), np.arange(20_000.0)
    assert _kept(small).tolist() == small.tolist()
    kept = _kept(large)
    assert kept.size < 100
    assert kept.tolist() == _kept(large.copy()).tolist()
    large[12_345] += 1
    assert kept.tolist() != _kept(large).tolist()
