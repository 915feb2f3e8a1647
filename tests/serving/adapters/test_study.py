"""The study of runs with many adapters: whom it judges on what, and how errors are counted."""

import csv
import gzip

import pytest

from wavetank.errors import BadFileError, DataUnavailableError
from wavetank.ledger import catalog
from wavetank.serving.adapters import lora_fidelity
from wavetank.serving.adapters import study as adapter_fidelity
from wavetank.serving.adapters.lora_models import shipped_costs
from wavetank.serving.adapters.study import ALL, FED, STARVED, TWINS, AdapterFidelity
from wavetank.workloads import datasets

RUN = {
    "set": "test", "model": "llama-3.1-8b-instruct", "gpu_slots": 8, "served_adapters": 16, "max_rank": 8,
    "prompts_sent_expected": 1000, "in_tokens": 250_000, "completed": 1000, "out_tokens": 190_000,
    "rates_req_s": "0.02", "sizes_rank": "8", "out_tok_s": 62.0, "req_s": 0.32, "ttft_mean_ms": 60.0,
    "ttft_p50_ms": 50.0, "ttft_p99_ms": 300.0, "tpot_mean_ms": 20.0, "tpot_p50_ms": 19.0, "tpot_p99_ms": 40.0,
    "itl_mean_ms": 21.0, "outcome": "ok",
}  # fmt: skip
TWIN = {
    "adapter_slots": 8, "served_adapters": 16, "rates_req_s": "0.02", "sizes_rank": "8 8 8", "twin_wall_s": 9.0,
    "out_tok_s": 31.0, "itl_ms": 21.0, "ttft_ms": 60.0,
}  # fmt: skip
CAPACITIES = [(8, 8, 300_000), (16, 8, 290_000), (8, 32, 280_000), (16, 32, 250_000), (640, 32, "memory_error")]
RUNS = (
    {},
    {"gpu_slots": 16},
    # Asked for 3.2 requests a second, gives a tenth of that.
    {"gpu_slots": 16, "rates_req_s": "0.2"},
    {"gpu_slots": 640, "max_rank": 32, "outcome": "memory_error"},
    {"set": "twin_validation"},
)


def forget():
    for cached in (
        lora_fidelity._configurations, lora_fidelity._costs_fitted, adapter_fidelity._judged,
        adapter_fidelity._predicted,
    ):  # fmt: skip
        cached.cache_clear()


