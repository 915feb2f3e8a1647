"""Requests that ask for adapters: who asks for which, what a worker has for them, and what affinity saves."""

from __future__ import annotations

import numpy as np
import pytest

from wavetank.errors import BadValueError
from wavetank.serving.routing.adapter_traffic import AdapterTraffic, asked_adapters
from wavetank.serving.routing.baselines import FewestKVTokens
from wavetank.serving.routing.gateways import WeightedScorers
from wavetank.serving.routing.study import LLMRouting
from wavetank.serving.simulator.cluster import Cluster
from wavetank.serving.simulator.reference import simulate_slowly
from wavetank.serving.simulator.simulate import simulate
from wavetank.workloads.requests import RequestTrace

SMALL = {"requests": 1500, "loads": (), "refreshes_s": (), "workers": 4, "max_running": 16, "load": 0.7}


def trace(n=4000, **more):
    return RequestTrace(
        arrival_s=np.arange(n, dtype=float), prompt_tokens=np.full(n, 64), output_tokens=np.full(n, 4), **more
    )


@pytest.mark.parametrize("skew", [0.0, 1.0, 2.5])
def test_adapters_are_asked_for_by_zipfs_law(skew):
    asked = np.bincount(asked_adapters(trace(40_000), 5, skew, 3), minlength=5) / 40_000
    law = np.array([(k + 1.0) ** -skew for k in range(5)])
    assert asked == pytest.approx(law / law.sum(), abs=0.012)


def test_a_session_keeps_its_adapter_and_requests_without_one_do_not():
    session = np.where(np.arange(4000) % 2, np.arange(4000) % 400, -1)
    asked = asked_adapters(trace(session=session), 16, 0.0, 0)
    assert all(np.unique(asked[session == each]).size == 1 for each in np.unique(session[session >= 0]))
    assert np.unique(asked[session == -1]).size == 16
    assert np.unique(asked[session >= 0]).size == 16


def test_all_else_of_the_requests_stays_as_it_was_and_equal_seeds_are_equal():
    plain, some = AdapterTraffic().generated(5, 300), AdapterTraffic(adapters=7).generated(5, 300)
    assert (plain.arrival_s == some.arrival_s).all() and (plain.prompt_tokens == some.prompt_tokens).all()
    assert plain.adapter is None and some.adapter_names == tuple(f"adapter-{k}" for k in range(7))
    assert (AdapterTraffic(adapters=7).generated(5, 300).adapter == some.adapter).all()
    assert (AdapterTraffic(adapters=7).generated(6, 300).adapter != some.adapter).any()


def test_what_a_worker_has_for_adapters():
    assert AdapterTraffic().adapter_costs() is None and AdapterTraffic().notes_on_adapters() == ()
    assert AdapterTraffic(adapters=9, adapter_slots=3).adapter_costs().slots == 3
    assert "a worker runs 3 at a time" in AdapterTraffic(adapters=9, adapter_slots=3).notes_on_adapters()[0]
    assert AdapterTraffic(adapters=9, adapter_slots=0).adapter_costs() is None
    assert "cost nothing" in AdapterTraffic(adapters=9, adapter_slots=0).notes_on_adapters()[0]


def test_a_trace_has_its_own_adapters(tmp_path):
    path = tmp_path / "own.csv"
    rows = "".join(f"{k},100,10,{('', 'fr', 'de')[k % 3]}\n" for k in range(60))
    path.write_text("arrival_s,prompt_tokens,output_tokens,adapter\n" + rows, encoding="utf-8")
    own = AdapterTraffic(trace=str(path))
    assert own.adapters_asked() == 2 and own.adapter_costs().slots == 8
    with pytest.raises(BadValueError, match="own column"):
        AdapterTraffic(trace=str(path), adapters=4).adapter_costs()


def test_rows_of_one_adapter_are_never_found_for_another():
    blocks = {
        "block_ids": np.tile([0, 1], 3), "block_offsets": np.array([0, 2, 4, 6]), "block_tokens": 32,
        "adapter": np.array([0, 1, 0]), "adapter_names": ("fr", "de"),
    }  # fmt: skip
    requests = trace(3, **blocks)
    cluster = Cluster(workers=1, prefix_caching=True, refresh_s=0.0)
    quickly = simulate(requests, cluster, FewestKVTokens()).matched_tokens
    assert quickly.tolist()[:2] == [0, 0] and quickly[2] > 0
    assert (simulate_slowly(requests, cluster, FewestKVTokens())["matched"] == quickly).all()


def test_affinity_loads_fewer_adapters():
    study = LLMRouting(**SMALL, adapters=24, adapter_slots=4)

    def loads(router):
        rows = study.measure(router, 0).rows
        return next(value for metric, value, at in rows if metric == "adapter_loads" and not at)

    weights = {"queue_weight": 1.0, "cache_weight": 1.0}
    assert loads(WeightedScorers(**weights, lora_weight=4.0)) < 0.8 * loads(WeightedScorers(**weights))
    merged = LLMRouting(**SMALL, adapters=24, adapter_slots=0).measure(FewestKVTokens(), 0)
    assert all(metric != "adapter_loads" for metric, _, _ in merged.rows)
