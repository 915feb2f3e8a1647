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
from wavetank.serving.routing.interface import ActiveView, Arrival, PoolRouter, PoolView, WorkersView
from wavetank.serving.simulator.adapters import Adapters
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.simulate import simulate
from wavetank.study.effects import effect
from wavetank.study.study import Trial
from wavetank.workloads.requests import RequestTrace

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


class _Watching:
    """Counts its decisions."""

    reads_prefix = reads_adapters = True
    reads_active = False

    def initial_state(self, workers: int) -> Any:
        return np.zeros(1)

    def parameters(self) -> Any:
        return np.zeros(0)


class ReadsAll(_Watching):
    """A router whose choice depends on what a request asks for."""

    def choose(self, view: Any, arrival: Any, state: Any, parameters: Any) -> int:
        fit = np.flatnonzero(view.takes * view.serves)
        state[0] += 1
        told = [arrival.max_tokens, arrival.deadline_s - arrival.time_s, arrival.expected_output_tokens]
        told += [arrival.output_spread_tokens, *arrival.blocks, *view.adapter_loaded, *view.identity]
        number = arrival.model + 3 * arrival.adapter + 7 * arrival.session + 11 * arrival.tier + state[0]
        number += sum(round(each * 1000) for each in told if np.isfinite(each))
        return int(fit[int(number) % fit.size])


class PoolsAll(_Watching):
    """The same with a pool."""

    def place(self, view: Any, pool: Any, active: Any, state: Any, parameters: Any, placed: Any) -> int:
        free = (view.slots - view.running - view.waiting - view.sent_requests) * view.takes
        for row in range(placed.size):
            fit = np.flatnonzero(pool.serves[row] * (free > 0))
            told = [pool.max_tokens[row], pool.expected_output_tokens[row], pool.output_spread_tokens[row]]
            if fit.size and not (row and pool.tier[row] > pool.tier[0]):
                number = sum(round(each) for each in told if np.isfinite(each)) + pool.model[row] + pool.adapter[row]
                number += pool.session[row] + round(min(pool.deadline_s[row], 1e6) * 1e3)
                placed[row] = fit[number % fit.size]
                free[placed[row]] -= 1
        return int((placed >= 0).sum())


def asking(requests: int = 200) -> RequestTrace:
    """Return requests that ask for everything that can be asked for."""
    draw = np.random.default_rng(5)
    sizes = draw.integers(0, 5, requests)
    return RequestTrace(
        arrival_s=np.cumsum(draw.exponential(0.03, requests)),
        prompt_tokens=512 * np.maximum(sizes, 1),
        output_tokens=draw.integers(5, 80, requests),
        block_ids=draw.integers(0, 30, sizes.sum()),
        block_offsets=np.concatenate([[0], np.cumsum(sizes)]),
        model=draw.integers(0, 3, requests),
        model_names=("", "a", "b"),
        adapter=draw.integers(0, 5, requests),
        adapter_names=("", "p", "q", "r", "s"),
        tier=draw.integers(0, 3, requests),
        tier_names=("now", "soon", "whenever"),
        session=draw.integers(-1, 9, requests),
        max_tokens=draw.integers(0, 4, requests) * 50,
        deadline_s=np.where(draw.random(requests) < 0.3, np.nan, draw.integers(1, 9, requests)),
    )


ASKING = Cluster(
    workers=4, max_running=3, refresh_s=0.1, adapters=Adapters(slots=2), models=(("a",), ("b",), ("a", "b"), ("a",))
)
LENGTHS = np.where(np.arange(200) % 3 == 0, np.nan, np.arange(200) * 1.5)


class Planted(Dispatcher[Any]):
    """Shows one field of one part of the view wrongly, in one decision."""

    field = ""
    part: type[Any] = Arrival

    def __init__(self, router: Any, **named: Any) -> None:
        decide = router.place if isinstance(router, PoolRouter) else router.choose
        self.count = 0

        def wrongly(view: Any, *parts: Any) -> Any:
            self.count += 1
            given = [view, *parts]
            at = next(at for at, each in enumerate(given) if isinstance(each, self.part))
            value = getattr(given[at], self.field)
            if self.count == 20 or (self.count > 20 and np.size(value) and self.wrong == 0):
                self.wrong += np.size(value) > 0 or self.field == "blocks"
                given[at] = given[at]._replace(**{self.field: changed(value)})
            return decide(*given)

        self.wrong = 0
        setattr(router, "place" if isinstance(router, PoolRouter) else "choose", wrongly)
        super().__init__(router, **named)


def changed(value: Any) -> Any:
    """Return a value with its last element changed by a little."""
    if not isinstance(value, np.ndarray):
        return 17.0 if isinstance(value, float) and not np.isfinite(value) else value + 1
    if not value.size:
        return np.append(value, 5)
    found = value.copy()
    last = found.reshape(-1)[-1]
    found.reshape(-1)[-1] = 17 if not np.isfinite(last) else 1 - last if value.dtype == np.int8 else last + 1
    return found


class TestAllFields:
    @pytest.mark.parametrize(("router", "active"), [(ReadsAll, False), (PoolsAll, False), (PoolsAll, True)])
    def test_what_requests_ask_for_is_shown_alike(
        self, router: Any, active: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_Watching, "reads_active", active)
        predicted = {"expected_output_tokens": LENGTHS, "output_spread_tokens": LENGTHS / 3}
        found = decision_parity(asking(), ASKING, router(), **predicted)
        assert (found.sent_elsewhere, found.views_differ) == (0, 0)
        assert found.decisions >= 100
        # And it counts: without the predictions requests go elsewhere.
        without = simulate(asking(), ASKING, router())
        assert (simulate(asking(), ASKING, router(), **predicted).worker != without.worker).any()

    @pytest.mark.parametrize(
        ("router", "part", "field"),
        [
            *((ReadsAll, part, name) for part in (Arrival, WorkersView) for name in part._fields),
            *((PoolsAll, part, name) for part in (WorkersView, PoolView) for name in part._fields),
            *((PoolsAll, ActiveView, name) for name in ActiveView._fields if name != "remaining_tokens"),
        ],
    )
    def test_a_difference_in_any_field_is_seen(self, router: Any, part: Any, field: str) -> None:
        adapter = type("AdapterWithAFault", (Planted,), {"field": field, "part": part})
        watching = router()
        watching.reads_active = part is ActiveView
        assert decision_parity(asking(), ASKING, watching, adapter).views_differ > 0


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
