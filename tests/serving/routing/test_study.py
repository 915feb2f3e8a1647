"""Study llm-routing: small, but whole."""

import math
from dataclasses import replace

import numpy as np
import pytest

import wavetank
from wavetank.errors import BadFileError, BadValueError, DataUnavailableError, WavetankError
from wavetank.ledger import catalog
from wavetank.platforms import RooflineStepTime, calibrated_roofline
from wavetank.serving.fidelity.shipped_fit import shipped_fit
from wavetank.serving.routing import study as llm_routing
from wavetank.serving.routing.baselines import RoundRobin
from wavetank.serving.routing.prefill_aware import Aggregated, LeastPrefill
from wavetank.serving.routing.study import LLMRouting, saturation_per_s
from wavetank.serving.simulator.simulate import simulate
from wavetank.study.study import build_study
from wavetank.units import show
from wavetank.workloads.load import read_trace

SMALL = {
    "layout": "group",
    "expert_parallel": 1,
    "max_running": 64,
    "requests": 400,
    "workers": 4,
    "loads": (),
    "refreshes_s": (),
    "seeds": 1,
    "on": "here",
}
ROUTERS = catalog.built_in().plain_run("llm-routing")
FEW = ("vllm-default", "fewest-kv-tokens", "balance-route")
# Shares that are undefined without preemption or prefixes are 0, not NaN; nothing else is undefined in these runs.
# Only where workers change.
OF_CHURN = {"unserved_share", "resent_share", "up_share"}
NOT_HERE = OF_CHURN | {"adapter_loads"}
IN_TABLE = [metric.name for metric in LLMRouting.metrics if metric.table and metric.name not in OF_CHURN]


@pytest.fixture
def compare(tmp_path):
    def run(**settings):
        return wavetank.compare("llm-routing", out=tmp_path / "runs", **{**SMALL, **settings})

    return run


def value(result, system, metric, seed=0, **at):
    (found,) = [
        r.value for r in result.records if (r.system, r.metric, r.seed, r.at) == (system, metric, seed, at)
    ]  # fmt: skip
    return found


@pytest.fixture
def data():
    try:
        read_trace("azure-conv-2023")
    except DataUnavailableError as error:
        pytest.skip(f"the trace is not on this machine: {error.problem}")


class TestClaims:
    def test_they_name_every_setting_that_decides_them(self):
        claims = [
            claim for entry in catalog.built_in() for claim in entry.claims if claim.study == LLMRouting.name
        ]  # fmt: skip
        assert len(claims) > 15
        always = {"trace", "requests", "history", "layout", "device", "model", "tensor_parallel", "max_batched_tokens",
                  "kv_capacity_tokens", "prefix_caching"}  # fmt: skip
        for claim in claims:
            needed = set(always)
            if claim.where["layout"] != "replicas":
                needed.add("sync_s")
            if claim.metric not in ("capacity_tokens_per_s", "decision_s"):
                needed.add("load")
            if claim.metric == "goodput_per_s":
                needed |= {"slo_ttft_s", "slo_tpot_s"}
            # The grid's cells have these of their own.
            needed |= {"grid"} if claim.at else {"workers", "max_running", "refresh_s", "expert_parallel"}
            assert needed <= set(claim.where), claim.says

    def test_the_cells_that_claims_name_are_in_the_grid(self):
        cases = {
            claim.at["case"]: claim for entry in catalog.built_in() for claim in entry.claims
            if claim.study == LLMRouting.name and "case" in claim.at
        }  # fmt: skip
        assert len(cases) >= 4
        for case, claim in cases.items():
            study = build_study(LLMRouting, dict(claim.where))
            cell = study.cells()[case]
            assert f"{cell.workers} workers, {cell.max_running} slots" in case
            assert ("fresh" if cell.refresh_s == 0 else f"{cell.refresh_s:g} s old") in case
            assert ("shared experts" in case) == (cell.expert_parallel > 1)

    def test_that_routing_hardly_matters_is_judged_where_it_could_matter(self):
        (claim,) = [claim for claim in catalog.system("balance-route").claims if "hardly matters" in claim.says]
        assert claim.metric == "capacity_tokens_per_s"


