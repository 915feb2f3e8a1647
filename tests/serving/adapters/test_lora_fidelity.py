"""Recorded runs with adapters: what is read, what is predicted, how it is judged."""

import csv
import dataclasses
import gzip
import math

import numpy as np
import pytest

from wavetank.errors import BadFileError, BadValueError, DataUnavailableError
from wavetank.serving.adapters import lora_fidelity
from wavetank.serving.adapters.lora_fidelity import (
    FIT_SET,
    JUDGED_SET,
    METRICS,
    Configuration,
    cluster,
    configurations,
    costs_of,
    feasible,
    fit,
    predict,
    workload,
)
from wavetank.serving.adapters.lora_models import lora_model, shipped_costs, with_memory

LLAMA, FITTED = lora_model("llama-3.1-8b-instruct", 1.0, 1.0), shipped_costs()
RUNS, TWIN_FILE = "llama31_8b_runs.csv.gz", "twin_sim_llama31_8b.csv.gz"
CAPACITIES = [(8, 8, 300_000), (16, 8, 290_000), (8, 32, 280_000), (16, 32, 250_000), (64, 32, "memory_error")]
RUN = {
    "set": "test", "model": LLAMA.name, "gpu_slots": 8, "served_adapters": 16, "max_rank": 32,
    "prompts_sent_expected": 10_000, "in_tokens": 2_500_000, "out_tokens": 864_000, "completed": 8640,
    "rates_req_s": "0.2 0.1", "sizes_rank": "8 32", "duration_s": 3600.0, "out_tok_s": 468.0, "req_s": 2.4,
    "ttft_mean_ms": 60.0, "ttft_p50_ms": 50.0, "ttft_p99_ms": 300.0, "tpot_mean_ms": 20.0, "tpot_p50_ms": 19.0,
    "tpot_p99_ms": 40.0, "itl_mean_ms": 21.0, "outcome": "ok",
}  # fmt: skip
TWIN = {
    "adapter_slots": 8, "served_adapters": 16, "rates_req_s": "0.2 0.1", "sizes_rank": "8 32", "twin_wall_s": 9.0,
    "out_tok_s": 400.0, "itl_ms": 25.0, "ttft_ms": 55.0,
}  # fmt: skip


def configuration(**more):
    given = {
        "row": 1, "model": LLAMA, "subset": "test", "slots": 8, "served_adapters": 16, "max_rank": 32,
        "rates_per_s": (0.2, 0.1), "ranks": (8, 32), "kv_capacity_tokens": 280_000, "outcome": "ok",
        "measured": tuple((name, 1.0) for name in METRICS),
    }  # fmt: skip
    return Configuration(**{**given, **more})


@pytest.fixture
def folder(tmp_path):
    """Write a small data set of the same form and return how to."""

    def make(*runs, capacities=CAPACITIES, twin=(TWIN,), model=LLAMA.name):
        def write(path, rows):
            with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as stream:
                writer = csv.DictWriter(stream, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)

        names = ("model", "adapter_slots", "max_rank", "kv_tokens_available")
        write(
            tmp_path / lora_fidelity.CAPACITY,
            [dict(zip(names, (model, *row), strict=True)) for row in capacities],
        )
        write(tmp_path / RUNS, [{**RUN, "model": model, **run} for run in runs])
        write(tmp_path / TWIN_FILE, list(twin))
        lora_fidelity._configurations.cache_clear()
        lora_fidelity._costs_fitted.cache_clear()
        return tmp_path

    return make


@pytest.fixture(scope="module")
def data():
    try:
        return configurations()
    except DataUnavailableError as error:
        pytest.skip(f"the data set is not on this machine: {error.problem}")


