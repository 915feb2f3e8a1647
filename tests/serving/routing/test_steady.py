"""Capacity and throughput belong to the cluster and the router, not to the length of the trace."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadValueError, WavetankError
from wavetank.ledger import catalog
from wavetank.serving.routing.baselines import FewestKVTokens
from wavetank.serving.routing.steady import backlog, repeated, steady_rate, tokens_out
from wavetank.serving.routing.study import LLMRouting, saturation
from wavetank.workloads.generate import SharedPrefix, generate_requests

ALL = catalog.built_in().plain_run(LLMRouting.name)
# Ranked by capacity at a hundred milliseconds old views: a router with a pool leads vLLM's rule by several percent.
THREE = ("vllm-default", "central-queue", "balance-route")


def study(**settings: Any) -> LLMRouting:
    # A group whose router decides something: full copies of the model on workers that step together.
    group = {"layout": "group", "max_running": 64, "expert_parallel": 1, "calibrated": False}
    return LLMRouting(**{"requests": 400, "workers": 4, "loads": (), "refreshes_s": (), **group, **settings})


@cache
def built(name: str, of: LLMRouting) -> Any:
    system = catalog.system(name).build()
    return system.fitted_to(of.split(0)[0]) if getattr(system, "learns_lengths", False) else system


def capacity(of: LLMRouting, name: str, seed: int = 0) -> float:
    return of.capacity(built(name, of), seed).tokens_per_s


def throughput(of: LLMRouting, name: str, load: float) -> tuple[float, float]:
    """Return the output tokens per second, and those offered in the counted window."""
    trace = of.served(0, load)
    run = of.serve(built(name, of), trace)
    start, end = run.window_s
    offered = trace.output_tokens[(trace.arrival_s >= start) & (trace.arrival_s <= end)].sum() / (end - start)
    return of.figures(run)["throughput_tokens_per_s"], float(offered)


def written(path: Any, trace: Any, times: int = 1) -> str:
    rows = [
        f"{second + k * 1e5:.6f},{prompt},{output}"
        for k in range(times)
        for second, prompt, output in zip(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, strict=True)
    ]
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n")
    return str(path)


class TestLength:
    def test_requests_of_one_generator_have_one_capacity_and_one_ranking(self) -> None:
        found = {
            n: {name: capacity(study(requests=n, workers=16), name) for name in THREE} for n in (400, 2_000, 20_000)
        }
        for name in THREE:
            values = [found[n][name] for n in found]
            assert max(values) / min(values) < 1.02, (name, values)
        for by_name in found.values():
            assert by_name["central-queue"] > 1.03 * by_name["vllm-default"]
            assert by_name["balance-route"] > 1.03 * by_name["vllm-default"]

    def test_doubling_a_users_trace_moves_neither_capacity_nor_throughput(self, tmp_path: Any) -> None:
        trace = generate_requests(rate_per_s=5.0, n_requests=300, arrivals="poisson", seed=3)
        once, twice = (
            study(trace=written(tmp_path / f"{times}.csv", trace, times), history=0.0, requests=10_000)
            for times in (1, 2)
        )
        for name in ("vllm-default", "central-queue", "random-worker"):
            assert capacity(twice, name) == pytest.approx(capacity(once, name), rel=0.02), name
        # Two seconds of traffic at this load: less than one mean service time.
        assert throughput(once, "vllm-default", 0.6)[0] == pytest.approx(
            throughput(study(requests=20_000), "vllm-default", 0.6)[0], rel=0.1
        )

    def test_a_short_trace_is_served_often_enough_and_the_notes_say_so(self, tmp_path: Any) -> None:
        trace = generate_requests(rate_per_s=5.0, n_requests=100, seed=3)
        short = study(trace=written(tmp_path / "short.csv", trace), history=0.0)
        served = short.served(0, 0.9)
        assert len(served) % 99 == 0
        assert served.span_s >= 29 * saturation(short).service_s
        said = " ".join(short.notes())
        assert "served several times over" in said
        assert "mean service times" in said
        long = study(requests=20_000)
        assert len(long.served(0, 0.9)) == 20_000
        assert "in all, so that" not in " ".join(long.notes())

    def test_too_many_slots_for_any_repetition_are_refused_before_any_trial(self, monkeypatch: Any) -> None:
        monkeypatch.setattr("wavetank.serving.routing.study.MOST_SERVED", 2_000)
        with pytest.raises(BadValueError, match="too short for this number of slots"):
            study().check()

    def test_loads_and_sweeps_do_not_change_what_saturates(self) -> None:
        assert saturation(study(load=0.3, loads=(0.5,), requests=77)) is saturation(study(load=1.2))


class TestInvariants:
    @pytest.mark.parametrize(
        "settings",
        [
            {},
            {"workers": 2, "max_running": 8, "arrivals": "poisson"},
            {"layout": "replicas", "shared_prefix": 0.8, "prefix_caching": True},
            {"layout": "decode-group"},
            {"workers": 2, "max_running": 16, "kv_capacity_tokens": 20_000},
        ],
        ids=["group", "few-slots", "prefixes", "decode-group", "full-caches"],
    )
    def test_no_load_gets_more_through_than_the_capacity_and_a_low_one_all(self, settings: dict[str, Any]) -> None:
        of = study(**settings)
        for name in ALL:
            most = capacity(of, name)
            # The tolerance: one percent of each estimate, and what preemptions and the mix of a window add.
            for load in (0.3, 0.9, 2.0):
                assert throughput(of, name, load)[0] <= 1.05 * most, (name, load)
            given, offered = throughput(of, name, 0.3)
            assert given == pytest.approx(offered, rel=0.03), name
            # And it can be reached.
            assert throughput(of, name, 2.0)[0] >= 0.93 * most, name

    @pytest.mark.parametrize("name", ["vllm-default", "balance-route-0"])
    def test_what_is_measured_is_within_its_own_error_of_a_much_longer_backlog(self, name: str) -> None:
        of = study()
        short = of.capacity(built(name, of), 0)
        trace = backlog(of.replayable(0, 60_000), 60_000, short.offered_per_s, 5)
        run = of.serve(built(name, of), trace)
        edges = np.array([0.3, 1.0]) * run.arrival_s[-1]
        begun, ended = tokens_out(run, edges)
        assert (ended - begun) / (edges[1] - edges[0]) == pytest.approx(short.tokens_per_s, rel=0.02)

    def test_a_router_that_uses_half_the_workers_has_half_the_capacity(self) -> None:
        class Half(FewestKVTokens):
            def choose(self, view: Any, arrival: Any, state: Any, parameters: Any) -> int:
                return int(np.argmin((view.kv_tokens + view.waiting_tokens + view.sent_tokens)[:2]))

        of = study(layout="replicas")
        assert of.capacity(Half(), 0).tokens_per_s == pytest.approx(0.5 * capacity(of, "fewest-kv-tokens"), rel=0.03)


class TestBacklog:
    def test_every_pass_has_every_request_once_in_an_order_of_its_own(self) -> None:
        trace = generate_requests(rate_per_s=1.0, n_requests=50, seed=1)
        found = backlog(trace, 150, 10.0, 4)
        passes = found.output_tokens.reshape(3, 50)
        assert all(sorted(row) == sorted(trace.output_tokens) for row in passes.tolist())
        assert passes[0].tolist() != passes[1].tolist() != trace.output_tokens.tolist()
        assert found.rate_per_s == pytest.approx(10.0, rel=0.3)
        assert found == backlog(trace, 150, 10.0, 4) != backlog(trace, 150, 10.0, 5)

    def test_prefixes_are_shared_within_a_pass_alone_and_keep_their_order(self) -> None:
        trace = generate_requests(rate_per_s=1.0, n_requests=40, seed=1, shared_prefix=SharedPrefix(share=1.0))
        found = backlog(trace, 100, math.inf, 0)
        assert found.output_tokens.tolist() == np.tile(trace.output_tokens, 3)[:100].tolist()
        assert (found.arrival_s == 0).all()
        ids, offsets = found.block_ids, found.block_offsets
        assert ids is not None
        assert offsets is not None
        first, second = set(ids[: offsets[40]].tolist()), set(ids[offsets[40] : offsets[80]].tolist())
        assert not first & second
        assert len(first) == len(second) == trace.n_blocks
        assert repeated(trace, 3).n_blocks == 3 * trace.n_blocks

    def test_a_rate_that_never_becomes_steady_is_refused(self) -> None:
        of = study()
        trace = of.replayable(0, 100)
        lengths = []

        def serve(requests: Any) -> Any:
            run = of.serve(FewestKVTokens(), requests)
            lengths.append(len(requests))
            # The second half of everything takes five times as long as the first.
            middle_s = float(np.median(run.finish_s))
            later = {name: np.where(times > middle_s, middle_s + 5 * (times - middle_s), times)
                     for name, times in (("first_token_s", run.first_token_s), ("finish_s", run.finish_s))}  # fmt: skip
            return type(run)(**{**vars_of(run), **later})

        with pytest.raises(WavetankError, match="does not become steady"):
            steady_rate(lambda n: trace, serve, slots=256, guess_per_s=50.0, service_s=1.0, seed=0)
        assert len(lengths) == 6
        assert lengths == sorted(lengths)

    def test_a_guess_that_is_far_too_low_or_high_changes_little(self) -> None:
        of = study()
        trace = of.replayable(0, 2000)
        found = [
            steady_rate(lambda n: trace, lambda requests: of.serve(FewestKVTokens(), requests), slots=256,
                        guess_per_s=guess, service_s=5.0, seed=0)
            for guess in (0.1, 30.0, 300.0)
        ]  # fmt: skip
        for each in found:
            assert each.tokens_per_s == pytest.approx(found[1].tokens_per_s, rel=0.03)
            assert each.requests_per_s == pytest.approx(each.tokens_per_s / trace.output_tokens.mean())
            assert each.requests_per_s < 0.9 * each.offered_per_s

    def test_a_cluster_that_is_never_full_is_refused_for_that(self, monkeypatch: Any) -> None:
        monkeypatch.setattr("wavetank.serving.routing.steady.ROUNDS", 1)
        of = study()
        trace = of.replayable(0, 2000)
        with pytest.raises(WavetankError, match="does not become steady") as caught:
            steady_rate(lambda n: trace, lambda requests: of.serve(FewestKVTokens(), requests), slots=256,
                        guess_per_s=0.5, service_s=5.0, seed=0)  # fmt: skip
        assert "not full" in str(caught.value.given)

    def test_tokens_come_evenly_between_the_first_and_the_last(self) -> None:
        of = study()
        run = of.serve(FewestKVTokens(), of.served(0, 0.3))
        whole = float(run.output_tokens.sum())
        ends = tokens_out(run, np.array([-1.0, float(run.finish_s.max())]))
        assert ends.tolist() == [0.0, whole]
        number = int(run.output_tokens.argmax())
        middle = np.array([(run.first_token_s[number] + run.finish_s[number]) / 2])
        alone = type(run)(**{**vars_of(run), **{
            column: getattr(run, column)[number : number + 1]
            for column in ("arrival_s", "first_token_s", "finish_s", "prompt_tokens", "output_tokens", "worker",
                           "preemptions", "matched_tokens")
        }})  # fmt: skip
        assert tokens_out(alone, middle)[0] == pytest.approx(1 + (run.output_tokens[number] - 1) / 2)


def vars_of(run: Any) -> dict[str, Any]:
    import dataclasses

    return {field.name: getattr(run, field.name) for field in dataclasses.fields(run)}