class TestDeployments:
    def test_the_default_is_what_most_gateways_have(self):
        study = LLMRouting()
        assert (study.layout, study.max_running, study.shared()) == ("replicas", 256, 1)
        cluster = study.cluster()
        assert (cluster.group_size, cluster.workers, cluster.max_running, cluster.kinds) == (1, 16, 256, ())

    @pytest.mark.parametrize(
        ("given", "shared"),
        [
            ({"layout": "group"}, 16),
            ({"layout": "group", "workers": 144}, 16),
            ({"layout": "group", "workers": 7}, 1),
            ({"layout": "group", "model": "Llama-3.1-8B"}, 1),
            ({"layout": "group", "expert_parallel": 4}, 4),
            ({"layout": "group", "expert_parallel": 1}, 1),
            ({"layout": "replicas"}, 1),
            ({"layout": "decode-group", "workers": 8}, 8),
        ],
    )
    def test_a_group_shares_the_experts_of_a_mixture_unless_told_otherwise(self, given, shared):
        study = LLMRouting(**given)
        assert study.shared() == shared
        cluster = study.cluster()
        decode = cluster.decode if study.layout == "decode-group" else cluster
        assert decode.step_time.expert_parallel == shared
        if study.layout == "decode-group":
            # Those who compute prompts wait for nobody, so they have all experts, and less room for the KV cache.
            assert cluster.prefill.step_time.expert_parallel == 1
            assert cluster.prefill.kv_capacity_tokens < decode.kv_capacity_tokens
        # The notes tell an artificial group from one that exists.
        assert any("batches are taken to be equal" in note for note in study.notes()) == (shared > 1)
        full_copies = any("own copy of the weights" in note for note in study.notes()) if shared == 1 else None
        assert full_copies in (None, study.layout != "replicas")

    @pytest.mark.parametrize("layout", ["replicas", "group"])
    def test_devices_may_be_mixed(self, compare, layout):
        devices = ("H100-SXM:3", "A100-SXM-80GB:1")
        study = LLMRouting(workers=4, devices=devices, layout=layout, max_running=8)
        cluster = study.cluster()
        assert [each.step_time.device for each in cluster.each_worker()] == ["H100-SXM"] * 3 + ["A100-SXM-80GB"]
        assert cluster.group_size == (1 if layout == "replicas" else 4)
        assert "H100-SXM or A100-SXM-80GB" in study.assumed()
        result = compare(systems=("round-robin", "fewest-requests"), layout=layout, devices=devices, max_running=16)
        assert not result.failures
        if layout == "replicas":
            # The slow device fills under round robin, and holds back what a full cluster gives.
            capacity = [value(result, each, "capacity_tokens_per_s") for each in ("round-robin", "fewest-requests")]
            assert capacity[0] < capacity[1]

    @pytest.mark.parametrize(
        ("devices", "said"),
        [
            (("H100-SXM:8",), "do not add up"),
            (("H100-SXM",), "names each device with its number"),
            (("H100-SXM:0", "H200-SXM:16"), "names each device"),
            (("H100-SXM:-3", "H200-SXM:19"), "names each device"),
            (("H100-SXM:\u0661\u0666",), "names each device"),
            (("H1000:16",), "H100-SXM"),
        ],
    )
    def test_devices_that_cannot_be_are_refused(self, devices, said):
        with pytest.raises(WavetankError, match=said):
            LLMRouting(devices=devices).cluster()