class TestReading:
    def test_a_run_is_read_with_its_figures_in_seconds(self, folder):
        (found,) = configurations(folder({}))
        assert found.row == 1
        assert found.name == "8 slots, 16 adapters of rank 8/32 at 0.2/0.1 requests/s"
        assert found.kv_capacity_tokens == 280_000
        assert found.adapter_rates_per_s.tolist() == [0.2, 0.1] * 8
        assert found.offered_per_s == pytest.approx(2.4)
        assert dict(found.measured)["ttft_p50_s"] == pytest.approx(0.05)
        assert set(dict(found.measured)) == set(METRICS)
        assert not found.starved

    def test_a_run_that_gives_less_than_nine_tenths_of_what_was_asked_for_starves(self, folder):
        barely, not_quite = configurations(folder({"out_tok_s": 2.4 * 195 * 0.91}, {"out_tok_s": 2.4 * 195 * 0.89}))
        assert (barely.starved, not_quite.starved) == (False, True)

    def test_runs_without_figures_are_kept_without(self, folder):
        blank = {"ttft_mean_ms": "", "out_tok_s": "", "outcome": "memory_error"}
        failed, odd = configurations(folder({**blank, "gpu_slots": 64}, {**blank, "outcome": "no_result"}))
        assert failed.measured == odd.measured == ()
        assert failed.kv_capacity_tokens is None

    def test_a_subset_is_chosen_and_an_unknown_one_refused(self, folder):
        where = folder({}, {"set": FIT_SET})
        assert [each.row for each in configurations(where, subset=FIT_SET)] == [2]
        with pytest.raises(BadValueError, match="no such subset"):
            configurations(where, subset="train")

    @pytest.mark.parametrize(
        ("column", "cell"),
        [
            ("tpot_mean_ms", ""), ("tpot_mean_ms", "-1"), ("tpot_mean_ms", "nan"), ("gpu_slots", "8.5"),
            ("rates_req_s", "0.1 x"), ("rates_req_s", ""), ("outcome", "fine"), ("model", ""),
        ],
    )  # fmt: skip
    def test_a_bad_cell_is_named_by_file_row_and_column(self, folder, column, cell):
        with pytest.raises(BadFileError) as error:
            configurations(folder({}, {column: cell}))
        assert all(part in str(error.value) for part in (RUNS, "row 2", column))

    def test_a_damaged_or_missing_file_is_named(self, folder):
        where = folder({})
        (where / RUNS).write_bytes(gzip.compress(b"set,model\n" * 100)[:-20])
        with pytest.raises(BadFileError, match="cannot be read"):
            configurations(where)
        where = folder({})
        (where / lora_fidelity.CAPACITY).unlink()
        with pytest.raises(BadFileError, match=lora_fidelity.CAPACITY):
            configurations(where)
        (where / RUNS).unlink()
        with pytest.raises(BadFileError, match="no runs with adapters"):
            configurations(where)

    def test_without_the_data_set_it_says_where_it_looked(self, monkeypatch, tmp_path):
        monkeypatch.setenv("WAVETANK_DATA", str(tmp_path))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(DataUnavailableError, match="lora-serving-vllm"):
            configurations()


class TestWorkload:
    def test_every_adapter_has_its_rate_and_lengths_their_means(self):
        each = configuration(rates_per_s=(4.0, 1.0), served_adapters=3)
        requests = workload(each, 0)
        counts = np.bincount(requests.adapter)
        assert counts == pytest.approx([4 * 3600, 3600, 4 * 3600], rel=0.05)
        assert requests.prompt_tokens.mean() == pytest.approx(223, rel=0.02)
        assert requests.output_tokens.mean() == pytest.approx(195, rel=0.02)
        assert requests.prompt_tokens.min() >= 4
        assert requests.prompt_tokens.max() <= 1024
        assert (requests.prompt_tokens + requests.output_tokens).max() <= 2048
        assert requests.arrival_s[-1] < 3600

    def test_a_running_request_holds_as_many_tokens_as_in_the_recorded_runs(self):
        requests = workload(configuration(rates_per_s=(10.0,)), 1)
        prompts, outputs = requests.prompt_tokens, requests.output_tokens
        assert (outputs * (prompts + outputs / 2)).sum() / outputs.sum() == pytest.approx(372, rel=0.06)

    def test_some_answers_are_of_a_few_tokens_and_the_mean_stays(self):
        def outputs(**given):
            lengths = dataclasses.replace(LLAMA.lengths, **given)
            model = dataclasses.replace(LLAMA, lengths=lengths)
            return workload(configuration(model=model, rates_per_s=(10.0,)), 1).output_tokens

        many, none = outputs(short_share=0.3, short_longest_tokens=16), outputs(short_share=0.0)
        assert (many <= 16).mean() == pytest.approx(0.3, abs=0.01)
        assert (none <= 16).mean() < 0.01
        assert many.min() == 4
        assert many.mean() == pytest.approx(none.mean(), rel=0.02)

    def test_seeds_differ_and_slots_do_not_matter(self):
        each = configuration()
        assert workload(each, 3) == workload(dataclasses.replace(each, slots=16, ranks=(8,)), 3)
        assert workload(each, 3) != workload(each, 4)
        with pytest.raises(BadValueError, match="duration_s"):
            workload(each, 0, duration_s=0.0)


