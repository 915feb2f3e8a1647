"""Advice on a problem in words and on a trace; and what is no question, no trace, no cluster."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wavetank import exits
from wavetank.cli import advise
from wavetank.ledger import catalog
from wavetank.run.comparison import Silence
from wavetank.workloads import RequestTrace

Call = Callable[..., Any]


def rows(count: int = 400) -> str:
    return "arrival_s,prompt_tokens,output_tokens\n" + "".join(
        f"{index * 0.05:.2f},{100 + index * 37 % 400},{20 + index * 13 % 60}\n" for index in range(count)
    )


def test_a_problem_in_words_finds_studies_systems_and_commands(call: Call) -> None:
    found = call("advise", "expert", "imbalance")
    assert (found.code, found.err) == (0, "")
    lines = found.out.splitlines()
    assert lines[0] == "llm-routing: Which router wastes the least time of data-parallel LLM workers?"
    text = " ".join(found.out.split())
    for part in (
        "problem Expert imbalance: the workers of a mixture-of-experts",
        "systems balance-route",
        "rivals ",
        "try wavetank advise mine.csv --gpus 16xH100 --model Llama-3.1-70B wavetank compare llm-routing --set trace=",
    ):
        assert part in text
    # The system that the kept plain run shows to lead is the one to launch.
    assert re.search(r"so far least-prefill has [\d.]+ % less p99 time to first token than vllm-default ", text)
    assert "Kept run: default." in text
    assert "launch wavetank launch router --policy least-prefill --backend http" in text
    assert call("advise", "expert imbalance").out == found.out


def test_at_most_five_studies_are_shown_and_all_fit_80_columns(call: Call) -> None:
    found = call("advise", "slow simulation, requests and protocols that lose messages")
    heads = [line for line in found.out.splitlines() if line[:1].strip()]
    assert 1 <= len(heads) <= 10
    assert len(json.loads(call("advise", "slow", "--json").out)) <= 5
    assert [line for line in found.out.splitlines() if len(line) > 80 and " wavetank " not in line] == []


def test_json_has_the_documented_keys(call: Call) -> None:
    (card, *_) = json.loads(call("advise", "stale reads", "--json").out)
    assert list(card) == ["study", "asks", "problem", "systems", "rivals", "kept", "answer", "commands", "launch"]
    assert card["study"] == "consistency-models"


@pytest.mark.parametrize("study", catalog.everything().studies)
def test_every_study_has_a_card_by_its_name(call: Call, study: str) -> None:
    found = call("advise", study)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"{study}: ")
    assert f"wavetank compare {study}" in found.out


def test_a_study_with_files_that_can_be_checked_says_so(call: Call) -> None:
    assert "wavetank check FILE" in call("advise", "threshold-checkers").out


@pytest.mark.parametrize("words", [[], [""], ["  "], ["\t", " "]])
def test_no_question_is_an_error_with_the_next_step(call: Call, words: list[str]) -> None:
    found = call("advise", *words)
    assert (found.code, found.out) == (exits.USAGE, "")
    assert found.err.startswith("Nothing was asked for.\n")
    assert "next: wavetank advise " in found.err


@pytest.mark.parametrize("words", ["xyzzy", "?!", "the", "\x00", "a" * 5000])
def test_words_that_match_nothing_find_nothing(call: Call, words: str) -> None:
    found = call("advise", words)
    assert (found.code, found.out) == (exits.USAGE, "")
    assert found.err.startswith("No study is about this.\n")
    assert "\n  nearest: " not in found.err
    assert "\n  next: wavetank list --studies" in found.err


def test_a_misspelt_study_comes_with_the_nearest(call: Call) -> None:
    found = call("advise", "quontas")
    assert "quantas" in found.out + found.err


def test_files_that_are_no_trace_come_with_the_next_step(call: Call, here: Path) -> None:
    (here / "notes.md").write_text("hello")
    (here / "other.csv").write_text("a,b\n1,2\n")
    (here / "empty.csv").write_text("")
    (here / "text.txt").write_text("one two\n1 2\n")
    (here / "words.csv").write_text("ts,prompt,output\n1,why,because\n")
    (here / "history.edn").write_text("{}")
    (here / "folder").mkdir()
    for name, part in [
        ("notes.md", "one request per row"),
        ("other.csv", "--set columns="),
        ("empty.csv", "next: "),
        ("history.edn", "wavetank check history.edn"),
        ("folder", "a problem in words"),
        ("nope.csv", "a problem in words"),
        ("nope.tsv", "a problem in words"),
        ("text.txt", "--set columns=arrival_s=COLUMN"),
        ("words.csv", "row 1, column 'prompt'"),
        ("no/such/file", "a problem in words"),
    ]:
        found = call("advise", name)
        assert (found.code, found.out) == (exits.USAGE, ""), name
        assert part in found.err, found.err
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("options", "problem", "part"),
    [
        (["--gpus", "16"], "This is not a number of GPUs.", "NxGPU"),
        (["--gpus", "0xH100"], "This is not a number of GPUs.", "NxGPU"),
        (["--gpus", "4xH1000"], "There is no device named 'H1000'.", "nearest: H100"),
        (["--model", "gpt-9"], "There is no model named 'gpt-9'.", "Llama-3.1-70B"),
        (["--model", ""], "There is no model named ''.", "Llama-3.1-70B"),
        (["--gpus", "3xH100", "--model", "Llama-3.1-70B"], "These GPUs hold one worker", "--gpus 4xH100"),
        (["--gpus", "2xL4", "--model", "DeepSeek-V3"], "DeepSeek-V3 leaves no room", "raise tensor_parallel"),
        (["--slo", "tfft=2s"], "There is no objective named 'tfft'.", "nearest: ttft"),
        (["--slo", "ttft=0s"], "An objective must be more", "ttft=0s"),
        (["--slo", ""], "No objective was given.", "ttft=2s"),
        (["--slo", "ttft=2kg"], "", "kg"),
        (["--budget", "0s"], "The budget must be more", "--budget"),
        (["--budget", "soon"], "", "soon"),
        (["--layout", "ring"], "The value is not one of", "replicas"),
        (["--set", "wrkers=3"], "There is no setting named 'wrkers'.", "nearest: workers"),
        (["--set", "workers"], "This is not a setting.", "KEY=VALUE"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_runs(
    call: Call, here: Path, options: list[str], problem: str, part: str
) -> None:
    (here / "mine.csv").write_text(rows())
    found = call("advise", "mine.csv", *options)
    assert (found.code, found.out) == (exits.USAGE, "")
    assert problem in found.err
    assert part in found.err
    assert not (here / "runs").exists()


def test_options_about_a_trace_need_one(call: Call) -> None:
    found = call("advise", "tail latency", "--gpus", "4xH100")
    assert (found.code, found.out) == (exits.USAGE, "")
    assert found.err.startswith("These options are about a trace")


def test_a_cluster_becomes_workers_of_the_fewest_devices_that_hold_the_model(here: Path) -> None:
    (here / "mine.csv").write_text(rows())

    def of(gpus: str, model: str, **more: Any) -> tuple[dict[str, Any], list[str]]:
        asked = advise._Asked(**{"trace": "mine.csv", "gpus": gpus, "model": model, "slo": None, "layout": None,
                                 "pairs": (), **more})  # fmt: skip
        return advise._settings(asked)

    settings, assumed = of("16xH100", "meta-llama/Llama-3.1-70B-Instruct", slo="ttft=2s, tpot=50ms")
    assert (settings["workers"], settings["device"], settings["tensor_parallel"]) == (4, "H100-SXM", 4)
    assert (settings["slo_ttft_s"], settings["slo_tpot_s"]) == (2.0, 0.05)
    # Objectives decide by what is served within them.
    assert settings["decide_by"] == "goodput_per_s"
    assert "decide_by" not in of("16xH100", "meta-llama/Llama-3.1-70B-Instruct")[0]
    assert settings["layout"] == "replicas"
    assert len(assumed) == 3
    # Fewer slots need less cache: then two devices share the weights.
    assert of("16xH100", "Llama-3.1-70B", pairs=("max_running=64",))[0]["tensor_parallel"] == 2
    settings, assumed = of("9 x h200-sxm", "qwen3-30b-a3b", layout="decode-group")
    assert (settings["workers"], settings["tensor_parallel"], settings["layout"]) == (9, 1, "decode-group")
    assert assumed == []
    settings, assumed = of("9xH200", "Qwen3-30B-A3B", pairs=("tensor_parallel=2", "max_running=8"))
    assert (settings["workers"], settings["layout"], settings["max_running"]) == (4, "group", 8)
    assert "1 of the 9 GPUs are left over." in assumed


def test_a_trace_gets_a_decision_its_caveats_and_the_launch(call: Call, here: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(advise, "SEEDS", 2)
    (here / "mine.csv").write_text(rows())
    found = call("advise", "mine.csv", "--gpus", "2xH100", "--model", "Llama-3.1-8B", "--set", "max_running=4")
    assert found.code == 0
    assert "No answer yet on p99 time to first token: 2 of the 3 pairs needed" in " ".join(found.out.split())
    for part in (
        "The trace's own rate is 20 requests/s: ",
        "\nAssumed\n  Llama-3.1-8B is dense, so that workers are independent: --layout replicas.\n  H100 is read as ",
        "\nLaunch vllm-default (nothing is shown to be better)\n  wavetank launch router --policy vllm-default ",
        " --max-running 4\n  one --backend for each of the 2 workers",
        "\npage    runs/llm-routing/",
        "\nagain   wavetank compare llm-routing --set trace=mine.csv ",
    ):
        assert part in found.out, found.out
    text = " ".join(found.out.split())
    assert re.search(r"a TTFT of 2 s and a TPOT of 100 ms: vllm-default \d+% of [\d.]+ requests/s offered\. ", text)
    assert re.search(r"p99 of the TTFT: vllm-default [\d.]+ m?s\.", text)
    assert "Only 320 requests of the trace stand behind these figures" in text
    # Before any figure: what was read and what is assumed.
    said = " ".join(found.err.split())
    read = said.index("Read mine.csv: 400 requests over 19.9 s, 20 requests/s")
    assert read < said.index("--layout replicas.") < said.index("Assumed: 320 requests") < said.index("trials;")
    assert [line for line in found.out.splitlines() if len(line) > 80 and "wavetank " not in line] == []
    (page,) = here.glob("runs/llm-routing/*/report.html")
    assert "llm-routing" in page.read_text()


def test_what_was_read_is_said_before_a_trace_is_refused(call: Call, here: Path) -> None:
    (here / "one.csv").write_text(rows(1))
    found = call("advise", "one.csv", "--gpus", "2xH100", "--model", "Llama-3.1-8B")
    assert (found.code, found.out) == (exits.USAGE, "")
    assert found.err.startswith("Read one.csv: 1 request all at one instant\n")
    assert "\nToo few requests are left to serve.\n" in found.err


def _served(requests: Any, **settings: Any) -> Any:
    """Return a finished run, as far as advice looks at it, of a cluster that is saturated at 10 requests/s."""
    facts = SimpleNamespace(dropped=settings.pop("dropped", {}))
    study = SimpleNamespace(read=lambda: requests, facts=lambda: facts, baseline="vllm-default")
    record = SimpleNamespace(system="vllm-default", metric="saturation_per_s", at={}, value=10.0)
    given = {"trace": "my trace.csv", "load": 0.9, "workers": 4, "max_running": 64, "columns": (), "time_unit": ""}
    return SimpleNamespace(study=study, records=[record], plan=SimpleNamespace(settings=given | settings))


def test_the_busiest_minute_of_a_trace_stands_beside_its_mean_rate() -> None:
    calm, busy = [float(second) for second in range(600)], [300.0 + number / 20 for number in range(1200)]
    lengths = [1] * 1800
    trace = RequestTrace(arrival_s=sorted(calm + busy), prompt_tokens=lengths, output_tokens=lengths)
    said = advise._own_rate(_served(trace))
    assert said.startswith("The trace's own rate is 3.00 requests/s, and 21 in its busiest minute: 30% and 210% of ")
    assert "busiest" not in advise._own_rate(_served(trace.slice(0, 120)))
    assert advise._own_rate(_served(trace, load=0)) == advise._own_rate(_served(trace, trace="generated")) == ""
    assert advise._own_rate(_served(trace.head(1))) == ""


def test_objectives_are_met_by_a_share_of_what_is_offered() -> None:
    def figures(offered_per_s: float) -> Any:
        run = _served(None, slo_ttft_s=2.0, slo_tpot_s=0.05)
        for name, within_per_s, tail_s in (("vllm-default", 3.0, 12.0), ("balance-route", 4.1, 0.5)):
            values = {"offered_per_s": offered_per_s, "goodput_per_s": within_per_s, "ttft_p99_s": tail_s}
            run.records += [SimpleNamespace(system=name, metric=key, at={}, value=values[key]) for key in values]
        return run

    names = ("balance-route", "vllm-default")
    assert advise._objectives_met(figures(4.0), names) == (
        "Within a TTFT of 2 s and a TPOT of 50 ms: balance-route 100%, vllm-default 75% of 4 requests/s offered. "
        "p99 of the TTFT: balance-route 500 ms, vllm-default 12 s."
    )
    assert advise._objectives_met(figures(float("nan")), names[1:]) == "p99 of the TTFT: vllm-default 12 s."


def test_what_is_launched_is_what_was_simulated() -> None:
    line, (needs,) = advise._launch(_served(None), "vllm-default")
    assert line == "wavetank launch router --policy vllm-default --backend http://127.0.0.1:8001 --max-running 64"
    assert needs == (
        "one --backend for each of the 4 workers, which run up to 64 requests at once as in the simulation "
        "(vLLM: --max-num-seqs 64)"
    )
    # Its predictor of lengths learned from the trace.
    assert advise._launch(_served(None), "balance-route")[0].endswith(" --max-running 64 --learn-from 'my trace.csv'")
    assert "--learn-from" not in advise._launch(_served(None, trace="generated"), "balance-route")[0]
    for defects in ({"columns": ("arrival_s=x",)}, {"time_unit": "ms"}):
        line, needs = advise._launch(_served(None, **defects), "balance-route")
        assert "--learn-from" not in line
        assert needs[1].startswith("--learn-from FILE, a trace whose columns are recognised")
    assert advise._launch(_served(None), "one-step-optimum") == ("", [])


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(call: Call, here: Path, monkeypatch: Any) -> None:
    from wavetank.run import comparison

    def stop(*_: Any, **__: Any) -> None:
        raise comparison.Interrupted(here, 3, 60)

    monkeypatch.setattr(comparison, "run_plan", stop)
    (here / "mine.csv").write_text(rows())
    found = call("advise", "mine.csv", "--gpus", "2xH100", "--model", "Llama-3.1-8B", "--set", "max_running=4")
    assert (found.code, found.out) == (exits.INTERRUPTED, "")
    assert "next: wavetank compare llm-routing --resume runs/llm-routing/" in found.err


def _budgeted(budget_s: float, seconds_per_trial: float, seeds: int = 6) -> tuple[int, ...] | None:
    """Return the seeds at which a run of two systems ends, None when it is not cut short."""
    now = [0.0]
    progress = advise._Budgeted(Silence(), budget_s, clock=lambda: now[0])
    plan: Any = SimpleNamespace(systems=("a", "b"))
    progress.begin(None, plan, 2 * seeds, 2 * seeds, ())  # type: ignore[arg-type]
    left = 2 * seeds
    for seed in range(seeds):
        for system in ("a", "b"):
            now[0] += seconds_per_trial
            left -= 1
            record: Any = SimpleNamespace(system=system, seed=seed)
            try:
                progress.trial([record], left)
            except advise._Spent as spent:
                return spent.seeds
    return None


def test_the_budget_adds_no_seed_but_leaves_enough_for_an_answer() -> None:
    assert _budgeted(1000, 1) is None
    assert _budgeted(8.5, 1) == (0, 1, 2, 3)
    assert _budgeted(0.001, 1) == (0, 1, 2)
    assert _budgeted(11.9, 1) == (0, 1, 2, 3, 4)
    assert _budgeted(0.001, 1, seeds=3) is None


def test_a_spent_budget_gives_a_run_of_the_finished_seeds(call: Call, here: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(advise, "OF_TRACES", "toy-noise")
    from wavetank.run import comparison, runfolder

    plan, study = comparison.make_plan("toy-noise", seeds=6)
    result = advise._run(plan, study, runfolder.create(here, plan), 1e-9, plain=True)
    assert result is not None
    assert 3 <= len(result.plan.seeds) <= 6
    assert {record.seed for record in result.records} == set(result.plan.seeds)
    assert runfolder.load_plan(result.folder / "study.toml").seeds == result.plan.seeds


def test_kept_runs_that_cannot_be_read_are_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from wavetank.ledger import claims

    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path)
    assert advise.kept_answer("llm-routing") == ("", None)
    broken = tmp_path / "llm-routing" / "broken"
    broken.mkdir(parents=True)
    (broken / "run.json").write_bytes(b"\xff{")
    (broken / "study.toml").write_text("not = [toml")
    assert advise.kept_answer("llm-routing") == ("", None)


def test_the_kept_run_at_the_usual_settings_comes_before_newer_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A case that was run later says less about the question than the study's plain run."""
    from wavetank.ledger import claims

    names = ("azure-conv-2023-group", "generated-group")
    kept = claims.evidence_folder() / "llm-routing"
    for name in names:
        shutil.copytree(kept / name, tmp_path / "llm-routing" / name)
    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path)
    for newer in names:
        for name in names:
            file = tmp_path / "llm-routing" / name / "run.json"
            run = json.loads(file.read_text())
            run["started"] = "2026-02-02T00:00:00" if name == newer else "2026-01-01T00:00:00"
            file.write_text(json.dumps(run))
        label, answer = advise.kept_answer("llm-routing")
        assert answer is not None
        assert label.startswith("generated-group --set ")
        assert " --set layout=group" in label
        assert "trace" not in label


def test_the_kept_run_with_the_systems_of_a_plain_run_comes_before_a_newer_one_of_a_few(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A later run of three systems has not looked at the one that leads."""
    from wavetank.ledger import claims

    kept = claims.evidence_folder() / "llm-routing"
    for name, started in (("default", "2026-01-01"), ("latency-routers", "2026-02-02")):
        shutil.copytree(kept / name, tmp_path / "llm-routing" / name)
        file = tmp_path / "llm-routing" / name / "run.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "started": f"{started}T00:00:00"}))
    monkeypatch.setattr(claims, "evidence_folder", lambda: tmp_path)
    assert advise.kept_answer("llm-routing")[0] == "default"