class TestSplit:
    STUDY = LLMRouting(layout="split", requests=300, workers=6, load=0.0, shared_prefix=0.0, max_running=16)

    def test_the_workers_are_cut_in_proportion_to_the_work_of_both_phases(self):
        counts = [
            replace(self.STUDY, workers=16, lengths=lengths).prefill_count() for lengths in ("conv", "code")
        ]  # fmt: skip
        # Code has long prompts and short answers.
        assert 1 <= counts[0] < counts[1] <= 15
        cluster = replace(self.STUDY, prefill_workers=4).cluster()
        assert (cluster.prefill.workers, cluster.decode.workers) == (4, 2)
        assert cluster.kv_bytes_per_token == 98_304

    @pytest.mark.parametrize("given", [{"prefill_workers": 6}, {"workers": 1, "prefill_workers": 1}])
    def test_a_split_without_workers_for_answers_is_refused(self, given):
        with pytest.raises(BadValueError, match="prefill_workers"):
            replace(self.STUDY, **given).cluster()

    def test_mixed_devices_are_cut_in_their_order(self):
        study = replace(self.STUDY, devices=("H100-SXM:4", "A100-SXM-80GB:2"), prefill_workers=3)
        cluster = study.cluster()
        assert [each.step_time.device for each in cluster.prefill.each_worker()] == ["H100-SXM"] * 3
        assert [each.step_time.device for each in cluster.decode.each_worker()] == ["H100-SXM"] + ["A100-SXM-80GB"] * 2

    def test_a_router_places_both_phases_and_one_with_a_pool_the_answers(self):
        requests = self.STUDY.split(0)[1].at_rate(60.0)
        cluster = self.STUDY.cluster()
        for name in ("round-robin", "balance-route"):
            system = catalog.system(name).load()()
            first = system if name == "round-robin" else LeastPrefill()
            same = simulate(requests, cluster, first, decode_router=system)
            assert self.STUDY.serve(system, requests).finish_s.tolist() == same.finish_s.tolist()

    def test_aggregated_workers_are_all_of_them_and_compute_prompts_in_chunks(self):
        whole = self.STUDY.cluster_of(Aggregated(chunk_tokens=512))
        assert (whole.workers, whole.max_batched_tokens, whole.group_size) == (6, 512, 1)
        assert self.STUDY.cluster_of(Aggregated()).max_batched_tokens == 2048
        requests = self.STUDY.split(0)[1].at_rate(60.0)
        run = self.STUDY.serve(Aggregated(), requests)
        assert run.held_back_s is None
        assert set(run.worker) == set(range(6))
        assert self.STUDY.slots_of(Aggregated()) == 6 * 16 > self.STUDY.slots_of(RoundRobin())