class TestPrediction:
    def test_every_metric_is_predicted_and_the_load_is_served_where_there_is_room(self):
        each = configuration()
        found = predict(each, 0, FITTED)
        assert set(found) == set(METRICS)
        assert found["requests_per_s"] == pytest.approx(2.4, rel=0.05)
        assert found["throughput_tokens_per_s"] == pytest.approx(2.4 * 195, rel=0.05)
        assert found["tpot_p50_s"] >= FITTED.overhead_s
        assert found["ttft_p50_s"] < found["ttft_p99_s"]
        assert found == predict(each, 0, FITTED, requests=workload(each, 0))

    def test_at_saturation_twice_the_load_gives_the_same_throughput(self):
        hungry = configuration(rates_per_s=(4.0,), slots=16, served_adapters=16, kv_capacity_tokens=250_000)
        found = [
            predict(dataclasses.replace(hungry, rates_per_s=(rate,)), 0, FITTED, duration_s=900.0)
            for rate in (4.0, 8.0)
        ]
        rates = [each["throughput_tokens_per_s"] for each in found]
        assert rates[1] == pytest.approx(rates[0], rel=0.03)
        assert found[1]["ttft_mean_s"] > 1.1 * found[0]["ttft_mean_s"] > 10

    def test_nothing_done_in_time_has_no_latencies(self):
        found = predict(configuration(rates_per_s=(1e-5,)), 0, FITTED, duration_s=0.001)
        assert found["requests_per_s"] == 0
        assert math.isnan(found["ttft_mean_s"])
        assert math.isnan(found["itl_mean_s"])

    def test_requests_that_come_hold_up_those_that_run(self):
        busy = configuration(rates_per_s=(2.0,), slots=16, kv_capacity_tokens=250_000)
        slow, plain = (
            predict(busy, 0, dataclasses.replace(FITTED, per_arrival_s=each), duration_s=300.0) for each in (5e-3, 0.0)
        )
        assert slow["tpot_p50_s"] > 1.1 * plain["tpot_p50_s"]

    def test_a_configuration_that_did_not_start_is_refused(self):
        with pytest.raises(BadValueError, match="did not start"):
            predict(configuration(kv_capacity_tokens=None), 0, FITTED)


class TestMemory:
    def test_the_cache_left_must_hold_the_longest_context(self, folder):
        few, many = configurations(folder({}, {"gpu_slots": 128}))
        assert feasible(few)
        assert not feasible(many)
        greedy = dataclasses.replace(few.model, longest_context_tokens=10**6)
        assert not feasible(dataclasses.replace(few, model=greedy))

    def test_of_a_model_whose_longest_context_is_not_known_nothing_is_said(self, folder):
        (unknown,) = configurations(folder({}, model="gemma-9"))
        assert unknown.model.memory is None
        assert feasible(unknown) is None

    def test_too_few_capacities_are_refused(self, folder):
        with pytest.raises(BadFileError, match="Too few"):
            configurations(folder({}, capacities=CAPACITIES[:2]))


class TestTwin:
    def test_its_figures_are_found_by_slots_adapters_rates_and_ranks(self, folder):
        run, other = configurations(folder({}, {"served_adapters": 8}))
        assert dict(run.twin) == pytest.approx(
            {"throughput_tokens_per_s": 400.0, "itl_mean_s": 0.025, "ttft_mean_s": 0.055}
        )
        assert other.twin == ()

    def test_where_it_was_not_run_there_are_none(self, folder):
        where = folder({})
        (where / TWIN_FILE).unlink()
        assert configurations(where)[0].twin == ()


