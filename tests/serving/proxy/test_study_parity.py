"""The study compares what it should, refuses what says nothing, and leaves no process behind."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from wavetank.errors import BadValueError, WavetankError
from wavetank.ledger import catalog
from wavetank.platforms.step_time import RooflineStepTime
from wavetank.serving.proxy import fleet as fleet_module
from wavetank.serving.proxy import study_parity as router_parity
from wavetank.serving.proxy.replay import Outcome, Replay
from wavetank.serving.proxy.study_parity import FIGURES, LATENCIES, RouterParity, compared, delayed
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.simulator.simulate import ServingRun, simulate
from wavetank.study.study import Trial, build_study

SMALL = RouterParity(requests=40, phases=3, workers=2)


def simulated(study: RouterParity = SMALL) -> list[ServingRun]:
    trace = study.served(0)
    return [simulate(delayed(trace, phase / 30), study.cluster, RoundRobin()) for phase in range(3)]


def rows(found: Any) -> dict[tuple[str, tuple[Any, ...]], float]:
    return {(metric, tuple(at.items())): value for metric, value, at in found.rows}


def slower(run: ServingRun, by: float) -> ServingRun:
    """Return a run whose every wait is longer."""
    first_s = run.arrival_s + by * (run.first_token_s - run.arrival_s)
    return dataclasses.replace(run, first_token_s=first_s, finish_s=first_s + by * (run.finish_s - run.first_token_s))


def test_a_run_that_is_its_own_simulation_has_ratios_of_one() -> None:
    run = simulated()[0]
    found = rows(compared(run, [run]))
    for name in LATENCIES:
        for figure in FIGURES:
            assert found[f"{name}_{figure}_ratio", ()] == 1.0
            assert found[f"{name}_{figure}_live_s", ()] == found[f"{name}_{figure}_simulated_s", ()]
    assert (found["throughput_ratio", ()], found["unexplained", ()]) == (1.0, 0.0)
    assert {value for (metric, _), value in found.items() if metric.endswith("gap_s")} == {0.0}


def test_waits_that_are_longer_than_any_phase_explains_are_unexplained() -> None:
    runs = simulated()
    found = rows(compared(slower(runs[0], 1.5), runs))
    assert found["ttft_mean_ratio", ()] == pytest.approx(1.5, rel=0.1)
    assert found["unexplained", ()] >= 9
    assert rows(compared(slower(runs[0], 1.03), runs))["unexplained", ()] == 0


def test_what_a_phase_explains_is_within_the_least_and_the_largest_simulated_figure() -> None:
    run = simulated()[0]
    live = slower(run, 1.2)
    assert rows(compared(live, [run, run, run]))["unexplained", ()] > 0
    assert rows(compared(live, [run, run, slower(run, 1.3)]))["unexplained", ()] == 0


def test_every_phase_is_recorded_and_the_median_stands_for_all() -> None:
    runs = [simulated()[0], slower(simulated()[0], 2.0), slower(simulated()[0], 3.0)]
    found = rows(compared(runs[0], runs))
    values = [found["ttft_p50_simulated_s", (("phase", phase / 3),)] for phase in range(3)]
    assert found["ttft_p50_simulated_s", ()] == sorted(values)[1] == pytest.approx(2 * values[0])


def test_arrivals_that_are_delayed_change_nothing_else() -> None:
    trace = SMALL.served(0)
    later = delayed(trace, 0.025)
    assert (later.arrival_s == trace.arrival_s + 0.025).all()
    assert (later.output_tokens == trace.output_tokens).all()


def test_workload_and_cluster_are_those_of_the_routing_study() -> None:
    study = RouterParity(requests=50, workers=3, refresh_s=0.2, prefix_caching=True, longest_output_tokens=77)
    assert (study.cluster.workers, study.cluster.refresh_s, study.cluster.group_size) == (3, 0.2, 1)
    assert study.cluster.prefix_caching
    assert study.served(1).output_tokens.max() == 77
    assert study.served(1) == study.served(1) != study.served(2)
    whole = dataclasses.replace(study, longest_output_tokens=0)
    assert whole.served(1).output_tokens.max() > 77
    # Shorter answers mean more requests a second at the same share of saturation.
    assert study.served(1).rate_per_s > whole.served(1).rate_per_s


def test_a_plain_run_can_be_said_on_the_command_line_of_its_stand_ins() -> None:
    study = RouterParity()
    study.check()
    # The engines mean the step time that is simulated.
    assert isinstance(study.cluster.step_time, RooflineStepTime)
    assert study.cluster.step_time == RooflineStepTime(device=study.device, model=study.model)


def test_settings_that_no_engine_can_have_are_refused_before_anything_starts() -> None:
    with pytest.raises(WavetankError):
        RouterParity(device="H1000").check()
    with pytest.raises(BadValueError):
        build_study(RouterParity, {"time_scale": "0"})
    with pytest.raises(WavetankError):
        RouterParity(trace="no-such-trace").check()


def test_the_notes_say_what_a_millisecond_counts() -> None:
    first, second, third = SMALL.notes()
    assert "counts as 500 us" in first
    assert "requests/s" in second
    assert "3 phases" in third


class FakeFleet:
    """Says what a fleet would say."""

    url, engine_urls, model = "http://fake", ("http://e",), "m"

    def __init__(self, late_s: float, policy: Any = None, fallbacks: int = 0) -> None:
        self.late_s, self._policy, self._fallbacks = late_s, policy, fallbacks

    def policy(self) -> Any:
        return self._policy

    def fallbacks(self) -> int:
        return self._fallbacks

    def cpu_s(self) -> float:
        return 0.0

    def lateness(self) -> tuple[int, float, float]:
        return 100, self.late_s, 2 * self.late_s


def measured(
    monkeypatch: pytest.MonkeyPatch,
    *,
    late_s: float = 1e-4,
    failure: str = "",
    name: str = "round-robin",
    fallbacks: int = 0,
) -> Any:
    """Run a trial whose live run is the simulated one."""
    study = SMALL
    policies = []

    @contextlib.contextmanager
    def fleet(cluster: Any, policy: Any, **more: Any) -> Iterator[FakeFleet]:
        policies.append((policy, more))
        yield FakeFleet(late_s, policy, fallbacks)

    def replayed(trace: Any, options: Any) -> Replay:
        run = simulate(trace, study.cluster, RoundRobin())
        columns = (run.arrival_s, run.first_token_s, run.finish_s, run.prompt_tokens, run.output_tokens, run.worker)
        outcomes = [
            Outcome(
                number=i, arrival_s=a, sent_s=a, first_token_s=f, finish_s=e, prompt_tokens=int(p),
                output_tokens=int(o), worker=f"worker-{w}", failure=failure if i == 5 else "",
            )
            for i, (a, f, e, p, o, w) in enumerate(zip(*columns, strict=True))
        ]  # fmt: skip
        return Replay(tuple(outcomes), False, True)

    monkeypatch.setattr(fleet_module, "fleet", fleet)
    monkeypatch.setattr(router_parity, "_replayed", replayed)
    monkeypatch.setattr(router_parity, "added_latency_s", lambda live: 0.001)
    records = study.run(Trial(systems=(name,), seed=0), {name: catalog.system(name).build()})
    return records, policies


def test_a_trial_gives_every_metric_once(monkeypatch: pytest.MonkeyPatch) -> None:
    records, ((policy, more),) = measured(monkeypatch)
    plain = [record for record in records if not record.at]
    assert sorted(record.metric for record in plain) == sorted(
        metric.name for metric in RouterParity.metrics if not metric.name.endswith("gap_s")
    )
    value = {record.metric: record.value for record in plain}
    assert (value["same_worker_share"], value["requests"], value["late_p99_s"]) == (1.0, 40.0, 2e-4)
    assert value["ttft_mean_ratio"] == pytest.approx(1.0)
    assert not any(math.isnan(number) for number in value.values())
    assert (policy.name, policy.parameters) == ("round-robin", {})
    assert more["time_scale"] == SMALL.time_scale


def test_a_router_that_learns_is_launched_with_what_it_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ((policy, _),) = measured(monkeypatch, name="balance-route")
    past = SMALL.routing.split(0)[0]
    fitted = catalog.system("balance-route").build().fitted_to(past)
    assert policy.parameters["mean_output_tokens"] == fitted.mean_output_tokens != 211.0


@pytest.mark.parametrize(
    ("asked", "planted", "parameters"),
    [
        ("vllm-default", "fewest-requests", {}),
        ("fewest-requests", "vllm-default", {}),
        ("balance-route", "balance-route-0", {}),
        ("balance-route", "balance-route", {"horizon_steps": 4}),
    ],
)
def test_another_launched_router_than_the_simulated_one_gives_no_figures(
    monkeypatch: pytest.MonkeyPatch, asked: str, planted: str, parameters: dict[str, Any]
) -> None:
    """The processes are real: what they run is read from them, not from what they were asked to be."""
    policy = fleet_module.Policy
    monkeypatch.setattr(fleet_module, "Policy", lambda name, parameters_of_it: policy(planted, parameters))
    with pytest.raises(WavetankError, match="not the one that was simulated") as caught:
        SMALL.live_and_simulated(asked, catalog.system(asked).build(), 0)
    assert str(caught.value.given).startswith(planted)
    assert str(caught.value.allowed).startswith(asked)


def test_a_launched_router_runs_what_its_own_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet_module.fleet(SMALL.cluster, fleet_module.Policy("vllm-default"), time_scale=2.0) as live:
        assert live.policy() == fleet_module.Policy("vllm-default")
        assert live.fallbacks() == 0
        other = live.configuration.with_name("other.toml")
        other.write_text(live.configuration.read_text().replace("vllm-default", "fewest-requests"))
        with pytest.raises(WavetankError, match="another policy than its configuration"):
            dataclasses.replace(live, configuration=other).policy()


def test_decisions_that_the_router_did_not_take_give_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WavetankError, match="did not decide by itself") as caught:
        measured(monkeypatch, fallbacks=3)
    assert "3 decisions" in str(caught.value.given)


def test_engines_that_cannot_keep_their_times_give_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WavetankError, match="too busy") as caught:
        measured(monkeypatch, late_s=0.5)
    assert "time_scale" in str(caught.value.hint)


def test_an_answer_that_is_missing_is_reported_and_not_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WavetankError, match="1 of 40 requests got no whole answer") as caught:
        measured(monkeypatch, failure="cut off")
    assert caught.value.given == "1 x cut off"


def test_an_interrupted_replay_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    async def replay(trace: Any, options: Any) -> Replay:
        return Replay((), True, True)

    monkeypatch.setattr("wavetank.serving.proxy.replay.replay", replay)
    with pytest.raises(KeyboardInterrupt):
        router_parity._replayed(SMALL.served(0), None)


def test_what_a_router_adds_is_the_difference_of_medians(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    class Clocked:
        def __init__(self, url: str) -> None:
            self.cost_s = 0.003 if url == FakeFleet.url else 0.001

        def post(self, path: str, body: Any) -> bytes:
            nonlocal now_s
            now_s += self.cost_s
            return b""

        def close(self) -> None:
            pass

    monkeypatch.setattr(fleet_module, "Connection", Clocked)
    monkeypatch.setattr(router_parity.time, "monotonic", lambda: now_s)
    assert router_parity.added_latency_s(FakeFleet(0.0)) == pytest.approx(0.002)  # type: ignore[arg-type]


def test_metrics_of_one_name_have_one_kind() -> None:
    kinds = {metric.name: metric.kind for metric in RouterParity.metrics}
    assert all(kind == "simulated" for name, kind in kinds.items() if "simulated" in name)
    assert all(kind == "measured" for name, kind in kinds.items() if name.endswith(("_ratio", "live_s")))