class TestWhatIsMeasured:
    @pytest.mark.parametrize("layout", ["group", "replicas", "decode-group", "split"])
    def test_every_system_has_every_figure_and_all_are_finite(self, compare, layout):
        result = compare(layout=layout)
        assert not result.failures
        assert {record.system for record in result.records} == set(ROUTERS)
        for system in ROUTERS:
            metrics = {record.metric for record in result.records if record.system == system and not record.at}
            assert value(result, system, "prefill_steps", load=1.3) > 0
            # Decode workers compute prompts only again, after preemption.
            apart = layout in ("decode-group", "split")
            assert (value(result, system, "mixed_share", load=1.3) > 0) != apart
            of_splits = set() if apart else {"held_back_p99_s"}
            assert metrics == {metric.name for metric in LLMRouting.metrics} - {"ttft_s"} - of_splits - NOT_HERE
        assert all(math.isfinite(record.value) for record in result.records)
        # Replicas may all be busy from the warm-up to the end.
        positive = [name for name in IN_TABLE if layout == "group" or name != "idle_share"]
        assert all(value(result, system, name) > 0 for system in ROUTERS for name in positive)

    def test_figures_that_belong_together_are_in_order(self, compare):
        result = compare(systems=FEW)
        for system in FEW:
            assert value(result, system, "ttft_p50_s") <= value(result, system, "ttft_p99_s")
            assert value(result, system, "tpot_p50_s") <= value(result, system, "tpot_p99_s")
            assert value(result, system, "ttft_p99_s") <= value(result, system, "e2e_p99_s")
            assert 0 < value(result, system, "idle_share") < 1
            quantiles = [r.value for r in result.records if (r.system, r.metric) == (system, "ttft_s")]
            assert len(quantiles) == 25
            assert quantiles == sorted(quantiles)
            times = [r.at["time_s"] for r in result.records if r.system == system and "time_s" in r.at]
            assert len(times) == 60
            assert times == sorted(times)

    def test_sweeps_are_recorded_at_their_coordinates(self, compare):
        result = compare(systems=("round-robin",), loads=(0.5, 1.2), refreshes_s=(0.0, 1.0))
        slow, fast = (value(result, "round-robin", "ttft_p99_s", load=load) for load in (0.5, 1.2))
        assert slow < fast
        # Round robin looks at nothing, so that the age of signals changes nothing.
        assert value(result, "round-robin", "ttft_p99_s", refresh_s=0.0) == value(result, "round-robin", "ttft_p99_s")
        assert value(result, "round-robin", "ttft_p99_s", refresh_s=1.0) == value(result, "round-robin", "ttft_p99_s")

    def test_equal_seeds_give_equal_records(self, compare):
        first, second = (compare(systems=FEW, seeds=[3]) for _ in range(2))

        def simulated(result):
            return [record for record in result.records if record.kind == "simulated"]

        assert len(simulated(first)) > 200
        assert simulated(first) == simulated(second)

    def test_a_lone_worker_has_no_imbalance_behind_any_router(self, compare):
        result = compare(workers=1, max_running=8, max_batched_tokens=512, requests=60)
        imbalances = [record.value for record in result.records if record.metric == "imbalance_tokens"]
        assert len(imbalances) >= 61 * len(ROUTERS)
        assert set(imbalances) == {0.0}

    def test_imbalance_of_replicas_is_that_of_the_probes(self):
        study = LLMRouting(requests=200, workers=3, layout="replicas")
        run = study.serve(RoundRobin(), study.served(0, 0.8))
        assert math.isnan(run.imbalance_tokens)
        expected = np.mean([3 * max(row) - sum(row) for row in run.probe_tokens.tolist()])
        assert study.figures(run)["imbalance_tokens"] == pytest.approx(expected)

    def test_prefix_caching_hits_shared_prefixes(self, compare):
        result = compare(systems=("prefix-affinity",), shared_prefix=0.8, prefix_caching=True, layout="replicas")
        assert 0.05 < value(result, "prefix-affinity", "prefix_hit_share") < 0.9


def test_prefixes_that_workers_do_not_keep_are_said():
    said = {"shared_prefix": 0.5, "requests": 200, "workers": 2, "layout": "replicas"}
    for settings, count in ((said, 1), (said | {"prefix_caching": True}, 0), (said | {"shared_prefix": 0.0}, 0)):
        notes = build_study(LLMRouting, settings).notes()
        assert sum("prefixes in common" in note for note in notes) == count


class Spy:
    """A router that keeps what it is asked about."""

    def __init__(self):
        self.asked = []

    def initial_state(self, workers):
        return np.zeros(1)

    def parameters(self):
        return np.zeros(0)

    def choose(self, view, arrival, state, parameters):
        self.asked.append((arrival.time_s, arrival.prompt_tokens))
        return 0


class TestPairing:
    def test_all_systems_see_the_same_arrivals_and_other_seeds_others(self):
        study = LLMRouting(requests=50, workers=4, loads=(), refreshes_s=())
        asked = []
        for seed in (0, 0, 1):
            spy = Spy()
            study.measure(spy, seed)
            # Without the decisions that are timed.
            asked.append([question for question in spy.asked if question != (0.0, 1000.0)])
        assert asked[0] == asked[1] != asked[2]
        # At the chosen load, then beyond saturation.
        assert len(asked[0]) > 1.5 * len(study.served(0, 0.9)) > 1000

    def test_the_offered_load_is_the_asked_share_of_saturation(self, compare):
        result = compare(systems=FEW, load=0.7, seeds=2)
        for system in FEW:
            for seed in (0, 1):
                assert value(result, system, "offered_per_s", seed) == pytest.approx(
                    0.7 * value(result, system, "saturation_per_s", seed)
                )

    def test_a_load_of_zero_keeps_the_traces_own_times(self):
        study = LLMRouting(requests=5000, workers=2, load=0.0)
        assert study.served(2, 0.0) == study.split(2)[1]
        assert study.served(2, 0.0).rate_per_s == pytest.approx(10, rel=0.2)


