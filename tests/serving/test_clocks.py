"""Traces on any clock: Unix seconds are served as any others, and what cannot be is refused before any work."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wavetank.errors import BadTraceError, BadValueError
from wavetank.platforms import FittedStepTime
from wavetank.serving.routing.balance_route import BalanceRoute
from wavetank.serving.routing.baselines import FewestKVTokens, RoundRobin
from wavetank.serving.simulator.cluster import Cluster, DisaggregatedCluster
from wavetank.serving.simulator.simulate import MOST_STEPS, check_steps, simulate
from wavetank.workloads import RequestTrace
from wavetank.workloads.load import read_trace, read_trace_and_facts

STEP = FittedStepTime(overhead_s=8e-3, per_request_s=1e-4, per_prefill_token_s=3e-5)
UNIX_S = 1_700_000_000.0


def cluster(**more: Any) -> Cluster:
    return Cluster(**{"workers": 3, "step_time": STEP, "max_running": 8, **more})


def trace(n: int = 60, **more: Any) -> RequestTrace:
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {
        # Multiples of 1/1024 s, which both clocks hold exactly.
        "arrival_s": np.floor(np.cumsum(rng.exponential(0.1, n)) * 1024) / 1024,
        "prompt_tokens": rng.integers(1, 900, n),
        "output_tokens": rng.integers(1, 90, n),
    }
    return RequestTrace(**{**columns, **more})


def later(of: RequestTrace, by_s: float) -> RequestTrace:
    return RequestTrace(arrival_s=of.arrival_s + by_s, prompt_tokens=of.prompt_tokens, output_tokens=of.output_tokens)


class TestUnixTimes:
    @pytest.mark.parametrize("router", [RoundRobin(), FewestKVTokens(), BalanceRoute()], ids=lambda r: type(r).__name__)
    @pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])
    @pytest.mark.parametrize("by_s", [5e6, UNIX_S])
    def test_a_trace_years_later_is_served_alike(self, router: Any, split: bool, by_s: float) -> None:
        of: Any = DisaggregatedCluster(prefill=cluster(), decode=cluster()) if split else cluster()
        # Only what answers need may wait in a pool.
        how: dict[str, Any] = {"router": RoundRobin() if split else router, "decode_router": router if split else None}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            then = simulate(later(trace(), by_s), of, probes=5, **how)
        now = simulate(trace(), of, probes=5, **how)
        assert then.worker.tolist() == now.worker.tolist()
        for name in ("ttft_s", "e2e_s"):
            assert getattr(then, name) == pytest.approx(getattr(now, name), abs=1e-6), name
        assert (then.ttft_s > 0).all()
        # On the trace's own clock, so that it can be joined with what else is known about the requests.
        assert then.arrival_s.tolist() == (trace().arrival_s + by_s).tolist()
        assert then.probe_s - by_s == pytest.approx(now.probe_s, abs=1e-6)
        ours, theirs = then.metrics(), now.metrics()
        assert ours["throughput_tokens_per_s"] == pytest.approx(theirs["throughput_tokens_per_s"])
        assert ours["ttft_p99_s"] == pytest.approx(theirs["ttft_p99_s"], abs=1e-6)

    def test_times_beyond_any_date_and_spans_beyond_any_trace_are_refused(self) -> None:
        for by_s, said in ((UNIX_S * 1e3, "thousands of years ahead"), (UNIX_S * 1e9, "thousands of years ahead")):
            with pytest.raises(BadValueError, match=said):
                simulate(later(trace(), by_s), cluster(), RoundRobin())
        with pytest.raises(BadValueError, match="too long"):
            simulate(trace(arrival_s=np.arange(60) * 1e6), cluster(), RoundRobin())


class TestSizes:
    def test_a_prompt_of_two_billion_tokens_is_refused(self) -> None:
        big = trace(prompt_tokens=np.full(60, 2_000_000_000))
        with pytest.raises(BadValueError, match="too long to simulate"):
            simulate(big, cluster(kv_capacity_tokens=10**12), RoundRobin())

    def test_the_longest_prompt_takes_as_long_as_its_tokens(self) -> None:
        long = trace(1, prompt_tokens=[99_999_000], output_tokens=[1])
        run = simulate(long, cluster(kv_capacity_tokens=10**12), RoundRobin())
        assert run.ttft_s[0] == pytest.approx(99_999_000 * 3e-5 + 99_999_000 / 2048 * 8e-3, rel=1e-3)

    def test_more_steps_than_can_be_counted_are_refused_before_any_is_taken(self) -> None:
        step = FittedStepTime(overhead_s=1e-9)
        one = cluster(workers=1, max_running=1, kv_capacity_tokens=10**12, step_time=step)
        many = trace(60, prompt_tokens=np.ones(60, int), output_tokens=np.full(60, 90_000_000))
        with pytest.raises(BadValueError, match="more steps than can be counted"):
            simulate(many, one, RoundRobin())
        few = trace(60, prompt_tokens=np.ones(60, int), output_tokens=np.full(60, MOST_STEPS // 61))
        check_steps(few, (one,))
        # Steps of engines are so long that the time ends first, whatever the trace.
        check_steps(many, (cluster(step_time=FittedStepTime(overhead_s=5e-3)),))

    @pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
    def test_arrivals_and_expectations_are_numbers(self, wrong: float) -> None:
        with pytest.raises(BadTraceError):
            trace(3, arrival_s=[0.0, wrong, 2.0])
        expected = np.full(60, 5.0)
        expected[7] = wrong
        if not np.isnan(wrong):
            with pytest.raises(BadValueError, match="row 8"):
                simulate(trace(), cluster(), RoundRobin(), expected_output_tokens=expected)


class TestUnitsOfFiles:
    @staticmethod
    def file(folder: Path, times: Any) -> Path:
        path = folder / "mine.csv"
        rows = [f"{time},{100 + i},{10 + i}" for i, time in enumerate(times)]
        path.write_text("\n".join(["timestamp,prompt_tokens,output_tokens", *rows]) + "\n")
        return path

    @pytest.mark.parametrize(("unit", "per_second"), [("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
    def test_unix_times_of_a_smaller_unit_are_distinguished_from_seconds(
        self, tmp_path: Path, unit: str, per_second: int
    ) -> None:
        path = self.file(tmp_path, [(1_700_000_000 + i) * per_second for i in range(40)])
        with pytest.warns(UserWarning, match=f"read as Unix time in {unit}"):
            found = read_trace(path)
        assert found.arrival_s == pytest.approx(np.arange(40), abs=1e-6)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert read_trace(path, time_unit=unit) == found
            # What is said is believed.
            assert read_trace(path, time_unit="s").span_s == pytest.approx(39 * per_second)

    def test_unix_seconds_and_small_numbers_are_seconds(self, tmp_path: Path) -> None:
        for times in ([UNIX_S + i for i in range(40)], [0.5 * i for i in range(40)], [0, 1, 2]):
            found, facts = read_trace_and_facts(self.file(tmp_path, times))
            assert facts.notes == ()
            assert found.span_s == times[-1] - times[0]

    def test_whole_numbers_far_apart_are_read_as_seconds_and_the_unit_is_asked_for(self, tmp_path: Path) -> None:
        found, facts = read_trace_and_facts(self.file(tmp_path, [532 * i for i in range(40)]))
        assert found.span_s == 532 * 39
        assert "median gap is 532 s" in facts.notes[0]
        assert "time_unit='ms'" in facts.notes[0]

    def test_the_study_says_it_and_takes_the_unit(self, tmp_path: Path) -> None:
        from wavetank.serving.routing.study import LLMRouting
        from wavetank.study.study import build_study

        path = self.file(tmp_path, [int((UNIX_S + 0.5 * i) * 1000) for i in range(200)])
        common = {"trace": str(path), "workers": "2", "max_running": "8", "load": "0"}
        guessed = build_study(LLMRouting, common)
        assert guessed.split(0)[1].rate_per_s == pytest.approx(2.0)
        assert "read as Unix time in ms" in " ".join(guessed.notes())
        stated = build_study(LLMRouting, {**common, "time_unit": "ms"})
        assert stated.split(0)[1] == guessed.split(0)[1]
        assert "Unix time" not in " ".join(stated.notes())
