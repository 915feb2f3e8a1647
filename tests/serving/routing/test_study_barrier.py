"""Study barrier-routing: small, but with real processes."""

import math

import numpy as np
import pytest

import wavetank
from wavetank.errors import BadValueError, DataUnavailableError, WavetankError
from wavetank.ledger import catalog
from wavetank.machine.threads import usable_cores
from wavetank.serving.routing.study_barrier import FEWEST_REQUESTS, BarrierRouting, saturation_per_s
from wavetank.units import show
from wavetank.workloads.load import read_trace

pytestmark = pytest.mark.skipif(usable_cores() < 2, reason="two workers need two cores")

SMALL = {"requests": 20, "max_running": 3, "head_dim": 16, "query_heads": 2, "lengths": "code", "seeds": 1}
FEW = ("vllm-default", "balance-route")
MAY_BE_ZERO = {"imbalance_tokens", "waiting_share", "simulated_imbalance_tokens"}


@pytest.fixture
def compare(tmp_path):
    def run(**settings):
        return wavetank.compare("barrier-routing", out=tmp_path / "runs", **{**SMALL, **settings})

    return run


def values(result, metric):
    return {(r.system, r.seed): r.value for r in result.records if r.metric == metric}


class TestWhatIsMeasured:
    def test_every_system_has_every_figure_of_its_kind_and_all_are_finite(self, compare):
        result = compare(seeds=2)
        assert not result.failures
        for metric in BarrierRouting.metrics:
            found = values(result, metric.name)
            routers = catalog.built_in().plain_run("barrier-routing")
            assert set(found) == {(system, seed) for system in routers for seed in (0, 1)}
            assert all(math.isfinite(value) for value in found.values())
            if metric.name not in MAY_BE_ZERO and metric.name != "fit_r_squared":
                assert min(found.values()) > 0
        kinds = {record.metric: record.kind for record in result.records}
        assert kinds["imbalance_tokens"] == "counted"
        assert kinds["throughput_tokens_per_s"] == kinds["measured_over_simulated"] == "measured"
        assert kinds["simulated_makespan_s"] == "simulated"
        assert all(0 <= share < 1 for share in values(result, "waiting_share").values())

    def test_the_parity_is_the_ratio_of_the_makespans(self, compare):
        result = compare(systems=FEW)
        real, twin = values(result, "makespan_s"), values(result, "simulated_makespan_s")
        for key, ratio in values(result, "measured_over_simulated").items():
            assert ratio == pytest.approx(twin[key] / real[key])

    def test_a_lone_worker_waits_for_nobody(self, compare):
        result = compare(workers=1, systems=FEW)
        assert set(values(result, "imbalance_tokens").values()) == {0}
        assert set(values(result, "waiting_share").values()) == {0}


class TestPairing:
    def test_all_systems_serve_the_same_requests_and_other_seeds_others(self):
        study = BarrierRouting(requests=30)
        assert study.split(3) == study.split(3)
        assert study.split(3)[1] != study.split(4)[1]

    def test_every_seed_begins_with_another_system_and_has_all_of_them(self):
        trials = BarrierRouting().trials(("a", "b", "c"), (0, 1, 2, 3))
        order = ["".join(trial.systems[0] for trial in trials if trial.seed == seed) for seed in range(4)]
        assert order == ["abc", "bca", "cab", "abc"]
        assert len({trial.key for trial in trials}) == 12

    def test_the_offered_load_is_the_asked_share_of_saturation(self, compare):
        result = compare(systems=FEW, load=0.5)
        rates = set(values(result, "offered_per_s").values())
        assert len(rates) == 1
        assert rates.pop() == pytest.approx(0.5 * saturation_per_s(result.study))

    def test_predictors_learn_from_requests_that_are_not_served(self, write):
        trace = write([(i, 100, 7 if i < 20 else 30) for i in range(100)])
        past, served = BarrierRouting(**trace, requests=25).split(0)
        assert set(past.output_tokens.tolist()) == {7}
        assert served.output_tokens.tolist() == [30] * 25
        assert served.arrival_s[0] == 0

    def test_requests_of_one_token_never_reach_a_decode_worker(self, write):
        trace = write([(i, 50 + i, 1 + i % 2) for i in range(100)])
        served = BarrierRouting(**trace, history=0.0).split(0)[1]
        assert set(served.output_tokens.tolist()) == {2}

    def test_slots_have_room_for_the_longest_request(self):
        study = BarrierRouting(requests=50)
        served = study.split(0)[1]
        assert study.shape(served).longest_tokens == np.max(served.prompt_tokens + served.output_tokens)

    def test_the_real_trace_is_served_and_its_checksum_kept(self, compare):
        try:
            checksum = read_trace("azure-conv-2023").checksum
        except DataUnavailableError as error:
            pytest.skip(f"the trace is not on this machine: {error.problem}")
        result = compare(trace="azure-conv-2023", systems=("round-robin",))
        assert result.study.data() == {"azure-conv-2023": checksum}
        assert not result.failures


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"workers": 250}, "a core of its own"),
            ({"workers": 0}, "out of range"),
            ({"requests": FEWEST_REQUESTS - 1}, "out of range"),
            ({"trace": "azure-conv-2032"}, "nearest: azure-conv-2023"),
            ({"max_running": 256, "head_dim": 1024, "lengths": "conv", "requests": 5000}, "more memory"),
        ],
    )
    def test_what_cannot_be_run_is_refused_before_any_trial(self, compare, tmp_path, settings, said, monkeypatch):
        monkeypatch.setattr("wavetank.machine.limits.available_bytes", lambda: 1 << 30)
        with pytest.raises(WavetankError) as caught:
            compare(**settings)
        assert said in str(caught.value)
        assert not (tmp_path / "runs").exists()

    def test_a_trace_with_too_few_decodable_requests_is_refused(self, compare, write):
        with pytest.raises(BadValueError, match="Too few requests are left"):
            compare(**write([(i, 50, 1 if i % 5 else 9) for i in range(60)]))

    def test_a_trace_without_decodable_requests_is_refused(self, compare, write):
        with pytest.raises(BadValueError, match="No request of the trace has two output tokens"):
            compare(**write([(i, 50, 1) for i in range(60)]))

    def test_requests_that_all_arrive_at_once_have_no_rate(self, compare, write):
        with pytest.raises(BadValueError, match="rate"):
            compare(**write([(0, 50, 9)] * 60), history=0.0)


def test_routers_that_run_here_say_that_they_are_executed():
    for entry in catalog.built_in():
        if "barrier-routing" in entry.studies:
            assert "executed" in entry.runs


def test_the_notes_say_what_the_group_is():
    study = BarrierRouting(requests=20, max_running=2, head_dim=16, lengths="code")
    said = " ".join(study.notes())
    assert "2 real processes" in said
    assert show(saturation_per_s(study), "requests/s") in said