@pytest.fixture
def small_set(tmp_path, monkeypatch):
    """A data set of three judged runs, one that failed, and one of the other set."""
    folder = tmp_path / lora_fidelity.DATASET
    folder.mkdir()
    names = ("model", "adapter_slots", "max_rank", "kv_tokens_available")
    files = {
        "llama31_8b_runs.csv.gz": [{**RUN, **run} for run in RUNS],
        "twin_sim_llama31_8b.csv.gz": [TWIN],
        lora_fidelity.CAPACITY: [dict(zip(names, (RUN["model"], *row), strict=True)) for row in CAPACITIES],
    }
    for name, rows in files.items():
        with gzip.open(folder / name, "wt") if name.endswith(".gz") else (folder / name).open("w") as stream:
            writer = csv.DictWriter(stream, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    monkeypatch.setattr(datasets, "find", lambda name: tmp_path / name)
    forget()
    yield folder
    forget()


class Says:
    """A predictor that says a multiple of what was measured."""

    def __init__(self, times):
        self.times = times

    def predict(self, configuration, seed):
        return {name: value * self.times for name, value in configuration.measured}


def value(found, metric, **at):
    (only,) = (number for name, number, where in found.rows if name == metric and where == at)
    return only


def test_the_runs_of_the_other_set_and_those_without_figures_are_not_judged(small_set):
    judged = AdapterFidelity().judged()
    assert [(each.subset, each.outcome) for each in judged] == [("test", "ok")] * 3
    assert len(AdapterFidelity(runs=2).judged()) == 2


def test_who_says_what_was_measured_has_no_error_and_who_says_twice_as_much_two_thirds(small_set):
    right = AdapterFidelity().measure(Says(1.0), 0)
    double = AdapterFidelity().measure(Says(2.0), 0)
    for case in (ALL, FED, STARVED, TWINS):
        for metric in ("throughput", "ttft_p99", "itl_mean"):
            assert value(right, f"{metric}_smape", runs=case) == 0.0
            assert value(double, f"{metric}_smape", runs=case) == pytest.approx(2 / 3)
            assert value(double, f"{metric}_error", runs=case) == pytest.approx(1.0)


def test_memory_errors_are_predicted_from_slots_and_ranks_by_those_who_say_so(small_set):
    found = AdapterFidelity().measure(catalog.system("adapters-fitted").build(), 0)
    assert value(found, "memory_errors_missed", runs=ALL) == 0.0
    assert value(found, "memory_errors_invented", runs=ALL) == 0.0
    silent = AdapterFidelity().measure(catalog.system("adapter-twin").build(), 0)
    assert not [name for name, _, _ in silent.rows if name.startswith("memory_errors")]


def test_who_is_wrong_about_every_start_misses_all_memory_errors_and_invents_as_many(small_set):
    class Contrary(Says):
        def starts(self, configuration):
            return configuration.outcome != "ok"

    found = AdapterFidelity().measure(Contrary(1.0), 0)
    assert value(found, "memory_errors_missed", runs=ALL) == 1.0
    assert value(found, "memory_errors_invented", runs=ALL) == 1.0


def test_the_published_twin_is_judged_on_its_own_runs_alone(small_set):
    found = AdapterFidelity().measure(catalog.system("adapter-twin").build(), 0)
    # 31 said, 62 measured.
    assert value(found, "throughput_smape", runs=TWINS) == pytest.approx(2 / 3)
    assert {where.get("runs") for name, _, where in found.rows if name == "throughput_smape"} == {TWINS}


def test_simulating_predictors_say_how_fast_they_are_and_the_others_do_not(small_set):
    names = {}
    for system in ("adapters-fitted", "adapter-twin"):
        found = AdapterFidelity().measure(catalog.system(system).build(), 0)
        names[system] = {name for name, _, _ in found.rows}
    assert "hours_per_s" in names["adapters-fitted"]
    assert "hours_per_s" not in names["adapter-twin"]


def test_notes_name_the_worst_runs_and_say_what_was_fitted_to_what(small_set):
    notes = " ".join(AdapterFidelity().notes())
    assert "3 recorded runs" in notes
    assert "1 of them starved" in notes
    assert "twin_validation" in notes
    assert notes.count("Worst of adapters-fitted") == 3


def test_a_missing_data_set_is_named_before_any_trial(monkeypatch):
    def missing(name):
        raise DataUnavailableError(f"The data set {name!r} is not on this machine.")

    monkeypatch.setattr(datasets, "find", missing)
    forget()
    with pytest.raises(DataUnavailableError, match="lora-serving-vllm"):
        AdapterFidelity().check()


@pytest.fixture
def another_model(small_set):
    """The same set, of a model of which nothing ships."""
    for name in ("llama31_8b_runs.csv.gz", lora_fidelity.CAPACITY):
        file = small_set / name
        content = gzip.decompress(file.read_bytes()) if name.endswith(".gz") else file.read_bytes()
        content = content.replace(b"llama-3.1-8b-instruct", b"gemma-9")
        file.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    forget()
    return small_set


def test_a_folder_of_ones_own_is_judged_in_place_of_the_data_set(small_set, tmp_path):
    own = small_set.rename(tmp_path / "own")
    study = AdapterFidelity(folder=str(own))
    study.check()
    assert len(study.judged()) == 3
    assert list(study.data()) == [str(own)]


def test_another_model_needs_runs_to_fit_its_costs_to(another_model, monkeypatch):
    with pytest.raises(BadFileError, match="what a step of gemma-9 costs") as caught:
        AdapterFidelity().check()
    assert "1 runs of the set twin_validation" in str(caught.value)
    monkeypatch.setattr(lora_fidelity, "FEWEST_FITTED", 1)
    AdapterFidelity().check()


def test_what_does_not_ship_of_a_model_is_said_and_no_memory_error_predicted(another_model, monkeypatch):
    monkeypatch.setattr(lora_fidelity, "fit", lambda known: shipped_costs())
    notes = " ".join(AdapterFidelity().notes())
    assert "No costs ship for gemma-9" in notes
    assert "drawn with the means of its runs, 250 and 190 tokens" in notes
    assert "longest context of gemma-9 is not known" in notes
    found = AdapterFidelity().measure(catalog.system("adapters-fitted").build(), 0)
    assert {"throughput_smape"} <= {name for name, _, _ in found.rows}
    assert not [name for name, _, _ in found.rows if name.startswith("memory_errors")]
    assert AdapterFidelity().measure(catalog.system("adapters-published").build(), 0).rows == []


def test_a_folder_without_runs_to_judge_is_refused(small_set):
    with gzip.open(small_set / "llama31_8b_runs.csv.gz", "wt") as stream:
        writer = csv.DictWriter(stream, list(RUN))
        writer.writeheader()
        writer.writerow({**RUN, "set": "twin_validation"})
    forget()
    with pytest.raises(BadFileError, match="No run can be judged"):
        AdapterFidelity().check()


@pytest.mark.slow
def test_on_the_real_runs_fitted_costs_are_nearer_than_the_twin_and_than_costs_blind_to_adapters():
    try:
        datasets.find(lora_fidelity.DATASET)
    except DataUnavailableError as error:
        pytest.skip(f"the data set is not on this machine: {error.problem}")
    errors = {
        system: value(AdapterFidelity().measure(catalog.system(system).build(), 0), "throughput_smape", runs=TWINS)
        for system in ("adapters-fitted", "adapter-twin", "blind-to-adapters")
    }
    assert errors["adapters-fitted"] < 0.05 < errors["adapter-twin"] < errors["blind-to-adapters"]