class TestSaturation:
    def test_every_seed_is_offered_a_share_of_its_own(self):
        study = LLMRouting(requests=400, workers=2, max_running=8, loads=(), refreshes_s=())
        for seed in (0, 1):
            rate_per_s = study.served(seed, 0.7).rate_per_s
            assert rate_per_s == pytest.approx(0.7 * saturation_per_s(study, seed))
        assert saturation_per_s(study, 0) != saturation_per_s(study, 1)

    def test_it_is_what_a_full_cluster_completes(self, write):
        trace = write([(i, 100, 50) for i in range(500)])
        study = LLMRouting(**trace, workers=2, layout="replicas", max_running=8, max_batched_tokens=4096, load=3.0)
        run = study.serve(RoundRobin(), study.served(0, 3.0))
        assert run.metrics()["requests_per_s"] == pytest.approx(saturation_per_s(study), rel=0.08)
        # Two workers, eight requests at once, each in 49 decode steps of a full batch and its share of prompts' steps.
        step_s = study.cluster().step_time.seconds(8, 8 * 125)
        assert 0.8 * 2 * 8 / (50 * step_s) < saturation_per_s(study) < 2 * 8 / (49 * step_s)

    def test_it_is_said(self):
        study = LLMRouting(requests=400, workers=4, load=1.2)
        said = " ".join(study.notes())
        assert show(saturation_per_s(study), "requests/s") in said
        assert "at or above saturation" in said
        assert shipped_fit().said_of_roofline(study.device, calibrated=True) in said
        plain = " ".join(replace(study, calibrated=False).notes())
        assert shipped_fit().said_of_roofline(study.device, calibrated=False) in plain
        assert "at or above saturation" not in " ".join(LLMRouting(requests=400, workers=4, load=0.9).notes())

    def test_step_times_are_calibrated_unless_that_is_switched_off(self):
        study = LLMRouting(tensor_parallel=2)
        assert study.cluster().step_time == calibrated_roofline("H200-SXM", "Qwen3-30B-A3B", 2)
        bare = RooflineStepTime(device="H200-SXM", model="Qwen3-30B-A3B", tensor_parallel=2)
        assert replace(study, calibrated=False).cluster().step_time == bare

    def test_prefixes_that_workers_keep_count_in_it(self):
        # A prefill-bound cluster, whose prompts share most of their tokens.
        common = {"requests": 400, "workers": 2, "lengths": "code", "shared_prefix": 1.0, "layout": "replicas"}
        with_cache, without = (saturation_per_s(LLMRouting(**common, prefix_caching=on)) for on in (True, False))
        assert with_cache > 1.1 * without

    def test_a_prompt_is_not_found_whole_because_the_backlog_repeats_the_trace(self, write, monkeypatch):
        study = LLMRouting(requests=100, workers=4, shared_prefix=0.5, prefix_caching=True, layout="replicas")
        served = []

        def serve(self, system, requests, refresh_s=None):
            served.append(requests)
            return whole(self, system, requests, refresh_s)

        whole = LLMRouting.serve
        monkeypatch.setattr(LLMRouting, "serve", serve)
        llm_routing._saturation.__wrapped__(study, 0, study.version())
        # As many are generated as are wanted; none comes twice.
        for backlog in served:
            assert backlog.n_blocks == study.split(0, len(backlog))[1].n_blocks

    def test_a_backlog_that_grows_is_recorded(self, compare):
        common = {"systems": ("fewest-kv-tokens",), "workers": 2, "max_running": 8, "requests": 1500}
        assert value(compare(**common, load=0.5), "fewest-kv-tokens", "saturated") == 0
        assert value(compare(**common, load=2.0), "fewest-kv-tokens", "saturated") == 1