class TestOtherModels:
    def test_lengths_are_those_of_the_models_own_runs_of_the_fit_set(self, folder):
        fitted = {"set": FIT_SET, "in_tokens": 3_000_000, "out_tokens": 1_728_000}
        (run, _) = configurations(folder({}, fitted, model="gemma-9"))
        # 10,000 prompts and 8,640 answers.
        assert run.model.lengths.prompt_mean_tokens == pytest.approx(300.0)
        assert run.model.lengths.output_mean_tokens == pytest.approx(200.0)
        assert workload(run, 0).prompt_tokens.mean() == pytest.approx(300, rel=0.05)
        (alone,) = configurations(folder({}, model="gemma-9"))
        assert alone.model.lengths.prompt_mean_tokens == pytest.approx(250.0)

    def test_what_ships_of_a_model_counts_before_its_runs(self, folder):
        (run,) = configurations(folder({}))
        assert run.model == with_memory(LLAMA, run.model.memory)
        assert costs_of(run) == FITTED

    def test_loading_takes_as_long_as_the_model_says(self):
        slow = dataclasses.replace(LLAMA, load_s=0.5, load_s_per_rank=0.25)
        adapters = cluster(configuration(model=slow), FITTED).adapters
        assert (adapters.load_s, adapters.load_s_per_rank) == (0.5, 0.25)

    def test_costs_that_do_not_ship_are_fitted_to_the_models_own_runs(self, folder, monkeypatch):
        seen = []
        monkeypatch.setattr(lora_fidelity, "fit", lambda known: seen.append(known) or FITTED)
        runs = [{"set": FIT_SET}] * 50 + [{"set": FIT_SET, "outcome": "no_result"}, {}]
        judged = configurations(folder(*runs, model="gemma-9"))[-1]
        assert costs_of(judged) == costs_of(judged) == FITTED
        (known,) = seen
        assert [each.row for each in known] == list(range(1, 51, 3))

    def test_two_models_may_share_a_folder(self, folder):
        llama, gemma = configurations(folder({}, {"model": "gemma-9"}))
        assert (llama.model.costs, gemma.model.costs) == (FITTED, None)

    def test_a_model_of_which_nothing_is_known_at_all_is_refused(self, folder):
        with pytest.raises(BadFileError, match="No run of gemma-9 has figures"):
            configurations(folder({"outcome": "no_result"}, model="gemma-9"))


class TestFit:
    def test_costs_are_found_again_from_what_they_predict(self):
        truth = dataclasses.replace(FITTED, overhead_s=1.8e-2, per_adapter_s=3e-4)
        made = []
        for slots, rate in (
            (8, 0.05),
            (8, 0.2),
            (16, 0.5),
            (16, 0.1),
            (4, 0.1),
            (16, 1.0),
            (16, 0.3),
            (32, 0.2),
            (32, 0.4),
        ):
            each = configuration(slots=slots, rates_per_s=(rate,), kv_capacity_tokens=100_000)
            made.append(dataclasses.replace(each, measured=tuple(predict(each, 0, truth).items())))
        found = fit(made, 0, rounds=6)
        for each in made:
            measured = dict(each.measured)
            predicted = predict(each, 0, found)
            for name in ("throughput_tokens_per_s", "tpot_mean_s"):
                assert predicted[name] == pytest.approx(measured[name], rel=0.04)

    def test_too_few_runs_or_runs_without_figures_are_refused(self):
        for known in ([configuration()] * 8, [configuration()] * 8 + [configuration(outcome="no_result")]):
            with pytest.raises(BadValueError, match="fitted to runs with figures"):
                fit(known)


class TestRecordedRuns:
    def test_there_are_658_of_which_492_have_figures(self, data):
        assert len(data) == 658
        assert sum(each.outcome == "ok" for each in data) == 492
        assert all(each.kv_capacity_tokens for each in data if each.outcome == "ok")

    def test_every_memory_error_is_predicted_and_nothing_else(self, data):
        known = [each for each in data if each.outcome != "no_result"]
        assert [feasible(each) for each in known] == [each.outcome == "ok" for each in known]

    def test_throughput_of_runs_that_the_costs_were_not_fitted_to_is_within_6_percent(self, data):
        known = [each for each in data if each.subset == JUDGED_SET and each.outcome == "ok"]
        runs = known[:: len(known) // 23][:24]
        pairs = {each: (predict(each, 0, FITTED), dict(each.measured)) for each in runs}

        def smape(name, *starved):
            chosen = [(p[name], m[name]) for each, (p, m) in pairs.items() if each.starved in starved]
            return np.mean([2 * abs(p - m) / (p + m) for p, m in chosen])

        assert len(pairs) == 24
        assert smape("throughput_tokens_per_s", True, False) < 0.06
        assert smape("throughput_tokens_per_s", False) < 0.03
        assert smape("tpot_mean_s", True, False) < 0.12
        assert smape("ttft_mean_s", True) < 0.12