class TestTraces:
    def test_the_real_trace_is_served_and_its_checksum_kept(self, compare, data):
        result = compare(trace="azure-conv-2023", systems=FEW, seeds=2)
        assert not result.failures
        for seed in (0, 1):
            assert all(math.isfinite(value(result, s, name, seed)) for s in FEW for name in IN_TABLE)
        assert result.study.data() == {"azure-conv-2023": read_trace("azure-conv-2023").checksum}

    def test_a_file_with_a_column_map_is_served(self, compare, write):
        trace = write([(0.5 * i, 50 + i % 90, 1 + i % 30) for i in range(100)])
        result = compare(**trace, systems=FEW)
        assert value(result, "vllm-default", "throughput_tokens_per_s") > 0
        assert "first 20% of the trace" in " ".join(result.study.notes())

    def test_a_fitted_router_is_what_is_measured(self, write):
        trace = write([(i, 100, 7 if i < 20 else 300) for i in range(100)])
        fitted = []

        class Learner(Spy):
            learns_lengths = True

            def fitted_to(self, past):
                fitted.append(past.output_tokens.tolist())
                return RoundRobin()

        learner = Learner()
        LLMRouting(**trace, loads=(), refreshes_s=()).measure(learner, 0)
        assert fitted == [[7] * 20]
        assert learner.asked == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "said"),
        [
            ({"grid": True, "grid_workers": (10_000,), "grid_slots": (100_000,)}, "grid_workers, grid_slots"),
            ({"grid": True, "grid_workers": (16, 10_000), "grid_slots": (64, 1_000)}, "10000 workers, 64 slots"),
            ({"workers": 10_000, "max_running": 100_000, "max_batched_tokens": 100_000}, "workers, max_running"),
        ],
    )
    def test_clusters_beyond_all_memory_are_refused_in_check(self, settings, said):
        with pytest.raises(BadValueError) as caught:
            LLMRouting(requests=400, loads=(), refreshes_s=(), **settings).check()
        assert said in str(caught.value.where)

    def test_every_cell_needs_the_memory_that_it_takes(self, monkeypatch):
        monkeypatch.setattr("wavetank.machine.limits.available_bytes", lambda: 50_000_000)
        common = {"requests": 400, "workers": 4, "loads": (), "refreshes_s": (), "grid": True, "grid_slots": (64,)}
        LLMRouting(**common, grid_workers=(4,)).check()
        with pytest.raises(BadValueError, match="more memory"):
            LLMRouting(**common, grid_workers=(4, 64)).check()

    def test_requests_of_one_instant_have_no_other_rate(self, write):
        trace = write([(7, 100, 10)] * 100)
        common = {**trace, "workers": 2, "max_running": 8, "refreshes_s": ()}
        for settings in ({"load": 0.9, "loads": ()}, {"load": 0.0, "loads": (0.5,)}):
            with pytest.raises(BadValueError, match="same instant") as caught:
                LLMRouting(**common, **settings).check()
            assert "load=0" in str(caught.value.hint)
        LLMRouting(**common, load=0.0, loads=()).check()

    def test_a_request_that_fits_no_worker_is_named_by_its_row_in_the_users_trace(self, write):
        trace = write([(i, 9000 if i == 77 else 100, 10) for i in range(100)])
        study = LLMRouting(**trace, kv_capacity_tokens=5000, workers=64)
        with pytest.raises(BadValueError, match="row 78: 9,000 prompt"):
            study.check()
        # Also where a later part of the trace is used.
        trace = write([(i if i < 160 else 160 + (i - 160) / 10, 9000 if i == 177 else 100, 10) for i in range(200)])
        study = LLMRouting(**trace, requests=80, window="busiest", kv_capacity_tokens=5000, workers=64)
        with pytest.raises(BadValueError, match="row 178: 9,000 prompt"):
            study.check()
        generated = LLMRouting(requests=100, kv_capacity_tokens=500)
        with pytest.raises(BadValueError) as error:
            generated.check()
        row = int(str(error.value).split("row ")[1].split(":")[0])
        prompt = int(generated.split(0)[1].prompt_tokens[row - 1])
        assert f"row {row}: {prompt:,} prompt" in str(error.value)

    @pytest.mark.parametrize(
        ("settings", "error", "said"),
        [
            ({"trace": "azure-conv-2032"}, WavetankError, "nearest: azure-conv-2023"),
            ({"device": "H200"}, WavetankError, "nearest: H200-"),
            ({"model": "Qwen3-30B-A3"}, WavetankError, "nearest: Qwen3-30B-A3B"),
            ({"layout": "groups"}, BadValueError, "nearest: group"),
            ({"systems": ["vllm-defualt"]}, WavetankError, "nearest: vllm-default"),
            ({"workrs": 4}, BadValueError, "nearest: workers"),
            ({"workers": 0}, BadValueError, "out of range"),
            ({"max_batched_tokens": 32}, BadValueError, "max_batched_tokens >= max_running"),
            ({"tensor_parallel": 3}, BadValueError, "tensor_parallel"),
            ({"kv_capacity_tokens": 500}, BadValueError, "does not fit into a worker's KV cache"),
            ({"requests": 3}, BadValueError, "out of range"),
        ],
    )
    def test_what_cannot_be_run_is_refused_before_any_trial(self, compare, tmp_path, settings, error, said):
        with pytest.raises(error) as caught:
            compare(**settings)
        assert said in str(caught.value)
        assert not (tmp_path / "runs").exists()

    def test_the_optimum_is_for_eight_workers_at_most(self, compare):
        with pytest.raises(BadValueError) as error:
            compare(systems=("one-step-optimum",), workers=9, requests=40)
        assert "9 workers" in str(error.value)
        assert "up to 8" in str(error.value)

    def test_on_eight_or_fewer_it_runs(self, compare):
        pytest.importorskip("ortools", reason="the optimum is found with OR-tools")
        result = compare(systems=("one-step-optimum",), workers=2, max_running=4, requests=20)
        assert math.isfinite(value(result, "one-step-optimum", "imbalance_tokens"))

    def test_a_file_that_is_not_there_is_an_error(self, compare):
        with pytest.raises(WavetankError, match=r"nowhere\.csv"):
            compare(trace="nowhere.csv")

    def test_a_column_map_is_made_of_pairs(self, compare, write):
        with pytest.raises(BadValueError, match="made of pairs"):
            compare(**{**write([(0, 1, 1)]), "columns": ("arrival_s",)})

    def test_a_column_that_is_not_there_is_an_error(self, compare, write):
        with pytest.raises(BadFileError, match="WHEN"):
            compare(**{**write([(0, 1, 1)]), "columns": ("arrival_s=WHEN", "prompt_tokens=IN", "output_tokens=OUT")})

    @pytest.mark.parametrize("rows", [1, 2, 20])
    def test_a_trace_that_is_too_short_is_refused(self, compare, write, rows):
        with pytest.raises(BadValueError, match="Too few requests are left"):
            compare(**write([(i, 10, 10) for i in range(rows)]))


def test_the_answer_is_decided_by_the_figure_that_was_asked_for():
    # No router changes the capacity of replicas that are full.
    assert LLMRouting().decisive()[0] == "ttft_p99_s"
    assert {LLMRouting(layout=each).decisive()[0] for each in ("group", "decode-group")} == {"capacity_tokens_per_s"}
    assert LLMRouting(layout="split").decisive()[0] == "goodput_per_s"
    assert LLMRouting(decide_by="capacity_tokens_per_s").decisive()[0] == "capacity_tokens_per_s"
    by_goodput = LLMRouting(decide_by="goodput_per_s").decisive()
    assert (by_goodput[0], len(set(by_goodput)), set(by_goodput)) == ("goodput_per_s", 4, set(LLMRouting().decisive()))
